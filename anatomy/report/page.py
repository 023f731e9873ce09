"""The report as one HTML file that needs nothing else: no server, no network, and no script to be read."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup, escape
from matplotlib.figure import Figure

from anatomy.report.attribution_figures import ATTRIBUTION_FIGURES, attribution_name
from anatomy.report.captions import CAPTIONS, EXAM_CAPTIONS, Caption
from anatomy.report.cards import card_title, interval, picture_numbers, value, verdict_of
from anatomy.report.cells import shown_tables
from anatomy.report.columns import NOTHING, Column, cost_columns, estimate, number, verdict_columns
from anatomy.report.data import (
    CONTRADICTED,
    NOT_SEEN,
    OUTSIDE,
    SUPPORTED,
    Attribution,
    Breakdown,
    Card,
    Examined,
    Quantity,
    Report,
    Table,
)
from anatomy.report.diagnosis import diagnosis_numbers
from anatomy.report.drawing import svg
from anatomy.report.exam_figures import exam_name, exam_picture
from anatomy.report.figures import (
    MAX_ROWS,
    MAX_TABLES,
    TABLE_FIGURES,
    directions,
    forest,
    forest_name,
    table_name,
)
from anatomy.report.words import visible, with_minus

VERDICTS = ("better", "worse", "equivalent", "inconclusive", "diverged")
BADGES = {SUPPORTED: "supported", CONTRADICTED: "contradicted", NOT_SEEN: "unseen", OUTSIDE: "outside"}
WORDS = (*VERDICTS, "failed", "interrupted", "unmatched", "over-fitted")  # which are coloured
Numbers = Sequence[Sequence[str]]
"""A heading line, then lines."""


@dataclass(frozen=True)
class Picture:
    """A figure in the page; `drawing` is None where its data is missing."""

    place: str
    caption: Caption
    name: str
    sentences: Sequence[str]
    drawing: Markup | None
    numbers: Numbers = ()


def _number(value: float | None, form: str) -> str | None:
    text = number(value, form)
    return None if text is None else with_minus(text)


def _signed(value: float) -> str:
    return with_minus(f"{value:+.4f}")


@dataclass(frozen=True)
class Grid:
    """A table of the page: columns that hold something, and a line a row: its name, its class, its cells."""

    columns: Sequence[Column]
    lines: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]


def _grid(table: Table, columns: Sequence[Column]) -> Grid:
    by_column = [(column, [column.cell(row) for row in table.rows]) for column in columns]
    kept = [(column, cells) for column, cells in by_column if any(cell is not None for cell in cells)]
    lines = []
    for i, row in enumerate(table.rows):
        line = [(_class(column, cells[i]), with_minus(cells[i] or NOTHING)) for column, cells in kept]
        lines.append((row.name, "base" if row.is_base else "", line))
    return Grid([column for column, _ in kept], lines)


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
        verdicts=_grid(table, verdict_columns(table)),
        costs=_grid(table, cost_columns(table)),
        pictures=_pictures(place, table) if with_figures else (),
        facts=_facts(table),
    )


@dataclass(frozen=True)
class Section:
    """A study in one or both directions; `forest` is None where no figures are drawn of it."""

    parts: Sequence[Part]
    forest: Picture | None
    is_joined: bool

    @property
    def bases(self) -> str:
        return " and ".join(part.table.base or "unknown" for part in self.parts)


def to_html(report: Report) -> str:
    """The whole page. Figures show the first MAX_TABLES tables and their first MAX_ROWS rows; the page says so."""
    sections: list[Section] = []
    num_tables, num_drawn = 0, 0
    for tables in directions(list(shown_tables(report.studies))):
        parts = []
        for table in tables:
            num_tables += 1
            num_drawn += not table.is_joined
            has_figures = num_drawn <= MAX_TABLES and not table.is_joined
            parts.append(_part(f"t{num_tables}", table, with_figures=has_figures))
        figure = _forest(f"g{len(sections)}", tables) if has_figures else None
        sections.append(Section(parts, figure, tables[0].is_joined))
    return _template().render(
        report=report,
        exams=[_exam(f"e{i}", card) for i, card in enumerate(report.exams)],
        sections=sections,
        num_tables=num_tables,
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
    environment.filters |= {"lines": _lines, "pretty": _pretty, "verdict": verdict_of}
    return environment.get_template("page.html.j2")


def _lines(text: str) -> Markup:
    """A text of several lines, with all else that could act made visible."""
    return Markup("\n").join(escape(visible(line)) for line in text.split("\n"))


def _pretty(value: object) -> Markup:
    return _lines(json.dumps(value, indent=1, ensure_ascii=False, default=str))


# ------------------------------------------------------------------------------------------------ exams


@dataclass(frozen=True)
class Exam:
    """A card with all that the page shows of it; `place` is its id in the page."""

    place: str
    card: Card
    claims: Sequence[tuple[Examined, str, Numbers]]
    picture: Picture

    @property
    def title(self) -> str:
        return card_title(self.card)


def _exam(place: str, card: Card) -> Exam:
    picture = _picture(
        f"{place}-picture",
        EXAM_CAPTIONS[card.axis],
        exam_name(card),
        [],
        exam_picture(card),
        picture_numbers(card),
    )
    claims = [(claim, BADGES.get(claim.verdict or "", "open"), _measured(claim.measured)) for claim in card.claims]
    return Exam(place, card, claims, picture)


def _measured(quantities: Sequence[Quantity]) -> Numbers:
    """What was measured and its value; a third column holds intervals, where there are any."""
    lines = [[one.what, with_minus(value(one)), with_minus(interval(one).strip(" ()"))] for one in quantities]
    num_columns = 3 if any(ends for _, _, ends in lines) else 2
    headings = ["measured", "value", "95 % interval"]
    return [[cell or NOTHING for cell in line[:num_columns]] for line in [headings, *lines]] if lines else ()


# ------------------------------------------------------------------------------------------------ figures


def _picture(
    place: str, caption: Caption, name: str, sentences: Sequence[str], figure: Figure | None, numbers: Numbers = ()
) -> Picture:
    """`place` is the figure's id in the page, and stands before the ids in its SVG."""
    drawing = None if figure is None else Markup(svg(figure, f"{place}-"))
    return Picture(place, caption, name, sentences, drawing, numbers)


def _forest(place: str, tables: Sequence[Table]) -> Picture:
    found = [table.findings["forest"] for table in tables if "forest" in table.findings]
    return _picture(place, CAPTIONS["forest"], forest_name(tables), found, forest(tables))


def _pictures(place: str, table: Table) -> list[Picture]:
    numbers: dict[str, Numbers] = {
        "tuning": _rates(table),
        "curves": _last_losses(table),
        "position": _binned(table.by_position),
        "knowledge": _binned(table.by_knowledge),
        **diagnosis_numbers(table.diagnosis),
    }
    pictures = []
    for kind, draw in TABLE_FIGURES.items():
        found = [table.findings[kind]] if kind in table.findings else []
        name = table_name(table, kind)
        pictures.append(_picture(f"{place}-{kind}", CAPTIONS[kind], name, found, draw(table), numbers.get(kind, ())))
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
    lines = [[axis, *(with_minus(estimate(known[key].get(axis))) for key in known)] for axis in attribution.axes]
    numbers = {"shapley": [["axis", *known], *lines]}
    return [
        _picture(
            f"{place}-{kind}",
            CAPTIONS[kind],
            attribution_name(attribution, kind),
            [attribution.findings[kind]] if kind in attribution.findings else [],
            draw(attribution),
            numbers.get(kind, ()),
        )
        for kind, draw in ATTRIBUTION_FIGURES.items()
    ]


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
