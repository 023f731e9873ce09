"""Norms alone: what one call costs as the part runs here, as PyTorch's own call, and written by hand.

Tensor legend: T tokens, D width.
"""

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from omegaconf import OmegaConf
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from anatomy.about import offered
from anatomy.build import knobs_of, part_classes
from anatomy.files import CONF
from anatomy.parts.norm import LayerNorm, LayerNormNoBias, RMSNorm
from anatomy.stopwatch import Task, median_of, median_ratio, take_turns_for, wait

WIDTHS = (48, 256, 1024)
NUM_TOKENS = 1024
SECONDS = 12.0
CALLS_OF_WIDTH = 1024  # calls that together are so wide are timed as one: a clock is coarse beside a small call
REFERENCE = "layer"  # the norm that others are held against

Call = Callable[[Any, Tensor], Tensor]
"""A norm's computation: the module that holds its tensors and knobs, x (T, D) -> y (T, D)."""


def _standardised(x: Tensor, eps: float) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)


# The forms of a norm. A class that is not listed is timed as the part alone.
BY_TORCH: dict[type[nn.Module], Call] = {
    LayerNorm: lambda norm, x: F.layer_norm(x, norm.gain.shape, norm.gain, norm.shift, norm.eps),
    LayerNormNoBias: lambda norm, x: F.layer_norm(x, norm.gain.shape, norm.gain, None, norm.eps),
    RMSNorm: lambda norm, x: F.rms_norm(x, norm.gain.shape, norm.gain, norm.eps),
}
BY_HAND: dict[type[nn.Module], Call] = {
    LayerNorm: lambda norm, x: _standardised(x, norm.eps) * norm.gain + norm.shift,
    LayerNormNoBias: lambda norm, x: _standardised(x, norm.eps) * norm.gain,
    RMSNorm: lambda norm, x: x * torch.rsqrt(x.square().mean(-1, keepdim=True) + norm.eps) * norm.gain,
}


def forms_of(norm: nn.Module) -> dict[str, Call]:
    """The ways to compute a norm that can be timed: `part`, `torch`, `by hand`."""
    tables = {"torch": BY_TORCH, "by hand": BY_HAND}
    calls = {form: table[type(norm)] for form, table in tables.items() if type(norm) in table}
    return {"part": lambda norm, x: norm(x), **calls}


def norms(width: int, device: torch.device) -> dict[str, nn.Module]:
    """Every norm that is offered and has something to compute with, by the name of its YAML file, with its knobs."""
    made = {}
    for name in offered("norm"):
        section: Any = OmegaConf.to_container(OmegaConf.load(CONF / "norm" / f"{name}.yaml"))
        part = part_classes("norm")[section["class"]]
        if "width" in inspect.signature(part).parameters:
            made[name] = part(width, **{knob: section[knob] for knob in knobs_of(part)}).to(device)
    return made


def has_fused_rms_norm(device: torch.device) -> bool:
    """Whether F.rms_norm reaches the device as one operation; where it has no kernel for it, it arrives in pieces."""
    with _Operations() as operations, torch.no_grad():
        F.rms_norm(torch.ones(2, 4, device=device), (4,), torch.ones(4, device=device), 1e-5)
    return sum("rms_norm" in name for name in operations.names) == 1


class _Operations(TorchDispatchMode):
    """The names of the operations that reach the device."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def norm_calls(
    device: torch.device, *, widths: Sequence[int] = WIDTHS, num_tokens: int = NUM_TOKENS, seconds: float = SECONDS
) -> dict[str, Any]:
    """Nanoseconds a call, forward alone and forward with backward, of each norm, form and width; see NormCalls."""
    kinds: list[tuple[int, str, str, int]] = []
    tasks: list[Task] = []
    for width in widths:
        for name, norm in norms(width, device).items():
            x = torch.randn(num_tokens, width, device=device, requires_grad=True)
            for form, call in forms_of(norm).items():
                kinds.append((width, name, form, sum(parameter.numel() for parameter in norm.parameters())))
                tasks += [_forward(call, norm, x, _num_calls(width)), _both(call, norm, x, _num_calls(width))]
    times = take_turns_for(tasks, seconds)
    forwards, boths = times[::2], times[1::2]
    references = {(width, form): i for i, (width, name, form, _) in enumerate(kinds) if name == REFERENCE}

    def rows() -> Iterator[dict[str, Any]]:
        for i, (width, name, form, num_params) in enumerate(kinds):
            row = {"norm": name, "form": form, "width": width, "num_tokens": num_tokens, "num_params": num_params}
            reference = references[width, form]
            for key, all_times in (("forward", forwards), ("both", boths)):
                row |= median_of([1e6 * ms / _num_calls(width) for ms in all_times[i]]).named(f"{key}_ns")
                row |= median_ratio(all_times[i], all_times[reference]).named(f"{key}_over_{REFERENCE}")
            yield row

    return {"num_rounds": len(times[0]), "has_fused_rms_norm": has_fused_rms_norm(device), "rows": list(rows())}


def _num_calls(width: int) -> int:
    return max(1, CALLS_OF_WIDTH // width)


def _forward(call: Call, norm: nn.Module, x: Tensor, num_calls: int) -> Task:
    def run() -> None:
        with torch.no_grad():
            for _ in range(num_calls):
                call(norm, x)
        wait(x.device)

    return run


def _both(call: Call, norm: nn.Module, x: Tensor, num_calls: int) -> Task:
    inputs, dy = [x, *norm.parameters()], torch.randn_like(x)

    def run() -> None:
        for _ in range(num_calls):
            torch.autograd.grad(call(norm, x), inputs, dy)
        wait(x.device)

    return run
