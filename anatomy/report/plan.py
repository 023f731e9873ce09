"""What a study said it would run before it started: the arms and seeds of its spec."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from anatomy.runs import LABELS

Words = frozenset[str]
"""The words that ask for an arm, seed and labels left out."""

OF_NO_ARM = {*LABELS, "seed"} - {"base", "match"}


@dataclass(frozen=True)
class Plan:
    """The arms and seeds that a study said it would run, before it started."""

    arms: Mapping[Words, str]
    seeds: frozenset[int]
    is_tuned: bool

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Plan | None":
        """The plan in a study's spec; None where it holds none, as those of old studies."""
        arms, seeds = spec.get("arms"), spec.get("seeds")
        if not isinstance(arms, list) or not isinstance(seeds, list) or not all(isinstance(arm, str) for arm in arms):
            return None
        tuning = spec.get("tune") or {}
        seeds = frozenset([*seeds, *tuning.get("seeds", ())])
        return cls({words_of(re.split(r" (?=[+\w.]+=)", arm)): arm for arm in arms}, seeds, bool(tuning))

    def holds(self, words: Words, seed: int) -> bool:
        """Whether an arm and seed are part of the plan. A study that tunes plans all learning rates."""
        if self.is_tuned:
            words = frozenset(word for word in words if not word.startswith("train.lr="))
        return words in self.arms and seed in self.seeds


def words_of(words: Iterable[str]) -> Words:
    """An arm's words so that two ways to type it compare equal: without seed, labels, and what changes nothing."""
    kept = (word for word in words if word.partition("=")[0] not in OF_NO_ARM)
    return frozenset(re.sub(r"[\[\]]", "", word) for word in kept) - {"swap=none", "match=null"}
