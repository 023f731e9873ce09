"""From logits to the next token: temperature, filters, one draw.

Everything after the logits happens in float64 on the CPU, in NumPy: the rows are short, and so a device's own sorts
and sums decide nothing.

Tensor legend: B texts, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Loaded here: NumPy would do it at the first use, in the midst of which an interrupt is lost.
from numpy.random import PCG64, SeedSequence
from numpy.typing import NDArray
from torch import Tensor

from anatomy.errors import UserError

TEMPERATURE = 0.8
_SAMPLING = 1  # beside an index, a key that no stream of training batches has: theirs have one number


class NotFinite(ValueError):
    """The logits are NaN or infinite, as those of a model that diverged are: there is nothing to draw from."""


@dataclass(frozen=True)
class Knobs:
    """How the next token is drawn. The filters act in this order, each on what the one before has left.

    temperature  the logits are divided by it; 0 takes the likeliest token, the first of equals, and draws nothing
    top_k        only the k likeliest tokens, at least 1; more than there are is no filter
    top_p        only the likeliest tokens whose mass first reaches p, 0 to 1 (Holtzman et al. 2019, arXiv:1904.09751)
    min_p        only tokens at least p times as likely as the likeliest, 0 to 1 (Nguyen et al. 2024, arXiv:2407.01082)

    The likeliest token is never filtered out. Of tokens that are equally likely, top_k and top_p count the one with the
    lower id as the likelier, so top_k leaves k tokens, never more.

    Raises: UserError, a line for each knob out of its range.
    """

    temperature: float = TEMPERATURE
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None

    def __post_init__(self) -> None:
        faults = []
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            faults.append(f"temperature={self.temperature:g}: must be a number from 0, which takes the likeliest token")
        if self.top_k is not None and self.top_k < 1:
            faults.append(f"top_k={self.top_k}: must be at least 1; leave it out to keep all tokens")
        for name, share in (("top_p", self.top_p), ("min_p", self.min_p)):
            if share is not None and not 0 <= share <= 1:
                faults.append(f"{name}={share:g}: must lie between 0 and 1")
        if faults:
            raise UserError("\n".join(faults))


DEFAULT_KNOBS = Knobs()


class Stream:
    """The random numbers of one text: they follow from a seed and the text's index, whatever is drawn beside it."""

    def __init__(self, seed: int, index: int) -> None:
        self._generator = PCG64(SeedSequence(seed, spawn_key=(_SAMPLING, index)))

    def uniform(self) -> float:
        """The next number, 0 <= u < 1, out of 53 bits of the raw stream, which numpy keeps from version to version."""
        return int(self._generator.random_raw() >> 11) * 2.0**-53


def probabilities(logits_BV: NDArray[np.float64], knobs: Knobs) -> NDArray[np.float64]:
    """What the knobs leave of softmax(logits / temperature), (B, V); the temperature must be above 0.

    Numerics: the likeliest token has weight exp(0) at whatever temperature, so nothing overflows: towards 0 only it and
              its equals keep a share.
    """
    likeliest_B1 = logits_BV.max(-1, keepdims=True)
    weights_BV = _weights(logits_BV, likeliest_B1, knobs.temperature)
    if knobs.top_k is not None or knobs.top_p is not None:
        ranked_BV = np.sort(logits_BV, axis=-1)[:, ::-1]  # not the weights: heat may make those equal
        ranked_BV = ranked_BV[:, : knobs.top_k]
        num_kept_B = np.full(len(ranked_BV), ranked_BV.shape[1])
        if knobs.top_p is not None and knobs.top_p < 1:
            mass_BV = _weights(ranked_BV, likeliest_B1, knobs.temperature).cumsum(-1)
            num_kept_B = 1 + (mass_BV[:, :-1] < knobs.top_p * mass_BV[:, -1:]).sum(-1)  # those that had not reached it
        last_B1 = np.take_along_axis(ranked_BV, num_kept_B[:, None] - 1, axis=-1)
        weights_BV[logits_BV < last_B1] = 0.0
        is_last_BV = logits_BV == last_B1
        num_last_B = num_kept_B - (logits_BV > last_B1).sum(-1)  # of those equal to the last
        weights_BV[is_last_BV & (is_last_BV.cumsum(-1) > num_last_B[:, None])] = 0.0
    if knobs.min_p is not None:
        weights_BV[weights_BV < knobs.min_p] = 0.0  # the likeliest weighs 1
    return weights_BV / weights_BV.sum(-1, keepdims=True)


def _weights(
    logits_BV: NDArray[np.float64], likeliest_B1: NDArray[np.float64], temperature: float
) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):  # far below the likeliest, at a tiny temperature: -inf, whose weight is 0
        return np.exp((logits_BV - likeliest_B1) / temperature)


def next_ids(logits_BV: Tensor, knobs: Knobs, streams: Sequence[Stream]) -> list[int]:
    """One token for each of B texts, by one number u of its own stream; none is drawn at temperature 0.

    It is the first token, in the order of ids, up to which the probabilities sum to more than u.

    Raises: NotFinite.
    """
    logits = logits_BV.float().numpy(force=True)
    if not np.isfinite(logits).all():
        raise NotFinite("the model's logits are not finite: there is nothing to draw from")
    if knobs.temperature == 0:
        return logits.argmax(-1).tolist()
    cumulative_BV = probabilities(logits.astype(np.float64), knobs).cumsum(-1)
    # As u <= 1 - 2^-53, the product is rounded to less than the whole sum, so only a token that has a share is reached.
    return [
        int(np.searchsorted(cumulative_V, stream.uniform() * cumulative_V[-1], side="right"))
        for cumulative_V, stream in zip(cumulative_BV, streams, strict=True)
    ]
