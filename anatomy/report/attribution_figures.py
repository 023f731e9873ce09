"""The figures of an attribution: the walk from base to counterpart, what each part earns, what pairs do together.

As in figures.py: nats per character, below 0 better, a colour an axis; None where the data is not there.
"""

from collections.abc import Callable, Mapping, Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from anatomy.axes import BASES
from anatomy.report.data import Attribution, Estimate
from anatomy.report.drawing import (
    COLOURS,
    INK,
    NATS,
    SIGNED,
    SMALL,
    WIDTH,
    add_axes,
    beside,
    file_name,
    label,
    metric_name,
    new_figure,
    note,
    styled,
    text_width,
)
from anatomy.report.words import visible


def walk(attribution: Attribution) -> Figure | None:
    """From base to counterpart, an axis a step: each bar begins where the one before it ended."""
    if not attribution.walk:
        return None
    steps = [(_change(attribution, axis), axis, estimate) for axis, estimate in attribution.walk]
    left = max(text_width(name) for name, _, _ in steps) + 0.3
    line = 0.36
    num = len(steps) + bool(attribution.total)
    with styled():
        figure = new_figure(line * num + 1.55)
        axes = add_axes(figure, left, 0.95, WIDTH - left - 2.3, line * num + 0.1)
        reached = 0.0
        for y, (_, axis, estimate) in enumerate(steps):
            _walk_bar(axes, y, reached, estimate, _axis_colour(axis))
            reached += estimate.nats
            if y + 1 < num:
                axes.plot((reached, reached), (y - 0.3, y + 1.3), color=INK, lw=0.7, alpha=0.7)
        names = [name for name, _, _ in steps]
        if attribution.total:
            _walk_bar(axes, len(steps), 0.0, attribution.total, INK)
            names.append("together")
        _axis_rows(axes, names)
        axes.set_title(f"{visible(attribution.base)} → {visible(attribution.counterpart)}")
        metric, base = metric_name(attribution.metric), visible(attribution.base)
        axes.set_xlabel(f"{metric} minus that of {base}, {NATS}; left of 0 is better")
        note(figure, "bar: what the step changes, from where the steps before it have led; line: its 95 % interval")
    return figure


def _walk_bar(axes: Axes, y: int, start: float, estimate: Estimate, colour: str) -> None:
    axes.barh(y, estimate.nats, left=start, height=0.6, color=colour, alpha=0.55, lw=0)
    axes.barh(y, estimate.nats, left=start, height=0.6, fill=False, edgecolor=colour, lw=1)
    _whisker(axes, y, start, estimate, colour)
    beside(axes, y, _said(estimate))


def _whisker(axes: Axes, y: float, start: float, estimate: Estimate, colour: str) -> None:
    if estimate.ci_low is not None and estimate.ci_high is not None:
        ends = (start + estimate.ci_low, start + estimate.ci_high)
        axes.plot(ends, (y, y), color=colour, lw=1.4, marker="|", ms=6, mew=1.4)


def _said(estimate: Estimate) -> str:
    if estimate.ci_low is None or estimate.ci_high is None:
        return f"{estimate.nats:+.4f} (one seed)".replace("-", "−")
    return f"{estimate.nats:+.4f} [{estimate.ci_low:+.4f}, {estimate.ci_high:+.4f}]".replace("-", "−")


def _change(attribution: Attribution, axis: str) -> str:
    """`norm: layer → rms`."""
    ends = [BASES.get(base, {}).get(axis) for base in (attribution.base, attribution.counterpart)]
    return visible(f"{axis}: {ends[0]} → {ends[1]}") if all(ends) else label(axis)


def _axis_colour(axis: str) -> str:
    return COLOURS.get(axis, COLOURS["several"])


def _axis_rows(axes: Axes, names: Sequence[str]) -> None:
    axes.axvline(0, color=INK, lw=0.8)
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.1, lw=0.6)
    axes.xaxis.set_major_formatter(SIGNED)


def shapley(attribution: Attribution) -> Figure | None:
    """An axis's share of the whole, beside what its part does alone in the base and alone in the counterpart."""
    kinds = [
        ("Shapley value", attribution.shapley),
        (f"in {attribution.base} (add one in)", attribution.add_one_in),
        (f"in {attribution.counterpart} (leave one out)", attribution.leave_one_out),
    ]
    shown = [axis for axis in attribution.axes if any(axis in estimates for _, estimates in kinds)]
    if not shown:
        return None
    names = [_change(attribution, axis) for axis in shown]
    left, line = max(map(text_width, names)) + 0.3, 0.72
    with styled():
        figure = new_figure(line * len(shown) + 1.3)
        axes = add_axes(figure, left, 0.95, WIDTH - left - 1.75, line * len(shown))
        for y, axis in enumerate(shown):
            colour = _axis_colour(axis)
            if whole := attribution.shapley.get(axis):
                axes.barh(y - 0.22, whole.nats, height=0.3, color=colour, alpha=0.55, lw=0)
                axes.barh(y - 0.22, whole.nats, height=0.3, fill=False, edgecolor=colour, lw=1)
                _whisker(axes, y - 0.22, 0, whole, colour)
            for place, marker, estimates in (
                (0.1, ">", attribution.add_one_in),
                (0.32, "<", attribution.leave_one_out),
            ):
                if one := estimates.get(axis):
                    _whisker(axes, y + place, 0, one, colour)
                    axes.plot(
                        one.nats, y + place, marker=marker, color=colour, ms=8, mfc="none" if place < 0.2 else colour
                    )
            if axis in attribution.depends_on_the_rest:
                beside(axes, y, "depends on the rest")
        _axis_rows(axes, names)
        axes.set_xlabel(f"what the part changes in {metric_name(attribution.metric)}, {NATS}; left of 0 is better")
        keys: list[Artist] = [Patch(facecolor=to_rgba("0.5", 0.5), edgecolor=INK)]
        keys += [Line2D([], [], color=INK, marker=">", ms=8, mfc="none"), Line2D([], [], color=INK, marker="<", ms=8)]
        drawn = [(key, visible(name)) for key, (name, estimates) in zip(keys, kinds, strict=True) if estimates]
        axes.legend(*zip(*drawn, strict=True), loc="lower left", bbox_to_anchor=(0, 1), ncols=3, borderaxespad=0.2)
        model = f"; Shapley values rest on {visible(attribution.model)}" if attribution.model else ""
        note(figure, f"lines: 95 % intervals{model}")
    return figure


def interactions(attribution: Attribution) -> Figure | None:
    """What two parts do together beyond what each does, pair by pair."""
    if not attribution.interactions:
        return None
    first, second = attribution.axes[:-1], attribution.axes[1:]
    biggest = max(abs(estimate.nats) for estimate in attribution.interactions.values()) or 1.0
    left, side, line = max(text_width(axis) for axis in first) + 0.3, 1.55, 0.62
    with styled():
        figure = new_figure(line * len(first) + 1.1)
        axes = add_axes(figure, left, 0.5, side * len(second), line * len(first))
        for y, one in enumerate(first):
            for x, other in enumerate(second):
                pairs = attribution.interactions
                if x >= y and (estimate := pairs.get(f"{one}*{other}") or pairs.get(f"{other}*{one}")):
                    _cell(axes, x, y, estimate, biggest)
        axes.set_xticks(range(len(second)), map(visible, second))
        axes.set_yticks(range(len(first)), map(visible, first))
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xlim(-0.5, len(second) - 0.5)
        axes.set_ylim(len(first) - 0.5, -0.5)
        for spine in axes.spines.values():
            spine.set_visible(False)
        note(
            figure, f"{NATS}, with 95 % intervals; below 0: together better than apart; bold: the interval leaves out 0"
        )
    return figure


def _cell(axes: Axes, x: int, y: int, estimate: Estimate, biggest: float) -> None:
    colour = COLOURS["norm"] if estimate.nats < 0 else COLOURS["ffn"]
    place: tuple[tuple[float, float], float, float] = ((x - 0.48, y - 0.46), 0.96, 0.92)
    axes.add_patch(Rectangle(*place, fc=colour, alpha=0.5 * abs(estimate.nats) / biggest))
    axes.add_patch(Rectangle(*place, fill=False, ec=INK, lw=0.6, alpha=0.5))
    number, *interval = _said(estimate).split(" ", 1)
    axes.text(x, y - 0.16, number, ha="center", va="center", weight="bold" if _clear(estimate) else "normal")
    axes.text(x, y + 0.2, "".join(interval), ha="center", va="center", fontsize=SMALL - 1.5)


def _clear(estimate: Estimate) -> bool:
    return estimate.ci_low is not None and estimate.ci_high is not None and estimate.ci_low * estimate.ci_high > 0


ATTRIBUTION_FIGURES: Mapping[str, Callable[[Attribution], Figure | None]] = {
    "walk": walk,
    "shapley": shapley,
    "interactions": interactions,
}


def attribution_name(attribution: Attribution, kind: str) -> str:
    return file_name(attribution.study, attribution.base, attribution.counterpart, kind)
