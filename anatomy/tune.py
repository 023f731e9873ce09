"""Fair rates: a study that tunes runs in two stages, for no one learning rate suits all the parts to be compared.

First every arm trains at every rate on the tuning seeds, which the test does not use. Then the study's own seeds train
at the common rate, the recipe's, and at each arm's best one. Both stages are recognised run by run, so the same command
goes on where it stopped.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from anatomy.compose import Asked, Request
from anatomy.config import TuneSpec
from anatomy.errors import UserError
from anatomy.rates import RATE, best_rate, mean_losses, tuning_loss
from anatomy.sweep import Plan, make_plan


@dataclass(frozen=True)
class Stage:
    """A part of a command that can be launched at once. `notes` are for its reader."""

    title: str
    plan: Plan
    notes: Sequence[str] = ()


def stages(asked: Asked) -> Iterator[Stage]:
    """The stages of a command: one, or two for a study that tunes. The second is planned from what the first came to.

    Raises UserError as make_plan does, and where tuning and test share a seed.
    """
    plan = make_plan(asked)
    study = plan.study
    if study.tune is None:
        yield Stage(study.name, plan)
        return
    if shared := sorted({planned.config.seed for planned in plan.runs} & set(study.tune.seeds)):
        seeds = ", ".join(map(str, shared))
        raise UserError(f"study.tune.seeds: {seeds} would tune and test; type other seeds, such as seed=0,1,2")
    tuning = make_plan(asked, tuning_requests(asked.requests, study.tune))
    coming = f"then at most {2 * len(plan.runs)} runs, at the common rate and at each arm's best"
    yield Stage(f"{study.name}, rates", tuning, [coming])
    rates = best_rates(tuning)
    unknown = [f"no best rate, for its tuning is not done: {' '.join(arm)}" for arm, rate in rates.items() if not rate]
    yield Stage(f"{study.name}, test", make_plan(asked, tested_requests(asked.requests, rates)), unknown)


def tuning_requests(requests: Sequence[Request], tune: TuneSpec) -> list[Request]:
    """Every arm once at every rate and tuning seed."""
    arms = {_arm(request): request for request in requests}.values()
    return [arm.with_settings({"seed": seed, RATE: lr}) for arm in arms for lr in tune.lr for seed in tune.seeds]


def best_rates(tuning: Plan) -> dict[tuple[str, ...], float | None]:
    """Each arm's rate of least mean validation loss over the tuning seeds; of equal ones, the smallest.

    A diverged run is infinitely bad. None for an arm whose runs have not all ended.
    """
    losses: dict[tuple[str, ...], dict[float, list[float | None]]] = defaultdict(lambda: defaultdict(list))
    for planned in tuning.runs:
        losses[_arm(planned.request)][planned.config.train.lr].append(_loss(planned.record()))
    means = {arm: mean_losses(by_rate) for arm, by_rate in losses.items()}
    return {arm: best_rate(by_rate) if by_rate else None for arm, by_rate in means.items()}


def tested_requests(requests: Sequence[Request], rates: Mapping[tuple[str, ...], float | None]) -> list[Request]:
    """The runs as asked for, at the common rate, then those of arms with another best rate, at that."""
    at_best = [(request, rates[_arm(request)]) for request in requests]
    return [*requests] + [
        request.with_settings({RATE: rate})
        for request, rate in at_best
        if rate is not None and rate != request.resolved["train"]["lr"]
    ]


def _arm(request: Request) -> tuple[str, ...]:
    """What is asked, seed and rate aside."""
    return tuple(word for word in request.overrides if word.lstrip("+").partition("=")[0] not in ("seed", RATE))


def _loss(record: Mapping[str, Any] | None) -> float | None:
    if record is None:
        return None
    epochs = record["data"]["epochs"]
    return tuning_loss(record["status"], epochs, record["val_loss_nats"], record["best_val_loss_nats"])
