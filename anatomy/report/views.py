"""The report as a reader sees it: terminal, Markdown, CSV, JSON. All views show the same data and compute nothing."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from anatomy.cli.common import printable
from anatomy.report.table import Report, Row, Table

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
    return f"{min(steps):,}" if min(steps) == max(steps) else f"{min(steps):,}-{max(steps):,}"


COLUMNS = (
    Column("row", lambda row: printable(row.name).replace("\n", "\\n"), is_text=True),
    Column("seeds", lambda row: str(row.num_seeds)),
    Column("test nats", lambda row: _number(row.test_loss_nats_mean, ".4f")),
    Column("sd", lambda row: _number(row.test_loss_nats_sd, ".4f")),
    Column("difference", lambda row: _number(row.difference_nats, "+.4f")),
    Column("bits/char", lambda row: _number(row.test_bits_per_char, ".4f")),
    Column("rung", lambda row: _number(row.rung, ".2f")),
    Column("best step", _steps),
    Column("params", lambda row: _number(row.num_params, ",d")),
    Column("params %", lambda row: _number(row.num_params_percent, "+.2f")),
    Column("block %", lambda row: _number(row.block_params_percent, "+.2f")),
    Column("FLOPs/token", lambda row: _number(row.flops_per_token, ",d")),
    Column("KV bytes/token", lambda row: _number(row.kv_bytes_per_token, ",d")),
    Column("tokens/s", lambda row: _number(row.tokens_per_s, ",.0f")),
    Column("status", lambda row: row.status + (", over-fitted" if row.over_fitted else ""), is_text=True),
)


# ------------------------------------------------------------------------------------------------ terminal


def show(report: Report, console: Console) -> None:
    """Print every table, in as many pieces as the width asks for; nothing is ever cut."""
    for warning in report.warnings:
        console.print(Text(f"warning: {printable(warning)}"))
    for table in report.studies:
        console.print(Text(printable(title(table)), style="bold"))
        if table.rows:
            console.print(_pieces(table, console.width))
        for line in notes(table):
            console.print(Text(printable(line)))
        console.print()


def _pieces(table: Table, width: int) -> RenderableType:
    """The columns in as many tables as the width asks for, the row's name in each; a long name wraps."""
    first, *rest = COLUMNS
    names = [first.cell(row) for row in table.rows]
    longest = max(Text(name).cell_len for name in names)
    name_width = min(longest, max(NARROW, width // 3))
    pieces: list[list[Column]] = [[]]
    room = width - name_width - GAP
    for column in rest:
        needed = GAP + max(Text(text).cell_len for text in (column.heading, *map(column.cell, table.rows)))
        if needed > room and pieces[-1]:
            pieces.append([])
            room = width - name_width - GAP
        pieces[-1].append(column)
        room -= needed
    return Group(*(_piece(table, [first, *columns], name_width) for columns in pieces))


def _piece(table: Table, columns: Sequence[Column], name_width: int) -> RichTable:
    made = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
    for column in columns:
        is_name = column is COLUMNS[0]
        made.add_column(
            column.heading,
            justify="left" if column.is_text else "right",
            no_wrap=not is_name,
            overflow="fold",
            width=name_width if is_name else None,
        )
    for row in table.rows:
        made.add_row(*(Text(column.cell(row)) for column in columns))
    return made


def title(table: Table) -> str:
    """`swaps, base vanilla: kjv, 48x3, ...`."""
    sizes = ", ".join(f"{key} {value}" for key, value in table.sizes.items())
    words = [
        f"{table.study}, base {table.base or 'unknown'}",
        table.corpus,
        sizes,
        table.steps and f"{table.steps:,} steps",
    ]
    return ": ".join([str(words[0]), ", ".join(str(word) for word in words[1:] if word)])


def notes(table: Table) -> list[str]:
    """The lines under a table: reasons, rungs, what was set aside, warnings, and what all of it was measured on."""
    lines = [f"{row.name}: {error}" for row in table.rows for error in row.errors]
    if table.rungs:
        tables = ", ".join(f"{n} {value:.3f}" for n, value in table.rungs.items() if n != "xz")
        lines.append(f"rungs, nats: n-gram tables of n = {tables}; xz {table.rungs['xz']:.3f}")
    lines += [f"set aside: {aside.run}: {aside.reason}" for aside in table.set_aside]
    lines += [f"warning: {warning}" for warning in table.warnings]
    if table.rows:
        lines.append(f"differences: mean over common seeds of row minus base, {table.metric}; below 0 is better")
    facts = {
        "seeds": " ".join(map(str, table.seeds)),
        "tokens per parameter": _fact(table.tokens_per_param),
        "epochs": _fact(table.epochs),
        "device": ", ".join(table.devices),
        "commit": ", ".join(table.commits),
    }
    line = "; ".join(f"{name} {fact}" for name, fact in facts.items() if fact)
    return [*([table.question] if table.question else []), *lines, *([line] if line else [])]


def _fact(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


# ------------------------------------------------------------------------------------------------ files


def to_json(report: Report) -> str:
    """The data as it is, strict JSON."""
    return json.dumps(asdict(report), indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def to_markdown(report: Report) -> str:
    """A section a table; cells are escaped, so that each row has as many as the heading."""
    lines = [f"> warning: {_escaped(warning)}\n" for warning in report.warnings]
    for table in report.studies:
        lines += [f"## {_escaped(title(table))}", ""]
        if table.rows:
            lines.append(_markdown_row([column.heading for column in COLUMNS]))
            lines.append(_markdown_row(["---" if column.is_text else "---:" for column in COLUMNS]))
            lines += [_markdown_row([_escaped(column.cell(row)) for column in COLUMNS]) for row in table.rows]
            lines.append("")
        lines += [f"- {_escaped(line)}" for line in notes(table)] + [""]
    return "\n".join(lines)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escaped(text: str) -> str:
    for special in "\\|<>*_`":
        text = text.replace(special, f"\\{special}")
    return printable(text).replace("\n", " ").replace("\t", " ")


def to_csv(report: Report) -> str:
    """A line a row, with study and base in front; lists are joined by blanks, parts have a column an axis."""
    import pandas  # half a second that the other views need not wait

    records = [
        {"study": table.study, "base": table.base, "metric": table.metric} | _flat(asdict(row))
        for table in report.studies
        for row in table.rows
    ]
    return pandas.DataFrame(records, dtype=object).to_csv(index=False, lineterminator="\n")


def _flat(row: Mapping[str, object]) -> dict[str, object]:
    flat: dict[str, object] = {}
    for key, value in row.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{axis}": part for axis, part in value.items()}
        elif key != "parts":
            flat[key] = " ".join(map(str, value)) if isinstance(value, list | tuple) else value
    return flat
