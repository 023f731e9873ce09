"""The words around each figure of the page."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Caption:
    """A figure's title, how to read it, and what is said in its place where its data is missing."""

    title: str
    reading: str
    missing: str


CAPTIONS: Mapping[str, Caption] = {
    "forest": Caption(
        "Differences to the base",
        "Each mark is a row's mean difference to its base over the seeds they share; left of the line is better. "
        "The thick bar holds for all rows of a table at once, and the verdict is read off it: outside 0 on one side"
        " is better or worse, inside the shaded margin is equivalent, else inconclusive. The thin line is the row's"
        " own 95 % interval. Shape and colour of a mark belong to the axis that was swapped. The numbers stand in "
        "the table below.",
        "No differences are drawn: no row could be held against its base.",
    ),
    "tuning": Caption(
        "How each row's learning rate was chosen",
        "A line is a row's mean validation loss over the tuning seeds, which the test does not use; the ring is the "
        "rate that was chosen. At the edge of the grid a better rate may lie beyond it.",
        "",  # most studies tune nothing
    ),
    "curves": Caption(
        "Learning curves",
        "A line is a row's mean validation loss over its seeds, the band its least and greatest seed. Dotted lines "
        "across are what n-gram tables of the same text reach: a model below the trigram line has learned more than"
        " trigrams.",
        "No learning curves are drawn: the run folders of this table hold no metrics.",
    ),
    "position": Caption(
        "Where in the window the difference sits",
        "A line is a row's mean difference to the base over the targets at these positions, the band its least and "
        "greatest seed; below 0 is better. The bars say which share of all targets a bin holds.",
        "Not drawn by position: the run folders of this table hold no losses by position for both row and base.",
    ),
    "knowledge": Caption(
        "What an n-gram table knew already",
        "Targets are sorted by what the 6-gram table lost on them: at the left what any table knows, at the right "
        "what it did not see coming. A line is a row's mean difference to the base there, the band its least and "
        "greatest seed; below 0 is better. The bars say which share of all targets a bin holds.",
        "Not drawn by what an n-gram table knew: its losses target by target, or the models', are not at hand.",
    ),
    "cost": Caption(
        "Quality against cost",
        "A point is a row: the lower, the better its loss. The base is the ring. Costs in which no rows differ are "
        "left out. The numbers stand in the table of costs below.",
        "Cost is not drawn against quality: no costs differ among the rows that have a loss.",
    ),
    "walk": Caption(
        "The way from base to counterpart",
        "One part after another is swapped, in the order that the study walks, or that of the axes where it holds "
        "several. Each bar begins where the one above it "
        "ended; another order would give other bars.",
        "The walk is not drawn: its compositions were not all run.",
    ),
    "shapley": Caption(
        "What each part earns",
        "The bar is the part's Shapley value: what it changes on average over every order in which the parts could "
        "be swapped. The open triangle is what it changes in the base alone, the filled one what it changes as the "
        "last one, in the counterpart. Where the two differ, no single number is the part's own.",
        "No shares are drawn: no composition with a single part swapped was run.",
    ),
    "interactions": Caption(
        "What pairs of parts do together",
        "A cell is what two parts change together beyond the sum of what each changes. Blue and below 0: better "
        "together than apart; orange and above 0: worse. The deeper the colour, the larger the number in it.",
        "Interactions are not drawn: this needs the factorial or half of it.",
    ),
}
