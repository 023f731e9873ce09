"""Positions: how the model learns where a token stands.

A position part acts in two places, and is silent in the one it does not use: `forward` adds something to the
embeddings, `rotation` gives the angles by which attention turns its queries and keys. Positions are explicit, so
that a window may start anywhere. `max_len` is the number of positions that exist, None where there is no end.

The parts at the end, whose names begin with Broken, are for breaking: RoPE with one mistake that is easily made.

Tensor legend: B batch, T tokens, H heads, K head width, D model width.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anatomy.ranges import Count, Factor, NotNegative, Positive, Theta


class Rotation(NamedTuple):
    """Cosine and sine, each (T, 1, K/2), of the angle by which every pair of a head's channels is turned.

    Both may hold a factor by which the turn stretches as well. Where the texts of a batch stand at positions of their
    own, (B, T, 1, K/2).
    """

    cos: Tensor
    sin: Tensor

    def turn(self, qk_BTHK: Tensor, num_queries: int) -> Tensor:
        """Turn queries and keys, all alike. They come side by side: `num_queries` heads of queries, then those of keys.

        In one pass, for two would cost a copy. Same shape, same dtype.
        """
        return rotate(qk_BTHK, self)

    def turns(self) -> "Turns":
        """The same as matrices: what the turn makes of the unit vectors."""
        head_width = 2 * self.cos.shape[-1]
        unit = torch.eye(head_width, device=self.cos.device).expand(*self.cos.shape[:-2], -1, -1)
        return Turns(self.turn(unit, head_width), self.turn(unit, 0))


class Turns(NamedTuple):
    """The matrices that turn a query and a key, q -> q M: (..., K, K) each, with the leading shape of the positions.

    For a single token one small product costs less than the operations of `rotate`.
    """

    of_queries: Tensor
    of_keys: Tensor


RAMP_OF_NONE = 0.001  # the length of a ramp, in pairs, that begins where it ends


class _Rotate(torch.autograd.Function):
    """Turn the pairs (i, i + K/2) of x (..., T, H, K). Its gradient is the turn back, so nothing is saved of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        ctx.save_for_backward(cos, sin)
        return _turn(x, cos, sin)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        cos, sin = ctx.saved_tensors
        return _turn(grads[0], cos, -sin), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    turned = torch.empty_like(x)
    turned_first, turned_second = turned.chunk(2, dim=-1)
    torch.mul(first, cos, out=turned_first).addcmul_(second, sin, value=-1)
    torch.mul(second, cos, out=turned_second).addcmul_(first, sin)
    return turned


def rotate(x_BTHK: Tensor, rotation: Rotation) -> Tensor:
    """Turn each head's channel pairs (i, i + K/2) by the rotation's angles; same shape, same dtype."""
    cos, sin = (table.to(x_BTHK.dtype) for table in rotation)
    return _Rotate.apply(x_BTHK, cos, sin)


class Learned(nn.Module):
    """Add a learned vector per position: x_t + table[t]. Past the table's end there is nothing.

    Shapes:   x (B, T, D), positions (T,) or (B, T) -> (B, T, D).
    Source:   Gehring et al. 2017, arXiv:1705.03122; Radford et al. 2019 (GPT-2).
    """

    def __init__(self, width: int, ctx_len: int) -> None:
        super().__init__()
        self.max_len: int | None = ctx_len
        self.table = nn.Parameter(torch.empty(ctx_len, width))

    def num_params(self) -> int:
        return self.table.numel()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x + self.table[positions]

    def rotation(self, positions: Tensor) -> Rotation | None:
        return None


class Sinusoidal(nn.Module):
    """Add sines and cosines of the position at geometrically spaced wavelengths. Nothing is learned, nothing ends.

    channel 2i: sin(t / theta^(2i/D)), channel 2i+1: cos of the same angle.

    Shapes:   x (B, T, D), positions (T,) or (B, T) -> (B, T, D).
    Knobs:    theta, the longest wavelength over 2 pi.
    Numerics: angles in float32, added in x.dtype.
    Raises:   ValueError if the width is odd.
    Source:   Vaswani et al. 2017, arXiv:1706.03762, without its embedding factor sqrt(D).
    """

    def __init__(self, width: int, *, theta: Theta = 10000.0) -> None:
        super().__init__()
        if width % 2:
            raise ValueError(f"sinusoidal positions need an even model width, got model.d_model={width}")
        self.width, self.theta = width, theta
        self.max_len: int | None = None

    def num_params(self) -> int:
        return 0

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions.unsqueeze(-1).float() * _frequencies(self.width, self.theta, positions.device)
        waves = torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)
        return x + waves.to(x.dtype)

    def rotation(self, positions: Tensor) -> Rotation | None:
        return None


class RoPE(nn.Module):
    """Rotate queries and keys by an angle that grows with the position, so that scores see distances only.

    pair i (channels i and i + K/2) turns by t * theta^(-2i/K).

    Shapes:   positions (T,) or (B, T) -> cos, sin (T or B, T, 1, K/2).
    Knobs:    theta, the longest wavelength over 2 pi.
    Numerics: frequencies, positions and their product in float32; only the tables are cast.
    Raises:   ValueError if the head width is odd.
    Source:   Su et al. 2021, arXiv:2104.09864; half-split pairing as in GPT-NeoX and Hugging Face's LLaMA, where the
              paper pairs neighbours (the same model up to the order of channels).
    """

    def __init__(self, head_width: int, *, theta: Theta = 10000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(
                f"RoPE turns pairs of channels: the head width (model.d_model/model.n_head, or model.head_width) must "
                f"be even, got {head_width}"
            )
        self.head_width, self.theta = head_width, theta
        self.max_len: int | None = None

    def num_params(self) -> int:
        return 0

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def frequencies(self, device: torch.device) -> Tensor:
        """The angle, in radians, by which each pair turns from one position to the next: (K/2,), float32."""
        return _frequencies(self.head_width, self.theta, device)

    def rotation(self, positions: Tensor) -> Rotation:
        angles = positions.unsqueeze(-1).float() * self.frequencies(positions.device)
        return Rotation(angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2))


class RoPELinear(RoPE):
    """RoPE with every position divided by a factor, so that a text `factor` times as long turns no further.

    pair i turns by t / factor * theta^(-2i/K).

    Shapes:   positions (T,) or (B, T) -> cos, sin (T or B, T, 1, K/2).
    Knobs:    theta, as in RoPE; factor, how many times as long texts may become.
    Numerics: as in RoPE.
    Raises:   ValueError if the head width is odd.
    Source:   Chen et al. 2023, arXiv:2306.15595.
    """

    def __init__(self, head_width: int, *, theta: Theta = 10000.0, factor: Factor = 2.0) -> None:
        super().__init__(head_width, theta=theta)
        self.factor = factor

    def frequencies(self, device: torch.device) -> Tensor:
        return super().frequencies(device) / self.factor


class RoPELlama3(RoPE):
    """RoPE with its slow pairs slowed down further and its fast ones kept, by how their wavelength compares with the
    length of training before.

    With f = theta^(-2i/K) and n = original_len f / 2 pi, the number of turns a pair makes in that length: f where n is
    above high_freq_factor, f / factor where it is below low_freq_factor, and between the two m f + (1 - m) f / factor
    with m = (n - low_freq_factor) / (high_freq_factor - low_freq_factor).

    Shapes:   positions (T,) or (B, T) -> cos, sin (T or B, T, 1, K/2).
    Knobs:    theta, as in RoPE; factor; low_freq_factor, high_freq_factor, in turns; original_len, in tokens.
    Numerics: as in RoPE.
    Raises:   ValueError if the head width is odd, or low_freq_factor not below high_freq_factor.
    Source:   Llama Team 2024, arXiv:2407.21783; the formula as in the code published with Llama 3.1.
    """

    def __init__(
        self,
        head_width: int,
        *,
        theta: Theta = 500000.0,
        factor: Factor = 8.0,
        low_freq_factor: Positive = 1.0,
        high_freq_factor: Positive = 4.0,
        original_len: Count = 8192,
    ) -> None:
        super().__init__(head_width, theta=theta)
        if low_freq_factor >= high_freq_factor:
            raise ValueError(
                f"pos.low_freq_factor={low_freq_factor} must be below pos.high_freq_factor={high_freq_factor}"
            )
        self.factor, self.original_len = factor, original_len
        self.low_freq_factor, self.high_freq_factor = low_freq_factor, high_freq_factor

    def frequencies(self, device: torch.device) -> Tensor:
        kept = super().frequencies(device)
        num_turns = self.original_len * kept / (2 * math.pi)
        share_kept = (num_turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return torch.lerp(kept / self.factor, kept, share_kept.clamp(0, 1))


class RoPEYaRN(RoPE):
    """RoPE by YaRN: pairs that turn often in the length of training before are kept, those that turn seldom are slowed
    down, with a ramp between, and scores are made a little sharper for the longer text.

    A pair at place i(n) = K ln(original_len / (2 pi n)) / (2 ln theta) turns n times in original_len. The ramp runs
    from the floor of i(beta_fast), kept, to the ceiling of i(beta_slow), divided by `factor`. Queries and keys are both
    multiplied by attention_factor.

    Shapes:   positions (T,) or (B, T) -> cos, sin (T or B, T, 1, K/2), attention_factor multiplied.
    Knobs:    theta, as in RoPE; factor; original_len, in tokens; beta_fast, beta_slow, in turns; attention_factor, None
              takes 0.1 ln(factor) + 1.
    Numerics: as in RoPE.
    Raises:   ValueError if the head width is odd, theta is 1, or beta_slow above beta_fast.
    Source:   Peng et al. 2023, arXiv:2309.00071; the whole pairs at the ends of the ramp as in its published code.
    """

    def __init__(
        self,
        head_width: int,
        *,
        theta: Theta = 10000.0,
        factor: Factor = 4.0,
        original_len: Count = 2048,
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
        attention_factor: NotNegative | None = None,
    ) -> None:
        super().__init__(head_width, theta=theta)
        if beta_slow > beta_fast:
            raise ValueError(f"pos.beta_slow={beta_slow} must not be above pos.beta_fast={beta_fast}")
        if theta == 1:
            raise ValueError("pos.theta=1: all pairs would turn alike, so that no ramp lies between them")
        self.factor, self.original_len, self.beta_fast, self.beta_slow = factor, original_len, beta_fast, beta_slow
        self.attention_factor = 0.1 * math.log(factor) + 1 if attention_factor is None else attention_factor

    def frequencies(self, device: torch.device) -> Tensor:
        kept = super().frequencies(device)
        first = max(0, math.floor(self._place_of(self.beta_fast)))
        last = min(self.head_width - 1, math.ceil(self._place_of(self.beta_slow)))
        places = torch.arange(len(kept), dtype=torch.float32, device=device)
        share_divided = ((places - first) / (last - first or RAMP_OF_NONE)).clamp(0, 1)
        return torch.lerp(kept, kept / self.factor, share_divided)

    def rotation(self, positions: Tensor) -> Rotation:
        return Rotation(*(table * self.attention_factor for table in super().rotation(positions)))

    def _place_of(self, num_turns: float) -> float:
        return self.head_width * math.log(self.original_len / (2 * math.pi * num_turns)) / (2 * math.log(self.theta))


class NoPositions(nn.Module):
    """Give no positions: the causal mask alone tells earlier from later, through what each layer can count.

    Shapes:   x (B, T, D) -> (B, T, D), unchanged.
    Source:   Haviv et al. 2022, arXiv:2203.16634; Kazemnejad et al. 2023, arXiv:2305.19466.
    """

    def __init__(self) -> None:
        super().__init__()
        self.max_len: int | None = None

    def num_params(self) -> int:
        return 0

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def rotation(self, positions: Tensor) -> Rotation | None:
        return None


class _QueriesOnly(Rotation):
    """A rotation that forgets the keys."""

    def turn(self, qk_BTHK: Tensor, num_queries: int) -> Tensor:
        q, k = qk_BTHK.tensor_split((num_queries,), dim=-2)
        return torch.cat((rotate(q, self), k), dim=-2)


class BrokenRoPEQueriesOnly(RoPE):
    """RoPE with the keys left unturned.

    Broken:   a score q' R(t) k turns with the query's own position t and knows nothing of the key's: the same key
              scores the same wherever it stands. What was to be a distance is a place.
    Learn:    nothing fails and no shape is wrong; only the loss tells. In a trial it was that of no positions at all,
              and so far from chance: the causal mask gives positions away by itself (see NoPositions).

    Shapes:   positions (T,) or (B, T) -> cos, sin (T or B, T, 1, K/2).
    Knobs:    theta, as in RoPE.
    Source:   no paper; a line forgotten.
    """

    def rotation(self, positions: Tensor) -> Rotation:
        return _QueriesOnly(*super().rotation(positions))


class _MixedPairs(Rotation):
    """A rotation that turns queries by half-split pairs and keys by adjacent ones."""

    def turn(self, qk_BTHK: Tensor, num_queries: int) -> Tensor:
        q, k = qk_BTHK.tensor_split((num_queries,), dim=-2)
        k = k.unflatten(-1, (-1, 2)).mT.flatten(-2)  # channels 2i and 2i + 1 go where rotate looks for a pair
        q, k = rotate(torch.cat((q, k), dim=-2), self).tensor_split((num_queries,), dim=-2)
        return torch.cat((q, k.unflatten(-1, (2, -1)).mT.flatten(-2)), dim=-2)  # and back to where they were


class BrokenRoPEMixedPairs(RoPE):
    """RoPE with its two ways of pairing mixed: queries turn channels (i, i + K/2), keys channels (2i, 2i + 1).

    Broken:   either pairing is right by itself. Together the two turns no longer cancel into one by the distance, so
              a score depends on both positions, and the more so the later they are.
    Learn:    what comes of mixing two codes that are right. At position 0 all is well and every vector keeps its
              length. In a trial the loss lay between that of RoPE and that of no positions, which alarms nobody.

    Shapes:   positions (T,) or (B, T) -> cos, sin (T or B, T, 1, K/2).
    Knobs:    theta, as in RoPE.
    Source:   no paper; the pairings are those of Su et al. 2021 (adjacent) and GPT-NeoX (half-split).
    """

    def rotation(self, positions: Tensor) -> Rotation:
        return _MixedPairs(*super().rotation(positions))


def _frequencies(width: int, theta: float, device: torch.device) -> Tensor:
    """theta^(-2i/width) for i in 0..width/2, float32: computed afresh, never a buffer that a cast could round."""
    exponents = torch.arange(0, width, 2, dtype=torch.float32, device=device) / width
    return 1.0 / theta**exponents
