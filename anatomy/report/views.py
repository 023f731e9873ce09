"""The report as text: terminal, Markdown, LaTeX, CSV, JSON. All views show the same data and compute nothing."""

import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

from anatomy.axes import AXES
from anatomy.report.data import AT_BEST, Attribution, Estimate, Report, Row, Table, Tuning

NOTHING = "–"
NARROW, GAP = 40, 2  # columns that a name may take before it wraps, and between two columns


@dataclass(frozen=True)
class Column:
    """A column of the table: its heading, and a row's cell in it."""

    heading: str
    cell: Callable[[Row], str]
    is_text: bool = False


def _number(value: float | None, form: str) -> str:
    return NOTHING if value is None else format(value, form)


def _steps(row: Row) -> str:
    steps = [step for step in row.best_step if step is not None]
    if not steps:
        return NOTHING
    ends = sorted({min(steps), max(steps)})
    return "-".join(f"{step:,.0f}" for step in ends)


def _seeds(row: Row) -> str:
    return f"{row.num_seeds} ({row.num_pairs} paired)" if 0 < row.num_pairs < row.num_seeds else str(row.num_seeds)


NAME = Column("row", lambda row: _line(row.name), is_text=True)


def columns(metric: str) -> list[Column]:
    """The columns beside the name. Loss, spread and difference are of one metric; where that is not the final test
    loss, the final one, which the bits per character are of, has a column of its own."""
    return [
        Column("seeds", _seeds),
        Column("test nats at best" if metric == AT_BEST else "test nats", lambda row: _number(row.metric_mean, ".4f")),
        Column("difference", lambda row: _number(row.difference_nats, "+.4f")),
        Column("95 % interval", lambda row: _interval(row.ci_low, row.ci_high)),
        Column("verdict", _verdict, is_text=True),
        Column("p (Holm)", lambda row: _number(row.p_holm, ".2g")),
        Column("own interval", lambda row: _interval(row.own_ci_low, row.own_ci_high)),
        Column("least margin", lambda row: _number(row.smallest_margin_nats, ".3f")),
        Column("detectable", lambda row: _number(row.minimum_detectable_effect_nats, ".3f")),
        Column("seeds needed", lambda row: _number(row.seeds_needed, ",")),
        Column("sd", lambda row: _number(row.metric_sd, ".4f")),
        Column("sd paired", lambda row: _number(row.sd_paired, ".4f")),
        Column("sd unpaired", lambda row: _number(row.sd_unpaired, ".4f")),
        Column("correlation", lambda row: _number(row.correlation, "+.2f")),
        *([Column("final nats", lambda row: _number(row.test_loss_nats_mean, ".4f"))] if metric == AT_BEST else []),
        Column("bits/char", lambda row: _number(row.test_bits_per_char, ".4f")),
        Column("rung", lambda row: _number(row.rung, ".2f")),
        Column("best step", _steps),
        Column("params", lambda row: _number(row.num_params, ",.0f")),
        Column("params %", lambda row: _number(row.num_params_percent, "+.2f")),
        Column("block %", lambda row: _number(row.block_params_percent, "+.2f")),
        Column("FLOPs/token", lambda row: _number(row.flops_per_token, ",.0f")),
        Column("KV bytes/token", lambda row: _number(row.kv_bytes_per_token, ",.0f")),
        Column("tokens/s", lambda row: _number(row.tokens_per_s, ",.0f")),
        Column("status", lambda row: row.status + (", over-fitted" if row.over_fitted else ""), is_text=True),
    ]


FOR_DETAIL = (
    *("own interval", "least margin", "detectable", "seeds needed"),
    *("sd", "sd paired", "sd unpaired", "correlation", "bits/char", "params %"),
)
"""The columns that a page does without; terminal, CSV and JSON have them."""
FOR_SCREENS = ("p (Holm)", "best step", "params", "FLOPs/token", "KV bytes/token", "status")
"""The columns that paper does without, besides."""


def _without(headings: Sequence[str], metric: str) -> list[Column]:
    return [NAME, *(column for column in columns(metric) if column.heading not in headings)]


def _interval(low: float | None, high: float | None) -> str:
    return NOTHING if low is None or high is None else f"{low:+.3f} to {high:+.3f}"


def _verdict(row: Row) -> str:
    return ", ".join(filter(None, [row.verdict, "unmatched" if row.unmatched else None])) or NOTHING


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
        [axis, *(_estimate(estimates.get(axis)) for _, estimates in there), _rest(found, axis)] for axis in found.axes
    ]
    return ["axis", *(heading for heading, _ in there), ""], lines


def _rest(found: Attribution, axis: str) -> str:
    return "depends on the rest" if axis in found.depends_on_the_rest else ""


def _estimate(found: Estimate | None) -> str:
    if found is None:
        return NOTHING
    return f"{found.nats:+.4f}" + ("" if found.ci_low is None else f" ({_interval(found.ci_low, found.ci_high)})")


def attribution_notes(found: Attribution) -> list[str]:
    """The finding, what it rests on, and the interactions."""
    pairs = sorted(found.interactions.items(), key=lambda item: -abs(item[1].nats))
    return [
        found.finding,
        *([f"main effects and Shapley values: {found.model}"] if found.model else []),
        *([f"interactions: {', '.join(f'{pair} {_estimate(one)}' for pair, one in pairs)}"] if pairs else []),
    ]


def _line(text: str) -> str:
    """The text as one line that cannot act on a terminal: control characters, line ends, marks of writing direction and
    halves of characters as escapes. What joins characters stays, so 👩‍👩‍👧 remains one picture."""
    return "".join(char.encode("unicode_escape").decode() if _acts(char) else char for char in text)


def _acts(char: str) -> bool:
    kind = "" if char.isprintable() else unicodedata.category(char)
    turns = kind == "Cf" and unicodedata.bidirectional(char) != "BN"  # boundary neutral: joiners, which turn nothing
    return turns or kind in ("Cc", "Cs", "Zl", "Zp")


# ------------------------------------------------------------------------------------------------ terminal


def show(report: Report, console: Console) -> None:
    """Print every table, in as many pieces as the width asks for; nothing is ever cut."""
    for warning in report.warnings:
        console.print(Text(f"warning: {_line(warning)}"))
    for table in report.studies:
        console.print(Text(_line(title(table)), style="bold"))
        if table.rows:
            console.print(_pieces(table, console.width), soft_wrap=True)
        for line in notes(table):
            console.print(Text(_line(line)))
        console.print()
    for found in report.attribution:
        console.print(Text(_line(attribution_title(found)), style="bold"))
        console.print(_grid(*attribution_cells(found)), soft_wrap=True)
        for line in attribution_notes(found):
            console.print(Text(_line(line)))
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
    names = [NAME.heading, *map(NAME.cell, table.rows)]
    name_width = min(max(map(cell_len, names)), max(NARROW, width // 3))
    pieces: list[list[list[str]]] = [[]]
    room = width - name_width - GAP
    for column in columns(table.metric):
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
    cells = [column.heading, *map(column.cell, rows)]
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
        weight = "only by chance" if table.prior_df is None else f"with {table.prior_df:.1f} degrees of freedom"
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
            f"to decide what is inconclusive: {table.seeds_command} (seeds beyond a study's plan make its verdicts "
            "exploratory; output_dir=NEW starts a plan of its own)"
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
    """A section a table; cells are escaped, so that each row has as many as the heading."""
    lines = [f"> warning: {_escaped(warning)}\n" for warning in report.warnings]
    for table in report.studies:
        lines += [f"## {_escaped(title(table))}", ""]
        if table.rows:
            shown = _without(FOR_DETAIL, table.metric)
            lines.append(_markdown_row([column.heading for column in shown]))
            lines.append(_markdown_row(["---" if column.is_text else "---:" for column in shown]))
            lines += [_markdown_row([_escaped(column.cell(row)) for column in shown]) for row in table.rows]
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
    return re.sub(r"[\\|<>*_`]", r"\\\g<0>", _line(text))


def to_latex(report: Report) -> str:
    """A booktabs `tabular` a table, of the columns that fit a page; needs \\usepackage{booktabs}."""
    lines: list[str] = []
    for table in report.studies:
        shown = _without([*FOR_DETAIL, *FOR_SCREENS], table.metric)
        lines += [
            f"% {_line(title(table))}",
            f"\\begin{{tabular}}{{{''.join('l' if c.is_text else 'r' for c in shown)}}}",
        ]
        lines += ["\\toprule", _latex_row([column.heading for column in shown]), "\\midrule"]
        lines += [_latex_row([column.cell(row) for column in shown]) for row in table.rows]
        lines += ["\\bottomrule", "\\end{tabular}", ""]
    return "\n".join(lines)


def _latex_row(cells: Sequence[str]) -> str:
    return " & ".join(_latex(cell) for cell in cells) + r" \\"


LATEX = {char: f"\\{char}" for char in "&%$#_{}"}
LATEX |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
LATEX |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}


def _latex(text: str) -> str:
    signed = re.sub(r"(?<![\w.])-(?=\d)", "−", text)
    return "".join(LATEX.get(char, char) for char in _line(signed)).replace("−", "$-$")


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
    return {key: _line(value) if isinstance(value, str) else value for key, value in flat.items()}
