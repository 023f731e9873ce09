"""The report as text: terminal, Markdown, LaTeX, CSV, JSON. All views show the same data and compute nothing."""

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from anatomy.axes import AXES
from anatomy.report.cards import card_title, details, facts, measured, statement, verdict_of
from anatomy.report.cells import shown_tables
from anatomy.report.columns import Column, cost_columns, estimate, verdict_columns
from anatomy.report.data import Attribution, Card, Estimate, Report, Row, Table, Tuning
from anatomy.report.diagnosis import diagnosis_notes
from anatomy.report.words import MINUS, visible, with_minus

NARROW, GAP = 40, 2  # columns that a name may take before it wraps, and between two columns
CLAIM_INDENT = 4  # of what stands below a claim


NAME = Column("row", "differences from the base", lambda row: visible(row.name), is_text=True)


def columns(table: Table) -> list[Column]:
    """The columns beside the name."""
    return [*verdict_columns(table), *cost_columns(table)]


FOR_DETAIL = (
    *("own interval", "least margin", "detectable", "seeds needed"),
    *("sd", "sd paired", "sd unpaired", "correlation", "text share"),
    *("bits/char", "best validation", "last three", "params %", "steps"),
)
"""The columns that a page does without; terminal, CSV and JSON have them."""
FOR_SCREENS = ("p (Holm)", "best step", "params", "FLOPs/token", "KV bytes/token", "status")
"""The columns that paper does without, besides."""


def _without(headings: Sequence[str], table: Table) -> list[Column]:
    return [NAME, *(column for column in columns(table) if column.heading not in headings)]


def attribution_cells(found: Attribution) -> tuple[list[str], list[list[str]]]:
    """Heading and lines of an attribution's table: an axis a line, a quantity a column; those that exist."""
    columns: list[tuple[str, Mapping[str, Estimate]]] = [
        (f"alone in {found.base}", found.add_one_in),
        (f"alone in {found.counterpart}", found.leave_one_out),
        ("step of the walk", dict(found.walk)),
        ("main effect", found.main_effects),
        ("Shapley value", found.shapley),
    ]
    there = [(heading, estimates) for heading, estimates in columns if estimates]
    lines = [
        [axis, *(estimate(estimates.get(axis)) for _, estimates in there), _rest(found, axis)] for axis in found.axes
    ]
    return ["axis", *(heading for heading, _ in there), ""], lines


def _rest(found: Attribution, axis: str) -> str:
    if axis not in found.add_one_in or axis not in found.leave_one_out:
        return "not judged"
    return "depends on the rest" if axis in found.depends_on_the_rest else ""


def attribution_notes(found: Attribution) -> list[str]:
    """The finding, what it rests on, and the interactions."""
    pairs = sorted(found.interactions.items(), key=lambda item: -abs(item[1].nats))
    return [
        *([found.findings["verdict"]] if "verdict" in found.findings else []),
        *([f"main effects and Shapley values: {found.model}"] if found.model else []),
        *([f"interactions: {', '.join(f'{pair} {estimate(one)}' for pair, one in pairs)}"] if pairs else []),
    ]


# ------------------------------------------------------------------------------------------------ terminal


def show(report: Report, console: Console) -> None:
    """Print every card and table, in as many pieces as the width asks for; nothing is ever cut."""
    for warning in report.warnings:
        console.print(Text(f"warning: {visible(warning)}"))
    for card in report.exams:
        _show_card(card, console)
    for table in shown_tables(report.studies):
        console.print(Text(visible(title(table)), style="bold"))
        if table.rows:
            console.print(_pieces(table, console.width), soft_wrap=True)
        for line in notes(table):
            console.print(Text(visible(line)))
        console.print()
    for found in report.attribution:
        console.print(Text(visible(attribution_title(found)), style="bold"))
        console.print(_grid(*attribution_cells(found)), soft_wrap=True)
        for line in attribution_notes(found):
            console.print(Text(visible(line)))
        console.print()


def _show_card(card: Card, console: Console) -> None:
    console.print(Text(visible(card_title(card)), style="bold"))
    for fact in facts(card):
        console.print(Text(visible(fact)))
    for claim in card.claims:
        console.print(Text.assemble((visible(verdict_of(claim)), "bold"), "  ", visible(statement(claim))))
        for line in details(claim):
            for piece in Text(visible(line)).wrap(console, console.width - CLAIM_INDENT):
                console.print(Text(" " * CLAIM_INDENT).append_text(piece), soft_wrap=True)
    console.print()


def _grid(heading: Sequence[str], lines: Sequence[Sequence[str]]) -> Text:
    """A small table whose first column is text and whose others are numbers."""
    columns = list(zip(heading, *lines, strict=True))
    widths = [max(map(cell_len, column)) for column in columns]
    text = Text()
    for line in [heading, *lines]:
        first, *others = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        text.append((" " * GAP).join([first, *others]).rstrip() + "\n")
    text.right_crop()
    return text


def _pieces(table: Table, width: int) -> Text:
    """The columns in as many tables as the width asks for, the row's name in each; a long name goes on below."""
    names = [NAME.heading, *map(NAME.shown, table.rows)]
    name_width = min(max(map(cell_len, names)), max(NARROW, width // 3))
    pieces: list[list[list[str]]] = [[]]
    room = width - name_width - GAP
    for column in columns(table):
        cells = _aligned(column, table.rows)
        needed = GAP + cell_len(cells[0])
        if needed > room and pieces[-1]:
            pieces.append([])
            room = width - name_width - GAP
        pieces[-1].append(cells)
        room -= needed
    text = Text()
    for piece in pieces:
        heading, *lines = _piece(names, piece, name_width)
        text.append(f"{heading}\n", style="bold").append("".join(f"{line}\n" for line in lines))
    text.right_crop()  # the last line end, which printing adds
    return text


def _aligned(column: Column, rows: Sequence[Row]) -> list[str]:
    """A column's heading and cells, padded to one width: text to the left, numbers to the right."""
    cells = [column.heading, *map(column.shown, rows)]
    widths = [cell_len(cell) for cell in cells]
    pads = [" " * (max(widths) - width) for width in widths]
    return [cell + pad if column.is_text else pad + cell for cell, pad in zip(cells, pads, strict=True)]


def _piece(names: Sequence[str], columns_of_cells: Sequence[Sequence[str]], name_width: int) -> Iterator[str]:
    """Lines of equal width. Rich's own tables take a second for a thousand rows."""
    gap = " " * GAP
    for name, *cells in zip(names, *columns_of_cells, strict=True):
        line = gap.join(cells)
        for part in chop_cells(name, name_width):
            yield f"{part}{' ' * (name_width - cell_len(part))}{gap}{line}"
            line = " " * cell_len(line)


def title(table: Table) -> str:
    """`swaps, base vanilla: kjv, 48x3, ...`."""
    sizes = ", ".join(f"{key} {value}" for key, value in table.sizes.items())
    words = [
        ", ".join(filter(None, [table.study, f"base {table.base or 'unknown'}", table.title])),
        table.corpus,
        sizes,
        table.steps and f"{table.steps:,} steps",
    ]
    return ": ".join([str(words[0]), ", ".join(str(word) for word in words[1:] if word)])


def attribution_title(found: Attribution) -> str:
    return f"{found.study}: from {found.base} to {found.counterpart}, who earned what"


def notes(table: Table) -> list[str]:
    """The lines under a table: finding, reasons, rungs, what was set aside, deviations, warnings, what to run next, and
    what all of it was measured on."""
    lines = [table.findings["verdict"]] if "verdict" in table.findings else []
    lines += [f"{row.name}: {error}" for row in table.rows for error in row.errors]
    if table.rungs:
        tables = ", ".join(f"{n} {value:.3f}" for n, value in table.rungs.items() if n != "xz")
        lines.append(f"rungs, nats: n-gram tables of n = {tables}; xz {table.rungs['xz']:.3f}")
    lines += [_tuning(one) for one in table.tuning]
    lines += diagnosis_notes(table.diagnosis)
    lines += [f"set aside: {aside.run}: {aside.reason}" for aside in table.set_aside]
    if table.registration:
        started = f" (started {table.registration.started})" if table.registration.started else ""
        lines += [f"deviation from the plan{started}: {deviation}" for deviation in table.registration.deviations]
    lines += [f"warning: {warning}" for warning in table.warnings]
    lines += method(table)
    facts = {
        "seeds": " ".join(map(str, table.seeds)),
        "tokens per parameter": _fact(table.tokens_per_param),
        "epochs": _fact(table.epochs),
        "device": ", ".join(table.devices),
        "commit": ", ".join(table.commits),
    }
    line = "; ".join(f"{name} {fact}" for name, fact in facts.items() if fact)
    return [*([table.question] if table.question else []), *lines, *([line] if line else [])]


def _tuning(tuning: Tuning) -> str:
    pairs = zip(tuning.rates, tuning.val_loss_nats, strict=True)
    losses = ", ".join(f"{rate:g} {'diverged' if nats is None else f'{nats:.4f}'}" for rate, nats in pairs)
    return f"{tuning.row}: best at train.lr={tuning.best:g} by validation, {losses}"


def method(table: Table) -> list[str]:
    """How the differences are to be read, in the words of the protocol."""
    if not any(row.num_pairs for row in table.rows):
        return []
    lines = [f"differences: mean over common seeds of row minus base, {table.metric}; below 0 is better"]
    if table.prior_variance is not None:
        weight = "no more than by chance" if table.prior_df is None else f"with {table.prior_df:.1f} degrees of freedom"
        spread = math.sqrt(table.prior_variance)
        lines.append(
            f"intervals: {100 * (1 - table.alpha):g} %, simultaneous over {table.num_compared} rows, margin "
            f"{table.margin_nats:g} nats; the rows' paired spreads scatter around {spread:.4f} nats {weight}; "
            "detectable: with a power of 80 %"
        )
    if table.noise_floor is not None:
        lines.append(f"noise floor: the base differs from itself, started or ordered anew, by {table.noise_floor:.4f}")
    if table.seeds_command:
        lines.append(
            f"to find differences of {table.margin_nats:g} nats where nothing is decided yet: {table.seeds_command} "
            "(seeds beyond a study's plan make its verdicts exploratory; output_dir=NEW starts a plan of its own)"
        )
    return lines


def _fact(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# ------------------------------------------------------------------------------------------------ files


def to_json(report: Report) -> str:
    """The data as it is, strict JSON. Half a character, which UTF-8 cannot hold, becomes its JSON escape."""
    text = json.dumps(asdict(report), indent=1, ensure_ascii=False, allow_nan=False)
    return re.sub("[\ud800-\udfff]", lambda half: f"\\u{ord(half[0]):04x}", text) + "\n"


def to_markdown(report: Report) -> str:
    """A section a card and a table; cells are escaped, so that each row has as many as the heading."""
    lines = [f"> warning: {_escaped(warning)}\n" for warning in report.warnings]
    for card in report.exams:
        lines += [f"## {_escaped(card_title(card))}", "", *(f"- {_escaped(fact)}" for fact in facts(card))]
        for claim in card.claims:
            lines.append(f"- **{_escaped(verdict_of(claim))}**, {_escaped(statement(claim))}")
            lines += [f"  - {_escaped(line)}" for line in details(claim)]
        lines.append("")
    for table in shown_tables(report.studies):
        lines += [f"## {_escaped(title(table))}", ""]
        if table.rows:
            shown = _without(FOR_DETAIL, table)
            lines.append(_markdown_row([column.heading for column in shown]))
            lines.append(_markdown_row(["---" if column.is_text else "---:" for column in shown]))
            lines += [_markdown_row([_escaped(column.shown(row)) for column in shown]) for row in table.rows]
            lines.append("")
        lines += [f"- {_escaped(line)}" for line in notes(table)] + [""]
    for found in report.attribution:
        heading, cells = attribution_cells(found)
        lines += [f"## {_escaped(attribution_title(found))}", "", _markdown_row(heading)]
        lines.append(_markdown_row(["---", *("---:" for _ in heading[1:])]))
        lines += [_markdown_row(list(map(_escaped, line))) for line in cells]
        lines += ["", *(f"- {_escaped(line)}" for line in attribution_notes(found)), ""]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    return re.sub(r"[\\|<>*_`~&![\]]", r"\\\g<0>", visible(text))


def to_latex(report: Report) -> str:
    """A booktabs `tabular` a card and a table, of what fits a page; needs \\usepackage{booktabs}. What a card says
    besides is in comments."""
    lines = [line for card in report.exams for line in _latex_card(card)]
    for table in shown_tables(report.studies):
        shown = _without([*FOR_DETAIL, *FOR_SCREENS], table)
        lines += [
            f"% {visible(title(table))}",
            f"\\begin{{tabular}}{{{''.join('l' if c.is_text else 'r' for c in shown)}}}",
        ]
        lines += ["\\toprule", _latex_row([column.heading for column in shown]), "\\midrule"]
        lines += [_latex_row([column.shown(row) for column in shown]) for row in table.rows]
        lines += ["\\bottomrule", "\\end{tabular}", ""]
    return "\n".join(lines)


def _latex_card(card: Card) -> list[str]:
    """The claims with their verdicts and numbers as a table, the rest as comments above it."""
    said = [card_title(card), *facts(card)]
    for claim in card.claims:
        besides = {"note": claim.note, "rule": claim.rule}
        said += [f"{claim.part}, {claim.claim}: {key}: {text}" for key, text in besides.items() if text]
    lines = [f"% {visible(line)}" for line in said]
    lines += [r"\begin{tabular}{llp{0.6\textwidth}}", "\\toprule"]
    lines += [_latex_row(["verdict", "part", "claim"]), "\\midrule"]
    for claim in card.claims:
        lines.append(_latex_row([verdict_of(claim), claim.part, f"{claim.text} ({claim.source})"]))
        lines += [_latex_row(["", "", measured(quantity)]) for quantity in claim.measured]
    return [*lines, "\\bottomrule", "\\end{tabular}", ""]


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_latex(cell) for cell in cells) + r" \\"


LATEX = {char: f"\\{char}" for char in "&%$#_{}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}", "×": r"$\times$"}


def _latex(text: str) -> str:
    return "".join(LATEX.get(char, char) for char in visible(with_minus(text))).replace(MINUS, "$-$")


def to_csv(report: Report) -> str:
    """A line a row, with study and base in front; lists are joined by blanks, parts have a column an axis."""
    import pandas  # half a second that the other views need not wait

    records = [
        _flat({"study": table.study, "base": table.base, "metric": table.metric, **asdict(row)})
        for table in report.studies
        for row in table.rows
    ]
    return pandas.DataFrame(records, dtype=object).to_csv(index=False, lineterminator="\n")


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in row.items():
        if key == "parts":
            parts = value if isinstance(value, Mapping) else {}
            flat |= {f"parts.{axis}": parts.get(axis) for axis in AXES}
        else:
            flat[key] = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return {key: visible(value) if isinstance(value, str) else value for key, value in flat.items()}
