"""The figures: a table or an attribution in, a drawing out. None where the data for it is not there.

Differences are nats per character, below 0 better. Every row keeps its colour, marker and dashes through all figures.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, StrMethodFormatter

from anatomy.axes import COUNTERPARTS
from anatomy.report.attribution_figures import ATTRIBUTION_FIGURES, attribution_name
from anatomy.report.card_picture import card_name, card_picture
from anatomy.report.cells import shown_tables
from anatomy.report.data import BASE_ROW, Breakdown, Curve, Report, Row, Table
from anatomy.report.diagnosis_figures import DIAGNOSIS_FIGURES
from anatomy.report.drawing import (
    BASE_STYLE,
    INK,
    NATS,
    SIGNED,
    SMALL,
    WIDTH,
    Style,
    add_axes,
    beside,
    end_labels,
    file_name,
    label,
    labels_height,
    metric_name,
    new_figure,
    note,
    point_labels,
    save,
    styled,
    styles,
    text_width,
)
from anatomy.report.evidence import NUM_DETAILED
from anatomy.report.words import visible

MAX_ROWS, MAX_TABLES = NUM_DETAILED, 6  # what is drawn of a table, and of a report; the page says where there is more
EARLY = 0.1  # share of the steps whose losses may leave the picture at its top
LATE = 2 / 3  # where the enlargement of a curve's end begins
WORST = 4.0  # how many times as far above the best as the median a loss may lie in the picture of rates
FAR = 8.0  # an interval that reaches this many times as far as the median one is cut, and drawn as an arrow


def directions(tables: Sequence[Table]) -> list[list[Table]]:
    """Tables in groups: the two bases of a study that are each other's counterpart belong together."""
    groups: list[list[Table]] = []
    alone: dict[tuple[str, str | None, str | None], list[Table]] = {}  # by study, title and the base that they wait for
    for table in tables:
        if group := alone.pop((table.study, table.title, table.base), None):
            group.append(table)
            continue
        groups.append([table])
        other = COUNTERPARTS.get(table.base or "")
        if other and COUNTERPARTS[other] == table.base:
            alone[table.study, table.title, other] = groups[-1]
    return groups


# ------------------------------------------------------------------------------------------------ verdicts


def forest(tables: Sequence[Table]) -> Figure | None:
    """Differences with their intervals, a panel a table, all on one scale."""
    panels = [(table, [row for row in table.rows[:MAX_ROWS] if row.name != BASE_ROW]) for table in tables]
    panels = [(table, rows) for table, rows in panels if any(row.difference_nats is not None for row in rows)]
    if not panels:
        return None
    names = [label(row.name) for _, rows in panels for row in rows]
    words = [_verdict(row) for _, rows in panels for row in rows]
    line = 0.31 + 0.12 * any("\n" in name for name in names)
    left, right = max(1.1, max(map(text_width, names)) + 0.25), max(map(text_width, words)) + 0.95
    low, high = _reach(panels)
    foot, gap = 0.95, 0.75
    heights = [line * len(rows) + 0.1 for _, rows in panels]
    with styled():
        figure = new_figure(foot + sum(heights) + gap * len(panels) - 0.3)
        bottom = foot + sum(heights) + gap * (len(panels) - 1)
        for (table, rows), height in zip(panels, heights, strict=True):
            bottom -= height
            axes = add_axes(figure, left, bottom, WIDTH - left - right, height)
            bottom -= gap
            axes.set_xlim(low, high)
            _forest_panel(axes, table, rows)
        metric = metric_name(panels[0][0].metric)
        axes.set_xlabel(f"difference in {metric}, {NATS}: row minus base; left of 0 is better")
        cut = "; an arrow: runs on beyond the picture" if _is_cut(panels, low, high) else ""
        is_predicted = any(row.prediction_nats is not None for _, rows in panels for row in rows)
        predicted = "; open diamond: predicted" if is_predicted else ""
        note(figure, "thick: simultaneous over the rows of the table; thin: the row's own 95 % interval; "
                     f"shaded: the margin; hollow: no interval{predicted}{cut}")  # fmt: skip
    return figure


def _verdict(row: Row) -> str:
    word = row.verdict or ("one seed" if row.num_pairs == 1 else row.status if row.status != "done" else "no pairs")
    return visible(word)


def _extent(row: Row) -> tuple[float, float] | None:
    if row.difference_nats is None:
        return None
    ends = [row.difference_nats, *(end for end in (row.ci_low, row.ci_high, row.prediction_nats) if end is not None)]
    return min(ends), max(ends)


def _reach(panels: Sequence[tuple[Table, Sequence[Row]]]) -> tuple[float, float]:
    """The scale: all simultaneous intervals but those that run far beyond the rest, and the margin."""
    extents = [extent for _, rows in panels for row in rows if (extent := _extent(row))]
    margin = 1.5 * max(table.margin_nats for table, _ in panels)
    sizes = sorted(max(-low, high, margin) for low, high in extents)
    most = FAR * sizes[len(sizes) // 2]
    ends = [-margin, margin, *(end for extent in extents for end in extent if abs(end) <= most)]
    low, high = min(ends), max(ends)
    room = (high - low) / 2  # own intervals, the wider ones, may stretch the scale by half of it at either side
    own = [end for _, rows in panels for row in rows for end in (row.own_ci_low, row.own_ci_high) if end is not None]
    near = [end for end in own if low - room <= end <= high + room]
    low, high = min([low, *near]), max([high, *near])
    pad = 0.03 * (high - low)
    return low - pad, high + pad


def _is_cut(panels: Sequence[tuple[Table, Sequence[Row]]], low: float, high: float) -> bool:
    ends = [
        end for _, rows in panels for row in rows for end in (*(_extent(row) or ()), row.own_ci_low, row.own_ci_high)
    ]
    return any(end is not None and not low <= end <= high for end in ends)


def _forest_panel(axes: Axes, table: Table, rows: Sequence[Row]) -> None:
    look = styles(table)
    axes.axvspan(-table.margin_nats, table.margin_nats, color=INK, alpha=0.09, lw=0)
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_title(f"against {visible(table.base or 'unknown')}, {len(table.seeds)} seeds", pad=8)
    axes.set_yticks(range(len(rows)), [label(row.name) for row in rows])
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.xaxis.set_major_formatter(SIGNED)
    axes.grid(axis="x", color=INK, alpha=0.1, lw=0.6)
    for y, row in enumerate(rows):
        _forest_row(axes, y, row, look[row.name])
        word = _verdict(row)
        if row.difference_nats is not None:
            beside(axes, y, f"{row.difference_nats:+.4f}".replace("-", "−"), 54, align="right")
        beside(axes, y, word, 60, weight="bold" if word in ("better", "worse") else "normal")


def _forest_row(axes: Axes, y: int, row: Row, style: Style) -> None:
    if row.difference_nats is None:
        return
    low, high = axes.get_xlim()
    for ends, width, alpha in (((row.own_ci_low, row.own_ci_high), 1.3, 1.0), ((row.ci_low, row.ci_high), 7.0, 0.45)):
        if ends[0] is None or ends[1] is None:
            continue
        inside = [min(max(end, low), high) for end in ends if end is not None]
        axes.plot(inside, (y, y), color=style.colour, lw=width, alpha=alpha, solid_capstyle="butt")
        for end, edge, marker in ((ends[0], low, "<"), (ends[1], high, ">")):
            if (end < edge) if marker == "<" else (end > edge):
                axes.plot(edge, y, marker=marker, color=style.colour, clip_on=False, ms=6)
            elif width < 2:
                axes.plot(end, y, marker="|", color=style.colour, ms=7, mew=1.3)
    if row.prediction_nats is not None and low <= row.prediction_nats <= high:
        axes.plot(row.prediction_nats, y, marker="D", color=INK, mfc="none", ms=9, mew=1.1)
    if low <= row.difference_nats <= high:
        face = "none" if row.ci_low is None else style.colour
        axes.plot(row.difference_nats, y, marker=style.marker, color=style.colour, mfc=face, ms=6, mew=1.4)


# ------------------------------------------------------------------------------------------------ curves


def curves(table: Table) -> Figure | None:
    """Validation loss over the steps, the whole run and its last third enlarged, with the n-gram rungs in reach."""
    look = styles(table)
    shown = [curve for curve in table.curves if curve.row in look and any(curve.steps)][:MAX_ROWS]
    if not shown:
        return None
    longest = max((curve.steps for curve in shown), key=lambda steps: steps[-1])
    last = longest[-1]
    stops = [f" (to step {curve.steps[-1]:,})" if curve.steps[-1] < last else "" for curve in shown]
    names = [label(curve.row) + stop for curve, stop in zip(shown, stops, strict=True)]
    late = sum(step >= LATE * last for step in longest) > 2
    right, height = max(map(text_width, names)) + 0.45, max(4.2, labels_height(names))
    widths = [0.55, 0.45] if late else [1.0]
    room = WIDTH - 0.75 - right - 0.7 * (len(widths) - 1)
    with styled():
        figure = new_figure(height + 1.15)
        left = 0.75
        for width, start in zip(widths, (EARLY * last, LATE * last), strict=False):
            axes = add_axes(figure, left, 0.85, width * room, height)
            left += width * room + 0.7
            _curves_panel(axes, shown, look, start, table.rungs or {})
            if start > EARLY * last:
                axes.set_xlim(start, last + 0.015 * (last - start))
                axes.set_title("the last third, enlarged")
            else:
                axes.set_xlim(0, 1.01 * last)
                axes.set_title("the whole run")
                axes.set_ylabel(f"validation loss, {NATS}")
                top = axes.get_ylim()[1]
        end_labels(axes, [(curve.steps[-1], curve.mean[-1], name, look[curve.row])
                          for curve, name in zip(shown, names, strict=True)])  # fmt: skip
        started = max(curve.high[0] for curve in shown)
        cut = f"; losses above {top:.2f}, up to {started:.2f} at the start, are cut off" if started > top else ""
        across = "; dotted across: n-gram tables of the text" if table.rungs else ""
        note(figure, f"line: mean over seeds; band: least to greatest seed{across}{cut}")
    return figure


def _curves_panel(
    axes: Axes, shown: Sequence[Curve], look: Mapping[str, Style], start: float, rungs: Mapping[str, float]
) -> None:
    seen = [(low, high) for c in shown for step, low, high in zip(c.steps, c.low, c.high, strict=True) if step >= start]
    bottom, top = min(low for low, _ in seen), max(high for _, high in seen)
    pad = 0.06 * (top - bottom) or 0.01
    axes.set_ylim(bottom - pad, top + pad)
    for curve in shown:
        style = look[curve.row]
        axes.fill_between(curve.steps, curve.low, curve.high, color=style.colour, alpha=0.16, lw=0)
        axes.plot(curve.steps, curve.mean, color=style.colour, ls=style.dashes, marker=style.marker, ms=4,
                  markevery=max(1, len(curve.steps) // 10), lw=2 if style is BASE_STYLE else 1.4)  # fmt: skip
    _rungs(axes, rungs, falls_to=max(curve.mean[-1] for curve in shown))
    axes.set_xlabel("step")
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True, steps=[1, 2, 5, 10]))
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))


def _rungs(axes: Axes, rungs: Mapping[str, float], falls_to: float) -> None:
    """Lines across with their names, at the side where falling curves leave room; a near one's name moves inwards."""
    bottom, top = axes.get_ylim()
    near = (SMALL + 2) / axes.bbox.height * (top - bottom)
    last, inwards = bottom - near, 0.0
    for loss, n in sorted((loss, n) for n, loss in rungs.items() if bottom < loss < top):
        name = f"{_rung_name(n)} {loss:.2f}"
        inwards = inwards if loss - last < near else 0.0
        above = loss > falls_to
        axes.axhline(loss, color=INK, lw=0.8, ls=(0, (1, 2)), alpha=0.8, zorder=1)
        axes.annotate(name, (1 if above else 0, loss), (-4 - inwards if above else 4 + inwards, 2), alpha=0.85,
                      xycoords=axes.get_yaxis_transform(), textcoords="offset points", fontsize=SMALL - 1,
                      ha="right" if above else "left")  # fmt: skip
        last, inwards = loss, inwards + 72 * text_width(name) + 4


def _rung_name(n: str) -> str:
    return {"1": "unigram", "2": "bigram", "3": "trigram", "xz": "xz"}.get(n, f"{n}-gram")


# ------------------------------------------------------------------------------------------------ where it sits


def position(table: Table) -> Figure | None:
    return _profiles(table, table.by_position, "position of the target in the window, characters")


def knowledge(table: Table) -> Figure | None:
    return _profiles(table, table.by_knowledge, f"what the 6-gram table lost on the target, {NATS}")


def _profiles(table: Table, breakdown: Breakdown | None, what: str) -> Figure | None:
    """Differences bin by bin, and below them the share of the targets in each bin."""
    look = styles(table)
    shown = [profile for profile in breakdown.profiles if profile.row in look][:MAX_ROWS] if breakdown else []
    if not breakdown or not shown:
        return None
    names = [label(profile.row) for profile in shown]
    right, height, low = max(map(text_width, names)) + 0.45, max(3.3, labels_height(names)), 0.75
    places = range(len(breakdown.bins))
    with styled():
        figure = new_figure(height + low + 1.45)
        axes = add_axes(figure, 1.05, low + 1.15, WIDTH - 1.05 - right, height)
        axes.axhspan(-table.margin_nats, table.margin_nats, color=INK, alpha=0.09, lw=0)
        axes.axhline(0, color=INK, lw=0.8)
        for profile in shown:
            style = look[profile.row]
            axes.fill_between(places, profile.low, profile.high, color=style.colour, alpha=0.14, lw=0)
            axes.plot(places, profile.mean, color=style.colour, ls=style.dashes, marker=style.marker, lw=1.4)
        axes.set_xlim(-0.4, len(places) - 0.6)
        axes.set_ylim(*axes.get_ylim())
        axes.set_ylabel(f"difference, {NATS}\n(below 0 is better)")
        axes.tick_params(axis="x", labelbottom=False)
        axes.set_xticks(places)
        end_labels(axes, [(places[-1], p.mean[-1], name, look[p.row]) for p, name in zip(shown, names, strict=True)])
        bars = add_axes(figure, 1.05, 0.95, WIDTH - 1.05 - right, low)
        bars.bar(places, breakdown.shares, width=0.55, color=INK, alpha=0.3)
        for x, share in zip(places, breakdown.shares, strict=True):
            bars.annotate(f"{share:.0%}" if share >= 0.01 else "<1%", (x, share), (0, 2), textcoords="offset points",
                          ha="center", fontsize=SMALL - 1)  # fmt: skip
        bars.set_xlim(axes.get_xlim())
        bars.set_ylim(0, 1.3 * max(breakdown.shares))
        bars.set_yticks([])
        bars.set_ylabel("share of\ntargets")
        bins = [visible(name) for name in breakdown.bins]
        crowded = len(bins) * max(map(text_width, bins)) > WIDTH - 1.05 - right
        bars.set_xticks(places, bins, rotation=25 if crowded else 0, ha="right" if crowded else "center")
        bars.set_xlabel(what)
        note(figure, "line: mean over the paired seeds; band: least to greatest seed; shaded across: the margin")
    return figure


# ------------------------------------------------------------------------------------------------ rates


def tuning(table: Table) -> Figure | None:
    """Validation loss at each learning rate that was tried, the chosen one ringed."""
    look = styles(table)
    shown = [tuned for tuned in table.tuning if tuned.row in look][:MAX_ROWS]
    losses = sorted(loss for tuned in shown for loss in tuned.val_loss_nats if loss is not None)
    if not losses:
        return None
    names = [label(tuned.row) + (" (edge of the grid)" if tuned.at_edge else "") for tuned in shown]
    right, height = max(map(text_width, names)) + 0.45, max(3.3, labels_height(names))
    top = min(losses[-1], losses[0] + WORST * (losses[len(losses) // 2] - losses[0]) + 0.01)
    pad = 0.06 * (top - losses[0]) + 0.001
    with styled():
        figure = new_figure(height + 1.15)
        axes = add_axes(figure, 0.75, 0.85, WIDTH - 0.75 - right, height)
        axes.set_xscale("log")
        axes.set_ylim(losses[0] - pad, top + pad)
        ends = []
        for tuned, name in zip(shown, names, strict=True):
            style = look[tuned.row]
            pairs = zip(tuned.rates, tuned.val_loss_nats, strict=True)
            known = {rate: loss for rate, loss in pairs if loss is not None}
            axes.plot([*known], [*known.values()], color=style.colour, ls=style.dashes, marker=style.marker, lw=1.4)
            if tuned.best in known:
                axes.plot(tuned.best, known[tuned.best], "o", color=style.colour, mfc="none", ms=12, mew=1.4)
                last = max(rate for rate, loss in known.items() if loss <= max(top, known[tuned.best]))
                ends.append((last, known[last], name, style))
        rates = sorted({rate for tuned in shown for rate in tuned.rates})
        axes.set_xticks(rates, [f"{rate:g}" for rate in rates])
        axes.minorticks_off()
        axes.set_xlabel("learning rate")
        axes.set_ylabel(f"validation loss, {NATS}")
        end_labels(axes, ends)
        cut = f"; losses above {top:.2f}, up to {losses[-1]:.2f}, are cut off" if top < losses[-1] else ""
        note(figure, f"ring: the rate chosen; mean over the tuning seeds, none where a run diverged{cut}")
    return figure


# ------------------------------------------------------------------------------------------------ cost

COSTS: Sequence[tuple[str, Callable[[Row], float | None]]] = (
    ("training FLOPs per token: fewer is cheaper", lambda row: row.flops_per_token),
    ("tokens per second in training: more is faster", lambda row: row.tokens_per_s),
    ("parameters: fewer is smaller", lambda row: row.num_params),
    ("KV-cache bytes per token: fewer is smaller", lambda row: row.kv_bytes_per_token),
)


def cost(table: Table) -> Figure | None:
    """Loss against each cost in which rows differ."""
    rows = [row for row in table.rows[:MAX_ROWS] if row.metric_mean is not None]
    panels = [(name, of) for name, of in COSTS if len({of(row) for row in rows} - {None}) > 1]
    if not panels:
        return None
    lines = (len(panels) + 1) // 2
    height, step = 2.9, 3.65
    with styled():
        figure = new_figure(step * lines + 0.35)
        for i, (name, of) in enumerate(panels):
            width = (WIDTH - 0.95 - 0.3 - 0.15) / 2
            bottom = 0.85 + step * (lines - 1 - i // 2)
            axes = add_axes(figure, 0.95 + i % 2 * (width + 0.3), bottom, width, height)
            axes.set_xlabel(name)
            _cost_panel(axes, table, [(x, row) for row in rows if (x := of(row)) is not None])
            if i % 2:
                axes.tick_params(axis="y", labelleft=False)
            else:
                axes.set_ylabel(f"{metric_name(table.metric)},\n{NATS}")
        note(figure, "point: mean over seeds; line up and down: one standard deviation over seeds; lower is better")
    return figure


def _cost_panel(axes: Axes, table: Table, points: Sequence[tuple[float, Row]]) -> None:
    look = styles(table)
    named = []
    for x, row in points:
        y, style = row.metric_mean or 0.0, look[row.name]
        ring = {"ms": 9, "mfc": "none"} if style is BASE_STYLE else {"ms": 6}  # so that it hides no row as good
        axes.errorbar(x, y, row.metric_sd, fmt=style.marker, color=style.colour, elinewidth=1, **ring)
        named.append((x, y, label(row.name), style))
    axes.margins(0.16, 0.1)
    axes.grid(color=INK, alpha=0.1, lw=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_xlim(*axes.get_xlim())
    axes.set_ylim(*axes.get_ylim())
    point_labels(axes, named)


# ------------------------------------------------------------------------------------------------ all of them

TABLE_FIGURES: Mapping[str, Callable[[Table], Figure | None]] = {
    "tuning": tuning,
    "curves": curves,
    "position": position,
    "knowledge": knowledge,
    "cost": cost,
    **DIAGNOSIS_FIGURES,
}


def write_figures(report: Report, folder: Path) -> list[Path]:
    """Save every figure that the page has as SVG and PNG, those of exams with their cards around them; the folder must
    be there. Returns the files.

    Raises OSError.
    """
    written: list[Path] = []
    for name, figure in _drawn(report):
        same = sum(path.stem == name or path.stem.startswith(f"{name}~") for path in written) // 2
        written += save(figure, folder, f"{name}~{same + 1}" if same else name)
    return written


def _drawn(report: Report) -> Iterator[tuple[str, Figure]]:
    for card in report.exams:
        if figure := card_picture(card):
            yield card_name(card), figure
    drawn = [table for table in shown_tables(report.studies) if not table.is_joined]
    for tables in directions(drawn[:MAX_TABLES]):
        if figure := forest(tables):
            yield forest_name(tables), figure
        for table in tables:
            for kind, of_table in TABLE_FIGURES.items():
                if figure := of_table(table):
                    yield table_name(table, kind), figure
    for attribution in report.attribution[:MAX_TABLES]:
        for kind, of_attribution in ATTRIBUTION_FIGURES.items():
            if figure := of_attribution(attribution):
                yield attribution_name(attribution, kind), figure


def forest_name(tables: Sequence[Table]) -> str:
    return file_name(tables[0].study, *(table.base for table in tables), tables[0].title, "forest")


def table_name(table: Table, kind: str) -> str:
    return file_name(table.study, table.base, table.title, kind)
