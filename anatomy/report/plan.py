"""What a study said it would run before it started: the arms and seeds of its spec."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anatomy.rates import RATE

Words = frozenset[str]
"""The words that ask for an arm, without the seed and what is of the command."""

OF_NO_ARM = ("seed", "study", "output_dir", "force", "dry_run", "diagnostics")
NO_ARMS_SECTIONS = ("study.", "predict.")


@dataclass(frozen=True)
class Plan:
    """The arms and seeds that a study said it would run, before it started.

    arms      each arm as it was typed; none, where the spec names seeds alone
    seeds_of  the seeds of an arm's verdict, where the arms' are not all the same
    tested    all seeds of verdicts; tuning: those of the tuning
    """

    arms: Mapping[Words, Sequence[str]]
    seeds_of: Mapping[Words, frozenset[int]]
    tested: frozenset[int]
    tuning: frozenset[int]

    @classmethod
    def of(cls, spec: Mapping[str, Any]) -> "Plan | None":
        """The plan in a study's spec; None where it holds none, as those of old studies."""
        arms, seeds = spec.get("arms", []), spec.get("seeds")
        if not isinstance(arms, list) or not isinstance(seeds, list) or not all(isinstance(arm, str) for arm in arms):
            return None
        tuning = spec.get("tune") or {}
        typed = {words_of(words): words for arm in arms for words in [re.split(r" (?=[+\w.]+=)", arm)]}
        of_arms = spec.get("seeds_of_arms") or []
        return cls(
            typed,
            {arm: frozenset(some) for arm, some in zip(typed, of_arms, strict=False)},
            frozenset(seeds),
            frozenset(tuning.get("seeds", ())),
        )

    def seeds(self, words: Words) -> frozenset[int]:
        """The seeds that an arm's verdict was planned to rest on."""
        return self.seeds_of.get(words, self.tested)

    def holds(self, words: Words, seed: int) -> bool:
        """Whether an arm and seed are part of the plan. A study that tunes plans all learning rates."""
        if seed not in self.seeds(words) | self.tuning:
            return False
        return (
            not self.arms
            or words in self.arms
            or (bool(self.tuning) and without_rate(words) in map(without_rate, self.arms))
        )


def words_of(words: Iterable[str]) -> Words:
    """An arm's words so that two ways to type it compare equal: without what is not its own, or changes nothing."""
    bare = (word.lstrip("+") for word in words)
    kept = (word for word in bare if word.partition("=")[0] not in OF_NO_ARM and not word.startswith(NO_ARMS_SECTIONS))
    return frozenset(re.sub(r"[\[\]]", "", word) for word in kept) - {"swap=none", "match=null"}


def without_rate(words: Words) -> Words:
    return frozenset(word for word in words if not word.startswith(f"{RATE}="))
