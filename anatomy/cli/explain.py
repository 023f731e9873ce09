"""anatomy-explain: what the parts are, which fault each mends, and what is claimed of them."""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from anatomy import __version__
from anatomy.cli.common import console, run_click
from anatomy.errors import UserError

OLD, NEW = "vanilla", "llama"  # the bases whose parts the story sets side by side


@click.command(name="anatomy-explain")
@click.version_option(__version__)
@click.option("--parts", "of_parts", is_flag=True, help="The five parts in one table, then every claim and part.")
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def command(of_parts: bool, as_json: bool) -> None:
    """Explain what models are made of."""
    if not of_parts:
        raise UserError(
            "anatomy-explain: tells what the parts are and what is claimed of them; type: anatomy-explain --parts"
        )
    parts = all_parts()
    if as_json:
        json.dump(parts, sys.stdout, indent=1, ensure_ascii=False)
        print()
    else:
        show(parts)


def all_parts() -> list[dict[str, Any]]:
    """Every part offered on the five swapped axes, and what its YAML says of it. `base`: which of the two has it."""
    from anatomy.about import about, offered
    from anatomy.axes import SWAPPED_AXES, part_of

    bases = {axis: {part_of(base, axis): base for base in (OLD, NEW)} for axis in SWAPPED_AXES}
    return [
        {"axis": axis, "part": part, "base": bases[axis].get(part), **asdict(about(axis, part))}
        for axis in SWAPPED_AXES
        for part in offered(axis)
    ]


def show(parts: list[dict[str, Any]]) -> None:
    """Print the table of the five parts, then what is claimed, then the parts that neither base has."""
    from rich.table import Table

    out = console()
    old = {part["axis"]: part for part in parts if part["base"] == OLD}
    five = Table(box=None, pad_edge=False)
    for heading in ("axis", "2017 part", "its fault", "LLaMA part", "what it does", "where it pays"):
        five.add_column(heading, overflow="fold", no_wrap=heading == "axis")
    for new in (part for part in parts if part["base"] == NEW):
        axis = new["axis"]
        five.add_row(axis, old[axis]["part"], new["fault"], new["part"], new["does"], new["pays"])
    out.print(five)
    for title, rows in (
        (
            "claims, each examined by the exam of its axis, such as study=exam_norm",
            [row for part in parts for row in _claims(part)],
        ),
        ("other parts", [(_typed(part), part["what"], part["source"]) for part in parts if part["base"] is None]),
    ):
        table = Table.grid(padding=(0, 2))
        for is_name in (True, False, False):
            table.add_column(overflow="fold", no_wrap=is_name)
        for row in rows:
            table.add_row(*row)
        out.print(f"\n{title}")
        out.print(table)


def _claims(part: dict[str, Any]) -> list[tuple[str, str, str]]:
    return [(_typed(part), claim["text"], claim["source"]) for claim in part["claims"].values()]


def _typed(part: dict[str, Any]) -> str:
    return f"{part['axis']}={part['part']}"


def main() -> None:
    """Run the command line."""
    run_click(command)


if __name__ == "__main__":
    main()
