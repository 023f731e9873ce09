"""What all figures have in common: ink, colours by axis, labels that do not touch, and the way into SVG and PNG.

Lengths are inches, sizes of type points. Figures have 72 dots an inch, so that a pixel of a transform is a point.
"""

import colorsys
import logging
import re
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import pairwise
from operator import add
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib import font_manager
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter
from rich.cells import cell_len, chop_cells, set_cell_size

from anatomy.axes import AXES, BASES, COUNTERPARTS, Parts, differences
from anatomy.report.data import AT_BEST, BASE_ROW, Row, Table
from anatomy.report.words import visible

INK = "#010203"  # text and axes; an inlined SVG takes the page's colour in its place
WIDTH, FONT, SMALL = 10.0, 10.0, 9.0
NATS = "nats per character"
SIGNED = FuncFormatter(lambda x, _: f"{x:+.3g}".replace("-", "−") if abs(x) > 1e-9 else "0")
LINE = 1.3  # height of a line over its size of type
NO_METADATA = dict.fromkeys(("Date", "Creator", "Format", "Type"))  # the same bytes every time
LABEL_CELLS = 30  # columns that a line of a row's name may take in a figure

# Okabe and Ito's colours, which the colour-blind tell apart, shifted until each stands 3 to 1 on white and on black.
COLOURS: Mapping[str, str] = {
    "norm": "#0072B2",
    "placement": "#BC7D00",
    "pos": "#009E73",
    "attn": "#C46F9F",
    "ffn": "#D55E00",
    "bias": "#8C7B00",
    "tying": "#7D6BB5",
    "init": "#A06A55",
    "counterpart": "#2F93CF",
    "several": "#808080",  # more than one axis
    "null": "#6F7F8F",  # the base again
    "qk_norm": "#2E8C99",
    "window": "#B4566E",
}
MARKERS = "oD^sv<>phPX"
DASHES: Sequence[Any] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (7, 2, 1.5, 2)), (0, (4, 1.5, 1, 1.5, 1, 1.5)))
CJK_FONTS = (
    "Noto Sans CJK SC|Source Han Sans SC|WenQuanYi Micro Hei|PingFang SC|Hiragino Sans GB|Microsoft YaHei|SimHei"
)


@cache
def _settings() -> Any:  # matplotlib's type names each key
    installed = set(font_manager.get_font_names())  # matplotlib logs a line for every family that is not there
    return {
        "font.family": ["DejaVu Sans", *(name for name in CJK_FONTS.split("|") if name in installed), "sans-serif"],
        "font.sans-serif": ["DejaVu Sans"],
        "font.size": FONT,
        "svg.fonttype": "none",
        "svg.hashsalt": "anatomy",
        "text.parse_math": False,
        **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titlesize": FONT,
        "axes.titleweight": "bold",
        "axes.labelsize": FONT,
        "axes.linewidth": 0.8,
        "xtick.labelsize": SMALL,
        "ytick.labelsize": SMALL,
        "legend.frameon": False,
        "legend.fontsize": SMALL,
        "lines.linewidth": 1.6,
        "lines.markersize": 5,
        "hatch.linewidth": 0.6,
    }


@contextmanager
def styled() -> Iterator[None]:
    """matplotlib set for this project. A character that no font has is drawn as a box; nothing is said about fonts."""
    log = logging.getLogger("matplotlib.font_manager")
    level = log.level
    with matplotlib.rc_context(_settings()), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        log.setLevel(logging.ERROR)
        try:
            yield
        finally:
            log.setLevel(level)


# ------------------------------------------------------------------------------------------------ names


def label(name: str) -> str:
    """A row's name for a figure: at most two lines, broken at blanks or commas; an ellipsis in what is too long."""
    lines = [""]
    for piece in re.split("(?<=[ ,])", visible(name)):
        if len(lines) == 1 and lines[0] and cell_len(lines[0] + piece) > LABEL_CELLS:
            lines.append("")
        lines[-1] += piece
    return "\n".join(_elided(line.rstrip(" ")) for line in lines)


def _elided(line: str) -> str:
    if cell_len(line) <= LABEL_CELLS:
        return line
    half = LABEL_CELLS // 2
    tail = set_cell_size(line[::-1], half - 1)[::-1]
    return f"{set_cell_size(line, half)}…{tail}"


def wrapped(text: str, num_cells: int) -> list[str]:
    """The text as lines of at most so many columns, broken at blanks, or anywhere in a word that is longer."""
    lines = [""]
    for word in text.split(" "):
        for piece in chop_cells(word, num_cells) or [""]:
            joined = f"{lines[-1]} {piece}" if lines[-1] else piece
            if cell_len(joined) <= num_cells:
                lines[-1] = joined
            else:
                lines.append(piece)
    return lines


def text_width(text: str, size: float = SMALL) -> float:
    """Inches that a text takes at most, by the column: fonts need not be asked, and the browser has its own."""
    return max(map(cell_len, text.split("\n"))) * size * 0.62 / 72


def metric_name(metric: str) -> str:
    return "test loss at the best validation step" if metric == AT_BEST else "test loss"


# ------------------------------------------------------------------------------------------------ colours


@dataclass(frozen=True)
class Style:
    """How a row is drawn, in every figure: the colour says the axis, marker and dashes say it without colour."""

    colour: str
    marker: str
    dashes: Any


BASE_STYLE = Style(INK, "o", "-")


def styles(table: Table) -> dict[str, Style]:
    """Row's name -> style. Further rows on one axis keep its hue, a shade off, with other markers and dashes."""
    seen: Counter[str] = Counter()
    found = {}
    base = next((row.parts for row in table.rows if row.name == BASE_ROW), None) or BASES.get(table.base or "")
    for row in table.rows:
        kind = _kind(row, table.base, base)
        found[row.name] = _style(kind, seen[kind]) if kind else BASE_STYLE
        seen[kind] += 1
    return found


def _kind(row: Row, base_name: str | None, base: Parts | None) -> str:
    """What a row differs in from its base: an axis, by its part or by a knob of it; empty for the base itself."""
    if row.name == BASE_ROW:
        return ""
    if row.is_null:
        return "null"
    if base_name and row.name == COUNTERPARTS.get(base_name):
        return "counterpart"
    axes = differences(row.parts, base) if row.parts and base else ()
    axes = axes or tuple({re.split("[.=]", word)[0] for word in re.split("[ ,]", row.name)})
    return axes[0] if len(axes) == 1 and axes[0] in AXES else "several"


def _style(kind: str, nth: int) -> Style:
    place = list(COLOURS).index(kind)
    hue, light, saturation = colorsys.rgb_to_hls(*to_rgb(COLOURS[kind]))
    shade = light + (0, 0.07, -0.07)[nth % 3]
    colour = to_hex(colorsys.hls_to_rgb(hue, shade, saturation))
    return Style(colour, MARKERS[(place + 4 * nth) % len(MARKERS)], DASHES[(place + 2 * nth) % len(DASHES)])


# ------------------------------------------------------------------------------------------------ layout


def new_figure(height: float) -> Figure:
    return Figure(figsize=(WIDTH, height), dpi=72)


def add_axes(figure: Figure, left: float, bottom: float, width: float, height: float) -> Axes:
    """Axes whose frame has this place and size, in inches from the lower left."""
    across, up = figure.get_size_inches()
    return figure.add_axes((left / across, bottom / up, width / across, height / up))


def note(figure: Figure, text: str, bottom: float = 0.08) -> None:
    """A line of small type at the foot."""
    across, up = figure.get_size_inches()
    figure.text(0.1 / across, bottom / up, text, fontsize=SMALL - 0.5, va="bottom", alpha=0.85)


def beside(axes: Axes, y: float, text: str, points: float = 8, align: str = "left", weight: str = "normal") -> None:
    """A text at the right of the frame, `points` away from it, on the line of `y`."""
    axes.annotate(text, (1, y), (points, 0), xycoords=axes.get_yaxis_transform(), textcoords="offset points",
                  va="center", ha=align, weight=weight, fontsize=SMALL)  # fmt: skip


def spread(places: Sequence[float], sizes: Sequence[float], low: float, high: float) -> list[float]:
    """Centres for things of these sizes, in the order of their places, none on another, moved as little as can be
    (least squares); within bounds, where there is room."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    offsets = [0.0]  # of each rank's centre from the first one's where all are packed
    for one, other in pairwise(order):
        offsets.append(offsets[-1] + (sizes[one] + sizes[other]) / 2)
    blocks: list[tuple[float, int]] = []  # where a block's things want the first of all to be; their count
    for rank, i in enumerate(order):
        start, count = places[i] - offsets[rank], 1
        while blocks and blocks[-1][0] > start:
            other_start, others = blocks.pop()
            start, count = (start * count + other_start * others) / (count + others), count + others
        blocks.append((start, count))
    last = max(low, high - offsets[-1])
    starts = [min(max(start, low), last) for start, count in blocks for _ in range(count)]
    moved = dict(zip(order, map(add, starts, offsets), strict=True))
    return [moved[i] for i in range(len(places))]


def labels_height(texts: Sequence[str]) -> float:
    """Inches that labels above each other take."""
    return sum(text.count("\n") + 1.2 for text in texts) * SMALL * LINE / 72


def end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, Style]]) -> None:
    """Names at the right of the frame, each tied to its line's end (x, y); limits of the axes must be set."""
    bottom, top = axes.get_ylim()
    sizes = [labels_height([text]) * 72 / axes.bbox.height for _, _, text, _ in ends]
    heights = [min(max(y, bottom), top) for _, y, _, _ in ends]
    on_frame = axes.transData + axes.transAxes.inverted()
    spots = on_frame.transform([(axes.get_xlim()[0], y) for y in heights])
    places = spread([float(spot[1]) for spot in spots], sizes, 0, 1)
    for place, height, (x, _, text, style) in zip(places, heights, ends, strict=True):
        tie = {"arrowstyle": "-", "color": style.colour, "lw": 1, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 1}
        is_seen = x >= axes.get_xlim()[0]  # else a tie would pass for the line
        edge = 1 + 18 / axes.bbox.width
        axes.annotate(text, (x, height), (edge, place), textcoords="axes fraction", va="center", fontsize=SMALL,
                      arrowprops=tie if is_seen else None, annotation_clip=False)  # fmt: skip


def point_labels(axes: Axes, points: Sequence[tuple[float, float, str, Style]]) -> None:
    """Names beside points, where they touch neither points nor each other; limits of the axes must be set."""
    spots = axes.transData.transform([(x, y) for x, y, _, _ in points])
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in spots]
    frame = axes.bbox.extents
    for i in sorted(range(len(points)), key=lambda i: -spots[i][1]):
        text, style = points[i][2:]
        width, height = text_width(text, SMALL - 1) * 72, (text.count("\n") + 1) * SMALL * LINE
        places = [
            (right * away, up * away, (spots[i][0] + right * away - (1 - right) / 2 * width, spots[i][1] + up * away))
            for away in (8, 18, 30, 44, 60)
            for right, up in ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))
        ]
        boxes = [(x, y - height / 2, x + width, y + height / 2) for _, _, (x, y) in places]
        free = [k for k, box in enumerate(boxes) if _inside(box, frame) and not any(_touch(box, b) for b in taken)]
        k = free[0] if free else 0
        taken.append(boxes[k])
        right, up, _ = places[k]
        far = max(abs(right), abs(up)) > 8
        tie = {"arrowstyle": "-", "color": style.colour, "lw": 0.8, "shrinkA": 0, "shrinkB": 4} if far else None
        axes.annotate(text, points[i][:2], (right, up), textcoords="offset points", va="center", fontsize=SMALL - 1,
                      ha="left" if right > 0 else "right" if right < 0 else "center", arrowprops=tie)  # fmt: skip


def _inside(box: Sequence[float], frame: Sequence[float]) -> bool:
    return box[0] >= frame[0] and box[1] >= frame[1] and box[2] <= frame[2] and box[3] <= frame[3]


def _touch(a: Sequence[float], b: Sequence[float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


# ------------------------------------------------------------------------------------------------ files


def svg(figure: Figure, prefix: str) -> str:
    """The figure as an <svg> element to put into a page: no ground, ink in the page's colour, ids behind `prefix`."""
    file = StringIO()
    with styled():
        figure.savefig(file, format="svg", transparent=True, metadata=NO_METADATA)
    text = re.sub(r"<!--.*?-->|<style.*?</style>", "", file.getvalue(), flags=re.DOTALL)
    text = text[text.index("<svg") :].replace("<svg ", '<svg stroke-linejoin="round" ', 1)
    used = set(re.findall(r'(?:href="|url\()#([^")]+)', text))

    def tag(found: re.Match[str]) -> str:  # tags only: names of rows may hold anything but a bare <
        inked = found[0].replace(INK, "currentColor")
        named = re.sub(r' id="([^"]*)"', lambda name: f' id="{prefix}{name[1]}"' if name[1] in used else "", inked)
        return re.sub(r'(href="|url\()#', rf"\g<1>#{prefix}", named)

    return re.sub(r"\s*\n\s*", "\n", re.sub("<[^>]*>", tag, text)).strip()


def file_name(*words: str | None) -> str:
    """`swaps-vanilla-curves`: letters and digits of any script; all else becomes a dash."""
    joined = "-".join(re.sub(r"[^\w=]+", "-", visible(word)).strip("-")[:40] for word in words if word)
    return joined or "figure"


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Write `name`.svg and `name`.png, black on white, and return both paths."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    with styled():
        figure.savefig(paths[0], facecolor="white", metadata=NO_METADATA)
        figure.savefig(paths[1], facecolor="white", dpi=200)
    return paths
