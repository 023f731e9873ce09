"""The axes, once: their names, their order, and what each base uses.

An axis is a slot of the model's skeleton; what sits in it is a part. Config, sweeps, report and tests derive
from these two tables, and nothing here imports anything, so that every command can afford to.
"""

from collections.abc import Mapping

Parts = Mapping[str, str]  # axis -> name of the part in it

SWAPPED_AXES = ("norm", "placement", "pos", "attn", "ffn")  # the five of the story; their parts are classes
VALUE_AXES: Mapping[str, tuple[str, ...]] = {  # small axes, whose options are values and not classes
    "bias": ("none", "all"),
    "tying": ("untied", "tied"),
    "init": ("normal", "gpt2", "xavier", "torch"),
}
AXES = (*SWAPPED_AXES, *VALUE_AXES)


def _base(norm: str, placement: str, pos: str, attn: str, ffn: str, bias: str, tying: str) -> Parts:
    return dict(zip(AXES, (norm, placement, pos, attn, ffn, bias, tying, "normal"), strict=True))


BASES: Mapping[str, Parts] = {
    "vanilla": _base("layer", "post", "learned", "mha", "gelu", "none", "untied"),
    "gpt2": _base("layer", "pre", "learned", "mha", "gelu_tanh", "all", "tied"),
    "llama": _base("rms", "pre", "rope", "gqa", "swiglu", "none", "untied"),
    "transformer2017": _base("layer", "post", "sinusoidal", "mha", "relu", "all", "tied"),
}
COUNTERPARTS: Mapping[str, str] = {
    "vanilla": "llama",
    "llama": "vanilla",
    "gpt2": "llama",
    "transformer2017": "llama",
}


def part_of(base: str, axis: str) -> str:
    """The part that `base` has on `axis`."""
    return BASES[base][axis]


def swapped_part(base: str, axis: str) -> str:
    """The part that the counterpart of `base` has on `axis`: what `swap=axis` puts there."""
    return BASES[COUNTERPARTS[base]][axis]


def differences(parts: Parts, other: Parts) -> tuple[str, ...]:
    """The axes on which two models differ, in the order of AXES."""
    return tuple(axis for axis in AXES if parts[axis] != other[axis])
