"""Parts bound to buffers: for one token a text, the time goes into calls, not into arithmetic.

A part that reads a text whole is called with new tensors and returns new ones. To go on with a text token by token it
is bound instead: told once where it will find its input and where its output goes, it gives back a function without
arguments, a step, which does the same to the numbers that lie there. What can be allocated and looked up beforehand is,
and what is no product with weights is left to NumPy, whose calls cost a third of PyTorch's. So it is for float32 on a
CPU. A part says how it is bound in a method `bind`; a norm or an FFN that does not is bound by its `forward`, and a
model whose blocks or attention do not is read by `forward` throughout (see `says_how_it_is_bound`).

Many weights are read where they lie, few are copied: when weights change, what was bound before is worthless. There is
no dropout, and hooks of modules are not called.

Shapes: a buffer holds one row a text, (B, width), or one a text and head, (B, heads, K).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Step = Callable[[], None]

FEW_WEIGHTS = 2**18


class Buffer(NamedTuple):
    """The same float32 numbers as a tensor and as an array: what is written to the one is read from the other.

    gain  a factor of each column that is still to be multiplied. A reader whose weights are multiplied with the numbers
          anyway multiplies those, once, and saves every step the product.
    """

    tensor: Tensor
    array: NDArray[np.float32]
    gain: Tensor | None = None

    @classmethod
    def of(cls, *shape: int) -> "Buffer":
        """A new one, its numbers not set."""
        tensor = torch.empty(shape, dtype=torch.float32, device="cpu")
        return cls(tensor, tensor.numpy())

    def part(self, start: int, stop: int) -> "Buffer":
        """Some of the heads of numbers (B, heads, K): the same numbers, not a copy."""
        return Buffer(self.tensor[:, start:stop], self.array[:, start:stop])

    def write_to(self, other: "Buffer") -> None:
        """Copy the numbers, the gain multiplied."""
        if self.gain is None:
            other.array[:] = self.array
        else:
            np.multiply(self.array, self.gain.numpy(), out=other.array)

    def gained(self, weight: Tensor) -> Tensor:
        """The weights (out, width) of a product with these numbers, the gain multiplied; they are not to be trained."""
        return weight.detach() if self.gain is None else weight.detach() * self.gain


def says_how_it_is_bound(part: Any) -> bool:
    """Whether a part's `bind` speaks for what the part computes.

    A class that inherits `bind` and overrides what it stands for, `forward` or attention's `project`, has none of its
    own: the one that it inherits would compute something else.
    """
    kind = type(part)
    return _home(kind, "bind") <= min(_home(kind, "forward"), _home(kind, "project"))


def _home(kind: type, name: str) -> float:
    """How far up among a class's ancestors a method is defined; infinity where it is not."""
    return next((place for place, ancestor in enumerate(kind.__mro__) if name in vars(ancestor)), math.inf)


def bind_norm(norm: Any, x: Buffer) -> tuple[Step, Buffer]:
    """A norm that reads x: the step, and the buffer that it writes."""
    if says_how_it_is_bound(norm):
        return norm.bind(x)
    assert x.gain is None, "a norm reads the stream, which no gain is left to"
    y = Buffer.of(*x.array.shape)

    def step() -> None:
        y.tensor.copy_(norm(x.tensor.unsqueeze(1)).squeeze(1))

    return step, y


def bind_ffn(ffn: Any, x: Buffer, into: Buffer) -> Step:
    """An FFN that reads x and adds its output to `into`, which may be x itself."""
    if says_how_it_is_bound(ffn):
        return ffn.bind(x, into)

    whole = Buffer.of(*x.array.shape)

    def step() -> None:
        x.write_to(whole)
        into.tensor.add_(ffn(whole.tensor.unsqueeze(1)).squeeze(1))

    return step


def bind_linear(x: Buffer, *layers: Any) -> tuple[Step, Buffer]:
    """Linear layers that read x: the step, and the buffer that it writes, outputs side by side."""
    return bind_products(x, [layer.weight for layer in layers], [layer.bias for layer in layers])


def bind_products(x: Buffer, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> tuple[Step, Buffer]:
    """Products of x with matrices (out, width): the step, and the buffer that it writes, outputs side by side.

    Few weights are copied into one matrix, gain included, for one call costs less than several. More than FEW_WEIGHTS
    are read where they lie: their time is that of reading them.
    """
    whole = x
    if sum(weight.numel() for weight in weights) <= FEW_WEIGHTS:
        weights = [x.gained(torch.cat(list(weights)) if len(weights) > 1 else weights[0])]
        biases = [None if biases[0] is None else torch.cat([bias for bias in biases if bias is not None])]
    elif x.gain is not None:
        whole = Buffer.of(*x.array.shape)
    y = Buffer.of(len(x.array), sum(map(len, weights)))
    outputs = y.tensor.split(list(map(len, weights)), dim=1)
    products = [
        (None if bias is None else bias.detach(), weight.detach().t(), output)
        for weight, bias, output in zip(weights, biases, outputs, strict=True)
    ]

    def step() -> None:
        if whole is not x:
            x.write_to(whole)
        for bias, matrix, output in products:
            if bias is None:
                torch.mm(whole.tensor, matrix, out=output)
            else:
                torch.addmm(bias, whole.tensor, matrix, out=output)

    return step, y


def bind_linear_into(x: Buffer, layer: Any, into: Buffer) -> Step:
    """A Linear layer that reads x and adds its output to `into`."""
    matrix = x.gained(layer.weight).t()
    bias = None if layer.bias is None else layer.bias.detach().numpy()

    def step() -> None:
        into.tensor.addmm_(x.tensor, matrix)
        if bias is not None:
            np.add(into.array, bias, out=into.array)

    return step
