"""Who earned the way: against all orders of swapping, loops typed from the definitions, and studies planted on disk."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations, permutations
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_record, put_study, swapped
from scipy import stats

from anatomy.axes import BASES, COUNTERPARTS
from anatomy.report.attribution import estimate, interaction, main_effect, shapley
from anatomy.report.data import Attribution, Estimate
from anatomy.report.table import build_report

AXES = ("norm", "placement", "pos", "attn", "ffn")
NONE, ALL = frozenset[str](), frozenset(AXES)
EVERYTHING = [frozenset(some) for size in range(6) for some in combinations(AXES, size)]
HALF = [*(some for some in EVERYTHING if len(some) % 2), NONE]
BOTH_DIRECTIONS = [some for some in EVERYTHING if len(some) in (0, 1, 4, 5)]

# SCIENCE.md's golden numbers, in nats
EFFECTS = {"norm": -0.010, "placement": -0.020, "pos": -0.060, "attn": 0.015, "ffn": -0.130}
PAIRS = {("placement", "ffn"): -0.012, ("pos", "attn"): 0.008}
SHAPLEY = {"norm": -0.010, "placement": -0.026, "pos": -0.056, "attn": 0.019, "ffn": -0.136}

Losses = Callable[[frozenset[str], int], float]


def golden(composition: Iterable[str], start: float = 1.7) -> float:
    there = set(composition)
    pairs = sum(nats for pair, nats in PAIRS.items() if there.issuperset(pair))
    return start + sum(EFFECTS[axis] for axis in there) + pairs


def noisy(scale: float, seed: int = 0) -> Losses:
    """The golden losses with noise: of the seed, common to all its compositions, and of each run."""
    rng = np.random.default_rng(seed)
    of_seed = rng.normal(0, 0.05, 100)
    of_run = {some: rng.normal(0, scale, 100) for some in EVERYTHING}
    return lambda composition, seed: golden(composition) + of_seed[seed] + of_run[composition][seed]


def records(compositions: Iterable[frozenset[str]], seeds: Iterable[int], losses: Losses, **what: object) -> list[dict]:
    """Runs of mixtures, each asked for as a swap of the base that is nearer."""
    seeds, found = list(seeds), []
    for index, axes in enumerate(compositions):
        base = "vanilla" if len(axes) < 3 else "llama"
        label = "-".join(["run", *sorted(axes), *map(str, what)])
        for seed in seeds:
            parts = swapped("vanilla", axes)
            found.append(
                fake_record(f"{label}_{index}_{seed}", losses(axes, seed), base=base, seed=seed, parts=parts, **what)  # type: ignore[arg-type]
            )
    return found


def attribution_of(outputs: Path) -> Attribution:
    (found,) = build_report(outputs).attribution
    return found


def nats(estimates: Mapping[str, Estimate] | Sequence[tuple[str, Estimate]]) -> dict[str, float]:
    return {axis: one.nats for axis, one in dict(estimates).items()}


def over_all_orders(y: Mapping[frozenset[str], float], axis: str) -> float:
    gains = []
    for order in permutations(AXES):
        before = frozenset(order[: order.index(axis)])
        gains.append(y[before | {axis}] - y[before])
    assert len(gains) == 120
    return math.fsum(gains) / len(gains)


@pytest.fixture(params=range(4))
def random_losses(request: pytest.FixtureRequest) -> dict[frozenset[str], float]:
    rng = np.random.default_rng(request.param)
    return {some: float(rng.normal(1.6, 0.2)) for some in rng.permutation(np.array(EVERYTHING, dtype=object)).tolist()}


# --------------------------------------------------------------------------------------------- formulas


def test_shapley_values_of_the_golden_losses_are_those_of_the_science() -> None:
    y = {some: golden(some) for some in EVERYTHING}
    found = {axis: shapley(y, axis, AXES) for axis in AXES}
    assert found == pytest.approx(SHAPLEY) and sum(found.values()) == pytest.approx(-0.209)


def test_a_shapley_value_is_the_mean_gain_over_all_orders(random_losses: dict[frozenset[str], float]) -> None:
    for axis in AXES:
        assert shapley(random_losses, axis, AXES) == pytest.approx(over_all_orders(random_losses, axis))


def test_shapley_values_sum_to_the_whole(random_losses: dict[frozenset[str], float]) -> None:
    whole = random_losses[ALL] - random_losses[NONE]
    assert sum(shapley(random_losses, axis, AXES) for axis in AXES) == pytest.approx(whole)


def test_main_effects_and_interactions_are_those_of_slow_loops(random_losses: dict[frozenset[str], float]) -> None:
    for axis in AXES:
        swapped_in = [random_losses[some] for some in EVERYTHING if axis in some]
        left = [random_losses[some] for some in EVERYTHING if axis not in some]
        assert len(swapped_in) == len(left) == 16
        assert main_effect(random_losses, axis) == pytest.approx(np.mean(swapped_in) - np.mean(left))
    for a, b in combinations(AXES, 2):
        gaps = []
        for size in range(4):
            for rest in combinations([axis for axis in AXES if axis not in (a, b)], size):
                with_b = random_losses[frozenset([*rest, a, b])] - random_losses[frozenset([*rest, b])]
                gaps.append(with_b - (random_losses[frozenset([*rest, a])] - random_losses[frozenset(rest)]))
        assert len(gaps) == 8 and interaction(random_losses, a, b) == pytest.approx(np.mean(gaps))


def test_an_estimate_has_the_t_interval_of_its_seeds() -> None:
    values = [-0.012, 0.003, -0.021, -0.008]
    found = estimate(values)
    low, high = stats.t.interval(0.95, 3, loc=np.mean(values), scale=stats.sem(values))
    assert found == Estimate(pytest.approx(np.mean(values)), pytest.approx(low), pytest.approx(high), 4)


def test_an_estimate_of_one_seed_has_no_interval_and_of_none_is_none() -> None:
    assert estimate([0.25]) == Estimate(0.25, None, None, 1) and estimate([]) is None


# --------------------------------------------------------------------------------------------- a whole factorial


@pytest.fixture(scope="module")
def factorial(tmp_path_factory: pytest.TempPathFactory) -> Attribution:
    outputs = tmp_path_factory.mktemp("factorial")
    put_study(outputs, "factorial", records(EVERYTHING, range(3), noisy(0.004)))
    return attribution_of(outputs)


def test_a_factorial_is_known_as_one(factorial: Attribution) -> None:
    assert (factorial.study, factorial.base, factorial.counterpart) == ("factorial", "vanilla", "llama")
    assert (tuple(factorial.axes), factorial.design, factorial.model) == (AXES, "factorial", "all 32 compositions")


def by_seed(quantity: Callable[[Mapping[frozenset[str], float]], float]) -> Estimate:
    losses = noisy(0.004)
    values = [quantity({some: losses(some, seed) for some in EVERYTHING}) for seed in range(3)]
    low, high = stats.t.interval(0.95, 2, loc=np.mean(values), scale=stats.sem(values))
    return Estimate(pytest.approx(np.mean(values)), pytest.approx(low), pytest.approx(high), 3)


@pytest.mark.parametrize("axis", AXES)
def test_each_quantity_of_a_factorial_is_computed_seed_by_seed(factorial: Attribution, axis: str) -> None:
    assert factorial.shapley[axis] == by_seed(lambda y: over_all_orders(y, axis))
    assert factorial.add_one_in[axis] == by_seed(lambda y: y[frozenset({axis})] - y[NONE])
    assert factorial.leave_one_out[axis] == by_seed(lambda y: y[ALL] - y[ALL - {axis}])
    assert factorial.main_effects[axis] == by_seed(
        lambda y: float(np.mean([y[s] for s in EVERYTHING if axis in s]) - np.mean([y[s] for s in y if axis not in s]))
    )


def test_a_factorials_total_walk_and_interactions(factorial: Attribution) -> None:
    assert factorial.total == by_seed(lambda y: y[ALL] - y[NONE])
    assert [axis for axis, _ in factorial.walk] == list(AXES)
    for place, (_, step) in enumerate(factorial.walk):
        before, after = frozenset(AXES[:place]), frozenset(AXES[: place + 1])
        assert step == by_seed(lambda y, before=before, after=after: y[after] - y[before])  # type: ignore[misc]
    assert set(factorial.interactions) == {f"{a}*{b}" for a, b in combinations(AXES, 2)}
    for a, b in combinations(AXES, 2):
        planted = PAIRS.get((a, b), 0)
        assert factorial.interactions[f"{a}*{b}"].nats == pytest.approx(planted, abs=4 * 0.004 / math.sqrt(6))


def test_shapley_values_need_a_seed_with_all_compositions(tmp_path: Path) -> None:
    """Seed 1 lacks one of the 32 and so counts for the ends alone."""
    losses = noisy(0.004)
    all_but_one = [some for some in EVERYTHING if some != frozenset({"norm", "pos"})]
    put_study(tmp_path, "s", [*records(EVERYTHING, [0, 2], losses), *records(all_but_one, [1], losses)])
    found = attribution_of(tmp_path)
    assert found.design == "factorial" and {one.num_seeds for one in found.shapley.values()} == {2}
    assert found.total is not None and found.total.num_seeds == 3
    expected = [over_all_orders({s: losses(s, seed) for s in EVERYTHING}, "ffn") for seed in (0, 2)]
    assert found.shapley["ffn"].nats == pytest.approx(np.mean(expected))


# --------------------------------------------------------------------------------------------- half of one


def test_half_a_factorial_gives_all_back_where_pairs_at_most_interact(tmp_path: Path) -> None:
    assert len(HALF) == 17 and ALL in HALF
    put_study(tmp_path, "half", records(HALF, [0, 1], lambda some, seed: golden(some, 1.7 + 0.1 * seed)))
    found = attribution_of(tmp_path)
    assert found.design == "half_factorial" and found.model is not None
    assert "pairwise" in found.model and "17 of 32" in found.model
    assert nats(found.shapley) == pytest.approx(SHAPLEY)
    assert nats(found.interactions) == pytest.approx(
        {f"{a}*{b}": PAIRS.get((a, b), 0) for a, b in combinations(AXES, 2)}, abs=1e-12
    )
    halves = {axis: sum(nats for pair, nats in PAIRS.items() if axis in pair) / 2 for axis in AXES}
    assert nats(found.main_effects) == pytest.approx({axis: EFFECTS[axis] + halves[axis] for axis in AXES})


def test_half_a_factorial_takes_what_three_parts_do_together_for_something_else(tmp_path: Path) -> None:
    """So its model is named: a whole factorial would say otherwise."""

    def losses(some: frozenset[str], seed: int) -> float:
        return golden(some) + 0.4 * (some >= {"norm", "pos", "ffn"})

    put_study(tmp_path / "half", "s", records(HALF, [0], losses))
    put_study(tmp_path / "whole", "s", records(EVERYTHING, [0], losses))
    half, whole = attribution_of(tmp_path / "half"), attribution_of(tmp_path / "whole")
    assert nats(whole.shapley)["pos"] == pytest.approx(SHAPLEY["pos"] + 0.4 / 3)
    assert abs(nats(half.shapley)["attn"] - SHAPLEY["attn"]) > 0.005 and half.model != whole.model


def test_too_few_compositions_determine_no_model(tmp_path: Path) -> None:
    put_study(tmp_path, "s", records(BOTH_DIRECTIONS, [0, 1], noisy(0)))
    found = attribution_of(tmp_path)
    assert (found.shapley, found.main_effects, found.interactions, found.model) == ({}, {}, {}, None)
    assert found.design == "partial"


# --------------------------------------------------------------------------------------------- both directions


def test_swaps_in_both_directions_say_what_each_part_does_at_either_end(tmp_path: Path) -> None:
    losses = noisy(0.003)
    put_study(tmp_path, "swaps", records(BOTH_DIRECTIONS, range(3), losses))
    found = attribution_of(tmp_path)
    assert (found.base, found.counterpart, found.walk) == ("vanilla", "llama", [])
    for axis in AXES:
        alone = [losses(frozenset({axis}), seed) - losses(NONE, seed) for seed in range(3)]
        last = [losses(ALL, seed) - losses(ALL - {axis}, seed) for seed in range(3)]
        assert found.add_one_in[axis].nats == pytest.approx(np.mean(alone))
        assert found.leave_one_out[axis].nats == pytest.approx(np.mean(last))
    whole = [losses(ALL, seed) - losses(NONE, seed) for seed in range(3)]
    assert found.total is not None and found.total.nats == pytest.approx(np.mean(whole))


def test_swaps_of_one_direction_alone_attribute_nothing(tmp_path: Path) -> None:
    put_study(tmp_path, "swaps", records([s for s in EVERYTHING if len(s) < 2], range(3), noisy(0.003)))
    assert build_report(tmp_path).attribution == []


@pytest.mark.parametrize("num_seeds", [3, 6])
def test_where_a_part_does_another_thing_at_the_other_end_it_depends_on_the_rest(
    tmp_path: Path, num_seeds: int
) -> None:
    losses = noisy(0.002)

    def planted(some: frozenset[str], seed: int) -> float:
        return losses(some, seed) + (0.08 if len(some) == 4 and "norm" not in some else 0)

    put_study(tmp_path, "swaps", records(BOTH_DIRECTIONS, range(num_seeds), planted))
    found = attribution_of(tmp_path)
    assert "norm" in found.depends_on_the_rest and found.findings["verdict"].endswith("on the rest.")


def test_parts_that_add_up_depend_on_nothing(tmp_path: Path) -> None:
    losses = noisy(0.002, seed=4)

    def additive(some: frozenset[str], seed: int) -> float:
        return losses(some, seed) - golden(some) + 1.7 + sum(EFFECTS[axis] for axis in some)

    put_study(tmp_path, "swaps", records(BOTH_DIRECTIONS, range(5), additive))
    found = attribution_of(tmp_path)
    assert found.depends_on_the_rest == [] and "on the rest" not in found.findings["verdict"]


def test_one_seed_cannot_say_that_a_part_depends_on_the_rest(tmp_path: Path) -> None:
    put_study(tmp_path, "swaps", records(BOTH_DIRECTIONS, [0], noisy(0.5)))
    found = attribution_of(tmp_path)
    assert found.depends_on_the_rest == [] and found.add_one_in["ffn"].ci_low is None


def test_a_quantity_is_over_the_seeds_that_have_all_it_needs(tmp_path: Path) -> None:
    seeds = {NONE: [0, 1, 2, 3, 4], ALL: [0, 1, 2], frozenset({"norm"}): [1, 2, 3], ALL - {"ffn"}: [2, 7]}
    losses = noisy(0.003)
    found_records = [
        record for some in BOTH_DIRECTIONS for record in records([some], seeds.get(some, [0, 1, 2]), losses)
    ]
    put_study(tmp_path, "swaps", found_records)
    found = attribution_of(tmp_path)
    assert found.total is not None and found.total.num_seeds == 3
    assert found.add_one_in["norm"].num_seeds == 3 and found.leave_one_out["ffn"].num_seeds == 1
    alone = [losses(frozenset({"norm"}), seed) - losses(NONE, seed) for seed in (1, 2, 3)]
    assert found.add_one_in["norm"].nats == pytest.approx(np.mean(alone))


# --------------------------------------------------------------------------------------------- the walk


@pytest.mark.parametrize("order", [AXES, AXES[::-1], ("pos", "ffn", "norm", "attn", "placement")])
def test_a_single_chain_of_compositions_is_walked_in_its_order(tmp_path: Path, order: tuple[str, ...]) -> None:
    chain = [frozenset(order[:size]) for size in range(6)]
    losses = noisy(0.003)
    put_study(tmp_path, "walk", records(chain, range(3), losses))
    found = attribution_of(tmp_path)
    assert tuple(axis for axis, _ in found.walk) == order and found.design == "partial"
    for (_, step), before, after in zip(found.walk, chain[:-1], chain[1:], strict=True):
        assert step.nats == pytest.approx(np.mean([losses(after, s) - losses(before, s) for s in range(3)]))
    assert found.total is not None
    assert sum(step.nats for _, step in found.walk) == pytest.approx(found.total.nats)


def test_a_chain_with_a_hole_is_no_walk_and_its_sentence_still_names_parts(tmp_path: Path) -> None:
    chain = [frozenset(AXES[:size]) for size in (0, 1, 2, 4, 5)]
    put_study(tmp_path, "walk", records(chain, range(3), noisy(0.003)))
    for found in build_report(tmp_path).attribution:
        assert found.walk == [] and "norm" in found.findings["verdict"] and "ffn" in found.findings["verdict"]


def test_a_dead_end_is_walked_around(tmp_path: Path) -> None:
    """norm first leads nowhere; the only way through begins with pos."""
    order = ("pos", "placement", "norm", "attn", "ffn")
    chain = [frozenset(order[:size]) for size in range(6)]
    extra = [frozenset({"norm"}), frozenset({"norm", "attn"})]
    put_study(tmp_path, "walk", records([*chain, *extra], range(2), noisy(0.003)))
    assert tuple(axis for axis, _ in attribution_of(tmp_path).walk) == order


def test_the_way_from_gpt2_has_six_axes(tmp_path: Path) -> None:
    order = ("norm", "pos", "attn", "ffn", "bias", "tying")
    assert COUNTERPARTS["gpt2"] == "llama"
    found_records = [
        fake_record(f"r{size}-{seed}", 2 - 0.1 * size**2, base="gpt2", seed=seed, parts=swapped("gpt2", order[:size]))
        for size in range(7)
        for seed in range(2)
    ]
    put_study(tmp_path, "walk_gpt2", found_records)
    found = attribution_of(tmp_path)
    assert (found.base, found.counterpart, tuple(found.axes)) == ("gpt2", "llama", order)
    assert nats(found.walk) == pytest.approx({axis: -0.1 * (2 * i + 1) for i, axis in enumerate(order)})
    assert BASES["llama"] == swapped("gpt2", order)


# --------------------------------------------------------------------------------------------- what must stay out


@pytest.mark.parametrize(
    "what",
    [
        {"config": {"init_salt": 1}},
        {"config": {"order_salt": 1}, "data": {"batch_order_sha256": "another"}},
        {"config": {"train.lr": 0.001}},
        {"config": {"train.betas": [0.9, 0.99]}},
        {"config": {"match": "flops", "ffn.hidden": 203}},
        {"config": {"train.steps": 10}},
        {"config": {"init": "xavier"}},
        {"status": "diverged"},
    ],
    ids=lambda what: "-".join(map(str, what.get("config", what))),
)
def test_only_compositions_of_the_two_bases_themselves_take_part(tmp_path: Path, what: dict) -> None:
    """Others stand before them in the manifest, so that none can win by being there first."""
    sound = records(BOTH_DIRECTIONS, range(3), noisy(0.003))
    put_study(tmp_path / "sound", "swaps", sound)
    parts = {"init": "xavier"} if what.get("config", {}).get("init") else {}

    def odd(*axes: str) -> list[dict]:
        return [
            fake_record(
                f"odd-{base}-{'+'.join(axes)}-{seed}",
                9.0,
                base=base,
                seed=seed,
                parts=swapped(base, axes) | parts,
                **what,
            )
            for base in ("vanilla", "llama")
            for seed in range(3)
        ]

    put_study(tmp_path / "both", "swaps", [*odd("norm"), *odd("ffn"), *sound, *odd()])
    expected, found = attribution_of(tmp_path / "sound"), attribution_of(tmp_path / "both")
    assert found == expected
