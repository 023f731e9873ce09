"""What measures.json holds, and reading it. Nothing here imports torch: the report reads it too.

Times are medians over rounds in which everything took its turn; `_low` and `_high` are the 95 % interval of the value
of that name, null where there were too few rounds for one. Ratios are medians of the ratios within a round.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from types import UnionType
from typing import Any, NotRequired, TypedDict, cast, get_args, get_origin, get_type_hints, is_typeddict

from anatomy.runs import read_json

MEASURES_FILE = "measures.json"

log = logging.getLogger("anatomy")


class NormCall(TypedDict):
    """One call of a norm: `form` is part, torch or by hand; `both` is forward with backward."""

    norm: str
    form: str
    width: int
    num_tokens: int
    num_params: int
    forward_ns: float
    forward_ns_low: float | None
    forward_ns_high: float | None
    forward_over_layer: float
    forward_over_layer_low: float | None
    forward_over_layer_high: float | None
    both_ns: float
    both_ns_low: float | None
    both_ns_high: float | None
    both_over_layer: float
    both_over_layer_low: float | None
    both_over_layer_high: float | None


class NormCalls(TypedDict):
    num_rounds: int
    has_fused_rms_norm: bool
    rows: list[NormCall]


class DecodeStep(TypedDict):
    """One token decoded, the last of `num_cached`.

    cache_bytes is the formula's, cache_bytes_measured what the tensors take; attending_share is the share of the step
    that is gone where the cache holds that token alone.
    """

    width: int
    n_layer: int
    n_head: int
    n_kv_head: int
    head_width: int
    num_cached: int
    cache_bytes: int
    cache_bytes_measured: int
    step_us: float
    step_us_low: float | None
    step_us_high: float | None
    tokens_per_s: float
    over_full_heads: float
    over_full_heads_low: float | None
    over_full_heads_high: float | None
    attending_share: float
    attending_share_low: float | None
    attending_share_high: float | None


class DecodeSteps(TypedDict):
    num_rounds: int
    rows: list[DecodeStep]


class ArmStep(TypedDict):
    """A training step of an arm, known by its sha256; over_base is null where the base is not among the arms."""

    sha256: str
    base: str
    parts: dict[str, str]
    match: str | None
    ffn_hidden: int
    n_kv_head: int
    step_ms: float
    step_ms_low: float | None
    step_ms_high: float | None
    over_base: float | None
    over_base_low: float | None
    over_base_high: float | None


class ArmSteps(TypedDict):
    num_rounds: int
    rows: list[ArmStep]


class Measures(TypedDict):
    """One key a kind of measure that was asked for."""

    schema: int
    device: str
    threads: int
    torch: str
    commit: str | None
    norm_calls: NotRequired[NormCalls]
    decode: NotRequired[DecodeSteps]
    train_step: NotRequired[ArmSteps]


def read_measures(folder: Path) -> Measures | None:
    """Read a study's measures. None where there are none, or a damaged file, which the log tells."""
    file = folder / MEASURES_FILE
    try:
        content = read_json(file, "file of measures")
    except ValueError as damage:
        log.warning("%s; its measures do not count", damage)
        return None
    if content is None:
        return None
    if not _fits(content, Measures):
        log.warning("%s: not what this version writes; its measures do not count", file)
        return None
    return cast(Measures, content)


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value out of a JSON file is of a type, by its annotation; numbers must be finite, counts above 0."""
    if is_typeddict(kind):
        if not isinstance(value, Mapping):
            return False
        kinds, given = get_type_hints(kind), set(value)
        return kind.__required_keys__ <= given <= set(kinds) and all(_fits(value[key], kinds[key]) for key in given)
    match get_origin(kind), get_args(kind):
        case (origin, (item,)) if origin is list:
            return isinstance(value, list) and all(_fits(each, item) for each in value)
        case (origin, (_, item)) if origin is dict:
            return isinstance(value, dict) and all(_fits(each, item) for each in value.values())
        case (origin, choices) if origin is UnionType:
            return any(_fits(value, choice) for choice in choices)
    if kind is float:
        return type(value) is float and math.isfinite(value)
    if kind is int:
        return type(value) is int and value > 0  # sizes and counts
    return type(value) is kind
