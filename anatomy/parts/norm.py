"""Norms: what keeps the size of the residual stream in hand.

Every norm here works on the last dimension, takes its statistics in float32 and returns the dtype it was given.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anatomy.parts.binding import Buffer, Step
from anatomy.ranges import NotNegative


class LayerNorm(nn.Module):
    """Subtract each token's mean, divide by its deviation, then scale and shift per channel.

    y = (x - mean(x)) / sqrt(var(x) + eps) * gain + shift, with the population variance.

    Shapes:   x (..., D) -> y (..., D).
    Knobs:    eps, added inside the root.
    Source:   Ba, Kiros & Hinton 2016, arXiv:1607.06450.
    """

    def __init__(self, width: int, *, eps: NotNegative = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def num_params(self) -> int:
        return 2 * self.gain.numel()

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gain.shape, self.gain, self.shift, self.eps)


class _GainOnly(nn.Module):
    """What norms without a shift have in common: a gain per channel, and eps."""

    def __init__(self, width: int, *, eps: NotNegative = 1e-5) -> None:
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(width))

    def num_params(self) -> int:
        return self.gain.numel()


class LayerNormNoBias(_GainOnly):
    """LayerNorm without the shift: y = (x - mean(x)) / sqrt(var(x) + eps) * gain.

    Shapes:   x (..., D) -> y (..., D).
    Knobs:    eps, added inside the root.
    Source:   Xu et al. 2019, arXiv:1911.07013, who found the shift dispensable. They drop the gain as well.
    """

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, self.gain.shape, self.gain, None, self.eps)


class RMSNorm(_GainOnly):
    """Divide each token by its root mean square, then scale per channel. Nothing is centred.

    y = x / sqrt(mean(x^2) + eps) * gain

    Shapes:   x (..., D) -> y (..., D).
    Knobs:    eps, added inside the root.
    Numerics: PyTorch's fused kernel, but on a CPU, which has none, the two passes below: a third of the time. In half
              precision they would take their statistics in it, so there PyTorch's own call does it.
    Source:   Zhang & Sennrich 2019, arXiv:1910.07467. No bias.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cpu and x.dtype == self.gain.dtype and x.dtype.itemsize >= 4:
            return _RMSNormOnCPU.apply(x, self.gain, self.eps)
        return F.rms_norm(x, self.gain.shape, self.gain, self.eps)

    def bind(self, x: Buffer) -> tuple[Step, Buffer]:
        rows, y = x.array, Buffer.of(*x.array.shape)._replace(gain=self.gain.detach())
        normed, first_D = y.array, rows[0]
        width, eps, one = np.float32(rows.shape[-1]), np.float32(self.eps), np.float32(1)

        def step_of_one() -> None:  # a single row's size is a single number, with which NumPy counts faster
            np.multiply(rows, one / np.sqrt(first_D.dot(first_D) / width + eps), out=normed)

        def step_of_many() -> None:
            inverse_rms = one / np.sqrt(np.vecdot(rows, rows) / width + eps)
            np.multiply(rows, inverse_rms[..., None], out=normed)

        return step_of_one if first_D.size == rows.size and first_D.ndim == 1 else step_of_many, y


class _RMSNormOnCPU(torch.autograd.Function):
    """RMSNorm and its gradient in few passes over memory, where F.rms_norm falls apart into a dozen.

    With r = 1 / rms(x) and n = x r:  dx = r (dy gain - n mean(dy gain n)),  dgain = sum over tokens of dy n.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor, eps: float) -> Tensor:
        norms = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        inverse_rms = norms.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(x, gain, inverse_rms)
        return (x * inverse_rms).mul_(gain)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        (dy,) = grads
        x, gain, inverse_rms = ctx.saved_tensors
        normed = x * inverse_rms
        dy_normed = dy * normed
        mean = (dy_normed @ gain).div_(x.shape[-1]).unsqueeze(-1)
        dx = normed.mul_(-mean).addcmul_(dy, gain).mul_(inverse_rms)
        return dx, dy_normed.flatten(0, -2).sum(0), None


class NoNorm(nn.Module):
    """No norm at all: y = x. The control that shows what a norm is for.

    Shapes:   x (..., D) -> y (..., D).
    """

    def __init__(self) -> None:
        super().__init__()

    def num_params(self) -> int:
        return 0

    def forward(self, x: Tensor) -> Tensor:
        return x

    def bind(self, x: Buffer) -> tuple[Step, Buffer]:
        return (lambda: None), x
