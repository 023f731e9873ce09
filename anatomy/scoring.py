"""Score a whole text: which windows are read so that every target counts once, and what each target costs.

A target is a character of a run's vocabulary or a token of an imported model's, whatever its Codec has.

Shapes:  W windows, T targets of a window.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anatomy.corpus import Segment, windows_at
from anatomy.evaluation import Readable, window_losses
from anatomy.model import Transformer
from anatomy.rungs import MAX_N, NgramTables
from anatomy.tokens import Codec

MAX_WINDOW = 16_384
"""The longest window that is read: attention costs its square, and its logits are all in memory at once."""
MAX_TOKENS_AT_ONCE = 65_536
"""So many tokens share a forward pass at most, whatever the batch size: the result does not depend on it."""
NGRAMS_AT_ONCE = 1 << 20


@dataclass(frozen=True, eq=False)
class Passages:
    """A text that is to be scored, or parts of it, as ids.

    part      `test`, of a run's own text, or `whole`
    sha256    of all the text in UTF-8
    text      what is scored: the stretches, joined by nothing
    predicted what of it is predicted: all but what the first id of each stretch stands for (see Codec.behind_first)
    ids       int32
    segments  the stretches of `ids`; a model reads each from its beginning, without the others
    notes     short sentences on what was done to the text
    """

    name: str
    part: str
    sha256: str
    codec: Codec
    text: str
    predicted: str
    ids: NDArray[np.int32]
    segments: tuple[Segment, ...]
    notes: tuple[str, ...] = ()

    def batch_at(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The windows that begin at `starts` (B,): inputs and targets, int64 (B, T) each, T = length."""
        return windows_at(self.ids, starts, length)


@dataclass(frozen=True, eq=False)
class Windows:
    """The windows in which stretches of a text are read, in the order of the text; int64 (W,) each.

    starts       the position of the first character, or token, read
    lengths      how many are read; each has the next one as its target
    num_counted  how many of a window's targets count: its last ones. An earlier window has counted the others
    """

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    num_counted: NDArray[np.int64]

    @property
    def num_targets(self) -> int:
        """How many targets count, each once."""
        return int(self.num_counted.sum())

    @property
    def mean_context(self) -> float:
        """How many characters or tokens of its window stand before a target, on average over the targets that count."""
        return float((self.num_counted * (2 * self.lengths - self.num_counted + 1) / 2).sum() / self.num_targets)

    def alike(self) -> Iterator[tuple[int, int, NDArray[np.intp]]]:
        """Groups of windows alike: their length, how many of their targets count, and which windows they are."""
        kinds, kind = np.unique(np.stack([self.lengths, self.num_counted], axis=1), axis=0, return_inverse=True)
        for index, (length, num_counted) in enumerate(kinds.tolist()):
            yield length, num_counted, np.flatnonzero(kind == index)


def plan_windows(segments: tuple[Segment, ...], length: int, stride: int) -> Windows:
    """Cover stretches of a text with windows, so that every character but a stretch's first is a target once.

    In each stretch a window of `length` characters begins every `stride` characters, from its first character until
    every target is covered; the last window ends with the stretch and so may be shorter. A target counts in the first
    window that covers it: of the first window all targets count, of a later one those beyond the end of the one before.

    So a target has the whole stretch before it as its context where that is at most `length` characters, and otherwise
    at least length - stride + 1 and at most `length` of them. A smaller stride raises that floor; where it divides
    the larger stride, no target at all has a shorter context than under the larger one.

    Raises: ValueError unless 1 <= stride <= length.
    """
    if not 1 <= stride <= length:
        raise ValueError(f"windows of {length} characters every {stride}: must be 1 <= stride <= length")
    starts, lengths, num_counted = [], [], []
    for start, stop in segments:
        num_targets = stop - start - 1
        if num_targets < 1:
            continue
        num_in_first = min(length, num_targets)
        num_later = -(-(num_targets - num_in_first) // stride)
        own_starts = start + np.arange(1 + num_later, dtype=np.int64) * min(stride, num_in_first)
        own_ends = np.minimum(own_starts + num_in_first, stop - 1)  # the last target of each
        starts.append(own_starts)
        lengths.append(own_ends - own_starts)
        num_counted.append(np.diff(own_ends, prepend=start))
    none = np.empty(0, dtype=np.int64)
    return Windows(*(np.concatenate([none, *parts]) for parts in (starts, lengths, num_counted)))


def target_losses(
    model: Transformer, text: Readable, windows: Windows, *, dtype: str, num_at_once: int | None = None
) -> NDArray[np.float32]:
    """What a model loses on every target that counts, nats, in the order of the text: float32 (num_targets,).

    `num_at_once` windows share a forward pass (None: the default of evaluation), fewer where they hold more than
    MAX_TOKENS_AT_ONCE. Draws no random number.
    """
    losses = np.empty(windows.num_targets, dtype=np.float32)
    places = np.cumsum(windows.num_counted) - windows.num_counted
    for length, num_counted, chosen in windows.alike():
        losses[places[chosen, None] + np.arange(num_counted)] = window_losses(
            model,
            text,
            windows.starts[chosen],
            length,
            dtype=dtype,
            num_last=num_counted,
            num_at_once=num_at_once and max(1, min(num_at_once, MAX_TOKENS_AT_ONCE // length)),
        )
    return losses


def ngram_nats(tables: NgramTables, ids: NDArray[np.int32], windows: Windows) -> dict[str, float]:
    """The mean loss of each n-gram table, keys "1" to "6", on the same targets and with the same knowledge, nats."""
    sums = np.zeros(MAX_N)
    for whole_length, num_counted, chosen in windows.alike():
        length = min(whole_length, num_counted + MAX_N - 1)  # no table looks further back
        num_at_once = max(1, NGRAMS_AT_ONCE // length)
        for begin in range(0, len(chosen), num_at_once):
            starts = windows.starts[chosen[begin : begin + num_at_once]] + whole_length - length
            losses = tables.losses_nats(ids[starts[:, None] + np.arange(length + 1)])
            sums += losses[:, :, -num_counted:].sum(axis=(1, 2))
    return {str(n): float(total / windows.num_targets) for n, total in enumerate(sums, start=1)}
