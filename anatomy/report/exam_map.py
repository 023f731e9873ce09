"""The map of an exam whose runs are parted by factors: how they ended under each combination, and how they began."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import MaxNLocator, StrMethodFormatter

from anatomy.report.data import Card, MapCell
from anatomy.report.drawing import COLOURS, DASHES, INK, MARKERS, NATS, SMALL, Style, label, note, text_width
from anatomy.report.exam_panels import MAX_BASES, PALETTE, Panel, Sketch, draw_panels, legend, legend_height
from anatomy.report.material import DIVERGED, PLATEAU, TRAINED
from anatomy.report.words import visible

MAX_PLACES = 12  # rows of a map, and columns of it, that there is room for
FACTORS = {"model.n_layer": "{} layers", "train.warmup_steps": "warm-up {}"}  # others by the end of their name
OUTCOMES: Mapping[str, tuple[str, float, str]] = {
    TRAINED: (COLOURS["pos"], 0.22, ""),
    PLATEAU: (COLOURS["placement"], 0.35, "//"),
    DIVERGED: (COLOURS["ffn"], 0.5, "xx"),
}
"""How a run ended -> colour, its strength, and the hatching that says it without colour."""
CELL, GRADIENTS = 0.44, 1.85  # heights in inches: a place of the map, and the panels of gradients
MAP_NOTE = f"mean test loss, {NATS}; plateau: nearer to a table of single characters than to one of pairs"
PARTED = "; parted: runs ended differently"
GRADIENT_NOTE = "gradients of the deepest models before the first step, attention and FFN together"


def outcome_map(card: Card) -> Sketch | None:
    """A panel a base: part and named factors in rows, factors that are numbers in columns. Below, where there are any,
    the gradients at the start."""
    if not card.map:
        return None
    bases = list(dict.fromkeys(cell.base for cell in card.map))[:MAX_BASES]
    grid = _grid(card.map)
    lines = _gradient_lines(card.map, grid.across)
    named = {line.name: style for line, style in lines.items()}
    key = legend_height(named, 0.85) if lines else 0.0
    low = 0.85 + GRADIENTS + 0.35 + key + 0.25 if lines else 0.0  # where the map begins, above the gradients
    left, height = max(map(text_width, grid.names)) + 0.3, CELL * len(grid.rows)

    def draw(figure: Figure) -> None:
        draw_panels(figure, low + 0.35, height, [
            Panel(0.25 if i else left, 0.05, 1.0, _map_panel(card.map, grid, base, is_first=not i))
            for i, base in enumerate(bases)
        ])  # fmt: skip
        is_parted = any(sum(map(bool, cell.outcomes.values())) > 1 for cell in card.map)
        note(figure, MAP_NOTE + PARTED * is_parted, bottom=low + 0.08)
        if lines:
            draw_panels(figure, 0.85, GRADIENTS, [
                Panel(0.25 if i else 0.85, 0.05, 1.0, _gradients_panel(lines, base, is_first=not i))
                for i, base in enumerate(bases)
            ])  # fmt: skip
            legend(figure, 0.85 + GRADIENTS + 0.35, 0.85, named)
            note(figure, GRADIENT_NOTE)

    return Sketch(low + height + 1.1, draw)


# ------------------------------------------------------------------------------------------------ how runs ended


@dataclass(frozen=True)
class Grid:
    """Where cells of a map are: by part and the values that go down, and by those that go across."""

    across: Sequence[str]
    rows: Sequence[tuple[str, str]]
    columns: Sequence[tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        return [label(", ".join(filter(None, row))) for row in self.rows]


def _grid(cells: Sequence[MapCell]) -> Grid:
    across = [factor for factor in cells[0].factors if all(_is_number(cell.factors[factor]) for cell in cells)]
    parts = list(dict.fromkeys(cell.part for cell in cells))
    rows = sorted(dict.fromkeys((cell.part, _down(cell, across)) for cell in cells), key=lambda r: parts.index(r[0]))
    columns = sorted({_across(cell, across) for cell in cells}, key=lambda values: [float(value) for value in values])
    return Grid(across, rows[:MAX_PLACES], columns[:MAX_PLACES])


def _is_number(text: str) -> bool:
    try:
        return float(text) == float(text)
    except ValueError:
        return False


def _across(cell: MapCell, across: Sequence[str]) -> tuple[str, ...]:
    return tuple(cell.factors[factor] for factor in across)


def _down(cell: MapCell, across: Sequence[str]) -> str:
    """The values that go down: `normal` of init=normal."""
    return ", ".join(value for factor, value in cell.factors.items() if factor not in across)


def _column_name(across: Sequence[str], values: Sequence[str]) -> str:
    """`16 layers`, `warm-up 0`, a line each."""
    forms = [FACTORS.get(factor, f"{factor.split('.')[-1]} {{}}") for factor in across]
    return "\n".join(visible(form.replace("{}", value)) for form, value in zip(forms, values, strict=True))


def _map_panel(cells: Sequence[MapCell], grid: Grid, base: str, *, is_first: bool) -> Callable[[Axes], None]:
    by_place = {(_across(cell, grid.across), (cell.part, _down(cell, grid.across))): cell
                for cell in cells if cell.base == base}  # fmt: skip

    def draw(axes: Axes) -> None:
        for x, column in enumerate(grid.columns):
            for y, row in enumerate(grid.rows):
                _draw_cell(axes, x, y, by_place.get((column, row)))
        axes.set_title(label(base), pad=8 + 13 * max(1, len(grid.across)))
        axes.set_xticks(range(len(grid.columns)), [_column_name(grid.across, values) for values in grid.columns])
        axes.set_yticks(range(len(grid.rows)), grid.names if is_first else [""] * len(grid.rows))
        axes.xaxis.tick_top()
        axes.tick_params(length=0)
        axes.set_xlim(-0.5, len(grid.columns) - 0.5)
        axes.set_ylim(len(grid.rows) - 0.5, -0.5)
        for spine in axes.spines.values():
            spine.set_visible(False)

    return draw


def _draw_cell(axes: Axes, x: int, y: int, cell: MapCell | None) -> None:
    """A place of the map: parted by how its runs ended, with their loss and that in words."""
    left, bottom, height = x - 0.48, y - 0.46, 0.92
    if cell is None:
        axes.text(x, y, "not run", ha="center", va="center", fontsize=SMALL, alpha=0.6)
        return
    num_runs = sum(cell.outcomes.values())
    start = left
    for outcome, (colour, strength, hatch) in OUTCOMES.items():
        if num := cell.outcomes.get(outcome, 0):
            width = 0.96 * num / num_runs
            axes.add_patch(Rectangle((start, bottom), width, height, fc=colour, alpha=strength, lw=0))
            axes.add_patch(Rectangle((start, bottom), width, height, fill=False, ec=INK, alpha=0.55, lw=0, hatch=hatch))
            start += width
    axes.add_patch(Rectangle((left, bottom), 0.96, height, fill=False, ec=INK, lw=0.6, alpha=0.5))
    loss = [] if cell.loss_nats is None else [f"{cell.loss_nats:.3f}"]
    axes.text(x, y, "\n".join([*loss, _ended(cell)]), ha="center", va="center", fontsize=SMALL, linespacing=1.15)


def _ended(cell: MapCell) -> str:
    """`diverged` of the only run, `3 diverged` of all three, `1/3 trained` where others ended otherwise."""
    num_runs = sum(cell.outcomes.values())
    (outcome, num), *others = [(outcome, cell.outcomes[outcome]) for outcome in OUTCOMES if cell.outcomes.get(outcome)]
    return f"{num}/{num_runs} {outcome}" if others else outcome if num_runs == 1 else f"{num_runs} {outcome}"


# ------------------------------------------------------------------------------------------------ how runs began


@dataclass(frozen=True)
class GradientLine:
    """Gradient norm at the start of each block; `down` as in a map's rows."""

    base: str
    part: str
    down: str
    norms: tuple[float, ...]

    @property
    def name(self) -> str:
        return label(", ".join(filter(None, (self.part, self.down))))


def _gradient_lines(cells: Sequence[MapCell], across: Sequence[str]) -> dict[GradientLine, Style]:
    """The deepest model of each base, part and start, whose gradients are the same whatever comes later. The colour is
    the part's; marker and dashes say the start."""
    deepest = max(len(cell.gradients) for cell in cells)
    found: dict[tuple[str, str, str], tuple[float, ...]] = {}
    for cell in cells:
        if cell.gradients and len(cell.gradients) == deepest:
            found.setdefault((cell.base, cell.part, _down(cell, across)), tuple(cell.gradients))
    parts, starts = (list(dict.fromkeys(key[i] for key in found)) for i in (1, 2))
    return {
        GradientLine(*key, norms): Style(
            PALETTE[parts.index(key[1]) % len(PALETTE)],
            MARKERS[starts.index(key[2]) % len(MARKERS)],
            DASHES[starts.index(key[2]) % len(DASHES)],
        )
        for key, norms in found.items()
        if parts.index(key[1]) < MAX_PLACES and starts.index(key[2]) < MAX_PLACES
    }


def _gradients_panel(lines: Mapping[GradientLine, Style], base: str, *, is_first: bool) -> Callable[[Axes], None]:
    norms = [norm for line in lines for norm in line.norms if norm > 0]

    def draw(axes: Axes) -> None:
        for line, style in lines.items():
            if line.base == base:
                blocks = range(1, len(line.norms) + 1)
                axes.plot(blocks, line.norms, color=style.colour, ls=style.dashes, marker=style.marker, lw=1.4, ms=4)
        axes.set_yscale("log")
        if norms:
            axes.set_ylim(min(norms) / 1.3, max(norms) * 1.3)
        axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.set_title(label(base))
        axes.set_xlabel("block, from the input")
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
        axes.grid(axis="y", color=INK, alpha=0.1, lw=0.6)
        if is_first:
            axes.set_ylabel("gradient norm\nat the start")
        else:
            axes.tick_params(axis="y", labelleft=False)

    return draw
