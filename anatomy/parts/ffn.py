"""Feed-forward networks: what each token thinks on its own.

Tensor legend: D model width, F hidden width.
"""

import math

import numpy as np
import torch.nn.functional as F
from torch import Tensor, nn

from anatomy.parts.binding import Buffer, Step, bind_linear, bind_linear_into
from anatomy.ranges import Count


class _Plain(nn.Module):
    """down_proj(activation(up_proj(x))), two matrices; `hidden` None means 4 D."""

    def __init__(self, width: int, bias: bool, *, hidden: Count | None = None) -> None:
        super().__init__()
        self.width = width
        self.hidden = 4 * width if hidden is None else hidden
        self.up_proj = nn.Linear(width, self.hidden, bias=bias)
        self.down_proj = nn.Linear(self.hidden, width, bias=bias)
        self.num_biases = self.hidden + width if bias else 0

    def num_linear_weights(self) -> int:
        return 2 * self.width * self.hidden

    def num_params(self) -> int:
        return self.num_linear_weights() + self.num_biases

    def activation(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.activation(self.up_proj(x)))

    def bind(self, x: Buffer, into: Buffer) -> Step:
        up_step, up = bind_linear(x, self.up_proj)
        down_step = bind_linear_into(up, self.down_proj, into)

        def step() -> None:
            up_step()
            up.tensor.copy_(self.activation(up.tensor))
            down_step()

        return step


class ReLU(_Plain):
    """Two matrices around max(0, x).

    Shapes:   x (..., D) -> (..., D).
    Knobs:    hidden, F; None takes 4 D.
    Source:   Vaswani et al. 2017, arXiv:1706.03762.
    """

    def activation(self, x: Tensor) -> Tensor:
        return F.relu(x)


class GELU(_Plain):
    """Two matrices around x * Phi(x), with the exact normal distribution function.

    Shapes:   x (..., D) -> (..., D).
    Knobs:    hidden, F; None takes 4 D.
    Source:   Hendrycks & Gimpel 2016, arXiv:1606.08415.
    """

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x)


class GELUTanh(_Plain):
    """GELU by its tanh approximation, as GPT-2 has it; it differs from the exact one by at most 5e-4.

    Shapes:   x (..., D) -> (..., D).
    Knobs:    hidden, F; None takes 4 D.
    Source:   Hendrycks & Gimpel 2016, arXiv:1606.08415; Radford et al. 2019 (GPT-2).
    """

    def activation(self, x: Tensor) -> Tensor:
        return F.gelu(x, approximate="tanh")


class SwiGLU(nn.Module):
    """Three matrices: one branch gates the other. down_proj(silu(gate_proj(x)) * up_proj(x)).

    Shapes:   x (..., D) -> (..., D).
    Knobs:    hidden, F; None takes int(2/3 * 4 D), which keeps the parameters of a plain FFN, rounded up to a
              multiple of multiple_of.
    Source:   Shazeer 2020, arXiv:2002.05202; the width rule is LLaMA's, arXiv:2302.13971 (there 256).
    """

    def __init__(self, width: int, bias: bool, *, hidden: Count | None = None, multiple_of: Count = 32) -> None:
        super().__init__()
        self.width = width
        self.hidden = multiple_of * math.ceil(2 * 4 * width // 3 / multiple_of) if hidden is None else hidden
        self.gate_proj = nn.Linear(width, self.hidden, bias=bias)
        self.up_proj = nn.Linear(width, self.hidden, bias=bias)
        self.down_proj = nn.Linear(self.hidden, width, bias=bias)
        self.num_biases = 2 * self.hidden + width if bias else 0

    def num_linear_weights(self) -> int:
        return 3 * self.width * self.hidden

    def num_params(self) -> int:
        return self.num_linear_weights() + self.num_biases

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))

    def bind(self, x: Buffer, into: Buffer) -> Step:
        both_step, both = bind_linear(x, self.gate_proj, self.up_proj)
        gate_BF, up_BF = np.split(both.array, 2, axis=-1)
        product = Buffer.of(*up_BF.shape)
        product_BF = product.array
        down_step = bind_linear_into(product, self.down_proj, into)

        def step() -> None:
            both_step()
            np.negative(gate_BF, out=product_BF)  # silu: gate / (1 + exp(-gate))
            np.exp(product_BF, out=product_BF)
            np.add(product_BF, 1, out=product_BF)
            np.divide(gate_BF, product_BF, out=product_BF)
            np.multiply(product_BF, up_BF, out=product_BF)
            down_step()

        return step
