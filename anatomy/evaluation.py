"""Losses on fixed windows: the numbers that curves, tables and verdicts are made of."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from anatomy.corpus import Corpus
from anatomy.model import MAX_LOGITS, Transformer, autocast

NUM_CURVE_WINDOWS = 200
NUM_FINAL_WINDOWS = 1600
EVAL_TOKENS = 8192  # of one forward pass


class Readable(Protocol):
    """A text as ids, of which windows are read: a Corpus, or any other."""

    def batch_at(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The windows that begin at `starts` (B,): inputs and targets, int64 (B, T) each, T = length."""
        ...


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Dropout off and no gradients, and training mode as it was afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        model.train(was_training)


def window_losses(
    model: Transformer,
    text: Readable,
    starts: np.ndarray,
    length: int,
    *,
    dtype: str,
    num_last: int | None = None,
    num_at_once: int | None = None,
) -> np.ndarray:
    """The loss of the last `num_last` targets (None: of all) of the windows at `starts`, nats: float32 (windows, num).

    `num_at_once` windows share a forward pass; None takes as many as EVAL_TOKENS holds. Draws no random number.
    """
    device = model.embed.weight.device
    first = 0 if num_last is None else length - num_last
    losses = np.empty((len(starts), length - first), dtype=np.float32)
    num_at_once = min(num_at_once or max(1, EVAL_TOKENS // length), max(1, MAX_LOGITS // model.num_symbols))
    with evaluating(model), autocast(device, dtype):
        for begin in range(0, len(starts), num_at_once):
            inputs, targets = text.batch_at(starts[begin : begin + num_at_once], length)
            batch = model.losses_nats(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device))
            losses[begin : begin + num_at_once] = batch[:, first:].cpu().numpy()
    return losses


def mean_nats(losses: np.ndarray) -> float:
    """The mean of single losses, summed in float64."""
    return float(losses.mean(dtype=np.float64))


@dataclass(frozen=True)
class LengthLosses:
    """The test loss, nats, at several lengths of window.

    `by_length` holds None for a length past the model's last position; `by_position` is the mean at each position of
    the longest windows that the model can read, float32 (length,), None where it can read none of them.
    """

    by_length: dict[str, float | None]
    by_position: np.ndarray | None


def losses_at_length(
    model: Transformer, corpus: Corpus, lengths: Sequence[int], *, num_tokens: int, dtype: str
) -> LengthLosses:
    """The test loss, nats, with windows of each length over the same target characters.

    The targets are the last ones of the longest windows, as many as the shortest length has, so a longer window adds
    context and changes nothing else. About `num_tokens` tokens are read.
    """
    longest, num_targets = max(lengths), min(lengths)
    starts = corpus.windows("test", longest, max(1, num_tokens // longest))
    readable = [length for length in lengths if model.max_len is None or length <= model.max_len]
    by_length: dict[str, float | None] = {str(length): None for length in lengths}
    by_position = None
    for length in readable:
        losses = window_losses(model, corpus, starts + longest - length, length, dtype=dtype)
        by_length[str(length)] = mean_nats(losses[:, -num_targets:])
        if length == max(readable):
            by_position = losses.mean(axis=0, dtype=np.float64).astype(np.float32)
    return LengthLosses(by_length, by_position)
