"""An exam's card in words, for every view that shows one."""

from anatomy.report.columns import NOTHING, bracketed, number
from anatomy.report.data import Card, Examined, Quantity

NOT_YET = "not examined yet"
FORMS = {"nats": "+.4f", "times": ".2f"}
ANY_FORM = ",.10g"


def card_title(card: Card) -> str:
    """`exam of norm`; a study of another name than an exam's own is named too."""
    own = card.study == f"exam_{card.axis}"
    return f"exam of {card.axis}" if own else f"exam of {card.axis}, study {card.study}"


def facts(card: Card) -> list[str]:
    """What was asked, and what was trained to answer it."""
    return [*([f"question: {card.question}"] if card.question else []), f"trained: {card.scenario}"]


def verdict_of(claim: Examined) -> str:
    return claim.verdict or NOT_YET


def statement(claim: Examined) -> str:
    """What is claimed, of which part, and who says it."""
    return f"{claim.part}: {claim.text} ({claim.source})"


def value(quantity: Quantity) -> str:
    """A measured number with its unit: `+0.0123 nats`, `1.08×`, `2 of 3`, `1,024 bytes`."""
    unit = "×" if quantity.unit == "times" else f" {quantity.unit}"
    return format(quantity.value, FORMS.get(quantity.unit, ANY_FORM)) + unit


def interval(quantity: Quantity) -> str:
    """` (+0.0012 to +0.0034)`; empty where there is none."""
    return bracketed(quantity.low, quantity.high, FORMS.get(quantity.unit, ANY_FORM))


def measured(quantity: Quantity) -> str:
    return f"{quantity.what}: {value(quantity)}{interval(quantity)}"


def details(claim: Examined) -> list[str]:
    """What stands below a claim: each number, what else to know, and the rule that came to the verdict."""
    return [
        *(f"measured: {measured(quantity)}" for quantity in claim.measured),
        *([f"note: {claim.note}"] if claim.note else []),
        *([f"rule: {claim.rule}"] if claim.rule else []),
    ]


def picture_numbers(card: Card) -> list[list[str]]:
    """The losses that a card's picture shows: a heading line, then lines. Empty where there are none."""
    if card.map:
        factors = list(card.map[0].factors)
        lines = [
            [f"{cell.base}, {cell.part}", *(cell.factors.get(factor, NOTHING) for factor in factors),
             ", ".join(f"{num} {outcome}" for outcome, num in cell.outcomes.items()), _nats(cell.loss_nats)]
            for cell in card.map
        ]  # fmt: skip
        return [["base and part", *factors, "runs", "test loss"], *lines]
    if card.by_length:
        lengths = sorted({length for line in card.by_length for length in line.x})
        lines = []
        for line in card.by_length:
            losses = dict(zip(line.x, line.mean, strict=True))
            lines.append([f"{line.base}, {line.row}", *(_nats(losses.get(length)) for length in lengths)])
        return [["test loss at length", *(f"{length:g}" for length in lengths)], *lines]
    return _loss_lines(card)


def _loss_lines(card: Card) -> list[list[str]]:
    lines = [
        [f"{loss.base}, {loss.row}", _nats(loss.mean), _nats(loss.low), _nats(loss.high), str(loss.num_seeds)]
        for loss in card.losses
    ]
    return [["base and row", "test loss", "least seed", "greatest seed", "seeds"], *lines] if lines else []


def _nats(loss: float | None) -> str:
    return number(loss, ".4f") or NOTHING
