"""The figures of what was measured inside the models: layer by layer, and what they copy.

As in figures.py: a row keeps its colour, marker and dashes; None where the data is not there.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from anatomy.report.data import Copying, Layers, Table
from anatomy.report.drawing import (
    INK,
    SMALL,
    WIDTH,
    Style,
    add_axes,
    beside,
    end_labels,
    label,
    labels_height,
    new_figure,
    note,
    styled,
    styles,
    text_width,
)

AT = {"start": "at the start", "last": "at the end"}
SEEDS = "line: mean over seeds; band: least to greatest seed"
LONGEST = "longest copy, characters"
PLAIN = FuncFormatter(lambda y, _: f"{y:.3g}")


@dataclass(frozen=True)
class Panel:
    """One frame of a figure: a quantity, layer by layer, of each row; on the scale of its line, or one of its own."""

    title: str
    quantity: str
    layers: Sequence[Layers]
    is_log: bool = False
    has_own_scale: bool = False


def gradients(table: Table) -> Figure | None:
    """Gradient norms at the start, of the attention and of the FFN of each block."""
    if table.diagnosis is None:
        return None
    named = {"attn": "attention and its norm", "ffn": "FFN and its norm"}
    panels = [
        Panel(named[sub], "gradient norm at the start", layers, is_log=True)
        for sub, layers in table.diagnosis.gradients.items()
    ]
    return _by_layer(table, [panels], "block", f"{SEEDS}; of the run's first batch")


def activations(table: Table) -> Figure | None:
    """How large the residual stream is, from the embedding to the last block."""
    if table.diagnosis is None:
        return None
    panels = [
        Panel(AT[moment], "RMS of the residual stream", layers, is_log=True)
        for moment, layers in table.diagnosis.activations.items()
    ]
    return _by_layer(table, [panels], "after block; 0 is the embedding", SEEDS)


def attention(table: Table) -> Figure | None:
    """How spread attention is, and how large its logits grow."""
    if table.diagnosis is None:
        return None
    entropy = [
        Panel(AT[moment], "entropy of attention,\nnats", layers)
        for moment, layers in table.diagnosis.entropy_nats.items()
    ]
    logits = [
        Panel(AT[moment], "largest logit", layers, has_own_scale=True)
        for moment, layers in table.diagnosis.largest_logit.items()
    ]
    return _by_layer(table, [entropy, logits], "block", f"{SEEDS}; entropy: mean over heads and positions")


def _by_layer(table: Table, lines: Sequence[Sequence[Panel]], across: str, said: str) -> Figure | None:
    """Panels side by side, in one line or several; rows are named at the right of each line."""
    look = styles(table)
    lines = [[panel for panel in line if _shown(panel, look)] for line in lines]
    lines = [line for line in lines if line]
    if not lines:
        return None
    rows = list(dict.fromkeys(layers.row for line in lines for panel in line for layers in panel.layers))
    names = [_name(lines[0], row) for row in rows if row in look]
    left, gap, right = 0.95, 0.55, max(map(text_width, names)) + 0.45
    height = max(3.0, labels_height(names))
    step = height + 0.75
    with styled():
        figure = new_figure(step * len(lines) + 0.6)
        for i, line in enumerate(lines):
            bottom = 0.9 + step * (len(lines) - 1 - i)
            width = (WIDTH - left - right - gap * (len(line) - 1)) / len(line)
            for k, panel in enumerate(line):
                axes = add_axes(figure, left + k * (width + gap), bottom, width, height)
                _panel(axes, panel, look, _limits([panel] if panel.has_own_scale else line))
                axes.set_xlabel(across if i == len(lines) - 1 else "")
                axes.tick_params(axis="y", labelleft=k == 0 or panel.has_own_scale)
                axes.set_ylabel(panel.quantity if k == 0 else "")
            _names(axes, line, look)
        note(figure, said)
    return figure


def _shown(panel: Panel, look: Mapping[str, Style]) -> list[Layers]:
    """What of a panel can be drawn: rows with a style, and a point somewhere."""
    return [layers for layers in panel.layers if layers.row in look and any(map(math.isfinite, _line(panel, layers)))]


def _line(panel: Panel, layers: Layers) -> list[float]:
    return [_drawn(panel, value) for value in layers.mean]


def _drawn(panel: Panel, value: float | None) -> float:
    """A value where it can be drawn: on a scale of powers, what is not above 0 cannot."""
    return math.nan if value is None or (panel.is_log and value <= 0) else value


def _limits(panels: Sequence[Panel]) -> tuple[float, float]:
    """One scale for some panels."""
    values = [
        drawn
        for panel in panels
        for layers in panel.layers
        for value in (*layers.low, *layers.high)
        if math.isfinite(drawn := _drawn(panel, value))
    ]
    low, high = min(values), max(values)
    if panels[0].is_log:
        pad = max(1.06, (high / low) ** 0.05)
        return low / pad, high * pad
    pad = 0.05 * (high - low) or 0.05 * abs(high) or 0.05
    return low - pad, high + pad


def _panel(axes: Axes, panel: Panel, look: Mapping[str, Style], limits: tuple[float, float]) -> None:
    if panel.is_log:
        axes.set_yscale("log")
        is_wide = limits[1] / limits[0] > 30
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0,) if is_wide else (1.0, 2.0, 3.0, 5.0, 7.0)))
        axes.yaxis.set_major_formatter(PLAIN)
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(*limits)
    for layers in _shown(panel, look):
        style = look[layers.row]
        places = range(layers.first, layers.first + len(layers.mean))
        low, high = ([_drawn(panel, value) for value in ends] for ends in (layers.low, layers.high))
        axes.fill_between(places, low, high, color=style.colour, alpha=0.14, lw=0)
        axes.plot(places, _line(panel, layers), color=style.colour, ls=style.dashes, marker=style.marker, lw=1.4)
    axes.set_title(panel.title)
    axes.grid(axis="y", color=INK, alpha=0.1, lw=0.6)
    first = min(layers.first for layers in panel.layers)
    end = max(layers.first + len(layers.mean) for layers in panel.layers)
    axes.set_xticks(range(first, end, max(1, (end - first) // 8)))
    pad = 0.04 * (end - first)
    axes.set_xlim(first - pad, end - 1 + pad)


def _name(line: Sequence[Panel], row: str) -> str:
    """A row's name; a row that ended early is in the first panel alone."""
    is_last = any(layers.row == row for layers in line[-1].layers)
    return label(row) if is_last else f"{label(row)} (start only)"


def _names(axes: Axes, line: Sequence[Panel], look: Mapping[str, Style]) -> None:
    """Every row's name at the right, tied to the end of its line where the last panel has it."""
    ends: dict[str, tuple[float, float, str, Style]] = {}
    for panel in line:
        for layers in _shown(panel, look):
            values = _line(panel, layers)
            last = max(i for i, value in enumerate(values) if math.isfinite(value))
            x = layers.first + last if panel is line[-1] else -math.inf
            ends[layers.row] = (x, values[last], _name(line, layers.row), look[layers.row])
    end_labels(axes, list(ends.values()))


# ------------------------------------------------------------------------------------------------ copying


def copying(table: Table) -> Figure | None:
    """The share of what rows write that is copied, with their best and with their last weights."""
    look = styles(table)
    by_row: dict[str, dict[str, Copying]] = {}
    for one in table.diagnosis.copying if table.diagnosis else ():
        if one.row in look:
            by_row.setdefault(one.row, {})[one.weights] = one
    if not by_row:
        return None
    names = [label(row) for row in by_row]
    said = [_longest(found) for found in by_row.values()]
    left, right = max(1.1, max(map(text_width, names)) + 0.25), max(map(text_width, [*said, LONGEST])) + 0.4
    line = 0.34 + 0.12 * any("\n" in name for name in names)
    with styled():
        figure = new_figure(line * len(by_row) + 1.35)
        axes = add_axes(figure, left, 0.9, WIDTH - left - right, line * len(by_row) + 0.1)
        for y, ((row, found), words) in enumerate(zip(by_row.items(), said, strict=True)):
            for weights, one in found.items():
                style, place = look[row], y + (0.12 if weights == "last" else -0.12)
                face = style.colour if weights == "last" else "none"
                axes.plot((one.share_low, one.share_high), (place, place), color=style.colour, lw=1.3)
                axes.plot(one.share, place, marker=style.marker, color=style.colour, mfc=face, ms=6, mew=1.4)
            beside(axes, y, words)
        axes.set_yticks(range(len(names)), names)
        axes.set_ylim(len(names) - 0.4, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        every = [one for found in by_row.values() for one in found.values()]
        of_text = {one.share_of_text for one in every if one.share_of_text is not None}
        for share in of_text:
            axes.axvline(share, color=INK, lw=1, ls=(0, (1, 2)))
        highest = max([one.share_high for one in every] + list(of_text))
        axes.set_xlim(-0.02 * max(highest, 0.05), 1.05 * max(highest, 0.05))
        axes.xaxis.set_major_formatter(PercentFormatter(1, decimals=None))
        axes.grid(axis="x", color=INK, alpha=0.1, lw=0.6)
        axes.set_xlabel("share of the characters written that lie inside a copy of 20 or more")
        axes.annotate(LONGEST, (1, 1), (8, 6), xycoords="axes fraction", textcoords="offset points",
                      fontsize=SMALL, weight="bold", annotation_clip=False)  # fmt: skip
        dotted = "; dotted: the text itself, going on from the same prompts" if of_text else ""
        note(figure, f"hollow: best weights; filled: last weights; line: least to greatest seed{dotted}")
    return figure


def _longest(found: Mapping[str, Copying]) -> str:
    return ", ".join(f"{one.weights} {one.longest_chars:,.0f}" for _, one in sorted(found.items()))


DIAGNOSIS_FIGURES = {"gradients": gradients, "activations": activations, "attention": attention, "copying": copying}
