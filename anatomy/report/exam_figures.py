"""The pictures of exams, one an axis. None where the data is not there."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from math import nan

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullLocator, StrMethodFormatter

from anatomy.measures_file import ArmStep, DecodeStep, NormCall
from anatomy.report.data import Card, Series
from anatomy.report.drawing import (
    DASHES,
    INK,
    MARKERS,
    NATS,
    Style,
    beside,
    end_labels,
    file_name,
    label,
    new_figure,
    note,
    styled,
    text_width,
)
from anatomy.report.exam_map import outcome_map
from anatomy.report.exam_panels import (
    MAX_BASES,
    MAX_LINES,
    Ladder,
    Panel,
    Rung,
    Sketch,
    draw_panels,
    ladder_axes,
    legend,
    legend_height,
    looks,
    losses_note,
    losses_panel,
    make_ladder,
    only_ticks,
    row_name,
    rung_of,
    spread_line,
    timed_line,
)

SETTLED = 8  # positions before it may leave the picture at its top: a model that has read nothing knows nothing
FOOT, HEAD = 0.95, 0.4  # inches below and above panels
TIMED_HEIGHT = 2.8  # of a panel of lines beside a ladder, at least
TIMED = "time: median, 95 % interval"


def exam_picture(card: Card) -> Figure | None:
    """The picture of a card's axis."""
    picture = sketch(card)
    if picture is None:
        return None
    with styled():
        figure = new_figure(picture.height)
        picture.draw(figure)
    return figure


def exam_name(card: Card) -> str:
    return file_name(card.study, "picture")


def sketch(card: Card) -> Sketch | None:
    return SKETCHES[card.axis](card) if card.axis in SKETCHES else None


def _side_by_side(panels: Sequence[Panel], height: float, notes: Sequence[str]) -> Sketch | None:
    if not panels:
        return None

    def draw(figure: Figure) -> None:
        draw_panels(figure, FOOT, height, panels)
        note(figure, "; ".join(notes))

    return Sketch(FOOT + height + HEAD, draw)


# ------------------------------------------------------------------------------------------------ norm


def _norm(card: Card) -> Sketch | None:
    """Losses, and what a call costs beside LayerNorm's."""
    timed = card.timed["norm_calls"]["rows"] if card.timed and "norm_calls" in card.timed else []
    calls = [row for row in timed if row["norm"] != "layer"]  # beside which the others are held
    ladder = make_ladder([rung_of(loss, card.axis) for loss in card.losses])
    styles = looks([*ladder.looks, *(label(row["norm"]) for row in calls)])
    panels = [losses_panel(card, ladder)] if card.losses else []
    panels += [_calls_panel(calls, styles)] if calls else []
    notes = losses_note(card) + [TIMED] * bool(calls)
    return _side_by_side(panels, max(ladder.height, TIMED_HEIGHT * bool(calls)), notes)


def _calls_panel(calls: Sequence[NormCall], styles: Mapping[str, Style]) -> Panel:
    forms = list(dict.fromkeys(row["form"] for row in calls))
    kinds = list(dict.fromkeys((row["norm"], row["form"]) for row in calls))[:MAX_LINES]
    names = [label(f"{norm}, {form}") for norm, form in kinds]

    def draw(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        axes.axhline(1, color=INK, lw=0.8)
        ends = []
        for (norm, form), name in zip(kinds, names, strict=True):
            rows = sorted((r for r in calls if (r["norm"], r["form"]) == (norm, form)), key=lambda row: row["width"])
            nth = forms.index(form)
            style = Style(styles[label(norm)].colour, MARKERS[nth % len(MARKERS)], DASHES[nth % len(DASHES)])
            spreads = [(r["both_over_layer_low"], r["both_over_layer"], r["both_over_layer_high"]) for r in rows]
            timed_line(axes, [row["width"] for row in rows], spreads, style)
            ends.append((rows[-1]["width"], rows[-1]["both_over_layer"], name, style))
        widths = sorted({row["width"] for row in calls})
        only_ticks(axes, widths, [f"{width:,}" for width in widths])
        axes.set_xlim(widths[0] / 1.2, widths[-1] * 1.2)
        axes.set_ylim(*axes.get_ylim())
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
        axes.set_title("a call, forward and backward")
        axes.set_xlabel("width of the model, channels")
        axes.set_ylabel("time over LayerNorm's in that form")
        end_labels(axes, ends)

    return Panel(0.75, max(map(text_width, names)) + 0.4, 0.9, draw)


# ------------------------------------------------------------------------------------------------ positions


def _pos(card: Card) -> Sketch | None:
    """Loss by length of the window, and below it by position in the longest ones."""
    kinds = [(lines, draw) for lines, draw in ((card.by_length, _length_axes), (card.by_position, _position_axes))
             if lines]  # fmt: skip
    if not kinds:
        return None
    every = [line for lines, _ in kinds for line in lines]
    bases = list(dict.fromkeys(line.base for line in every))[:MAX_BASES]
    styles = looks(list(dict.fromkeys(line.row for line in every))[:MAX_LINES])
    named = {row_name(row, card.axis): style for row, style in styles.items()}
    height, step = 2.4, 3.45

    def draw(figure: Figure) -> None:
        for i, (lines, finish) in enumerate(reversed(kinds)):
            shown = [line for line in lines if line.row in styles and line.base in bases]
            draw_panels(figure, FOOT + i * step, height, [
                Panel(0.25 if k else 0.85, 0.05, 1.0, _series_panel(card, shown, base, styles, finish, is_first=not k))
                for k, base in enumerate(bases)
            ])  # fmt: skip
        legend(figure, FOOT + len(kinds) * step - (step - height) + 0.35, 0.85, named)
        note(figure, "line: mean over seeds; band: least to greatest seed; dotted: the length that was trained at; "
                     "cross: nothing longer can be read")  # fmt: skip

    return Sketch(FOOT + len(kinds) * step - (step - height) + 0.35 + legend_height(named, 0.85) + 0.1, draw)


def _series_panel(
    card: Card,
    lines: Sequence[Series],
    base: str,
    styles: Mapping[str, Style],
    finish: Callable[[Axes, Sequence[Series], str], None],
    *,
    is_first: bool,
) -> Callable[[Axes], None]:
    """The lines of a base; the scales are those of all bases."""
    x = sorted({place for line in lines for place in line.x})

    def draw(axes: Axes) -> None:
        axes.set_xscale("log", base=2)
        for line in lines:
            if line.base == base:
                _draw_series(axes, line, styles[line.row])
        if card.trained_at is not None:
            axes.axvline(card.trained_at, color=INK, lw=0.9, ls=(0, (1, 2)), zorder=1)
        axes.set_xlim(x[0] / 1.15, x[-1] * 1.15)
        only_ticks(axes, x, [f"{place:g}" for place in x])
        axes.set_title(label(base))
        finish(axes, lines, base)
        if is_first:
            axes.set_ylabel(f"test loss,\n{NATS}")
        else:
            axes.tick_params(axis="y", labelleft=False)

    return draw


def _length_axes(axes: Axes, lines: Sequence[Series], base: str) -> None:
    axes.set_ylim(*_scale(lines, 0))
    axes.set_xlabel("length of the window, characters")
    for line in lines:
        for (at, here), (_, there) in pairwise(zip(line.x, line.mean, strict=True)):
            if line.base == base and here is not None and there is None:
                axes.plot(at, here, color=INK, marker="x", ms=10, mew=1.6, ls="none")


def _position_axes(axes: Axes, lines: Sequence[Series], base: str) -> None:
    axes.set_ylim(*_scale(lines, SETTLED))
    axes.set_xlabel("position in the longest window, characters")


def _draw_series(axes: Axes, line: Series, style: Style) -> None:
    mean, low, high = ([nan if y is None else y for y in ys] for ys in (line.mean, line.low, line.high))
    axes.fill_between(line.x, low, high, color=style.colour, alpha=0.16, lw=0)
    axes.plot(line.x, mean, color=style.colour, ls=style.dashes, marker=style.marker, lw=1.5, ms=5)


def _scale(lines: Sequence[Series], start: float) -> tuple[float, float]:
    """Limits over what all lines have from `start` on, or over all, where they have nothing there."""
    ends = list(_ends(lines, start)) or list(_ends(lines, 0)) or [0.0]
    pad = 0.05 * (max(ends) - min(ends)) or 0.01
    return min(ends) - pad, max(ends) + pad


def _ends(lines: Sequence[Series], start: float) -> Iterator[float]:
    for line in lines:
        for x, low, high in zip(line.x, line.low, line.high, strict=True):
            if x >= start and low is not None and high is not None:
                yield from (low, high)


# ------------------------------------------------------------------------------------------------ attention


def _attn(card: Card) -> Sketch | None:
    """Losses, and what the cache of keys and values takes at the largest size that decoding was timed at."""
    rows = card.timed["decode"]["rows"] if card.timed and "decode" in card.timed else []
    widest = max((row["width"] for row in rows), default=0)
    steps = sorted((row for row in rows if row["width"] == widest), key=lambda row: row["num_cached"])
    ladder = make_ladder([rung_of(loss, card.axis) for loss in card.losses])
    panels = [losses_panel(card, ladder)] if card.losses else []
    panels += [_cache_panel(steps), _decoding_panel(steps)] if steps else []
    notes = losses_note(card) + [f"decoding: {widest:,} wide, {TIMED}"] * bool(steps)
    return _side_by_side(panels, max(ladder.height, TIMED_HEIGHT * bool(steps)), notes)


def _by_heads(steps: Sequence[DecodeStep]) -> list[tuple[str, Style, list[DecodeStep]]]:
    """Name, style and steps of each number of heads of keys and values, most heads first."""
    heads = sorted({row["n_kv_head"] for row in steps}, reverse=True)[:MAX_LINES]
    styles = looks([f"{num} KV head{'s' * (num != 1)}" for num in heads])
    return [(name, style, [row for row in steps if row["n_kv_head"] == num])
            for num, (name, style) in zip(heads, styles.items(), strict=True)]  # fmt: skip


def _cache_panel(steps: Sequence[DecodeStep]) -> Panel:
    def draw(axes: Axes) -> None:
        for _, style, rows in _by_heads(steps):
            axes.plot([row["num_cached"] for row in rows], [row["cache_bytes_measured"] for row in rows],
                      color=style.colour, ls=style.dashes, marker=style.marker, lw=1.4)  # fmt: skip
        _cached_axes(axes, steps)
        axes.yaxis.set_major_formatter(EngFormatter(unit="B"))
        axes.set_title("the cache takes")
        axes.set_ylabel("bytes")

    return Panel(0.75, 0.1, 0.75, draw)


def _decoding_panel(steps: Sequence[DecodeStep]) -> Panel:
    lines = _by_heads(steps)

    def draw(axes: Axes) -> None:
        for _, style, rows in lines:
            spreads = [(row["step_us_low"], row["step_us"], row["step_us_high"]) for row in rows]
            timed_line(axes, [row["num_cached"] for row in rows], spreads, style)
        _cached_axes(axes, steps)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        axes.set_title("a token takes")
        axes.set_ylabel("microseconds")
        axes.set_ylim(*axes.get_ylim())
        end_labels(axes, [(rows[-1]["num_cached"], rows[-1]["step_us"], name, style) for name, style, rows in lines])

    return Panel(0.8, max(text_width(name) for name, _, _ in lines) + 0.4, 0.75, draw)


def _cached_axes(axes: Axes, steps: Sequence[DecodeStep]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=INK, alpha=0.1, lw=0.6)
    places = sorted({row["num_cached"] for row in steps})
    only_ticks(axes, places, [f"{place // 1024}k" if place % 1024 == 0 else f"{place:,}" for place in places])
    axes.set_xlim(places[0] / 1.2, places[-1] * 1.2)
    axes.set_xlabel("cached tokens")


# ------------------------------------------------------------------------------------------------ FFN


def _ffn(card: Card) -> Sketch | None:
    """Losses, and beside each what a training step of it takes."""
    timed = card.timed["train_step"]["rows"] if card.timed and "train_step" in card.timed else []
    steps = [row for row in timed if row["over_base"] is not None]
    ladder = make_ladder([*(rung_of(loss, card.axis) for loss in card.losses), *(_step_rung(s, card) for s in steps)])
    panels = [losses_panel(card, ladder)] if card.losses else []
    panels += [_steps_panel(card, steps, ladder, with_names=not panels)] if steps else []
    return _side_by_side(panels, ladder.height, losses_note(card) + [TIMED] * bool(steps))


def _step_rung(step: ArmStep, card: Card) -> Rung:
    return step["base"], step["match"], label(step["parts"].get(card.axis, "base"))


def _steps_panel(card: Card, steps: Sequence[ArmStep], ladder: Ladder, *, with_names: bool) -> Panel:
    def draw(axes: Axes) -> None:
        for step in steps:
            rung, ratio = _step_rung(step, card), step["over_base"]
            if (y := ladder.places.get(rung)) is not None and ratio is not None:
                spread_line(axes, y, (step["over_base_low"], ratio, step["over_base_high"]), ladder.looks[rung[2]])
                beside(axes, y, f"{ratio:.2f}×")
        axes.axvline(1, color=INK, lw=0.8)
        ladder_axes(axes, ladder, with_names=with_names)
        axes.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}×"))
        axes.set_title("a training step")
        axes.set_xlabel("time over the base's; left is faster")

    return Panel(ladder.left if with_names else 0.2, 0.65, 0.8, draw)


SKETCHES: Mapping[str, Callable[[Card], Sketch | None]] = {
    "norm": _norm,
    "placement": outcome_map,
    "pos": _pos,
    "attn": _attn,
    "ffn": _ffn,
}
