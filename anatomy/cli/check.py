"""anatomy-check: the self-check that a reader can run."""

import click

from anatomy import __version__
from anatomy.cli.common import DONE, FAILED, console, run_click

MARKS = {True: "ok", False: "WRONG", None: ""}


@click.command(name="anatomy-check")
@click.version_option(__version__)
def command() -> int:
    """Check this installation: environment, corpora, every part on every base, RoPE, parameter counts, decoding."""
    import torch
    from rich.table import Table

    from anatomy.check import check_all

    torch.set_num_threads(1)  # models this small only wait for a second one
    table = Table("what", "found", "", box=None)
    findings = []
    for finding in check_all():
        findings.append(finding)
        table.add_row(finding.subject, finding.found, MARKS[finding.is_good])
    wrong = sum(finding.is_good is False for finding in findings)
    out = console()
    out.print(table)
    out.print(f"{len(findings)} checks, {wrong} wrong")
    return FAILED if wrong else DONE


def main() -> None:
    run_click(command)
