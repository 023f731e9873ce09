"""The schema of a resolved config: every key, its type and its range, checked all at once.

Hydra composes; this module decides what is allowed, also behind `+` and `~`. A part's own knobs are not listed here:
they are the keyword arguments of its class (see build.py).
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import MinLen
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from anatomy.axes import AXES, BASES, PART_AXES, SWAPPED_AXES, VALUE_AXES
from anatomy.ranges import Count, Natural, NotNegative, Positive, Share, ShareBelowOne

STRICT = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class Section(BaseModel):
    """A section of the config: unknown keys are refused, types are not bent."""

    model_config = STRICT


class ModelSizes(Section):
    d_model: Count
    n_layer: Count
    n_head: Count
    ctx_len: Count
    vocab_size: Count | None
    head_width: Count | None = None


class TrainConfig(Section):
    steps: Natural
    batch_size: Count
    grad_accum_steps: Count
    lr: Positive
    warmup_steps: Natural
    schedule: Literal["cosine", "constant"]
    min_lr_ratio: Share
    betas: tuple[ShareBelowOne, ShareBelowOne]
    weight_decay: NotNegative
    grad_clip: Positive
    dropout: ShareBelowOne
    eval_every: Count
    dtype: Literal["fp32", "bf16"]
    compile: bool
    threads: Count
    device: Literal["auto", "cpu", "cuda", "mps"]


class EvalConfig(Section):
    lengths: tuple[Count, ...]


class CorpusConfig(Section):
    name: str
    path: str | None
    split: Literal["blocks", "tail"]
    val_fraction: Share
    test_fraction: Share


class SampleConfig(Section):
    prompt: str | None


Predicted = Annotated[float, Field(ge=-100, le=100)] | None
"""A difference of losses in nats per character."""


class Predictions(Section):
    """What swapping an axis alone is thought to do to the base's loss, said before it is run."""

    norm: Predicted = None
    placement: Predicted = None
    pos: Predicted = None
    attn: Predicted = None
    ffn: Predicted = None
    qk_norm: Predicted = None
    window: Predicted = None
    bias: Predicted = None
    tying: Predicted = None
    init: Predicted = None

    def by_axis(self) -> dict[str, float]:
        """Axis -> nats, of the axes that something is said of."""
        return {axis: nats for axis in AXES if (nats := getattr(self, axis)) is not None}


Diagnostic = Literal["gradients", "activations", "attention", "copying"]


def _listed(value: Any) -> Any:
    """A list as the schema has it; a bare word is a list of one."""
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


class TuneSpec(Section):
    """How a study tunes: every arm at every rate on two seeds that its test does not use (see tune.py)."""

    lr: Annotated[tuple[Positive, ...], MinLen(5)]
    seeds: tuple[Natural, Natural]


class StudySpec(Section):
    """What a study asks. `metric` None leaves it to the protocol; `margin` in nats; `looks` are numbers of seeds.

    sweeps    lines of overrides, each a sweep of its own over those of hydra.sweeper.params: what no one product holds
    factors   settings or axes whose values part the runs into cells, which are compared within themselves alone
    exam      the axis whose parts' claims the study examines
    measures  what is timed once the runs are there (see measures.py)
    """

    name: str
    question: str
    metric: Literal["test_loss_nats", "test_loss_nats_at_best"] | None = None
    margin: Positive = 0.01
    looks: tuple[Count, ...] | None = None
    tune: TuneSpec | None = None
    sweeps: tuple[str, ...] = ()
    factors: tuple[str, ...] = ()
    exam: Literal[SWAPPED_AXES] | None = None  # type: ignore[valid-type]
    measures: tuple[Literal["norm_calls", "decode", "train_step"], ...] = ()


class Composition(Section):
    """What a model is made of. An axis whose parts are classes holds its part's section: name, class, knobs.

    The axes of LATER_AXES may be absent, as they are from what was written before they existed.
    """

    norm: dict[str, Any]
    placement: dict[str, Any]
    pos: dict[str, Any]
    attn: dict[str, Any]
    ffn: dict[str, Any]
    qk_norm: dict[str, Any] = {"name": "none", "class": "NoQKNorm"}
    window: dict[str, Any] = {"name": "none", "class": "NoWindow"}
    bias: str
    tying: str
    init: str
    model: ModelSizes

    @property
    def parts(self) -> dict[str, str]:
        """Axis -> name of the part on it."""
        named = {axis: getattr(self, axis)["name"] for axis in PART_AXES}
        return named | {axis: getattr(self, axis) for axis in VALUE_AXES}

    @property
    def dropout(self) -> float:
        """The share of what a sub-layer adds that training drops."""
        return 0.0


class Config(Composition):
    """A run's resolved config that passed the schema."""

    base: str
    scale: str
    seed: Natural
    init_salt: Natural
    order_salt: Natural
    match: Literal["params", "flops", "time"] | None = None
    output_dir: str
    force: bool
    dry_run: bool
    train: TrainConfig
    eval: EvalConfig
    corpus: CorpusConfig
    sample: SampleConfig
    diagnostics: Annotated[tuple[Diagnostic, ...], BeforeValidator(_listed)] = ()
    predict: Predictions = Predictions()
    study: StudySpec | None = None

    @property
    def dropout(self) -> float:
        return self.train.dropout


Kind = TypeVar("Kind", bound=Composition)


def parse_config(resolved: Mapping[str, Any]) -> tuple[Config | None, list[str]]:
    """Check a resolved config, plain containers, against the schema: the typed config, or every fault, a line each."""
    return _parse(Config, resolved, {"base": tuple(BASES), **VALUE_AXES})


def parse_composition(content: Mapping[str, Any]) -> tuple[Composition | None, list[str]]:
    """The same of a composition alone: what a model is made of, without text and training."""
    return _parse(Composition, content, VALUE_AXES)


def _parse(
    kind: type[Kind], content: Mapping[str, Any], choices: Mapping[str, tuple[str, ...]]
) -> tuple[Kind | None, list[str]]:
    try:
        parsed = kind.model_validate_json(json.dumps(content))
    except ValidationError as error:
        return None, [_fault(details) for details in error.errors()]
    faults = [
        f"{key}: {getattr(parsed, key)!r} is not a choice; it can be {', '.join(allowed)}"
        for key, allowed in choices.items()
        if getattr(parsed, key) not in allowed
    ]
    return (None if faults else parsed), faults


def known_keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every dotted key of the schema, sections included; the knobs of parts excepted."""
    for name, field in section.model_fields.items():
        yield prefix + name
        for kind in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                yield from known_keys(kind, f"{prefix}{name}.")


def value_fault(annotation: Any, key: str, value: Any) -> str | None:
    """What is wrong with `key: value` for a type annotation, as a line, or None."""
    try:
        TypeAdapter(annotation, config=ConfigDict(strict=True, allow_inf_nan=False)).validate_python(value)
    except ValidationError as error:
        return _fault(error.errors()[0], key)
    return None


def did_you_mean(word: str, allowed: Iterable[str]) -> str:
    """' Did you mean NEAREST?' with the nearest allowed word (its last name counts too), or nothing."""
    allowed = list(allowed)
    by_last_name = {name.rsplit(".", 1)[-1]: name for name in allowed}
    near = get_close_matches(word, allowed, n=1)
    near += [by_last_name[name] for name in get_close_matches(word.rsplit(".", 1)[-1], by_last_name, n=1)]
    return f" Did you mean {near[0]}?" if near else ""


def _fault(details: ErrorDetails, key: str | None = None) -> str:
    """One line for one of pydantic's errors: where, what was wrong, what is allowed."""
    key = key or ".".join(map(str, details["loc"]))
    if details["type"] == "missing":
        return f"{key}: missing; it cannot be removed"
    if details["type"] == "extra_forbidden":
        return f"{key}: no such setting.{did_you_mean(key, known_keys())}"
    reason = details["msg"].removeprefix("Input ").replace("valid integer", "whole number")
    return f"{key}={json.dumps(details['input'], ensure_ascii=False, default=repr)}: {reason}"
