"""anatomy-report: gather runs into the comparison table."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from anatomy import __version__
from anatomy.cli.common import DONE, FAILED, console, printable, run_click

if TYPE_CHECKING:
    from anatomy.report.data import Report

FORMATS = ("table", "md", "csv", "json", "tex", "html")


@click.command(name="anatomy-report")
@click.version_option(__version__)
@click.argument("directory", metavar="[DIR]", default="outputs")
@click.option("--format", "form", type=click.Choice(FORMATS), default="table", show_default=True, help="What to print.")
@click.option("--study", "studies", multiple=True, metavar="NAME", help="Only this study of the folder; may repeat.")
@click.option("--out", default=None, metavar="DIR", help="Also write report.html, .md, .csv, .json and .tex there.")
@click.option("--figures", is_flag=True, help="With --out: also save every figure there, as SVG and PNG.")
def command(directory: str, form: str, studies: tuple[str, ...], out: str | None, figures: bool) -> int:
    """Compare the runs under DIR: an outputs folder, a study's, a folder of runs, or one run.

    Exits with 1 when nothing there can be compared.
    """
    if out == "":
        raise click.UsageError("--out needs the name of a folder")
    if figures and out is None:
        raise click.UsageError("--figures needs a place to save them: add --out DIR")
    from anatomy.report.table import build_report
    from anatomy.report.views import show, to_csv, to_json, to_latex, to_markdown

    report = build_report(Path(directory), studies)
    views = {"md": to_markdown, "csv": to_csv, "json": to_json, "tex": to_latex, "html": _to_html}
    if form == "table":
        show(report, console())
    else:
        text = views[form](report)
        sys.stdout.write(printable(text) if sys.stdout.isatty() else text)
    if out is not None:
        _write(Path(out), {name: view(report) for name, view in views.items()}, report if figures else None)
    if not report.studies:
        click.echo(f"{directory!r}: holds no runs; type: anatomy-train study=swaps", err=True)
    elif not report.is_comparable:
        click.echo(f"{directory!r}: holds nothing comparable: no row has a seed in common with its base", err=True)
    return DONE if report.is_comparable else FAILED


def _to_html(report: "Report") -> str:
    from anatomy.report.page import to_html  # a second for matplotlib, which the other views need not wait

    return to_html(report)


def _write(folder: Path, contents: dict[str, str], with_figures_of: "Report | None") -> None:
    from anatomy.errors import UserError
    from anatomy.files import write_atomic

    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            write_atomic(folder / f"report.{name}", content.encode("utf-8"))
        if with_figures_of is not None:
            from anatomy.report.figures import write_figures

            (folder / "figures").mkdir(exist_ok=True)
            write_figures(with_figures_of, folder / "figures")
    except OSError as error:
        raise UserError(f"--out {str(folder)!r}: cannot write there ({error.strerror})") from error
    click.echo(f"written: {folder / 'report.html'}, and .md .csv .json .tex beside it", err=True)


def main() -> None:
    run_click(command)
