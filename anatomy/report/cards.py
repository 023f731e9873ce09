"""An exam's card in words, for every view that shows one."""

from anatomy.report.columns import bracketed
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
