"""Who earned the way from a base to its counterpart: one part at a time from either end, step by step, or over all
compositions.

A composition is known by the set S of axes on which it has the counterpart's part; y(S) is its loss. Every quantity
is computed seed by seed, so that what a seed does to all compositions cancels, and told with the spread over seeds.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from statistics import fmean, stdev
from typing import Any

import numpy as np

from anatomy.axes import BASES, COUNTERPARTS, differences
from anatomy.report.data import Attribution, Estimate
from anatomy.report.rows import Group
from anatomy.report.verdict import ALPHA, critical_t, judge

Axes = frozenset[str]
Losses = Mapping[Axes, float]
"""y of one seed: axes swapped -> loss in nats."""


def attribute(study: str, base: str, groups: Sequence[Group], metric: str, margin: float) -> Attribution | None:
    """What the rows of a study say of the way from `base` to its counterpart; None where they say nothing.

    `groups` may come from the tables of both ends. Only rows whose parts are those of the two bases, and that differ
    in nothing else, take part.
    """
    counterpart = COUNTERPARTS[base]
    axes = differences(BASES[base], BASES[counterpart])
    by_seed = _losses_by_seed(base, axes, groups, metric)
    sets = {composition for losses in by_seed.values() for composition in losses}
    none, all_axes = frozenset[str](), frozenset(axes)

    def mean_over_seeds(quantity: Callable[[Losses], float], needs: Iterable[Axes]) -> Estimate | None:
        needed = list(needs)
        return estimate([quantity(losses) for losses in by_seed.values() if all(s in losses for s in needed)])

    def step(axis: str, before: Axes, needs: Iterable[Axes] = ()) -> Estimate | None:
        after = before | {axis}
        return mean_over_seeds(lambda y: y[after] - y[before], [before, after, *needs])

    add_one_in = {axis: found for axis in axes if (found := step(axis, none))}
    leave_one_out = {axis: found for axis in axes if (found := step(axis, all_axes - {axis}))}
    way = _walk(axes, sets)
    stations = [*(before for _, before in way), all_axes]  # of the same seeds, so that the steps sum to the whole
    walk = [(axis, found) for axis, before in way if (found := step(axis, before, stations))]
    everything = [frozenset(some) for size in range(len(axes) + 1) for some in combinations(axes, size)]
    is_full = any(all(some in losses for some in everything) for losses in by_seed.values())
    fitted = {} if is_full else _two_way_fits(axes, by_seed)
    complete = [losses for losses in by_seed.values() if len(losses) == len(everything)] if is_full else fitted.values()
    if not (add_one_in and leave_one_out) and not walk and not complete:
        return None

    def over_complete(quantity: Callable[..., float], *about: Any) -> Estimate | None:
        return estimate([quantity(losses, *about) for losses in complete])

    total = mean_over_seeds(lambda y: y[all_axes] - y[none], [none, all_axes])
    shares = {axis: one for axis in axes if (one := over_complete(shapley, axis, axes))}
    return Attribution(
        study=study,
        base=base,
        counterpart=counterpart,
        axes=axes,
        design=_design(sets, axes, is_full),
        metric=metric,
        total=total,
        add_one_in=add_one_in,
        leave_one_out=leave_one_out,
        walk=walk,
        main_effects={axis: one for axis in axes if (one := over_complete(main_effect, axis))},
        interactions={f"{a}*{b}": one for a, b in combinations(axes, 2) if (one := over_complete(interaction, a, b))},
        shapley=shares,
        model=_model(len(everything), len(sets), is_full, shares.values(), total),
        depends_on_the_rest=_dependent(axes, by_seed, margin),
        findings={},
    )


def estimate(values: Sequence[float]) -> Estimate | None:
    """Mean of one value a seed, with the plain t interval of its spread; a single seed has no interval."""
    if not values:
        return None
    if len(values) == 1:
        return Estimate(values[0], None, None, 1)
    mean = fmean(values)
    half = float(critical_t(len(values) - 1, ALPHA)) * stdev(values) / math.sqrt(len(values))
    return Estimate(mean, mean - half, mean + half, len(values))


# ------------------------------------------------------------------------------------------- over all compositions


def main_effect(y: Losses, axis: str) -> float:
    """mean(y | axis) - mean(y | not axis) over all 2^k compositions, in nats."""
    return fmean(y[s] for s in y if axis in s) - fmean(y[s] for s in y if axis not in s)


def interaction(y: Losses, a: str, b: str) -> float:
    """What two parts do together beyond the sum of what each does: mean of y(S+a+b) - y(S+a) - y(S+b) + y(S) over
    all S without either, in nats."""
    return fmean(y[s | {a, b}] - y[s | {a}] - y[s | {b}] + y[s] for s in y if a not in s and b not in s)


def shapley(y: Losses, axis: str, axes: Sequence[str]) -> float:
    """A part's share of y(all) - y(none), in nats: what it adds, averaged over all orders of swapping the k parts.

    sum over S without the axis of |S|! (k - |S| - 1)! / k! * (y(S + axis) - y(S)); over the axes they sum to the whole.

    Source: Shapley 1953, doi:10.1515/9781400881970-018.
    """
    k = len(axes)
    return sum(
        math.factorial(len(s)) * math.factorial(k - len(s) - 1) / math.factorial(k) * (y[s | {axis}] - y[s])
        for s in y
        if axis not in s
    )


def _two_way_fits(axes: Sequence[str], by_seed: Mapping[int, Losses]) -> dict[int, Losses]:
    """All compositions' losses by a model with single and pairwise effects, fitted to those there are, by seed; a
    seed whose compositions do not determine the model has none."""
    pairs = list(combinations(axes, 2))
    everything = [frozenset(some) for size in range(len(axes) + 1) for some in combinations(axes, size)]

    def design(sets: Iterable[Axes]) -> np.ndarray:
        return np.array([[1, *(a in s for a in axes), *(a in s and b in s for a, b in pairs)] for s in sets], float)

    fits: dict[int, Losses] = {}
    for seed, losses in by_seed.items():
        if len(losses) < 1 + len(axes) + len(pairs):
            continue
        effects, _, rank, _ = np.linalg.lstsq(design(losses), np.array(list(losses.values())), rcond=None)
        if rank == len(effects):
            fits[seed] = dict(zip(everything, map(float, design(everything) @ effects), strict=True))
    return fits


def _model(
    num_all: int, num_there: int, is_full: bool, shares: Iterable[Estimate], total: Estimate | None
) -> str | None:
    shares = list(shares)
    if is_full or not shares:
        return f"all {num_all} compositions" if is_full else None
    fit = f"a model of single and pairwise effects, fitted to {num_there} of {num_all} compositions"
    whole = sum(share.nats for share in shares)
    return fit if total is None else f"{fit}, which makes the whole {whole:+.4f} where {total.nats:+.4f} was measured"


def _design(sets: set[Axes], axes: Sequence[str], is_full: bool) -> str:
    half = {frozenset(some) for size in range(1, len(axes) + 1, 2) for some in combinations(axes, size)}
    return "factorial" if is_full else "half_factorial" if sets == half | {frozenset(), frozenset(axes)} else "partial"


# ------------------------------------------------------------------------------------------- what there is


def _losses_by_seed(
    base: str, axes: Sequence[str], groups: Sequence[Group], metric: str
) -> dict[int, dict[Axes, float]]:
    ends = (BASES[base], BASES[COUNTERPARTS[base]])
    by_seed: dict[int, dict[Axes, float]] = {}
    for group in groups:
        parts = group.parts
        if parts is None or not group.is_pure or any(parts[axis] not in (end[axis] for end in ends) for axis in parts):
            continue
        composition = frozenset(axis for axis in axes if parts[axis] == ends[1][axis])
        for run in group.done:
            if (loss := run.numbers[metric]) is not None:
                by_seed.setdefault(run.seed, {}).setdefault(composition, loss)
    return by_seed


def _walk(axes: Sequence[str], sets: set[Axes], before: Axes = frozenset()) -> list[tuple[str, Axes]]:
    """A way from the base to the counterpart over compositions that are there, one axis a step, in the order of the
    axes where there is a choice: each step's axis and what was swapped before it. Empty where there is none."""
    for axis in axes:
        after = before | {axis}
        if axis in before or after not in sets or before not in sets:
            continue
        rest = _walk(axes, sets, after)
        if len(after) == len(axes) or rest:
            return [(axis, before), *rest]
    return []


def _dependent(axes: Sequence[str], by_seed: Mapping[int, Losses], margin: float) -> list[str]:
    """The axes whose part does another thing in the base than in the counterpart, beyond the spread over seeds,
    simultaneously over the axes."""
    none, all_axes = frozenset[str](), frozenset(axes)
    gaps = []
    for axis in axes:
        needs = (none, frozenset({axis}), all_axes - {axis}, all_axes)
        there = [losses for losses in by_seed.values() if all(some in losses for some in needs)]
        gaps.append([(y[needs[1]] - y[needs[0]]) - (y[needs[3]] - y[needs[2]]) for y in there])
    judged, _ = judge(gaps, margin=margin, num_compared=len(axes))
    return [axis for axis, gap in zip(axes, judged, strict=True) if gap and (gap.ci_low > 0 or gap.ci_high < 0)]
