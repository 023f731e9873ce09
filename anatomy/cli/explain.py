"""anatomy-explain: what a model is made of and what it costs; what the parts are, which fault each mends."""

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from anatomy import __version__
from anatomy.checkpoints.field_table import MAX_SIZES
from anatomy.cli.common import console, run_click
from anatomy.errors import UserError

MAX_CONTEXT, MAX_TRACED = MAX_SIZES["ctx_len"], 2**20  # tokens
OLD, NEW = "vanilla", "llama"  # the bases whose parts the story sets side by side
EXAMPLES = """\b
anatomy-explain llama3-8b
anatomy-explain gpt2-xl llama2-7b llama3-8b
anatomy-explain base=llama model.d_model=4 --trace
anatomy-explain 'base=gpt2 model.d_model=4096 model.n_head=32' llama3-8b
anatomy-explain path/to/config.json --context 131072
anatomy-explain --parts
"""


@click.command(name="anatomy-explain", epilog=EXAMPLES)
@click.version_option(__version__)
@click.argument("what", nargs=-1)
@click.option("--context", type=click.IntRange(1, MAX_CONTEXT), help="Tell costs at so many tokens; default: its own.")
@click.option("--trace", "is_traced", is_flag=True, help="Walk a text through: every module, every shape.")
@click.option("--tokens", type=click.IntRange(1, MAX_TRACED), help="Tokens that --trace reads at first; default: 3.")
@click.option("--parts", "of_parts", is_flag=True, help="The five parts in one table, then every claim and part.")
@click.option("--json", "as_json", is_flag=True, help="The same as data.")
def command(
    what: tuple[str, ...], context: int | None, is_traced: bool, tokens: int | None, of_parts: bool, as_json: bool
) -> None:
    """Explain what models are made of and what they cost.

    WHAT is a model by name (such as gpt2, llama3-8b, mistral-7b), a config.json or its folder, the folder of a run or
    of an imported model, or overrides as anatomy-train takes them. Several stand side by side.
    """
    if of_parts and (what or context or is_traced or tokens):
        raise UserError("--parts: tells of all parts, and takes nothing beside it but --json")
    if tokens and not is_traced:
        raise UserError(f"--tokens {tokens}: is for --trace; type both")
    if of_parts:
        parts = all_parts()
        _print_json(parts) if as_json else show(parts)
    elif what:
        _explain(what, context, (tokens or 3) if is_traced else None, as_json=as_json)
    else:
        raise UserError(
            "anatomy-explain: needs a WHAT, such as llama3-8b, base=llama or a config.json; for the parts and what is "
            "claimed of them, type: anatomy-explain --parts"
        )


def _explain(words: tuple[str, ...], context: int | None, num_traced: int | None, *, as_json: bool) -> None:
    from anatomy.explaining import explain
    from anatomy.subjects import subjects_of

    explanations = [explain(subject, context) for subject in subjects_of(words)]
    traces = []
    if num_traced is not None:
        from anatomy.tracing import trace

        traces = [trace(explanation, num_traced) for explanation in explanations]
    if as_json:
        content = [explanation.as_json() for explanation in explanations]
        for told, walked in zip(content, traces, strict=False):
            told["trace"] = walked.as_json()
        _print_json(content)
        return
    from anatomy.cli.explanations import show_many, show_one, show_trace

    out = console()
    if traces:
        for explanation, walked in zip(explanations, traces, strict=True):
            show_trace(out, explanation, walked)
    elif len(explanations) == 1:
        show_one(out, explanations[0])
    else:
        show_many(out, explanations)


def _print_json(content: Any) -> None:
    json.dump(content, sys.stdout, indent=1, ensure_ascii=False, allow_nan=False)
    print()


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
