"""Parts bound to buffers: for one token a text, the time goes into calls, not into arithmetic.

A part that reads a text whole is called with new tensors and returns new ones. To go on with a text token by token it
is bound instead: told once where it will find its input and where its output goes, it gives back a function without
arguments, a step, which does the same to the numbers that lie there. Nothing is allocated or looked up that could be
before. A part says how it is bound in a method `bind`; a norm or an FFN that does not is bound by its `forward`.

Weights are read where they lie or, where several are joined into one product, copied: a step does not learn of weights
that change afterwards. There is no dropout.

Tensor legend: B texts, D model width.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

Step = Callable[[], None]


def bind_norm(norm: Any, x_BD: Tensor) -> tuple[Step, Tensor]:
    """A norm that reads x: the step, and the tensor that it writes."""
    if hasattr(norm, "bind"):
        return norm.bind(x_BD)
    y_BD = torch.empty_like(x_BD)

    def step() -> None:
        y_BD.copy_(norm(x_BD))

    return step, y_BD


def bind_ffn(ffn: Any, x_BD: Tensor, into_BD: Tensor) -> Step:
    """An FFN that reads x and adds its output to `into`, which may be x itself."""
    if hasattr(ffn, "bind"):
        return ffn.bind(x_BD, into_BD)

    def step() -> None:
        into_BD.add_(ffn(x_BD))

    return step


def bind_linear(x_BD: Tensor, *layers: Any) -> tuple[Step, Tensor]:
    """Linear layers that read x, as one product: the step, and the tensor that it writes, outputs side by side."""
    weight = torch.cat([layer.weight for layer in layers]) if len(layers) > 1 else layers[0].weight
    matrix = weight.detach().t()
    y = x_BD.new_empty(len(x_BD), matrix.shape[1])
    if layers[0].bias is None:

        def step() -> None:
            torch.mm(x_BD, matrix, out=y)

    else:
        bias = torch.cat([layer.bias for layer in layers]).detach()

        def step() -> None:
            torch.addmm(bias, x_BD, matrix, out=y)

    return step, y


def bind_linear_into(x: Tensor, layer: Any, into_BD: Tensor) -> Step:
    """A Linear layer that reads x and adds its output to `into`."""
    matrix = layer.weight.detach().t()
    if layer.bias is None:

        def step() -> None:
            into_BD.addmm_(x, matrix)

    else:
        bias = layer.bias.detach()

        def step() -> None:
            into_BD.addmm_(x, matrix).add_(bias)

    return step
