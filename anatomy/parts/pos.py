"""Positions: how the model learns where a token stands.

A position part acts in two places, and is silent in the one it does not use: `forward` adds something to the
embeddings, `rotation` gives the angles by which attention turns its queries and keys. Positions are explicit, so
that a window may start anywhere. `max_len` is the number of positions that exist, None where there is no end.

The parts at the end, whose names begin with Broken, are for breaking: RoPE with one mistake that is easily made.

Tensor legend: B batch, T tokens, H heads, K head width, D model width.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anatomy.ranges import Positive


class Rotation(NamedTuple):
    """Cosine and sine, each (T, 1, K/2), of the angle by which every pair of a head's channels is turned.

    Where the texts of a batch stand at positions of their own, (B, T, 1, K/2).
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

    def __init__(self, width: int, *, theta: Positive = 10000.0) -> None:
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

    def __init__(self, head_width: int, *, theta: Positive = 10000.0) -> None:
        super().__init__()
        if head_width % 2:
            raise ValueError(f"RoPE turns pairs of channels: model.d_model/model.n_head must be even, got {head_width}")
        self.head_width, self.theta = head_width, theta
        self.max_len: int | None = None

    def num_params(self) -> int:
        return 0

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        return x

    def rotation(self, positions: Tensor) -> Rotation:
        angles = positions.unsqueeze(-1).float() * _frequencies(self.head_width, self.theta, positions.device)
        return Rotation(angles.cos().unsqueeze(-2), angles.sin().unsqueeze(-2))


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
