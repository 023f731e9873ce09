"""Fair rates: one learning rate cannot compare all parts, so each arm is also shown at the best of its own.

A tuned study holds three sets of runs: every arm at every rate of a grid, on seeds of their own; every arm at the
common rate, and at its best one, on the seeds of the verdict. The best is chosen by validation loss on the tuning
seeds alone.
"""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from anatomy.rates import RATE, best_rate, mean_losses, tuning_loss
from anatomy.report.data import Row, Tuning
from anatomy.report.gather import Arm, Run, Study
from anatomy.report.plan import Plan, Words, without_rate
from anatomy.report.rows import Group

COMMON, BEST = "at the common learning rate", "each at its best learning rate"


@dataclass(frozen=True)
class Tuned:
    """A tuned study, taken apart.

    common, best   the study with the arms of one table each
    losses         what is asked, the rate aside -> rate -> mean validation loss over the tuning seeds, infinite where a
                   run diverged; without the arms whose tuning is not done
    """

    common: Study
    best: Study
    losses: Mapping[Words, Mapping[float, float]]

    def tuning(self, group: Group) -> Tuning | None:
        """How a row's rate was chosen."""
        losses = self.losses.get(asked_for(group))
        if not losses:
            return None
        rates, best = sorted(losses), best_rate(losses)
        nats = [losses[rate] if math.isfinite(losses[rate]) else None for rate in rates]
        return Tuning(group.name, rates, nats, best, best in (rates[0], rates[-1]))


def asked_for(group: Group) -> Words:
    """What a row's arms ask for, the rate aside: the same in both tables."""
    return without_rate(group.arms[0].words)


def take_apart(study: Study) -> Tuned | None:
    """None for a study that does not tune."""
    tune = study.spec.get("tune")
    seeds = tune.get("seeds") if isinstance(tune, Mapping) else None
    if not isinstance(seeds, list):
        return None
    single: dict[Words, dict[float, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for arm in study.arms:
        if arm.seed in seeds:
            single[without_rate(arm.words)][_rate(arm)].append(_loss(arm.found) if arm.found else None)
    losses = {asked: means for asked, by_rate in single.items() if (means := mean_losses(by_rate))}
    tested = [arm for arm in study.arms if arm.seed not in seeds]
    plan = Plan.of(study.spec)
    planned = set(plan.arms) if plan and plan.arms else {without_rate(arm.words) for arm in tested}
    common = [arm for arm in tested if arm.words in planned]
    best = [arm for arm in tested if _rate(arm) == _best(losses.get(without_rate(arm.words)))]
    return Tuned(replace(study, arms=common), replace(study, arms=best), losses)


def rank_flips(common: Mapping[Words, Row], best: Mapping[Words, Row]) -> list[tuple[str, str]]:
    """The pairs of rows, by their names in `best`, whose order by difference to the base is another at their best rates
    than at the common one."""
    before = {asked: row.difference_nats for asked, row in common.items()}
    moves = [
        (row.name, row.difference_nats, then)
        for asked, row in best.items()
        if row.difference_nats is not None and (then := before.get(asked)) is not None
    ]
    return [
        (one, other)
        for (one, now, then), (other, others_now, others_then) in combinations(moves, 2)
        if (now - others_now) * (then - others_then) < 0
    ]


def _best(losses: Mapping[float, float] | None) -> float | None:
    return best_rate(losses) if losses else None


def _rate(arm: Arm) -> float:
    rate = arm.found.settings.get(RATE) if arm.found else None
    return float(rate) if isinstance(rate, int | float) else math.nan


def _loss(run: Run) -> float | None:
    numbers = run.numbers
    return tuning_loss(run.status, numbers["data.epochs"], numbers["val_loss_nats"], numbers["best_val_loss_nats"])
