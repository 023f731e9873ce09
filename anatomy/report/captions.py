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
    "gradients": Caption(
        "Gradients at the start, by layer",
        "Before the first step: the norm of the loss's gradient over the weights of each block, those of attention "
        "and of the FFN apart, each with its norm; the scale is one of powers. A line that is steep asks for one "
        "learning rate below and another above; the warm-up is there to bridge that.",
        "",  # these four are measured only where a study asks for it
    ),
    "activations": Caption(
        "The residual stream, by layer",
        "The root mean square of what blocks hand on, over tokens and channels of validation windows; the scale is "
        "one of powers. Where the norm comes after the sum, the stream has its size after every block; where it comes "
        "before the sub-layer, the stream adds up.",
        "",
    ),
    "attention": Caption(
        "Attention, by layer",
        "The entropy of where a query looks: 0 is one place alone. Below, the largest of q·k / √K that any query had "
        "with a key it may see: the larger, the nearer softmax is to choosing a single place, and to passing no "
        "gradient on.",
        "",
    ),
    "copying": Caption(
        "What is copied",
        "Each row went on from up to 64 stretches of validation text, 200 characters each. The share is of the "
        "characters written that stand in the training text word for word, in copies of 20 characters or more; the "
        "prompt does not count. A text repeats itself too: the dotted line is its own share, where it goes on from the "
        "same prompts. More than that, and more with the last weights than the best, is what memorising looks like.",
        "",
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

EXAM_CAPTIONS: Mapping[str, Caption] = {
    "norm": Caption(
        "Loss, and the time of a call",
        "At the left the test loss of each norm in each base, mean over seeds, with its least and greatest seed. At "
        "the right what one call takes, forward and backward, over what LayerNorm takes in the same form: as the part "
        "runs here, as PyTorch's own call, and written by hand. Below 1 is faster; the bar is a 95 % interval over "
        "rounds in which all took turns.",
        "No picture: neither a run is done nor a call timed.",
    ),
    "placement": Caption(
        "How runs ended",
        "A place is a combination: placement and init in its row, depth and warm-up in its column. It holds the mean "
        "test loss of the runs that ended. Plain: trained; hatched: a plateau, nearer to a table of single characters "
        "than to one of pairs; cross-hatched: diverged; parted: its runs ended differently. Below, where it was "
        "measured, the norm of the gradient at each block before the first step, of the deepest models.",
        "No picture: no run is done.",
    ),
    "pos": Caption(
        "Beyond the length that was trained at",
        "Above, the test loss with windows of different length, always over the same target characters; the dotted "
        "line is the length that was trained at, and where a line ends in a cross its models read nothing longer. "
        "Below, the loss by position in the longest window that a model reads. Bands run from the least seed to the "
        "greatest.",
        "No picture: no run that is done was tested at several lengths.",
    ),
    "attn": Caption(
        "Loss, and what decoding takes",
        "At the left the test loss by heads of keys and values, mean over seeds, with its least and greatest seed. In "
        "the middle the bytes of the cache, and at the right the time of one decoded token, against the tokens in the "
        "cache, for the larger model that was timed; the bar is a 95 % interval.",
        "No picture: neither a run is done nor decoding timed.",
    ),
    "ffn": Caption(
        "Loss, and the time of a training step",
        "At the left the test loss of each FFN, matched to its base in parameters or in time, mean over seeds, with "
        "its least and greatest seed. At the right what a training step takes over the base's, with a 95 % interval.",
        "No picture: neither a run is done nor a training step timed.",
    ),
}
