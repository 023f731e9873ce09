"""What the pictures of exams are put together from: panels side by side, names of rows, and ladders of losses.

All rows of an exam lie on one axis, so in its picture, other than in figures.py, a colour is a row.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator

from anatomy.report.data import Card, PartLoss
from anatomy.report.drawing import (
    COLOURS,
    DASHES,
    INK,
    MARKERS,
    NATS,
    SMALL,
    WIDTH,
    Style,
    add_axes,
    beside,
    label,
    text_width,
)
from anatomy.report.evidence import NUM_DETAILED

MAX_BASES, MAX_LINES = 3, NUM_DETAILED  # bases, and rows a base, that a picture has room for
PALETTE = [COLOURS[kind] for kind in ("norm", "ffn", "pos", "attn", "placement", "tying", "bias", "several")]
MATCHES = {"params": "equal parameters", "flops": "equal FLOPs", "time": "equal time"}
RUNG = 0.27  # inches that a line of a ladder is high
FAR, MUCH = 4.0, 3.0  # see `_reach`

Spread = tuple[float | None, float, float | None]
"""A number between the ends of what lies about it."""


@dataclass(frozen=True)
class Sketch:
    """A picture before it is on paper: its height in inches, and what draws it from the foot of a figure upwards."""

    height: float
    draw: Callable[[Figure], None]


@dataclass(frozen=True)
class Panel:
    """One of several side by side: room for labels at its sides in inches, its share of the rest, what draws it."""

    left: float
    right: float
    share: float
    draw: Callable[[Axes], None]


def draw_panels(figure: Figure, bottom: float, height: float, panels: Sequence[Panel]) -> None:
    room = WIDTH - sum(panel.left + panel.right for panel in panels)
    x = 0.0
    for panel in panels:
        width = room * panel.share / sum(other.share for other in panels)
        panel.draw(add_axes(figure, x + panel.left, bottom, width, height))
        x += panel.left + width + panel.right


# ------------------------------------------------------------------------------------------------ names and looks


def row_name(row: str, axis: str) -> str:
    """A row's words as a label: `rms` for `norm=rms`, `rope, theta 10000` for `pos.theta=10000 pos=rope`. What the
    rows were matched in is said elsewhere."""
    words = [word for word in row.split(" ") if not word.startswith("match=")]
    first = [word.removeprefix(f"{axis}=") for word in words if word.startswith(f"{axis}=")]
    rest = [word.removeprefix(f"{axis}.").replace("=", " ") for word in words if not word.startswith(f"{axis}=")]
    return label(", ".join([*first, *rest]) or "base")


def looks(names: Sequence[str]) -> dict[str, Style]:
    """Name -> style, which differ with colour and without."""
    return {
        name: Style(PALETTE[i % len(PALETTE)], MARKERS[i % len(MARKERS)], DASHES[i % len(DASHES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def legend(figure: Figure, bottom: float, left: float, named: Mapping[str, Style]) -> None:
    """Names with their lines, in `legend_height` inches above `bottom`."""
    across, up = figure.get_size_inches()
    keys = [Line2D([], [], color=s.colour, ls=s.dashes, marker=s.marker, ms=5, lw=1.4) for s in named.values()]
    figure.legend(keys, list(named), loc="lower left", bbox_to_anchor=(left / across, bottom / up), borderpad=0,
                  ncols=ceil(len(named) / _num_lines(named, left)), borderaxespad=0, handlelength=3,
                  columnspacing=1.4)  # fmt: skip


def legend_height(named: Mapping[str, Style], left: float) -> float:
    return 0.21 * _num_lines(named, left)


def _num_lines(named: Mapping[str, Style], left: float) -> int:
    widths = [text_width(name) + 0.7 for name in named]
    room = WIDTH - left
    return 1 if sum(widths) <= room else ceil(len(widths) / max(1, int(room / max(widths))))


def only_ticks(axes: Axes, places: Sequence[float], names: Sequence[str]) -> None:
    """Ticks of a logarithmic axis, there and nowhere else."""
    axes.set_xticks(places, names)
    axes.xaxis.set_minor_locator(NullLocator())


def timed_line(axes: Axes, x: Sequence[float], spreads: Sequence[Spread], style: Style) -> None:
    """A line through what was timed, with the interval of each point."""
    middles = [middle for _, middle, _ in spreads]
    below = [0 if low is None else middle - low for low, middle, _ in spreads]
    above = [0 if high is None else high - middle for _, middle, high in spreads]
    axes.errorbar(x, middles, (below, above), color=style.colour, ls=style.dashes, marker=style.marker, lw=1.4,
                  elinewidth=1.2, capsize=3)  # fmt: skip


# ------------------------------------------------------------------------------------------------ ladders

Rung = tuple[str, str | None, str]
"""Base, what was matched, and name: a line of a ladder."""


@dataclass(frozen=True)
class Ladder:
    """Lines one below another, in groups with a heading each: where each is, and how it is drawn."""

    places: Mapping[Rung, int]
    headings: Mapping[int, str]
    looks: Mapping[str, Style]

    @property
    def height(self) -> float:
        return RUNG * (len(self.places) + len(self.headings))

    @property
    def left(self) -> float:
        return max((text_width(name) for _, _, name in self.places), default=0) + 0.3


def rung_of(loss: PartLoss, axis: str) -> Rung:
    match = next((word.removeprefix("match=") for word in loss.row.split(" ") if word.startswith("match=")), None)
    return loss.base, match, row_name(loss.row, axis)


def make_ladder(rungs: Sequence[Rung]) -> Ladder:
    """A group a base, or a base and what was matched where that differs."""
    bases = list(dict.fromkeys(base for base, _, _ in rungs))[:MAX_BASES]
    is_split = len({match for _, match, _ in rungs}) > 1
    places: dict[Rung, int] = {}
    headings: dict[int, str] = {}
    for base, match in sorted(dict.fromkeys(r[:2] for r in rungs if r[0] in bases), key=lambda g: bases.index(g[0])):
        matched = MATCHES.get(match or "", match) if is_split else None
        headings[len(places) + len(headings)] = label(", ".join(filter(None, [base, matched])))
        inside = dict.fromkeys(rung for rung in rungs if rung[:2] == (base, match))
        for rung in list(inside)[:MAX_LINES]:
            places[rung] = len(places) + len(headings)
    return Ladder(places, headings, looks([name for _, _, name in places]))


def losses_panel(card: Card, ladder: Ladder) -> Panel:
    """The test loss of each row; the number stands at its right."""
    shown = [(y, loss) for loss in card.losses if (y := ladder.places.get(rung_of(loss, card.axis))) is not None]

    low, high = _reach([loss for _, loss in shown])

    def draw(axes: Axes) -> None:
        axes.set_xlim(low, high)
        for y, loss in shown:
            style = ladder.looks[row_name(loss.row, card.axis)]
            if loss.mean <= high:
                spread_line(axes, y, (loss.low, loss.mean, loss.high), style)
            else:
                axes.plot(high, y, color=style.colour, marker=">", ms=6, ls="none", clip_on=False)
            beside(axes, y, f"{loss.mean:.4f}")
        ladder_axes(axes, ladder, with_names=True)
        axes.set_title("test loss")
        axes.set_xlabel(f"{NATS}; left is better")

    return Panel(ladder.left, 0.75, 1.0, draw)


def losses_note(card: Card) -> list[str]:
    """How to read the panel of losses, where there is one."""
    if not card.losses:
        return []
    is_cut = any(loss.mean > _reach(card.losses)[1] for loss in card.losses)
    return ["test loss: mean, least and greatest seed", *(["arrow: further to the right"] if is_cut else [])]


def _reach(losses: Sequence[PartLoss]) -> tuple[float, float]:
    """The scale. A row that lies FAR times as far above its base's best as the base's median does is left out, if
    without such rows the scale is MUCH finer: else nothing could be told apart in it."""
    kept = []
    for base in {loss.base for loss in losses}:
        same = sorted((loss for loss in losses if loss.base == base), key=lambda loss: loss.mean)
        best, median = same[0].mean, same[len(same) // 2].mean
        kept += [loss for loss in same if loss.mean - best <= FAR * (median - best)]
    (low, high), (_, highest) = _extent(kept), _extent(losses)
    high = high if highest - low > MUCH * (high - low) else highest
    pad = 0.05 * (high - low) or 0.01
    return low - pad, high + pad


def _extent(losses: Sequence[PartLoss]) -> tuple[float, float]:
    return min(loss.low for loss in losses), max(loss.high for loss in losses)


def spread_line(axes: Axes, y: float, spread: Spread, style: Style) -> None:
    """A point with what lies about it, on the line of y."""
    low, middle, high = spread
    if low is not None and high is not None and low < high:
        axes.plot((low, high), (y, y), color=style.colour, lw=1.4, marker="|", ms=7, mew=1.3)
    axes.plot(middle, y, color=style.colour, marker=style.marker, ms=6, ls="none")


def ladder_axes(axes: Axes, ladder: Ladder, *, with_names: bool) -> None:
    names = [name for _, _, name in ladder.places]
    axes.set_yticks(list(ladder.places.values()), names if with_names else [""] * len(names))
    axes.set_ylim(len(ladder.places) + len(ladder.headings) - 0.4, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color=INK, alpha=0.1, lw=0.6)
    axes.xaxis.set_major_locator(MaxNLocator(5))
    for y, heading in ladder.headings.items() if with_names else ():
        axes.annotate(heading, (0, y), (4, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                      va="center", weight="bold", fontsize=SMALL)  # fmt: skip
