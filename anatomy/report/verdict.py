"""The statistics of a swap: from paired differences to intervals, p values and verdicts, family by family.

A family is the rows of one table other than the base. With few seeds a row's own spread says little, so rows lend each
other strength: their variances are moderated towards a common one. The intervals are simultaneous over the family,
so that one false verdict in the whole table, not in each row, has the stated chance.

Shapes:  m rows; n_i paired differences in row i.
"""

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, special

ALPHA = 0.05
POWER = 0.8
QUANTILES = (np.arange(200) + 0.5) / 200  # over which a distribution is averaged
MAX_SEEDS = 10_000  # a study that needs more seeds than this will not be run

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Prior:
    """What the rows' variances scatter around: `variance` with the weight of `df` degrees of freedom (may be inf)."""

    variance: float
    df: float


@dataclass(frozen=True)
class Judged:
    """What a row's differences come to: the fields of `data.Row` of the same names."""

    ci_low: float
    ci_high: float
    own_ci_low: float
    own_ci_high: float
    variance: float
    df: float
    p: float
    p_holm: float
    verdict: str
    smallest_margin_nats: float
    minimum_detectable_effect_nats: float
    seeds_needed: int | None


def judge(
    differences: Sequence[Sequence[float]], *, margin: float, num_compared: int, alpha: float = ALPHA
) -> tuple[list[Judged | None], Prior | None]:
    """Judge the rows of a family by their paired differences (row minus base, one a seed).

    A row with fewer than two differences is not judged. The interval of a row is simultaneous over `num_compared`
    rows, by Bonferroni; p is adjusted by Holm over as many. `alpha` is what may be spent here: studies that look
    more than once split it.

    Source: moderation after Smyth 2004, doi:10.2202/1544-6115.1027, with two cautions for a handful of rows: the
    variance used is never below the row's own, and the degrees of freedom never above what all rows have together.
    """
    index = [i for i, some in enumerate(differences) if len(some) > 1]
    if not index:
        return [None] * len(differences), None
    own_df = np.array([len(differences[i]) - 1 for i in index], dtype=float)
    means = np.array([np.mean(differences[i]) for i in index])
    own = np.array([spread_of(differences[i]) for i in index])
    prior = prior_of(own, own_df)
    variance, df = moderate(own, own_df, prior)
    errors = np.sqrt(variance / (own_df + 1))
    p = two_sided_p(means, errors, df)
    p_holm = holm(p, num_compared)
    half = critical_t(df, alpha / num_compared) * errors
    own_half = critical_t(own_df, ALPHA) * np.sqrt(own / (own_df + 1))
    judged: list[Judged | None] = [None] * len(differences)
    for place, i in enumerate(index):
        low, high = means[place] - half[place], means[place] + half[place]
        judged[i] = Judged(
            ci_low=float(low),
            ci_high=float(high),
            own_ci_low=float(means[place] - own_half[place]),
            own_ci_high=float(means[place] + own_half[place]),
            variance=float(variance[place]),
            df=float(df[place]),
            p=float(p[place]),
            p_holm=float(p_holm[place]),
            verdict=verdict_of(low, high, margin),
            smallest_margin_nats=float(max(-low, high)),
            minimum_detectable_effect_nats=detectable_effect(
                float(errors[place]), len(differences[i]) - 1, prior.df, float(df[place]), alpha / num_compared
            ),
            seeds_needed=seeds_needed(variance[place], prior.df, len(index), margin, alpha / num_compared),
        )
    return judged, prior


def spread_of(values: Sequence[float]) -> float:
    """The sample variance, exactly 0 where all values are the same: rounding of the mean would leave a trace."""
    return float(np.var(values, ddof=1)) if min(values) < max(values) else 0.0


def verdict_of(low: float, high: float, margin: float) -> str:
    """The verdict that an interval allows: what lies within the margin counts as no difference."""
    sign = " (better)" if high < 0 else " (worse)" if low > 0 else ""
    if -margin < low and high < margin:
        return f"equivalent{sign}"
    return sign.strip(" ()") or "inconclusive"


# --------------------------------------------------------------------------------------------- moderated variances


def prior_of(variances: Array, df: Array) -> Prior:
    """Fit the prior of a family's sample variances by the moments of their logarithms.

    With e_i = log s_i^2 - digamma(df_i / 2) + log(df_i / 2), the spread of e beyond what trigamma(df_i / 2) explains is
    trigamma(d0 / 2), and s0^2 = exp(mean e + digamma(d0 / 2) - log(d0 / 2)). Where nothing is left to explain, d0 is
    infinite and s0^2 the mean of the s^2.

    Shapes:   variances (m,), df (m,).
    Numerics: a variance of exactly 0, which has no logarithm, counts as 1e-5 of the median, as limma has it.
    Source:   Smyth 2004, section 6.2.
    """
    floor = 1e-5 * float(np.median(variances))
    if floor == 0 or len(variances) == 1:
        return Prior(float(np.mean(variances)), math.inf)
    e = np.log(np.maximum(variances, floor)) - special.digamma(df / 2) + np.log(df / 2)
    unexplained = float(np.var(e, ddof=1) - np.mean(special.polygamma(1, df / 2)))
    if unexplained <= 0:
        return Prior(float(np.mean(variances)), math.inf)
    half_d0 = _inverse_trigamma(unexplained)
    log_variance = float(np.mean(e)) + float(special.digamma(half_d0)) - math.log(half_d0)
    return Prior(math.exp(log_variance), 2 * half_d0)


def moderate(own: Array, own_df: Array, prior: Prior) -> tuple[Array, Array]:
    """Each row's variance drawn towards the prior, never below its own, and its degrees of freedom.

    (d0 s0^2 + df s^2) / (d0 + df) on d0 + df, at most the sum of all rows' own.

    Shapes:   own (m,), own_df (m,) -> variance (m,), df (m,).
    """
    if math.isinf(prior.df):
        drawn = np.full_like(own, prior.variance)
    else:
        drawn = (prior.df * prior.variance + own_df * own) / (prior.df + own_df)
    return np.maximum(drawn, own), np.minimum(prior.df + own_df, own_df.sum())


def _inverse_trigamma(value: float) -> float:
    """The x > 0 with trigamma(x) = value. trigamma lies between 1/x and 1/x + 1/x^2, which brackets it."""
    low, high = 1 / value, 1 / value + 1 / math.sqrt(value)
    return float(optimize.brentq(lambda x: float(special.polygamma(1, x)) - value, low, high))


# --------------------------------------------------------------------------------------------- p, power, seeds


def critical_t(df: Any, alpha: float) -> Any:
    """The t that |t| on df exceeds with probability alpha; of a number or an array."""
    return -special.stdtrit(df, alpha / 2)


def two_sided_p(means: Array, errors: Array, df: Array) -> Array:
    """P(|t| >= |mean / error|). Where there is no error at all, a difference is certain, and none is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(means == 0, 0.0, np.abs(means) / errors)
    return np.asarray(2 * special.stdtr(df, -t))


def holm(p: Array, num_compared: int) -> Array:
    """Adjust p values by Holm's step-down over `num_compared` tests, of which those without a p would come last.

    adjusted p_(i) = max over j <= i of min(1, (num_compared - j + 1) p_(j)).

    Source: Holm 1979, doi:10.2307/4615733.
    """
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1, (num_compared - np.arange(len(p))) * p[order])
    adjusted = np.empty_like(steps)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted


def detectable_effect(error: float, own_df: int, prior_df: float, df: float, alpha: float) -> float:
    """The true difference, in nats, that the test at level `alpha` finds with probability POWER, where the standard
    error of the mean difference is in truth `error`."""
    return error * _effect_in_errors(own_df, prior_df, df, alpha)


@lru_cache(maxsize=4096)
def _effect_in_errors(own_df: int, prior_df: float, df: float, alpha: float) -> float:
    """P(|mean| > t * used error) = POWER, solved for the mean, in true standard errors.

    The test divides by an error that is never below the moderated one nor below the row's own, so it asks for more
    than the noncentral t knows of. Averaged over the chi-squared distribution of the row's own variance.
    """
    own = special.chdtri(own_df, QUANTILES) / own_df  # of the row's own variance, as a share of the true one
    drawn = 1.0 if math.isinf(prior_df) else (prior_df + own_df * own) / (prior_df + own_df)
    threshold = critical_t(df, alpha) * np.sqrt(np.maximum(drawn, own))

    def shortfall(effect: float) -> float:
        return float(np.mean(special.ndtr(effect - threshold) + special.ndtr(-effect - threshold))) - POWER

    return float(optimize.brentq(shortfall, 0.0, float(threshold.max()) + 1))


def seeds_needed(variance: float, prior_df: float, num_rows: int, margin: float, alpha: float) -> int | None:
    """How many seeds a family of `num_rows` rows needs for a row of this variance to find an effect of the margin.

    It asks for the spread alone, never for the effect that was seen. None where it would be more than MAX_SEEDS.
    """

    def finds(num_seeds: int) -> bool:
        df = min(prior_df + num_seeds - 1, num_rows * (num_seeds - 1))
        return detectable_effect(math.sqrt(variance / num_seeds), num_seeds - 1, prior_df, df, alpha) <= margin

    numbers = range(2, MAX_SEEDS + 1)
    index = bisect_left(numbers, True, key=finds)
    return numbers[index] if index < len(numbers) else None
