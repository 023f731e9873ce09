"""A whole exam card as one picture, words and all: what is read outside the page."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from anatomy.report.cards import card_title, measured, verdict_of
from anatomy.report.data import CONTRADICTED, NOT_SEEN, OUTSIDE, SUPPORTED, Card, Examined, Quantity
from anatomy.report.drawing import FONT, LINE, SMALL, WIDTH, file_name, new_figure, styled, text_width, wrapped
from anatomy.report.exam_figures import sketch
from anatomy.report.words import visible, with_minus

GROUNDS: Mapping[str, str] = {
    SUPPORTED: "#00694a",
    CONTRADICTED: "#a83a00",
    NOT_SEEN: "#6b5a00",
    OUTSIDE: "#59616a",
}
"""Verdict -> what its word stands on."""
NO_GROUND = "#808080"
TITLE, CLAIM, TINY = 16.0, FONT + 0.5, SMALL - 1  # points
MARGIN, CLAIM_LEFT = 0.1, 1.75  # inches at the left of the text, and of a claim beside its verdict
MAX_NUMBERS = 3  # of a claim; the page has all


@dataclass(frozen=True)
class Line:
    """A line of the card's words; `gap` in points above it, `verdict` at its left."""

    text: str
    size: float
    left: float = MARGIN
    gap: float = 2.0
    weight: str = "normal"
    alpha: float = 1.0
    verdict: str | None = None

    @property
    def height(self) -> float:
        return (self.size * LINE + self.gap) / 72


def card_picture(card: Card) -> Figure | None:
    """What was asked, each claim with its verdict, numbers and rule, and below them the picture of the axis. None where
    that has no data."""
    picture = sketch(card)
    if picture is None:
        return None
    lines = list(_card_lines(card))
    with styled():
        figure = new_figure(picture.height + sum(line.height for line in lines) + 0.35)
        picture.draw(figure)
        _draw_lines(figure, lines)
    return figure


def card_name(card: Card) -> str:
    return file_name(card.study, "card")


def _draw_lines(figure: Figure, lines: Sequence[Line]) -> None:
    across, up = figure.get_size_inches()
    y = up - 0.1
    for line in lines:
        y -= line.height
        figure.text(line.left / across, y / up, line.text, fontsize=line.size, weight=line.weight, alpha=line.alpha)
        if line.verdict:
            box = {"boxstyle": "round,pad=0.3", "fc": GROUNDS.get(line.verdict, NO_GROUND), "ec": "none"}
            figure.text((MARGIN + 0.05) / across, y / up, visible(line.verdict), fontsize=SMALL, weight="bold",
                        color="white", bbox=box)  # fmt: skip


def _card_lines(card: Card) -> Iterator[Line]:
    yield from (Line(piece, TITLE, weight="bold") for piece in _pieces(card_title(card), TITLE * 1.1, MARGIN))
    for text, alpha in ((card.question or "", 1.0), (f"trained: {card.scenario}", 0.75)):
        yield from (Line(piece, FONT, alpha=alpha) for piece in _pieces(text, FONT, MARGIN))
    for claim in card.claims:
        yield from _claim_lines(claim)


def _claim_lines(claim: Examined) -> Iterator[Line]:
    verdict: str | None = verdict_of(claim)
    for piece in _pieces(f"{claim.part}: {claim.text}", CLAIM * 1.1, CLAIM_LEFT):
        yield Line(piece, CLAIM, CLAIM_LEFT, gap=9 if verdict else 0, weight="bold", verdict=verdict)
        verdict = None
    rule = f"rule: {claim.rule}" if claim.rule else ""
    texts = ((_numbers(claim.measured), SMALL, 0.85), (claim.note or "", SMALL, 0.85), (rule, TINY, 0.65))
    for text, size, alpha in texts:
        yield from (Line(piece, size, CLAIM_LEFT, gap=1, alpha=alpha) for piece in _pieces(text, size, CLAIM_LEFT))


def _numbers(quantities: Sequence[Quantity]) -> str:
    """The first ones; all of what is counted, for the counts of one setting say nothing of another. What all begin
    with, up to a comma, is said once."""
    is_counted = all(quantity.unit.startswith("of ") for quantity in quantities)
    shown = quantities if is_counted else quantities[:MAX_NUMBERS]
    first, *others = map(measured, shown) if shown else [""]
    start = "".join(first.partition(", ")[:2])
    if all(other.startswith(start) for other in others):
        others = [other.removeprefix(start) for other in others]
    more = [f"and {len(quantities) - len(shown)} more"] if len(shown) < len(quantities) else []
    return with_minus("; ".join([first, *others, *more]))


def _pieces(text: str, size: float, left: float) -> list[str]:
    """The text as lines that end before the right edge."""
    return wrapped(visible(text), int((WIDTH - left - MARGIN) / text_width("x", size))) if text else []
