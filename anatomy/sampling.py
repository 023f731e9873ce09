"""From logits to the next token: temperature, filters, one draw.

Tensor legend: B texts, V vocabulary.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from anatomy.errors import UserError

TEMPERATURE = 0.8


@dataclass(frozen=True)
class Knobs:
    """How the next token is drawn. The filters act in this order, each on what the one before has left.

    temperature  the logits are divided by it; 0 takes the likeliest token, the first of equals, and draws nothing
    top_k        only the k likeliest tokens, at least 1; more than there are is no filter
    top_p        only the likeliest tokens whose mass first reaches p, 0 to 1 (Holtzman et al. 2019, arXiv:1904.09751)
    min_p        only tokens at least p times as likely as the likeliest, 0 to 1 (Nguyen et al. 2024, arXiv:2407.01082)

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


class Stream:
    """The random numbers of one text: they follow from a seed and the text's index, whatever is drawn beside it."""

    def __init__(self, seed: int, index: int) -> None:
        self._generator = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(index,)))

    def uniform(self) -> float:
        """The next number, 0 <= u < 1, out of 53 bits of the raw stream, which numpy keeps from version to version."""
        return int(self._generator.random_raw() >> 11) * 2.0**-53


def probabilities(logits_BV: Tensor, knobs: Knobs) -> Tensor:
    """What the knobs leave of softmax(logits / temperature), float64 (B, V); the temperature must be above 0."""
    logits_BV = logits_BV.double()
    p_BV = ((logits_BV - logits_BV.amax(-1, keepdim=True)) / knobs.temperature).softmax(-1)
    if knobs.top_k is None and knobs.top_p is None and knobs.min_p is None:
        return p_BV
    ranked_BV, order_BV = p_BV.sort(dim=-1, descending=True, stable=True)
    if knobs.top_k is not None:
        ranked_BV[:, knobs.top_k :] = 0.0
    if knobs.top_p is not None and knobs.top_p < 1:
        mass_before_BV = ranked_BV.cumsum(-1) - ranked_BV
        is_beyond_BV = mass_before_BV >= knobs.top_p * ranked_BV.sum(-1, keepdim=True)
        is_beyond_BV[:, 0] = False
        ranked_BV = ranked_BV.masked_fill(is_beyond_BV, 0.0)
    if knobs.min_p is not None:
        ranked_BV = ranked_BV.masked_fill(ranked_BV < knobs.min_p * ranked_BV[:, :1], 0.0)
    left_BV = torch.zeros_like(p_BV).scatter_(-1, order_BV, ranked_BV)
    return left_BV / left_BV.sum(-1, keepdim=True)


def next_ids(logits_BV: Tensor, knobs: Knobs, streams: Sequence[Stream]) -> list[int]:
    """One token for each of B texts, by one number of its own stream; none is drawn at temperature 0.

    Raises: ValueError if the logits are not finite: there is nothing to draw from.
    """
    largest, likeliest = logits_BV.max(-1)
    if not all(map(math.isfinite, largest.tolist())):
        raise ValueError("the model's logits are not finite: there is nothing to draw from")
    if knobs.temperature == 0:
        return likeliest.tolist()
    cumulative_BV = probabilities(logits_BV, knobs).cumsum(-1).cpu()
    uniform_B1 = torch.tensor([[stream.uniform()] for stream in streams], dtype=torch.float64)
    # The last token that has a share stands where the sum first reaches its end: rounding must not lead past it.
    drawn_B1 = torch.searchsorted(cumulative_BV, uniform_B1 * cumulative_BV[:, -1:], right=True)
    return torch.minimum(drawn_B1, cumulative_BV.argmax(-1, keepdim=True)).flatten().tolist()
