"""The sentences: every number in them is recomputed here, and none claims more than the intervals allow."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_record, put_curve, put_losses, put_rungs, put_study
from scipy import stats

from anatomy.report.data import Attribution, Breakdown, Estimate, Profile, Table
from anatomy.report.finding import attribution_findings, table_findings
from anatomy.report.table import build_report
from anatomy.report.views import to_markdown

RMS = {"parts": {"norm": "rms"}}
NOISE = (-0.002, 0.0, 0.002)
BASE = (1.70, 1.64, 1.75)


def put_rows(outputs: Path, shifts: dict[str, float], num_seeds: int = 3, **spec: object) -> Table:
    """A base and a row a shift, each norm called by its key; the paired differences are the shift -/+ .002."""
    records = [fake_record(f"base{s}", BASE[s], seed=s) for s in range(num_seeds)]
    for norm, shift in shifts.items():
        parts = {"norm": norm}
        records += [
            fake_record(f"{norm}{s}", BASE[s] + shift + NOISE[s], seed=s, parts=parts) for s in range(num_seeds)
        ]
    put_study(outputs, "s", records, **spec)
    return table_of(outputs)


def table_of(outputs: Path) -> Table:
    (table,) = build_report(outputs).studies
    return table


# ------------------------------------------------------------------------------------------------- the verdict


def test_every_row_stands_under_its_verdict_with_its_difference(tmp_path: Path) -> None:
    table = put_rows(
        tmp_path, {"good": -0.2, "bad": 0.1, "same": 0.0012, "close": -0.0011, "open": 0.002}, margin=0.0052
    )
    words = {row.name: row.verdict for row in table.rows[1:]}
    expected = {"good": "better", "bad": "worse", "same": "equivalent", "close": "equivalent", "open": "inconclusive"}
    assert {name.removeprefix("norm="): str(word).split()[0] for name, word in words.items()} == expected
    assert table.findings["verdict"] == (
        "Against vanilla, over 3 seeds: better: norm=good (-0.200); worse: norm=bad (+0.100); "
        "equivalent within 0.0052: norm=same (+0.001), norm=close (-0.001); inconclusive: norm=open (+0.002)."
    )


def test_the_largest_differences_are_named_and_the_others_counted(tmp_path: Path) -> None:
    table = put_rows(tmp_path, {f"n{i}": -0.1 * i for i in range(1, 8)})
    sentence = table.findings["verdict"]
    assert "better: norm=n7 (-0.700), norm=n6 (-0.600), norm=n5 (-0.500), norm=n4 (-0.400) and 3 more." in sentence
    assert "n3" not in sentence


def test_one_seed_has_differences_without_intervals(tmp_path: Path) -> None:
    table = put_rows(tmp_path, {"a": -0.2, "b": 0.1}, num_seeds=1)
    sentence = table.findings["verdict"]
    assert sentence.startswith("Against vanilla, over 1 seed: differences without intervals")
    assert "norm=a (-0.202), norm=b (+0.098)" in sentence and "better" not in sentence and "worse" not in sentence
    assert "confidence" not in table.findings["forest"]


def test_unequal_numbers_of_seeds_are_said(tmp_path: Path) -> None:
    records = [fake_record(f"b{s}", BASE[s], seed=s) for s in range(3)]
    records += [fake_record(f"r{s}", 1.5, seed=s, **RMS) for s in range(3)]
    put_study(tmp_path, "s", [*records, *(fake_record(f"p{s}", 1.4, seed=s, parts={"pos": "rope"}) for s in range(2))])
    assert table_of(tmp_path).findings["verdict"].startswith("Against vanilla, over 2 to 3 seeds:")


def test_a_diverged_row_is_called_so_and_nothing_else(tmp_path: Path) -> None:
    records = [fake_record(f"b{s}", BASE[s], seed=s) for s in range(3)]
    records += [fake_record(f"g{s}", BASE[s] - 0.3 + NOISE[s], seed=s, parts={"ffn": "relu"}) for s in range(3)]
    records += [fake_record(f"r{s}", BASE[s] - 0.2 + NOISE[s], seed=s, **RMS) for s in range(2)]
    put_study(tmp_path, "s", [*records, fake_record("r2", seed=2, status="diverged", **RMS)])
    sentence = table_of(tmp_path).findings["verdict"]
    assert sentence.count("norm=rms") == 1 and re.search(r"diverged: norm=rms", sentence)
    assert "better: ffn=relu (-0.300);" in sentence


def test_a_table_without_pairs_says_nothing(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("r", **RMS)])
    assert table_of(tmp_path).findings == {}


# ------------------------------------------------------------------------------------------------- the forest


def test_the_largest_difference_is_told_with_its_simultaneous_interval(tmp_path: Path) -> None:
    """Two rows of the same spread, .002: a prior without end, 4 degrees of freedom, .05 over two rows."""
    table = put_rows(tmp_path, {"a": -0.2, "b": 0.1})
    half = stats.t.isf(0.05 / 4, 4) * 0.002 / np.sqrt(3)
    assert table.findings["forest"] == (
        f"The largest difference to vanilla is norm=a's: -0.200 nats, between {-0.2 - half:+.3f} and "
        f"{-0.2 + half:+.3f} with 95 % confidence in all 2 rows at once."
    )


def test_the_noise_floor_stands_beside_the_largest_difference(tmp_path: Path) -> None:
    records = [fake_record(f"b{s}", BASE[s], seed=s) for s in range(3)]
    records += [fake_record(f"n{s}", BASE[s] + 0.004, seed=s, config={"init_salt": 1}) for s in range(3)]
    put_study(tmp_path, "s", [*records, *(fake_record(f"r{s}", BASE[s] - 0.1, seed=s, **RMS) for s in range(3))])
    assert table_of(tmp_path).findings["forest"].endswith("The base differs from itself by up to 0.004.")


def test_an_interval_that_may_spend_half_of_alpha_is_called_what_it_is(tmp_path: Path) -> None:
    put_rows(tmp_path, {"a": -0.2, "b": 0.1}, looks=[3, 6])
    (table,) = build_report(tmp_path).studies
    heading = next(line for line in to_markdown(build_report(tmp_path)).splitlines() if line.startswith("| row"))
    assert table.alpha == 0.025 and "95 %" not in table.findings["forest"] and "95 % interval" not in heading


# ------------------------------------------------------------------------------------------------- curves


def curves(tmp_path: Path, base: dict[int, float | None], swap: dict[int, float | None]) -> str:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", **RMS)])
    put_curve(tmp_path, "a", base)
    put_curve(tmp_path, "b", swap)
    return table_of(tmp_path).findings.get("curves", "")


@pytest.mark.parametrize(
    ("base", "swap", "expected"),
    [
        ({0: 4.0, 1: 3.0, 2: 2.5}, {0: 4.1, 1: 2.8, 2: 2.0}, "norm=rms ends lowest, at 2.000 {} since step 1."),
        ({0: 4.0, 1: 3.0, 2: 2.5}, {0: 3.9, 1: 2.8, 2: 2.0}, "norm=rms ends lowest, at 2.000 {} throughout."),
        ({0: 4.0, 1: 2.0, 2: 1.5}, {0: 3.0, 1: 2.5, 2: 2.0}, "vanilla ends lowest, at 1.500 {} since step 1."),
        ({0: 4.0, 1: 2.0, 2: 2.5}, {0: 3.0, 1: 3.0, 2: 2.0}, "norm=rms ends lowest, at 2.000 {} since step 2."),
        ({0: 4, 900: 3, 1800: 2}, {0: 5, 900: 4, 1800: 1}, "norm=rms ends lowest, at 1.000 {} since step 1,800."),
    ],
)
def test_who_ends_lowest_and_since_when(tmp_path: Path, base: dict, swap: dict, expected: str) -> None:
    assert curves(tmp_path, base, swap) == expected.format("nats of validation loss and has led")


def test_a_single_curve_leads_nobody(tmp_path: Path) -> None:
    assert curves(tmp_path, {0: 4.0}, {}) == ""


def test_the_rung_is_that_of_the_row_that_ends_lowest(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", 2.5), fake_record("b", 1.62, **RMS)])
    put_rungs(tmp_path)
    put_curve(tmp_path, "a", {0: 4.0})
    put_curve(tmp_path, "b", {0: 3.0})
    assert "norm=rms ends lowest" in table_of(tmp_path).findings["curves"]
    assert "at rung 3.40 of the n-gram tables" in table_of(tmp_path).findings["curves"]


# ------------------------------------------------------------------------------------------------- where it sits


def test_differences_at_the_ends_of_the_window_are_told(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.5), fake_record("b", 1.4, **RMS)])
    put_losses(tmp_path, "a", np.ones((2, 8), np.float32))
    put_losses(tmp_path, "b", (1 - np.arange(8, dtype=np.float32) / 8) * np.ones((2, 1), np.float32))
    last = -np.mean([4, 5, 6, 7]) / 8
    assert table_of(tmp_path).findings["position"] == (
        f"norm=rms's difference goes from +0.000 nats at position 1 of the window to {last:+.3f} at positions 5-8."
    )


def test_the_bin_that_most_of_the_difference_comes_from_is_told_with_both_shares(tmp_path: Path) -> None:
    short = {"config": {"model.ctx_len": 4}}
    put_study(tmp_path, "s", [fake_record("a", 1.5, **short), fake_record("b", 1.4, **RMS, **short)])
    ngram = np.array([[0.01, 0.02, 0.03, 5.0], [0.01, 0.02, 0.7, 5.0]], np.float32)
    put_rungs(tmp_path, ctx_len=4, num_windows=2, ngram_losses_WT=ngram)
    put_losses(tmp_path, "a", np.ones((2, 4), np.float32))
    put_losses(tmp_path, "b", np.where(ngram > 4, 0.25, np.where(ngram > 0.5, 0.75, 0.95)).astype(np.float32))
    whole, unknown = 2 * 0.75 + 0.25 + 5 * 0.05, 2 * 0.75
    assert table_of(tmp_path).findings["knowledge"] == (
        f"{100 * unknown / whole:.0f} % of what norm=rms gains comes from the 25 % of characters on which a 6-gram "
        "table loses over 4 nats."
    )


@pytest.mark.parametrize("sign", [1, -1])
def test_a_part_of_the_difference_is_never_more_than_all_of_it(tmp_path: Path, sign: int) -> None:
    """What one bin gains another loses: -.10 and +.06 make -.04, of which 250 % would come from the first."""
    table = put_rows(tmp_path, {"a": -0.2})
    profile = Profile("norm=a", [-0.2 * sign, 0.12 * sign], [0, 0], [0, 0])
    both = Breakdown(["0-0.1", "over 4"], [0.5, 0.5], [profile])
    sentence = table_findings(replace(table, by_knowledge=both)).get("knowledge", "")
    assert all(float(percent) <= 100 for percent in re.findall(r"(\d+) %", sentence))


def test_the_profile_that_is_told_is_that_of_the_largest_difference_that_has_one(tmp_path: Path) -> None:
    table = put_rows(tmp_path, {"small": -0.1, "large": 0.3})
    profiles = [Profile("norm=small", [-0.1], [0], [0])]
    told = table_findings(replace(table, by_position=Breakdown(["1"], [1.0], profiles)))["position"]
    assert told.startswith("norm=small's difference")
    profiles.append(Profile("norm=large", [0.3], [0], [0]))
    told = table_findings(replace(table, by_position=Breakdown(["1"], [1.0], profiles)))["position"]
    assert told.startswith("norm=large's difference")


def test_a_row_that_is_broken_down_without_a_loss_of_its_own_is_passed_over(tmp_path: Path) -> None:
    """Its record lacks the loss at the best step; the losses of every target are there."""
    many = {"data": {"epochs": 9.0}}
    odd = fake_record("c", 1.3, test_loss_nats_at_best=None, parts={"pos": "rope"}, **many)
    put_study(tmp_path, "s", [fake_record("a", 1.5, **many), fake_record("b", 1.4, **RMS, **many), odd])
    for run in ("a", "c"):
        put_losses(tmp_path, run, np.ones((2, 4), np.float32), "test_losses_best.npy")
    table = table_of(tmp_path)
    assert table.by_position is not None and "norm=rms (-0.100)" in table.findings["verdict"]


def test_a_difference_of_nothing_comes_from_nowhere(tmp_path: Path) -> None:
    table = put_rows(tmp_path, {"a": -0.2})
    nothing = Breakdown(["0-0.1", "over 4"], [0.5, 0.5], [Profile("norm=a", [0.0, 0.0], [0, 0], [0, 0])])
    assert "knowledge" not in table_findings(replace(table, by_knowledge=nothing))


# ------------------------------------------------------------------------------------------------- cost


def test_what_no_row_beats_in_both_loss_and_cost_is_the_slow_loops(tmp_path: Path) -> None:
    points = {"a": (10, 1.5), "c": (20, 1.4), "d": (20, 1.45), "e": (5, 1.9), "f": (30, 1.41), "g": (10, 1.5)}
    records = [fake_record("b", 1.6, flops_per_token=8)]
    records += [fake_record(n, loss, parts={"norm": n}, flops_per_token=flops) for n, (flops, loss) in points.items()]
    put_study(tmp_path, "s", records)
    every = {"vanilla": (8, 1.6), **{f"norm={name}": point for name, point in points.items()}}
    front = []
    for name, (flops, loss) in every.items():
        beaten = False
        for other_flops, other_loss in every.values():
            no_worse = other_flops <= flops and other_loss <= loss
            beaten = beaten or (no_worse and (other_flops < flops or other_loss < loss))
        if not beaten:
            front.append(name)
    assert set(front) == {"norm=e", "vanilla", "norm=a", "norm=g", "norm=c"}
    sentence = table_of(tmp_path).findings["cost"].removesuffix(".")
    names, _, more = sentence.partition(": ")[2].partition(" and ")
    assert set(names.split(", ")) <= set(front)
    assert set(names.split(", ")) == set(front) or more == f"{5 - len(names.split(', '))} more"


# ------------------------------------------------------------------------------------------------- attribution


def one(nats: float) -> Estimate:
    return Estimate(nats, nats - 0.01, nats + 0.01, 3)


FOUND = Attribution(
    study="s",
    base="vanilla",
    counterpart="llama",
    axes=("norm", "pos", "ffn"),
    design="partial",
    metric="test_loss_nats",
    total=one(-0.2),
    add_one_in={},
    leave_one_out={},
    walk=[],
    main_effects={},
    interactions={},
    shapley={},
    model=None,
    depends_on_the_rest=[],
    findings={},
)


def test_shapley_values_are_told_by_size() -> None:
    shapley = {"norm": one(-0.01), "pos": one(0.04), "ffn": one(-0.23)}
    found = replace(FOUND, shapley=shapley, walk=[("norm", one(1.0))])
    assert attribution_findings(found)["verdict"] == (
        "From vanilla to llama, -0.200 nats: Shapley values ffn -0.230, pos +0.040, norm -0.010."
    )


def test_without_shapley_values_the_walk_is_told_in_its_order() -> None:
    found = replace(FOUND, walk=[("pos", one(0.04)), ("norm", one(-0.01)), ("ffn", one(-0.23))])
    assert attribution_findings(found)["verdict"] == (
        "From vanilla to llama, -0.200 nats: step by step pos +0.040, norm -0.010, ffn -0.230."
    )


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ([], ""),
        (["ffn"], " What ffn does depends on the rest."),
        (["norm", "ffn"], " What norm and ffn do depends on the rest."),
        (["norm", "pos", "ffn"], " What norm, pos and ffn do depends on the rest."),
    ],
)
def test_parts_that_depend_on_the_rest_are_named(rest: list[str], words: str) -> None:
    found = replace(
        FOUND, total=None, add_one_in={"ffn": one(-0.1)}, leave_one_out={"ffn": one(0.05)}, depends_on_the_rest=rest
    )
    assert attribution_findings(found)["verdict"] == (
        f"From vanilla to llama: one part at a time, in vanilla and in llama, ffn -0.100 and +0.050.{words}"
    )


def test_each_figure_of_an_attribution_has_a_sentence_where_there_is_data() -> None:
    assert set(attribution_findings(FOUND)) == {"verdict"}
    pairs = {"norm*pos": one(0.004), "norm*ffn": one(-0.030), "pos*ffn": Estimate(0.02, -0.02, 0.06, 3)}
    found = replace(
        FOUND,
        walk=[("pos", one(0.04)), ("norm", one(-0.01)), ("ffn", one(-0.23))],
        add_one_in={"norm": one(-0.1)},
        leave_one_out={"norm": one(0.05), "ffn": one(-0.2)},
        interactions=pairs,
    )
    sentences = attribution_findings(found)
    assert set(sentences) == {"verdict", "walk", "shapley", "interactions"}
    assert "ffn's, -0.230 of -0.200 nats" in sentences["walk"]
    assert (
        "norm -0.100 and +0.050, ffn unknown and -0.200" in sentences["shapley"] and "pos" not in sentences["shapley"]
    )
    assert "norm and ffn earn more than their sum by 0.030 nats" in sentences["interactions"]
    assert "of 3 pairs, 1 have an interval clear of 0" in sentences["interactions"].replace("has an", "have an")
