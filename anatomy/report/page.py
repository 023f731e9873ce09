"""The report as one HTML file that needs nothing else: no server, no network, and no script to be read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from anatomy.report.attribution_figures import ATTRIBUTION_FIGURES, attribution_name
from anatomy.report.captions import CAPTIONS, Caption
from anatomy.report.data import AT_BEST, Attribution, Breakdown, Estimate, Report, Row, Table
from anatomy.report.drawing import svg, visible
from anatomy.report.figures import (
    MAX_ROWS,
    MAX_TABLES,
    TABLE_FIGURES,
    directions,
    forest,
    forest_name,
    table_name,
)

NOTHING = "–"
VERDICTS = ("better", "worse", "equivalent", "inconclusive", "diverged")
WORDS = (*VERDICTS, "failed", "interrupted", "unmatched", "over-fitted")  # which are coloured
Numbers = Sequence[Sequence[str]]
"""A heading line, then lines."""


@dataclass(frozen=True)
class Picture:
    """A figure in the page; `drawing` is None where its data is missing."""

    place: str
    kind: str
    name: str
    sentences: Sequence[str]
    drawing: Markup | None
    numbers: Numbers = ()

    @property
    def caption(self) -> Caption:
        return CAPTIONS[self.kind]


@dataclass(frozen=True)
class Column:
    """A column of a table: heading, what it means, and a row's cell, None where there is nothing."""

    heading: str
    meaning: str
    cell: Callable[[Row], str | None]
    is_text: bool = False


def _number(value: float | None, form: str) -> str | None:
    return None if value is None else format(value, form).replace("-", "−")


def _signed(value: float) -> str:
    return f"{value:+.4f}".replace("-", "−")


def _interval(low: float | None, high: float | None) -> str | None:
    return None if low is None or high is None else f"[{_signed(low)}, {_signed(high)}]"


def _seeds(row: Row) -> str:
    some = f"{row.num_seeds} of {row.num_arms}" if row.num_seeds != row.num_arms else f"{row.num_seeds}"
    return f"{some}, {row.num_pairs} paired" if 0 < row.num_pairs < row.num_seeds else some


def _steps(row: Row) -> str | None:
    steps = [step for step in row.best_step if step is not None]
    return "–".join(f"{step:,.0f}" for step in sorted({min(steps), max(steps)})) if steps else None


def _verdict_columns(table: Table) -> list[Column]:
    at_best = table.metric == AT_BEST
    return [
        Column("seeds", "runs that are done; with how many the base shares their seed", _seeds),
        Column("test loss at best" if at_best else "test loss", "nats per character, mean over seeds"
               + (", at the best validation step" if at_best else ""), lambda row: _number(row.metric_mean, ".4f")),
        Column("sd", "of the test loss over seeds", lambda row: _number(row.metric_sd, ".4f")),
        Column("difference", "row minus base, over the seeds they share; below 0 is better",
               lambda row: _number(row.difference_nats, "+.4f")),
        Column("interval", "of the difference, for all rows of the table at once",
               lambda row: _interval(row.ci_low, row.ci_high)),
        Column("verdict", f"from the interval and the margin of {table.margin_nats:g} nats",
               lambda row: row.verdict, True),
        Column("p (Holm)", "two-sided, adjusted over the rows of the table", lambda row: _number(row.p_holm, ".2g")),
        Column("own 95 %", "the row's plain paired 95 % interval",
               lambda row: _interval(row.own_ci_low, row.own_ci_high)),
        Column("least margin", "the least margin, in nats, at which this study could call the row equivalent",
               lambda row: _number(row.smallest_margin_nats, ".4f")),
        Column("detectable", "difference in nats that this study finds with a power of 80 %",
               lambda row: _number(row.minimum_detectable_effect_nats, ".4f")),
        Column("seeds needed", "to find an effect as large as the margin, going by the spread",
               lambda row: _number(row.seeds_needed, ",.0f")),
        Column("correlation", "of the paired losses of row and base", lambda row: _number(row.correlation, "+.2f")),
        Column("sd paired", "of the differences", lambda row: _number(row.sd_paired, ".4f")),
        Column("sd unpaired", "what they would spread with if seeds were not shared",
               lambda row: _number(row.sd_unpaired, ".4f")),
        Column("text share", "standard error from the choice of test windows, over that from the choice of seeds",
               lambda row: _number(row.text_share, ".2f")),
        Column("status", "of the row's runs", lambda row: row.status, True),
    ]  # fmt: skip


def _cost_columns(table: Table) -> list[Column]:
    final = Column("final test loss", "nats per character", lambda row: _number(row.test_loss_nats_mean, ".4f"))
    return [
        Column("parameters", "all of them", lambda row: _number(row.num_params, ",.0f")),
        Column("params %", "deviation from the base", lambda row: _number(row.num_params_percent, "+.2f")),
        Column("block %", "deviation from the base in block parameters: neither embedding, positions nor output",
               lambda row: _number(row.block_params_percent, "+.2f")),
        Column("FLOPs/token", "in training", lambda row: _number(row.flops_per_token, ",.0f")),
        Column("FLOPs %", "deviation from the base", lambda row: _number(row.flops_percent, "+.2f")),
        Column("matched", "block parameters and FLOPs within 0.5 % of the base's",
               lambda row: None if row.unmatched is None else "unmatched" if row.unmatched else "yes", True),
        Column("KV bytes/token", "of the cache, at 2 bytes a value",
               lambda row: _number(row.kv_bytes_per_token, ",.0f")),
        Column("tokens/s", "in training, median", lambda row: _number(row.tokens_per_s, ",.0f")),
        *([final] if table.metric == AT_BEST else []),
        Column("bits/char", "final test loss", lambda row: _number(row.test_bits_per_char, ".4f")),
        Column("rung", "where the test loss stands between the n-gram tables: 3.4 is two fifths of the way from the "
               "trigram's to the 4-gram's", lambda row: _number(row.rung, ".2f")),
        Column("best validation", "loss, nats per character", lambda row: _number(row.best_val_loss_nats_mean, ".4f")),
        Column("last three", "mean validation loss of the last three evaluations",
               lambda row: _number(row.last_three_val_loss_nats_mean, ".4f")),
        Column("best step", "earliest to latest seed", _steps),
        Column("over-fitted", "the best validation loss lies more than 1 % below the final one in some seed",
               lambda row: None if row.over_fitted is None else "over-fitted" if row.over_fitted else "no", True),
    ]  # fmt: skip


@dataclass(frozen=True)
class Grid:
    """A table of the page: columns that hold something, and a line a row: its name, its class, its cells."""

    columns: Sequence[Column]
    lines: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]


def _grid(table: Table, columns: Sequence[Column]) -> Grid:
    cells = {column.heading: [column.cell(row) for row in table.rows] for column in columns}
    kept = [column for column in columns if any(cell is not None for cell in cells[column.heading])]
    lines = []
    for i, row in enumerate(table.rows):
        line = [(_class(column, cells[column.heading][i]), cells[column.heading][i] or NOTHING) for column in kept]
        lines.append((row.name, "base" if row.name == "base" else "", line))
    return Grid(kept, lines)


def _class(column: Column, cell: str | None) -> str:
    """`word better` for the verdict `better (exploratory)`, so that words can be coloured; `word` for other text."""
    first = (cell or "").split(" ")[0].rstrip(",")
    return f"word {first}" if column.is_text and first in WORDS else "word" if column.is_text else ""


@dataclass(frozen=True)
class Part:
    """A table with all that the page shows of it; `place` is its id in the page."""

    place: str
    table: Table
    verdicts: Grid
    costs: Grid
    pictures: Sequence[Picture]
    facts: Sequence[tuple[str, str]]


def _part(place: str, table: Table, *, with_figures: bool) -> Part:
    return Part(
        place=place,
        table=table,
        verdicts=_grid(table, _verdict_columns(table)),
        costs=_grid(table, _cost_columns(table)),
        pictures=_pictures(place, table) if with_figures else (),
        facts=_facts(table),
    )


@dataclass(frozen=True)
class Section:
    """A study in one or both directions."""

    parts: Sequence[Part]
    forest: Picture | None

    @property
    def bases(self) -> str:
        return " and ".join(part.table.base or "unknown" for part in self.parts)


def to_html(report: Report) -> str:
    """The whole page. Figures show the first MAX_TABLES tables and their first MAX_ROWS rows; the page says so."""
    sections: list[Section] = []
    num_tables = 0
    for tables in directions(report.studies):
        parts = []
        for table in tables:
            num_tables += 1
            parts.append(_part(f"t{num_tables}", table, with_figures=num_tables <= MAX_TABLES))
        sections.append(Section(parts, _forest(f"g{len(sections)}", tables) if num_tables <= MAX_TABLES else None))
    return _template().render(
        report=report,
        sections=sections,
        attributions=[(one, _attributed(f"a{i}", one)) for i, one in enumerate(report.attribution[:MAX_TABLES])],
        max_rows=MAX_ROWS,
        max_tables=MAX_TABLES,
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
    )
    environment.filters |= {"lines": _lines, "pretty": _pretty}
    return environment.get_template("page.html.j2")


def _lines(text: str) -> Markup:
    """A text of several lines, with all else that could act made visible."""
    return Markup("\n").join(escape(visible(line)) for line in text.split("\n"))


def _pretty(value: object) -> Markup:
    return _lines(json.dumps(value, indent=1, ensure_ascii=False, default=str))


# ------------------------------------------------------------------------------------------------ figures


def _picture(
    place: str, kind: str, name: str, sentences: Sequence[str], figure: Figure | None, numbers: Numbers = ()
) -> Picture:
    """`place` is the figure's id in the page, and stands before the ids in its SVG."""
    drawing = None if figure is None else Markup(svg(figure, f"{place}-"))
    return Picture(place, kind, name, sentences, drawing, numbers)


def _forest(place: str, tables: Sequence[Table]) -> Picture:
    found = [table.findings["forest"] for table in tables if "forest" in table.findings]
    return _picture(place, "forest", forest_name(tables), found, forest(tables))


def _pictures(place: str, table: Table) -> list[Picture]:
    numbers = {
        "tuning": _rates(table),
        "curves": _last_losses(table),
        "position": _binned(table.by_position),
        "knowledge": _binned(table.by_knowledge),
    }
    pictures = []
    for kind, draw in TABLE_FIGURES.items():
        found = [table.findings[kind]] if kind in table.findings else []
        name = table_name(table, kind)
        pictures.append(_picture(f"{place}-{kind}", kind, name, found, draw(table), numbers.get(kind, ())))
    return pictures


def _rates(table: Table) -> Numbers:
    rates = sorted({rate for tuned in table.tuning for rate in tuned.rates})
    lines = []
    for tuned in table.tuning[:MAX_ROWS]:
        losses = dict(zip(tuned.rates, tuned.val_loss_nats, strict=True))
        lines.append([tuned.row, *(_number(losses.get(rate), ".4f") or NOTHING for rate in rates), f"{tuned.best:g}"])
    return [["row", *(f"{rate:g}" for rate in rates), "chosen"], *lines]


def _last_losses(table: Table) -> Numbers:
    lines = [
        [curve.row, f"{curve.steps[-1]:,}", f"{curve.mean[-1]:.4f}", f"{curve.low[-1]:.4f}", f"{curve.high[-1]:.4f}"]
        for curve in table.curves[:MAX_ROWS]
        if curve.steps
    ]
    return [["row", "step", "validation loss", "least seed", "greatest seed"], *lines]


def _binned(breakdown: Breakdown | None) -> Numbers:
    if breakdown is None:
        return ()
    lines = [[profile.row, *(_signed(nats) for nats in profile.mean)] for profile in breakdown.profiles[:MAX_ROWS]]
    shares = [f"{share:.1%}" for share in breakdown.shares]
    return [["row", *breakdown.bins], ["share of targets", *shares], *lines]


def _attributed(place: str, attribution: Attribution) -> list[Picture]:
    of_axes = {
        "Shapley value": attribution.shapley,
        "main effect": attribution.main_effects,
        f"in {attribution.base}": attribution.add_one_in,
        f"in {attribution.counterpart}": attribution.leave_one_out,
    }
    known = {heading: estimates for heading, estimates in of_axes.items() if estimates}
    lines = [[axis, *(_estimate(known[key].get(axis)) for key in known)] for axis in attribution.axes]
    numbers = {"shapley": [["axis", *known], *lines]}
    return [
        _picture(
            f"{place}-{kind}", kind, attribution_name(attribution, kind), [], draw(attribution), numbers.get(kind, ())
        )
        for kind, draw in ATTRIBUTION_FIGURES.items()
    ]


def _estimate(estimate: Estimate | None) -> str:
    if estimate is None:
        return NOTHING
    interval = _interval(estimate.ci_low, estimate.ci_high)
    return f"{_signed(estimate.nats)} {interval}" if interval else _signed(estimate.nats)


# ------------------------------------------------------------------------------------------------ facts


def _facts(table: Table) -> list[tuple[str, str]]:
    """What the numbers were measured on, and with what."""
    rungs = [f"{n}-gram {loss:.3f}" if n.isdigit() else f"{n} {loss:.3f}" for n, loss in (table.rungs or {}).items()]
    facts = {
        "corpus": table.corpus,
        "its characters": _number(table.num_chars, ",.0f"),
        "its sha256": table.corpus_sha256,
        "n-gram tables of it, nats per character": ", ".join(rungs),
        "sizes": ", ".join(f"{key} {value}" for key, value in table.sizes.items()),
        "steps": f"{table.steps:,}" if isinstance(table.steps, int) else str(table.steps or ""),
        "tokens a run": _number(table.tokens, ",.0f"),
        "tokens per parameter": _number(table.tokens_per_param, ".2f"),
        "epochs": _number(table.epochs, ".2f"),
        "seeds": " ".join(map(str, table.seeds)),
        "metric": table.metric,
        "margin, nats": f"{table.margin_nats:g}",
        "alpha of this look": f"{table.alpha:g}",
        "variances moderated with": _prior(table),
        "noise floor, nats": _number(table.noise_floor, ".4f"),
        "devices": ", ".join(table.devices),
        "commits": ", ".join(table.commits),
        "torch": ", ".join(table.torch_versions),
    }
    return [(name, fact) for name, fact in facts.items() if fact]


def _prior(table: Table) -> str | None:
    if table.prior_variance is None:
        return None
    freedom = "infinite" if table.prior_df is None else f"{table.prior_df:.1f}"
    return f"prior variance {table.prior_variance:.3g}, {freedom} degrees of freedom"
