"""Fair rates: one learning rate cannot compare all parts, so each arm is also shown at the best of its own.

A tuned study holds three sets of runs: every arm at every rate of a grid, on seeds of their own; every arm at the
common rate, and at its best one, on the seeds of the verdict. The best is chosen by validation loss on the tuning
seeds alone.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean

from anatomy.axes import Parts
from anatomy.rates import best_rate, tuning_loss
from anatomy.report.data import Row, Tuning
from anatomy.report.gather import Run, Study

RATE = "train.lr"
COMMON, BEST = "at the common learning rate", "each at its best learning rate"

Composition = frozenset[tuple[str, str]]
"""Parts, as something to look up by."""


@dataclass(frozen=True)
class Tuned:
    """A tuned study, taken apart: the arms of one table each, and composition -> rate -> mean validation loss over the
    tuning seeds, infinite where a run diverged."""

    common: Study
    best: Study
    losses: Mapping[Composition, Mapping[float, float]]

    def tuning(self, row: Row) -> Tuning | None:
        """How a row's rate was chosen."""
        losses = self.losses.get(_composition(row.parts or {}))
        if not losses:
            return None
        rates, best = sorted(losses), best_rate(losses)
        nats = [losses[rate] if math.isfinite(losses[rate]) else None for rate in rates]
        return Tuning(row.name, rates, nats, best, best in (rates[0], rates[-1]))


def take_apart(study: Study) -> Tuned | None:
    """None for a study that does not tune."""
    tune = study.spec.get("tune")
    seeds = tune.get("seeds") if isinstance(tune, Mapping) else None
    if not isinstance(seeds, list):
        return None
    single: dict[Composition, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for arm in study.arms:
        if arm.seed in seeds and (run := arm.found) and (loss := _loss(run)) is not None:
            single[_composition(run.parts)][_rate(run)].append(loss)
    losses = {of: {rate: fmean(some) for rate, some in by_rate.items()} for of, by_rate in single.items()}
    tested = [arm for arm in study.arms if arm.seed not in seeds]
    common = [arm for arm in tested if not any(word.startswith(f"{RATE}=") for word in arm.words)]
    best = [arm for arm in tested if arm.found and _is_at_best(arm.found, losses)]
    return Tuned(replace(study, arms=common), replace(study, arms=best), losses)


def rank_flips(common: Sequence[Row], best: Sequence[Row]) -> list[tuple[str, str]]:
    """The pairs of rows, by their names in `best`, whose order by difference to the base is another at their best rates
    than at the common one."""
    before = {_composition(row.parts or {}): row.difference_nats for row in common}
    moves = [
        (row.name, row.difference_nats, then)
        for row in best
        if row.difference_nats is not None and (then := before.get(_composition(row.parts or {}))) is not None
    ]
    return [
        (one, other)
        for (one, now, then), (other, others_now, others_then) in combinations(moves, 2)
        if (now - others_now) * (then - others_then) < 0
    ]


def _composition(parts: Parts) -> Composition:
    return frozenset(parts.items())


def _rate(run: Run) -> float:
    rate = run.settings.get(RATE)
    return float(rate) if isinstance(rate, int | float) else math.nan


def _is_at_best(run: Run, losses: Mapping[Composition, Mapping[float, float]]) -> bool:
    by_rate = losses.get(_composition(run.parts))
    return bool(by_rate) and _rate(run) == best_rate(by_rate or {})


def _loss(run: Run) -> float | None:
    numbers = run.numbers
    return tuning_loss(run.status, numbers["data.epochs"], numbers["val_loss_nats"], numbers["best_val_loss_nats"])
