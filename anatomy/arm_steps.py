"""A training step of every arm of a study, side by side with its base's."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from anatomy.axes import BASES
from anatomy.bench import training_step
from anatomy.build import build_base, build_model, derived
from anatomy.config import Config
from anatomy.runs import canonical_json
from anatomy.steptimes import timed
from anatomy.stopwatch import median_of, median_ratio, take_turns_for

SECONDS_PER_ARM, MOST_SECONDS = 4.0, 40.0
STILL = 1e-12  # a rate at which weights stay where they are: no arm can diverge while it is timed


@dataclass(frozen=True)
class Arm:
    """A composition to time. `key` says all that decides how long its step takes; two arms may share it."""

    config: Config
    sizes: dict[str, int]
    key: str


def distinct_arms(configs: Sequence[Config], num_symbols: int) -> list[Arm]:
    """The arms of a study that a reader would tell apart: seeds, rates, steps and the text make no difference."""
    arms: dict[tuple[str, str | None, str], Arm] = {}
    for config in configs:
        arm = Arm(config, *_told(config, num_symbols))
        arms.setdefault((config.base, config.match, arm.key), arm)
    return list(arms.values())


def arm_sha256(arm: Arm) -> str:
    """What an arm is known by."""
    told = [arm.config.base, arm.config.match, arm.key]
    return hashlib.sha256(canonical_json(told).encode()).hexdigest()


def base_of(arm: Arm, arms: Sequence[Arm], num_symbols: int) -> Arm | None:
    """The arm that another is held against: of the same base and sizes, with the base's parts; None if there is none.

    Of several, which differ in a knob, it is the one whose knobs are the base's own, if that is among them.
    """
    bases = [
        other
        for other in arms
        if (other.config.base, other.config.model) == (arm.config.base, arm.config.model)
        and other.config.parts == BASES[other.config.base]
    ]
    if len(bases) < 2:
        return next(iter(bases), None)
    _, own_key = _told(build_base(arm.config, num_symbols)[0], num_symbols)
    return min(bases, key=lambda other: other.key != own_key)


def arm_steps(
    configs: Sequence[Config], num_symbols: int, device: torch.device, *, most_seconds: float = MOST_SECONDS
) -> dict[str, Any]:
    """Milliseconds of a training step of each distinct arm, and its ratio to its base's; see ArmSteps."""
    arms = distinct_arms(configs, num_symbols)
    by_key = {arm.key: arm.config for arm in reversed(arms)}
    steps = [training_step(_still(config), num_symbols, device) for config in by_key.values()]
    all_times = take_turns_for(steps, min(SECONDS_PER_ARM * len(steps), most_seconds))
    times = dict(zip(by_key, all_times, strict=True))

    def row(arm: Arm) -> dict[str, Any]:
        base = base_of(arm, arms, num_symbols)
        none = dict.fromkeys(("over_base", "over_base_low", "over_base_high"))
        return {
            "sha256": arm_sha256(arm),
            "base": arm.config.base,
            "parts": arm.config.parts,
            "match": arm.config.match,
            "ffn_hidden": arm.sizes["ffn_hidden"],
            "n_kv_head": arm.sizes["n_kv_head"],
            **median_of(times[arm.key]).named("step_ms"),
            **(median_ratio(times[arm.key], times[base.key]).named("over_base") if base else none),
        }

    return {"num_rounds": len(all_times[0]), "rows": list(map(row, arms))}


def _told(config: Config, num_symbols: int) -> tuple[dict[str, int], str]:
    """The sizes of a config's model, and what decides how long its step takes on a text of so many characters."""
    model = build_model(config, num_symbols)
    matters = {key: value for key, value in timed(config, model, None).items() if key != "corpus"}
    return derived(model), canonical_json([matters, num_symbols])


def _still(config: Config) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"lr": STILL})})
