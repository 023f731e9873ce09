"""The statistics of a swap against scipy, slow loops, definitions typed from the papers, and simulation."""

import math
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, special, stats

from anatomy.report import verdict
from anatomy.report.verdict import (
    MAX_SEEDS,
    Prior,
    critical_t,
    detectable_effect,
    holm,
    judge,
    moderate,
    prior_of,
    seeds_needed,
    two_sided_p,
    verdict_of,
)

Array = NDArray[np.float64]

FAMILY = [  # paired differences in nats, six arms on three seeds; the last arm scatters far more than the others
    [-0.012, -0.008, -0.013],
    [0.031, 0.024, 0.035],
    [-0.002, 0.003, 0.001],
    [-0.121, -0.118, -0.127],
    [0.004, -0.003, 0.009],
    [0.210, -0.055, 0.090],
]


def trigamma(x: float) -> float:
    return float(special.zeta(2, x))  # the series sum over k of 1 / (x + k)^2


def smyth_by_bisection(variances: list[float], dfs: list[float]) -> Prior:
    """Section 6.2 of Smyth 2004, one row at a time."""
    rows = list(zip(variances, dfs, strict=True))
    e = [math.log(s2) - float(special.psi(df / 2)) + math.log(df / 2) for s2, df in rows]
    mean = sum(e) / len(e)
    unexplained = sum((x - mean) ** 2 for x in e) / (len(e) - 1) - sum(trigamma(df / 2) for df in dfs) / len(dfs)
    if unexplained <= 0:
        return Prior(sum(variances) / len(variances), math.inf)
    low, high = 1e-8, 1e8
    for _ in range(200):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if trigamma(middle) > unexplained else (low, middle)
    return Prior(math.exp(mean + float(special.psi(low)) - math.log(low)), 2 * low)


# --------------------------------------------------------------------------------------------- moderated variances


@pytest.mark.parametrize("seed", range(20))
def test_the_prior_is_smyths_for_families_with_unequal_seeds(seed: int) -> None:
    rng = np.random.default_rng(seed)
    num_rows = int(rng.integers(2, 13))
    df = rng.integers(1, 9, num_rows).astype(float)
    spread = 10.0 ** rng.uniform(-3, 1)  # from alike to far apart
    variances = np.exp(rng.normal(-9, spread, num_rows)) * rng.chisquare(df) / df
    variances = np.maximum(variances, 2e-5 * float(np.median(variances)))
    found, expected = prior_of(variances, df), smyth_by_bisection(variances.tolist(), df.tolist())
    assert found.df == pytest.approx(expected.df, rel=1e-6)
    assert found.variance == pytest.approx(expected.variance, rel=1e-6)


def test_random_families_have_finite_and_infinite_priors() -> None:
    """Else the test above would see one of the two cases only."""
    rng = np.random.default_rng(0)
    df = np.full(6, 4.0)
    kinds = {math.isinf(prior_of(rng.chisquare(df) / df * np.exp(rng.normal(0, 1, 6)), df).df) for _ in range(50)}
    assert kinds == {True, False}


@pytest.mark.parametrize(("d0", "df"), [(3.0, 2.0), (8.0, 2.0), (3.0, 6.0), (8.0, 6.0), (20.0, 6.0)])
def test_the_prior_that_a_large_family_was_drawn_from_is_recovered(d0: float, df: float) -> None:
    """sigma^2 ~ d0 s0^2 / chi^2(d0), and s^2 ~ sigma^2 chi^2(df) / df."""
    rng, s0_squared, num_rows = np.random.default_rng(3), 0.0004, 40_000
    sigma_squared = d0 * s0_squared / rng.chisquare(d0, num_rows)
    prior = prior_of(sigma_squared * rng.chisquare(df, num_rows) / df, np.full(num_rows, df))
    assert prior.df == pytest.approx(d0, rel=0.15) and prior.variance == pytest.approx(s0_squared, rel=0.03)


def test_spreads_that_are_alike_have_an_infinite_prior_at_their_mean() -> None:
    prior = prior_of(np.array([1.0, 1.1, 0.9, 1.2]), np.array([2.0, 2.0, 2.0, 4.0]))
    assert prior == Prior(pytest.approx(1.05), math.inf)


def test_a_single_row_has_its_own_variance_as_prior() -> None:
    assert prior_of(np.array([0.3]), np.array([2.0])) == Prior(0.3, math.inf)


def test_a_variance_of_zero_counts_as_a_hundred_thousandth_of_the_median() -> None:
    variances, df = [0.0, 1.0, 2.0, 3.0, 5.0], [2.0, 3.0, 4.0, 5.0, 6.0]
    found, expected = prior_of(np.array(variances), np.array(df)), smyth_by_bisection([2e-5, *variances[1:]], df)
    assert (found.variance, found.df) == (pytest.approx(expected.variance), pytest.approx(expected.df))


@pytest.mark.parametrize(("variances", "mean"), [([0.0, 0.0, 0.0], 0.0), ([0.0, 0.0, 0.6], 0.2)])
def test_a_family_mostly_without_spread_has_the_mean_as_prior(variances: list[float], mean: float) -> None:
    assert prior_of(np.array(variances), np.full(3, 2.0)) == Prior(pytest.approx(mean), math.inf)


@given(
    own=st.lists(st.floats(1e-8, 10), min_size=1, max_size=8),
    df=st.lists(st.integers(1, 9), min_size=8, max_size=8),
    variance=st.floats(1e-8, 10),
    d0=st.one_of(st.floats(0.01, 1000), st.just(math.inf)),
)
@settings(deadline=None)
def test_a_moderated_variance_is_the_weighted_mean_but_never_below_the_rows_own(
    own: list[float], df: list[int], variance: float, d0: float
) -> None:
    df = df[: len(own)]
    found, found_df = moderate(np.array(own), np.array(df, float), Prior(variance, d0))
    for s2, n, used, used_df in zip(own, df, found, found_df, strict=True):
        drawn = variance if math.isinf(d0) else (d0 * variance + n * s2) / (d0 + n)
        assert used == pytest.approx(max(drawn, s2)) and used >= s2
        assert used_df == pytest.approx(min(d0 + n, sum(df)))


# --------------------------------------------------------------------------------------------- one family by hand


def test_intervals_and_p_values_of_a_family_are_those_computed_by_hand() -> None:
    """Six arms, three seeds; the arms' spreads differ, so the prior is finite and the cap of 12 does not bind."""
    prior = smyth_by_bisection([float(np.var(row, ddof=1)) for row in FAMILY], [2.0] * 6)
    assert 0 < prior.df < 10
    judged, found = judge(FAMILY, margin=0.01, num_compared=6)
    assert found is not None
    assert (found.df, found.variance) == (pytest.approx(prior.df), pytest.approx(prior.variance))
    for row, one in zip(FAMILY, judged, strict=True):
        assert one is not None
        mean, own = np.mean(row), np.var(row, ddof=1)
        variance = max((prior.df * prior.variance + 2 * own) / (prior.df + 2), own)
        df, error = prior.df + 2, math.sqrt(variance / 3)
        assert (one.variance, one.df) == (pytest.approx(variance), pytest.approx(df))
        low, high = stats.t.interval(1 - 0.05 / 6, df, loc=mean, scale=error)
        assert (one.ci_low, one.ci_high) == (pytest.approx(low), pytest.approx(high))
        assert one.p == pytest.approx(2 * stats.t.sf(abs(mean) / error, df))
        assert one.smallest_margin_nats == pytest.approx(max(abs(low), abs(high)))
    assert judged[-1] is not None and judged[-1].variance == pytest.approx(np.var(FAMILY[-1], ddof=1))


def test_degrees_of_freedom_stop_at_what_all_rows_have_together() -> None:
    """Spreads alike: the prior is infinite, and 3 rows of 3 seeds have 6 degrees of freedom."""
    family = [[0.01, 0.02, 0.03], [0.011, 0.02, 0.031], [0.0, 0.012, 0.02]]
    judged, prior = judge(family, margin=0.01, num_compared=3)
    assert prior is not None and math.isinf(prior.df)
    assert [one.df for one in judged if one] == [6, 6, 6]


def test_the_own_interval_is_scipys_paired_one() -> None:
    rng = np.random.default_rng(1)
    base = rng.normal(1.6, 0.05, 5)
    rows = [base + rng.normal(0.01, scale, 5) for scale in (0.002, 0.02, 0.1)]
    judged, _ = judge([(row - base).tolist() for row in rows], margin=0.01, num_compared=3, alpha=0.01)
    for row, one in zip(rows, judged, strict=True):
        expected = stats.ttest_rel(row, base).confidence_interval(0.95)
        assert one is not None
        assert (one.own_ci_low, one.own_ci_high) == (pytest.approx(expected.low), pytest.approx(expected.high))


def test_a_lone_arm_has_the_plain_paired_t_test() -> None:
    differences = [0.01, -0.004, 0.02, 0.013]
    (one,), _ = judge([differences], margin=0.01, num_compared=1)
    expected = stats.ttest_1samp(differences, 0)
    interval = expected.confidence_interval(0.95)
    assert one is not None and (one.p, one.p_holm) == (pytest.approx(expected.pvalue), pytest.approx(expected.pvalue))
    assert (one.ci_low, one.ci_high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert (one.own_ci_low, one.own_ci_high) == (pytest.approx(interval.low), pytest.approx(interval.high))


def test_rows_that_have_no_pairs_yet_widen_the_intervals_all_the_same() -> None:
    (few, *_), _ = judge(FAMILY, margin=0.01, num_compared=6)
    (many, *_), _ = judge(FAMILY, margin=0.01, num_compared=11)
    assert few is not None and many is not None
    ratio = stats.t.ppf(1 - 0.05 / 22, few.df) / stats.t.ppf(1 - 0.05 / 12, few.df)
    assert (many.ci_high - many.ci_low) / (few.ci_high - few.ci_low) == pytest.approx(ratio)


def test_a_look_that_may_spend_half_of_alpha_has_the_wider_interval() -> None:
    (whole, *_), _ = judge(FAMILY, margin=0.01, num_compared=6)
    (half, *_), _ = judge(FAMILY, margin=0.01, num_compared=6, alpha=0.025)
    assert whole is not None and half is not None
    ratio = stats.t.ppf(1 - 0.025 / 12, whole.df) / stats.t.ppf(1 - 0.05 / 12, whole.df)
    assert (half.ci_high - half.ci_low) / (whole.ci_high - whole.ci_low) == pytest.approx(ratio)
    assert (half.own_ci_low, half.own_ci_high) == (whole.own_ci_low, whole.own_ci_high)


def test_rows_with_fewer_than_two_differences_are_not_judged_and_lend_nothing() -> None:
    mixed, prior = judge([[], FAMILY[0], [0.5], FAMILY[1], FAMILY[5]], margin=0.01, num_compared=5)
    alone, expected = judge([FAMILY[0], FAMILY[1], FAMILY[5]], margin=0.01, num_compared=5)
    assert mixed[0] is None and mixed[2] is None and [mixed[1], mixed[3], mixed[4]] == alone and prior == expected


@pytest.mark.parametrize("families", [[], [[]], [[0.1], []]])
def test_where_no_row_has_two_differences_there_is_no_prior(families: list[list[float]]) -> None:
    assert judge(families, margin=0.01, num_compared=len(families)) == ([None] * len(families), None)


def test_differences_without_any_spread_are_certain() -> None:
    judged, prior = judge([[0.25, 0.25], [0.0, 0.0]], margin=0.01, num_compared=2)
    assert prior == Prior(0.0, math.inf)
    sure, none = judged
    assert sure is not None and (sure.ci_low, sure.ci_high, sure.p, sure.verdict) == (0.25, 0.25, 0.0, "worse")
    assert none is not None and (none.ci_low, none.ci_high, none.p, none.verdict) == (0.0, 0.0, 1.0, "equivalent")
    assert sure.minimum_detectable_effect_nats == 0 and sure.seeds_needed == 2


def test_the_sign_of_all_differences_turns_the_verdicts_and_nothing_else() -> None:
    judged, _ = judge(FAMILY, margin=0.01, num_compared=6)
    turned, _ = judge([[-d for d in row] for row in FAMILY], margin=0.01, num_compared=6)
    for one, other in zip(judged, turned, strict=True):
        assert one is not None and other is not None
        assert (one.ci_low, one.ci_high) == (pytest.approx(-other.ci_high), pytest.approx(-other.ci_low))
        assert (one.p, one.p_holm) == (pytest.approx(other.p), pytest.approx(other.p_holm))
        mirrored = one.verdict.replace("better", "x").replace("worse", "better").replace("x", "worse")
        assert mirrored == other.verdict
    assert {one.verdict for one in judged if one} >= {"better", "worse", "inconclusive"}


# --------------------------------------------------------------------------------------------- verdicts


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.009, 0.009, "equivalent"),
        (-0.009, 0.0, "equivalent"),
        (0.0, 0.009, "equivalent"),
        (-0.009, -0.001, "equivalent (better)"),
        (0.001, 0.009, "equivalent (worse)"),
        (-0.010, 0.0, "inconclusive"),  # the margin itself is not within the margin
        (0.0, 0.010, "inconclusive"),
        (-0.010, -0.001, "better"),
        (0.001, 0.010, "worse"),
        (-0.5, -0.4, "better"),
        (0.4, 0.5, "worse"),
        (-0.5, -1e-9, "better"),
        (1e-9, 0.5, "worse"),
        (-0.011, 0.001, "inconclusive"),
        (-0.001, 0.011, "inconclusive"),
        (-1.0, 1.0, "inconclusive"),
        (-1.0, 0.0, "inconclusive"),
        (-math.inf, math.inf, "inconclusive"),
    ],
)
def test_a_verdict_is_what_the_interval_allows(low: float, high: float, expected: str) -> None:
    assert verdict_of(low, high, 0.01) == expected


# --------------------------------------------------------------------------------------------- p values


@given(
    p=st.lists(st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.01, 0.02, 1.0])), min_size=1, max_size=9),
    extra=st.integers(0, 5),
)
@settings(deadline=None)
def test_holm_is_its_definition_also_with_rows_that_have_no_p(p: list[float], extra: int) -> None:
    m, ordered = len(p) + extra, sorted(p)
    for value, adjusted in zip(p, holm(np.array(p), m), strict=True):
        i = ordered.index(value) + 1  # of equal ones the first, for what follows it is no larger
        assert adjusted == pytest.approx(max(min(1, (m - j + 1) * ordered[j - 1]) for j in range(1, i + 1)))


def test_holm_of_a_textbook_family() -> None:
    """.01, .04, .03, .005 of four tests: 4 x .005, 3 x .01, 2 x .03, then .06 again for it must not fall."""
    assert holm(np.array([0.01, 0.04, 0.03, 0.005]), 4) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_the_adjusted_p_is_over_all_rows_of_the_table() -> None:
    (one,), _ = judge([[0.01, -0.004, 0.02, 0.013]], margin=0.01, num_compared=6)
    assert one is not None and one.p_holm == pytest.approx(min(1, 6 * one.p))


@pytest.mark.parametrize("df", [1.0, 2.0, 7.3, 1e6])
def test_p_values_are_two_sided(df: float) -> None:
    means, errors = np.array([-0.3, 0.0, 1e-4, 5.0]), np.array([0.1, 0.2, 0.01, 0.02])
    expected = [2 * stats.t.sf(abs(mean / error), df) for mean, error in zip(means, errors, strict=True)]
    assert two_sided_p(means, errors, np.full(4, df)) == pytest.approx(expected, rel=1e-9, abs=1e-300)


# --------------------------------------------------------------------------------------------- power and seeds


def power(effect_in_errors: float, own_df: int, prior_df: float, df: float, alpha: float) -> float:
    """How often |mean| exceeds t times the used error, in true errors, integrated over the row's own variance."""
    t = stats.t.ppf(1 - alpha / 2, df)

    def at(quantile: float) -> float:
        own = stats.chi2.ppf(quantile, own_df) / own_df
        weight = prior_df / (prior_df + own_df) if math.isfinite(prior_df) else 1.0
        used = math.sqrt(max(own, weight + (1 - weight) * own))
        return float(stats.norm.sf(t * used - effect_in_errors) + stats.norm.cdf(-t * used - effect_in_errors))

    return float(integrate.quad(at, 0, 1, limit=200)[0])


@pytest.mark.parametrize(("own_df", "prior_df"), [(1, math.inf), (2, math.inf), (2, 4.0), (4, 0.7), (9, 30.0)])
@pytest.mark.parametrize("num_compared", [1, 6, 31])
def test_the_detectable_effect_is_found_with_a_power_of_eighty_percent(
    own_df: int, prior_df: float, num_compared: int
) -> None:
    alpha, error, df = 0.05 / num_compared, 0.0037, min(prior_df + own_df, 6 * own_df)
    effect = detectable_effect(error, own_df, prior_df, df, alpha)
    assert power(effect / error, own_df, prior_df, df, alpha) == pytest.approx(0.8, abs=3e-3)


@pytest.mark.parametrize(("num_seeds", "prior_df"), [(3, math.inf), (5, 6.0)])
def test_of_simulated_rows_eighty_percent_find_the_detectable_effect(num_seeds: int, prior_df: float) -> None:
    """Rows whose prior is known: differences drawn one by one, judged by hand."""
    rng, num_studies, sd = np.random.default_rng(5), 100_000, 0.02
    own_df, alpha = num_seeds - 1, 0.05 / 6
    df = min(prior_df + own_df, 6 * own_df)
    effect = detectable_effect(sd / math.sqrt(num_seeds), own_df, prior_df, df, alpha)
    differences = rng.normal(effect, sd, (num_studies, num_seeds))
    own = differences.var(axis=1, ddof=1)
    drawn = sd**2 if math.isinf(prior_df) else (prior_df * sd**2 + own_df * own) / (prior_df + own_df)
    errors = np.sqrt(np.maximum(drawn, own) / num_seeds)
    found = np.mean(np.abs(differences.mean(axis=1)) / errors > stats.t.ppf(1 - alpha / 2, df))
    assert found == pytest.approx(0.8, abs=3e-3 + 4 * math.sqrt(0.8 * 0.2 / num_studies))


@pytest.mark.parametrize("df", [1.0, 2.0, 9.7, 1e5])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 31, 1e-6])
def test_the_critical_t_is_scipys(df: float, alpha: float) -> None:
    assert critical_t(df, alpha) == pytest.approx(stats.t.isf(alpha / 2, df), rel=1e-9)


@pytest.mark.parametrize(
    ("sd", "prior_df", "num_rows", "margin", "num_compared"),
    [
        (0.010, math.inf, 6, 0.01, 6),
        (0.010, 4.2, 6, 0.01, 6),
        (0.003, 1.5, 6, 0.01, 6),
        (0.030, math.inf, 1, 0.02, 1),
        (0.050, 12.0, 11, 0.02, 11),
        (0.001, math.inf, 6, 0.01, 6),
        (0.004, math.inf, 2, 0.01, 2),  # here the cap on the degrees of freedom decides
        (0.006, math.inf, 6, 0.01, 6),
        (0.006, 30.0, 1, 0.01, 1),
    ],
)
def test_the_seeds_that_are_asked_for_suffice_and_one_fewer_does_not(
    sd: float, prior_df: float, num_rows: int, margin: float, num_compared: int
) -> None:
    alpha = 0.05 / num_compared
    needed = seeds_needed(sd**2, prior_df, num_rows, margin, alpha)
    assert needed is not None

    def power_with(num_seeds: int) -> float:
        df = min(prior_df + num_seeds - 1, num_rows * (num_seeds - 1))
        return power(margin / (sd / math.sqrt(num_seeds)), num_seeds - 1, prior_df, df, alpha)

    assert power_with(needed) > 0.797 and (needed == 2 or power_with(needed - 1) < 0.803)


def test_more_seeds_than_anyone_would_run_are_not_a_number() -> None:
    assert seeds_needed(1.0, math.inf, 6, 0.01, 0.05 / 6) is None
    sd = 0.01 * math.sqrt(MAX_SEEDS) / (stats.norm.isf(0.025) + stats.norm.ppf(0.8))
    assert seeds_needed((0.99 * sd) ** 2, math.inf, 6, 0.01, 0.05) in range(int(0.97 * MAX_SEEDS), MAX_SEEDS)
    assert seeds_needed((1.01 * sd) ** 2, math.inf, 6, 0.01, 0.05) is None


def test_the_seeds_asked_for_do_not_depend_on_the_effect_that_was_seen() -> None:
    judged, _ = judge(FAMILY, margin=0.01, num_compared=6)
    moved, _ = judge([[d + 0.3 * i for d in row] for i, row in enumerate(FAMILY)], margin=0.01, num_compared=6)
    assert [one.seeds_needed for one in judged if one] == [one.seeds_needed for one in moved if one]
    found = [one.minimum_detectable_effect_nats for one in judged if one]
    assert found == pytest.approx([one.minimum_detectable_effect_nats for one in moved if one])


def test_a_judged_row_carries_its_own_detectable_effect_and_seeds() -> None:
    judged, prior = judge(FAMILY, margin=0.01, num_compared=11, alpha=0.025)
    assert prior is not None
    for one in judged:
        assert one is not None
        error = math.sqrt(one.variance / 3)
        found = power(one.minimum_detectable_effect_nats / error, 2, prior.df, one.df, 0.025 / 11)
        assert found == pytest.approx(0.8, abs=3e-3)
        assert one.seeds_needed == seeds_needed(one.variance, prior.df, 6, 0.01, 0.025 / 11)


# --------------------------------------------------------------------------------------------- simulated studies

ALIKE, EIGHTFOLD = np.ones(6), np.geomspace(1, 8, 6)
NUM_STUDIES = 1_500


@pytest.fixture
def without_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out what no verdict rests on and what takes most of the time."""
    monkeypatch.setattr(verdict, "seeds_needed", lambda *_: None)
    monkeypatch.setattr(verdict, "detectable_effect", lambda *_: 0.0)


def simulated(num_seeds: int, spreads: Array, is_shared: bool, seed: int) -> Iterator[Array]:
    """Families of six arms on the same seeds without any effect: the arms' own noise and, as differences from one base
    have it, the base's."""
    rng = np.random.default_rng(seed)
    for _ in range(NUM_STUDIES):
        arms = rng.normal(0, spreads[:, None], (6, num_seeds))
        yield arms - rng.normal(0, 1, num_seeds) if is_shared else arms


@pytest.mark.usefixtures("without_planning")
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize(
    ("num_seeds", "spreads", "limit"),
    [(3, ALIKE, 0.065), (5, ALIKE, 0.065), (3, EIGHTFOLD, 0.12), (5, EIGHTFOLD, 0.07)],
    ids=["3 seeds, alike", "5 seeds, alike", "3 seeds, eightfold", "5 seeds, eightfold"],
)
def test_studies_without_effects_have_false_verdicts_as_often_as_promised(
    num_seeds: int, spreads: Array, limit: float, is_shared: bool
) -> None:
    num_false = 0
    for study in simulated(num_seeds, spreads, is_shared, seed=2):
        judged, _ = judge(study.tolist(), margin=1e-9, num_compared=6)
        num_false += any(one is not None and one.verdict != "inconclusive" for one in judged)
    assert stats.binomtest(num_false, NUM_STUDIES, limit, alternative="greater").pvalue > 0.02
    assert num_false > 0.02 * NUM_STUDIES  # or it would be worth nothing


@pytest.mark.usefixtures("without_planning")
@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("num_seeds", [3, 5])
def test_an_effect_as_large_as_rows_say_they_would_find_is_found_as_often_as_they_say(
    num_seeds: int, is_shared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On average somewhat more often than 80 % (.82 to .87 over 1,200 rows each), for the variance that stands for the
    true one is never below the row's own. The binomial error here is .013."""
    monkeypatch.setattr(verdict, "detectable_effect", detectable_effect)
    reported = [
        one.minimum_detectable_effect_nats
        for study in islice(simulated(num_seeds, ALIKE, is_shared, seed=3), 300)
        for one in judge(study.tolist(), margin=1e-9, num_compared=6)[0]
        if one is not None
    ]
    effect, num_found = float(np.mean(reported)), 0
    monkeypatch.setattr(verdict, "detectable_effect", lambda *_: 0.0)
    for study in islice(simulated(num_seeds, ALIKE, is_shared, seed=4), 1_000):
        study[0] += effect
        planted = judge(study.tolist(), margin=1e-9, num_compared=6)[0][0]
        num_found += planted is not None and planted.verdict == "worse"
    assert 0.8 - 2 * 0.013 < num_found / 1_000 < 0.87 + 3 * 0.013
