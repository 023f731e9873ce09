"""The axes, once: their names, their order, and what each base uses.

An axis is a slot of the model's skeleton; what sits in it is a part. Config, sweeps, report and tests derive
from these two tables, and nothing here imports anything, so that every command can afford to.
"""

from collections.abc import Mapping

Parts = Mapping[str, str]  # axis -> name of the part in it

SWAPPED_AXES = ("norm", "placement", "pos", "attn", "ffn")  # the five of the story
LATER_AXES: Parts = {"qk_norm": "none", "window": "none"}  # what LLaMA's successors added; runs from before have none
PART_AXES = (*SWAPPED_AXES, *LATER_AXES)  # whose parts are classes
_QKV, _OF_FFN = ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj", "down_proj")
BIASED: Mapping[str, tuple[str, ...]] = {  # option of the axis `bias` -> the blocks' Linear layers that have one
    "none": (),
    "qkv": _QKV,
    "attn": (*_QKV, "o_proj"),
    "ffn": _OF_FFN,
    "all": (*_QKV, "o_proj", *_OF_FFN),
}
VALUE_AXES: Mapping[str, tuple[str, ...]] = {  # small axes, whose options are values and not classes
    "bias": tuple(BIASED),
    "tying": ("untied", "tied"),
    "init": ("normal", "gpt2", "xavier", "torch"),
}
AXES = (*PART_AXES, *VALUE_AXES)


def _base(
    norm: str,
    placement: str,
    pos: str,
    attn: str,
    ffn: str,
    bias: str,
    tying: str,
    *,
    qk_norm: str = "none",
    window: str = "none",
) -> Parts:
    parts = (norm, placement, pos, attn, ffn, qk_norm, window, bias, tying, "normal")
    return dict(zip(AXES, parts, strict=True))


BASES: Mapping[str, Parts] = {
    "vanilla": _base("layer", "post", "learned", "mha", "gelu", "none", "untied"),
    "gpt2": _base("layer", "pre", "learned", "mha", "gelu_tanh", "all", "tied"),
    "llama": _base("rms", "pre", "rope", "gqa", "swiglu", "none", "untied"),
    "transformer2017": _base("layer", "post", "sinusoidal", "mha", "relu", "all", "tied"),
    "mistral": _base("rms", "pre", "rope", "gqa", "swiglu", "none", "untied", window="sliding"),
    "qwen2": _base("rms", "pre", "rope", "gqa", "swiglu", "qkv", "tied"),  # tied as the smaller ones are
    "qwen3": _base("rms", "pre", "rope", "gqa", "swiglu", "none", "tied", qk_norm="rms"),
}
COUNTERPARTS: Mapping[str, str] = {
    "vanilla": "llama",
    "llama": "vanilla",
    "gpt2": "llama",
    "transformer2017": "llama",
    "mistral": "vanilla",
    "qwen2": "vanilla",
    "qwen3": "vanilla",
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
