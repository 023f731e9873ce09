"""From the runs of a row to its numbers.

Numbers that all seeds share (parameters, FLOPs) are those of the first run that has them; losses are means over seeds.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from itertools import accumulate, chain
from statistics import StatisticsError, correlation, fmean, median
from typing import Any

import numpy as np

from anatomy.report.data import FINAL, STATUSES, Row, Rungs
from anatomy.report.evidence import Evidence
from anatomy.report.gather import Arm, Run
from anatomy.report.rows import Group
from anatomy.report.verdict import Judged, spread_of
from anatomy.rungs import MAX_N
from anatomy.runs import finite

OVER_FITTED_SHARE = 0.01
UNMATCHED_PERCENT = 0.5
MATCHED_BY = {"params": ("params",), "flops": ("flops",)}  # a row matched in one of them is held to that one

Pairs = Sequence[tuple[float, float]]
"""A row's loss and the base's, one pair a seed that both have."""


def measure(
    group: Group,
    base: Group | None,
    metric: str,
    pairs: Pairs,
    judged: Judged | None,
    looks: Sequence[int],
    evidence: Evidence,
    rungs: Rungs | None,
) -> Row:
    """A group's row: its numbers over seeds, held against the base's (None where the base never ran).

    `pairs` are its losses in the table's metric beside the base's, `judged` what their differences come to, `looks` the
    numbers of seeds at which the study said it would look.
    """
    done = group.done
    statuses = Counter(arm.status for arm in group.arms)
    final, losses = _values(done, FINAL), _values(done, metric)
    differences = [mine - theirs for mine, theirs in pairs]
    curve = next((curve for curve in evidence.curves if curve.row == group.name), None)
    sd_paired = _sd(differences)
    text_error = evidence.text_errors.get(group.name)

    def percent(measure: Callable[[Group], float | None]) -> float | None:
        mine, theirs = measure(group), measure(base) if base and group is not base else None
        return None if mine is None or not theirs else finite(100 * (mine - theirs) / theirs)

    block_percent = percent(_block_params)
    flops_percent = percent(lambda group: number_of(group, "flops_per_token"))
    deviations = {"params": block_percent, "flops": flops_percent}
    return Row(
        name=group.name,
        parts=group.parts,
        status=_status(statuses),
        num_seeds=len(done),
        seeds=[run.seed for run in done],
        num_diverged=statuses["diverged"],
        test_loss_nats_mean=_mean(final),
        test_loss_nats_sd=_sd(final),
        difference_nats=_mean(differences),
        prediction_nats=_prediction(group),
        **_fields(judged) | {"verdict": _verdict(group, base, judged, statuses, looks)},
        num_params=number_of(group, "num_params"),
        flops_per_token=number_of(group, "flops_per_token"),
        kv_bytes_per_token=number_of(group, "kv_bytes_per_token"),
        tokens_per_s=median(speeds) if (speeds := _values(done, "tokens_per_s")) else None,
        correlation=_correlation(pairs),
        sd_paired=sd_paired,
        sd_unpaired=_unpaired_sd(pairs),
        text_share=text_error / (sd_paired / math.sqrt(len(pairs))) if text_error is not None and sd_paired else None,
        is_base=group is base,
        is_null=group.is_null,
        unmatched=_is_beyond(*(deviations[key] for key in MATCHED_BY.get(group.match or "", deviations))),
        num_arms=len(group.arms),
        num_pairs=len(pairs),
        metric_mean=_mean(losses),
        metric_sd=_sd(losses),
        best_val_loss_nats_mean=_mean(_values(done, "best_val_loss_nats")),
        last_three_val_loss_nats_mean=_mean(curve.mean[-3:]) if curve else None,
        best_step=[run.numbers["best_step"] for run in done],
        test_bits_per_char=_mean(_values(done, "test_bits_per_char")),
        rung=_rung(losses, rungs, number_of(group, "data.vocab_size")),
        num_params_percent=percent(lambda group: number_of(group, "num_params")),
        block_params_percent=block_percent,
        flops_percent=flops_percent,
        steps=_steps(group),
        over_fitted=any(map(_is_over_fitted, done)) if done else None,
        epochs=number_of(group, "data.epochs"),
        errors=[f"seed {arm.seed}: {error}" for arm in group.arms if (error := _error(arm))],
    )


def _fields(judged: Judged | None) -> dict[str, Any]:
    """The fields that a judged row shares with `Row`, finite as strict JSON must be; None where it was not judged."""
    if judged is None:
        return dict.fromkeys(field.name for field in fields(Judged))
    return {
        name: value if isinstance(value, str | int | None) else finite(value) for name, value in asdict(judged).items()
    }


def _verdict(
    group: Group, base: Group | None, judged: Judged | None, statuses: Counter[str], looks: Sequence[int]
) -> str | None:
    if group is base or base is None:
        return None
    if statuses["diverged"]:
        return f"diverged {statuses['diverged']}/{statuses.total()}"
    if judged is None:
        return None
    seeds = {run.seed for run in base.done} & {run.seed for run in group.done}
    is_outside = any(arm.is_planned is False and arm.seed in seeds for arm in chain(group.arms, base.arms))
    is_unplanned_look = bool(looks) and len(seeds) not in looks
    return f"{judged.verdict} (exploratory)" if is_outside or is_unplanned_look else judged.verdict


def _prediction(group: Group) -> float | None:
    """What was predicted for the row, where it is one number."""
    predicted = {arm.prediction_nats for arm in group.arms} - {None}
    return predicted.pop() if len(predicted) == 1 else None


def _is_beyond(*deviations: float | None) -> bool | None:
    known = [abs(deviation) > UNMATCHED_PERCENT for deviation in deviations if deviation is not None]
    return any(known) if known else None


def _status(statuses: Counter[str]) -> str:
    if len(statuses) == 1:
        return next(iter(statuses))
    total = statuses.total()
    return ", ".join(f"{status} {statuses[status]}/{total}" for status in STATUSES[1:] if statuses[status])


def _error(arm: Arm) -> str | None:
    return arm.refused or (arm.found.texts["error"] if arm.found else None)


def pairs_of(group: Group, base: Group | None, metric: str) -> list[tuple[float, float]]:
    if base is None or group is base:
        return []
    theirs = {run.seed: run.numbers[metric] for run in base.done}
    pairs = [(run.numbers[metric], theirs.get(run.seed)) for run in group.done]
    return [(mine, other) for mine, other in pairs if mine is not None and other is not None]


def _correlation(pairs: Pairs) -> float | None:
    if len(pairs) < 3:
        return None  # two points always lie on a line
    try:
        return correlation(*zip(*pairs, strict=True))
    except StatisticsError:  # all the same
        return None


def _unpaired_sd(pairs: Pairs) -> float | None:
    """What the differences would spread by if the seeds of a row and of the base had nothing in common."""
    return float(np.hypot(*np.std(pairs, axis=0, ddof=1))) if len(pairs) > 1 else None


def _is_over_fitted(run: Run) -> bool:
    best, final = run.numbers["best_val_loss_nats"], run.numbers["val_loss_nats"]
    return best is not None and final is not None and best < (1 - OVER_FITTED_SHARE) * final


def _steps(group: Group) -> float | None:
    steps = (group.settings or {}).get("train.steps")
    return steps if isinstance(steps, int) else None


def _block_params(group: Group) -> float | None:
    sizes = [number_of(group, f"num_params_by_axis.{axis}") for axis in ("norm", "attn", "ffn")]
    return None if None in sizes else sum(filter(None, sizes))


def number_of(group: Group, key: str) -> float | None:
    """A number that a row's runs share."""
    return next((value for run in group.runs if (value := run.numbers[key]) is not None), None)


def text_of(group: Group, key: str) -> str | None:
    return next((value for run in group.runs if (value := run.texts[key]) is not None), None)


def _values(runs: Sequence[Run], key: str) -> list[float]:
    return [value for run in runs if (value := run.numbers[key]) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _sd(values: Sequence[float]) -> float | None:
    return float(np.sqrt(spread_of(values))) if len(values) > 1 else None


def _rung(losses: Sequence[float], rungs: Rungs | None, vocab_size: float | None) -> float | None:
    if not losses or rungs is None or vocab_size is None or vocab_size <= 0:
        return None
    return rung_of(fmean(losses), rungs, vocab_size)


def rung_of(loss_nats: float, rungs: Rungs, vocab_size: float) -> float:
    """Where a loss stands between the n-gram tables, see `Row.rung`.

    n + (x_n - loss) / (x_n - x_{n+1}) for the highest n whose x_n the loss reaches, 0 if it reaches none; x_n is the
    loss of the best table of up to n characters (on a short text a longer one may be worse), x_0 = ln V.
    """
    tables = (rungs[str(n)] for n in range(1, MAX_N + 1))
    marks = list(accumulate([math.log(vocab_size), *tables], min))
    reached = max((n for n, mark in enumerate(marks) if loss_nats <= mark), default=None)
    if reached is None or reached == MAX_N:
        return float(reached or 0)
    return reached + (marks[reached] - loss_nats) / (marks[reached] - marks[reached + 1])
