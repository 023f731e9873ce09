"""What lies beside the records: curves, losses target by target, samples, digests; against slow loops."""

import io
import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from fake_runs import fake_record, put, put_curve, put_losses, put_rungs, put_study
from scipy import stats

from anatomy.report.data import Breakdown, Curve, Sample, Shared, Table
from anatomy.report.evidence import NUM_DETAILED
from anatomy.report.table import build_report

W, T = 7, 11  # windows and targets a window
SHORT = {"config": {"model.ctx_len": T}}
RMS = {"parts": {"norm": "rms"}}
ROPE = {"parts": {"pos": "rope"}}


def table_of(outputs: Path) -> Table:
    (table,) = build_report(outputs).studies
    return table


def put_pair(outputs: Path, num_seeds: int = 3, **what: object) -> dict[str, np.ndarray]:
    """Base and one swap with random losses on every target: label-seed -> losses (W, T)."""
    rng = np.random.default_rng(1)
    records = [fake_record(f"b-{seed}", 1.6, seed=seed, **SHORT, **what) for seed in range(num_seeds)]  # type: ignore[arg-type]
    records += [fake_record(f"r-{seed}", 1.5, seed=seed, **SHORT, **RMS, **what) for seed in range(num_seeds)]  # type: ignore[arg-type]
    put_study(outputs, "s", records)
    losses = {str(record["run"]): rng.exponential(1.5, (W, T)).astype(np.float32) for record in records}
    for run, of_run in losses.items():
        put_losses(outputs, run, of_run)
    return losses


# ------------------------------------------------------------------------------------------------- curves


def test_a_curve_is_mean_least_and_greatest_over_the_steps_that_all_seeds_have(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record(f"a-{seed}", seed=seed) for seed in range(3)])
    put_curve(tmp_path, "a-0", {0: 4.0, 100: 3.0, 200: 2.5})
    put_curve(tmp_path, "a-1", {0: 4.5, 200: 2.0, 100: 3.5, 300: 1.0})
    put_curve(tmp_path, "a-2", {0: 3.5, 150: 9.0, 100: 3.1, 200: 2.4})
    (curve,) = table_of(tmp_path).curves
    mean = [pytest.approx(4.0), pytest.approx(9.6 / 3), pytest.approx(6.9 / 3)]
    assert curve == Curve("base", [0, 100, 200], mean, [3.5, 3.0, 2.0], [4.5, 3.5, 2.5], 3)


@pytest.mark.parametrize(
    "tail", ['{"step": 200, "val_lo', "\n", "{}", "[1]", '{"step": 200, "val_loss_nats": "x"}', "\x00"]
)
def test_a_last_line_that_was_cut_short_is_left_out(tmp_path: Path, tail: str) -> None:
    put_study(tmp_path, "s", [fake_record("a")])
    put_curve(tmp_path, "a", {0: 4.0, 100: 3.0}, tail=tail)
    (curve,) = table_of(tmp_path).curves
    assert (curve.steps, curve.mean) == ([0, 100], [4.0, 3.0])


def test_an_evaluation_without_a_loss_is_no_point_of_the_curve(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a")])
    put_curve(tmp_path, "a", {0: 4.0, 100: None, 200: 3.0, 300: math.nan, 400: math.inf})
    assert table_of(tmp_path).curves[0].steps == [0, 200]


def test_a_seed_without_a_curve_leaves_it_to_the_others(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record(f"a-{seed}", seed=seed) for seed in range(3)])
    put_curve(tmp_path, "a-1", {0: 4.0})
    (tmp_path / "runs" / "a-2" / "metrics.jsonl").write_bytes(b"\xff\xfe")
    (curve,) = table_of(tmp_path).curves
    assert (curve.steps, curve.num_seeds) == ([0], 1)


@pytest.mark.parametrize("others", [{}, {50: 3.0}])
def test_without_common_steps_there_is_no_curve(tmp_path: Path, others: dict) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", **RMS), fake_record("c", seed=1, **RMS)])
    put_curve(tmp_path, "b", {0: 4.0} if others else {})
    put_curve(tmp_path, "c", others)
    assert table_of(tmp_path).curves == []


def test_runs_that_did_not_finish_are_in_no_curve(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", seed=1, status="diverged")])
    put_curve(tmp_path, "a", {0: 4.0})
    put_curve(tmp_path, "b", {0: 9.0})
    assert table_of(tmp_path).curves[0].mean == [4.0]


def test_the_last_three_evaluations_are_averaged(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", seed=1)])
    put_curve(tmp_path, "a", {0: 9.0, 1: 8.0, 2: 3.0, 3: 2.0, 4: 1.0})
    put_curve(tmp_path, "b", {0: 9.0, 1: 8.0, 2: 4.0, 3: 3.0, 4: 2.0})
    row = table_of(tmp_path).rows[0]
    assert row.last_three_val_loss_nats_mean == pytest.approx((3 + 2 + 1 + 4 + 3 + 2) / 6)


# ------------------------------------------------------------------------------------------------- target by target


def by_hand(losses: dict[str, np.ndarray], bins: list[list[tuple[int, int]]], num_seeds: int = 3) -> list[list[float]]:
    """Bin -> the mean difference of each seed, one target at a time."""
    return [
        [sum(float(losses[f"r-{s}"][w, t]) - float(losses[f"b-{s}"][w, t]) for w, t in targets) / len(targets)
         for s in range(num_seeds)]
        for targets in bins
    ]  # fmt: skip


def assert_breakdown(
    found: Breakdown | None, names: list[str], bins: list[list[tuple[int, int]]], seeds: list[list[float]]
) -> None:
    assert found is not None
    assert list(found.bins) == names
    assert list(found.shares) == pytest.approx([len(targets) / (W * T) for targets in bins]) and sum(
        found.shares
    ) == pytest.approx(1)
    (profile,) = found.profiles
    assert profile.row == "norm=rms"
    for of_bin, mean, low, high in zip(seeds, profile.mean, profile.low, profile.high, strict=True):
        expected = (sum(of_bin) / len(of_bin), min(of_bin), max(of_bin))
        assert (mean, low, high) == pytest.approx(expected, abs=1e-6)


def test_differences_by_position_are_those_of_a_slow_loop(tmp_path: Path) -> None:
    losses = put_pair(tmp_path)
    edges = {"1": (0, 1), "2": (1, 2), "3-4": (2, 4), "5-8": (4, 8), "9-11": (8, 11)}
    bins = [list(product(range(W), range(*edge))) for edge in edges.values()]
    assert_breakdown(table_of(tmp_path).by_position, list(edges), bins, by_hand(losses, bins))


@pytest.mark.parametrize(
    ("length", "names"),
    [(1, "1"), (2, "1 2"), (3, "1 2 3"), (4, "1 2 3-4"), (5, "1 2 3-4 5"), (64, "1 2 3-4 5-8 9-16 17-32 33-64")],
)
def test_bins_of_positions_double_in_width(tmp_path: Path, length: int, names: str) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", **RMS)])
    for run in ("a", "b"):
        put_losses(tmp_path, run, np.ones((3, length), np.float32))
    breakdown = table_of(tmp_path).by_position
    assert breakdown is not None and list(breakdown.bins) == names.split()
    assert sum(breakdown.shares) == pytest.approx(1)


def test_differences_by_what_the_table_knew_are_those_of_a_slow_loop(tmp_path: Path) -> None:
    losses = put_pair(tmp_path)
    ngram = np.random.default_rng(2).choice(np.array([0, 0.05, 0.1, 0.3, 0.5, 2, 3.9, 4, 11], np.float32), (W, T))
    put_rungs(tmp_path, ctx_len=T, num_windows=W, ngram_losses_WT=ngram)
    edges = {"0-0.1": (0, 0.1), "0.1-0.5": (0.1, 0.5), "0.5-1": (0.5, 1), "2-4": (2, 4), "over 4": (4, math.inf)}
    targets = list(product(range(W), range(T)))
    bins = [[wt for wt in targets if np.float32(low) <= ngram[wt] < np.float32(high)] for low, high in edges.values()]
    assert min(map(len, bins)) > 0 and sum(map(len, bins)) == W * T  # none is in 1-2, which is left out
    assert_breakdown(table_of(tmp_path).by_knowledge, list(edges), bins, by_hand(losses, bins))


@pytest.mark.parametrize("shape", [(W + 1, T), (W, T)])
def test_without_the_tables_losses_on_these_very_targets_nothing_is_sorted_by_them(
    tmp_path: Path, shape: tuple[int, int]
) -> None:
    put_pair(tmp_path)
    put_rungs(tmp_path, ctx_len=T, num_windows=shape[0], ngram_losses_WT=np.ones(shape))
    assert (table_of(tmp_path).by_knowledge is None) == (shape != (W, T))
    (tmp_path / "corpora").rename(tmp_path / "gone")
    table = table_of(tmp_path)
    assert table.by_knowledge is None and table.by_position is not None


def test_profiles_weighted_by_their_shares_sum_to_the_difference_of_all_targets(tmp_path: Path) -> None:
    losses = put_pair(tmp_path)
    put_rungs(tmp_path, ctx_len=T, num_windows=W, ngram_losses_WT=np.random.default_rng(2).exponential(1, (W, T)))
    whole = np.mean([np.mean(losses[f"r-{s}"].astype(float) - losses[f"b-{s}"]) for s in range(3)])
    table = table_of(tmp_path)
    for breakdown in (table.by_position, table.by_knowledge):
        assert breakdown is not None
        parts = [share * mean for share, mean in zip(breakdown.shares, breakdown.profiles[0].mean, strict=True)]
        assert sum(parts) == pytest.approx(whole, abs=1e-6)


def test_compared_at_their_best_runs_are_broken_down_at_their_best(tmp_path: Path) -> None:
    put_pair(tmp_path, data={"epochs": 9.0})
    for seed in range(3):
        put_losses(tmp_path, f"b-{seed}", np.ones((W, T), np.float32), "test_losses_best.npy")
        put_losses(tmp_path, f"r-{seed}", np.full((W, T), 0.75, np.float32), "test_losses_best.npy")
    table = table_of(tmp_path)
    assert table.metric == "test_loss_nats_at_best" and table.by_position is not None
    assert set(table.by_position.profiles[0].mean) == {-0.25}


def npz() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, np.ones((W, T), np.float32))
    return buffer.getvalue()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


SOUND = npy(np.ones((W, T), np.float32))
WITH_NAN = np.ones((W, T), np.float32)
WITH_NAN[3, 4] = np.nan


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"losses", id="text"),
        pytest.param(SOUND[:-5], id="cut short"),
        pytest.param(SOUND[:20], id="cut in its heading"),
        pytest.param(npy(WITH_NAN), id="NaN"),
        pytest.param(npy(np.full((W, T), np.inf, np.float32)), id="inf"),
        pytest.param(npy(np.ones(W * T, np.float32)), id="one dimension"),
        pytest.param(npy(np.ones((W, T, 2), np.float32)), id="three dimensions"),
        pytest.param(npy(np.ones((W, T), np.int32)), id="whole numbers"),
        pytest.param(npy(np.array([["a"] * T] * W)), id="words"),
        pytest.param(npy(np.ones((W, T), object)), id="a pickle"),
        pytest.param(npy(np.ones((0, T), np.float32)), id="no window"),
        pytest.param(npy(np.ones((W, 0), np.float32)), id="no target"),
        pytest.param(npy(np.ones((W + 1, T), np.float32)), id="another number of windows"),
        pytest.param(npy(np.ones((T, W), np.float32)), id="turned"),
        pytest.param(npz(), id="an archive"),
        pytest.param(npz()[:40], id="an archive cut short"),
        pytest.param(SOUND.replace(f"({W}, {T})".encode(), b"(10**15"), id="a heading that is no shape"),
        pytest.param(SOUND.replace(b"(7, 11), }      ", b"(999999999999,)}"), id="a heading beyond memory"),
    ],
)
def test_losses_that_cannot_be_read_are_as_if_they_were_not_there(tmp_path: Path, content: bytes) -> None:
    losses = put_pair(tmp_path)
    (tmp_path / "runs" / "r-1" / "test_losses.npy").write_bytes(content)
    damaged = table_of(tmp_path)
    (tmp_path / "runs" / "r-1" / "test_losses.npy").unlink()
    assert damaged.by_position == table_of(tmp_path).by_position and damaged.by_position is not None
    expected = np.mean([losses[f"r-{s}"][:, 0].astype(float) - losses[f"b-{s}"][:, 0] for s in (0, 2)])
    assert damaged.by_position.profiles[0].mean[0] == pytest.approx(expected, abs=1e-6)


def test_a_base_without_losses_leaves_nothing_to_break_down(tmp_path: Path) -> None:
    put_pair(tmp_path)
    for seed in range(3):
        (tmp_path / "runs" / f"b-{seed}" / "test_losses.npy").unlink()
    table = table_of(tmp_path)
    assert table.by_position is None and table.by_knowledge is None and table.rows[1].text_share is None


def test_a_row_of_another_shape_than_most_has_no_profile(tmp_path: Path) -> None:
    records = [fake_record(label, seed=0, **what) for label, what in (("b", {}), ("r", RMS), ("p", ROPE))]
    records += [fake_record("b1", seed=1), fake_record("g", seed=1, parts={"ffn": "relu"})]
    put_study(tmp_path, "s", records)
    for run in ("b", "r", "p"):
        put_losses(tmp_path, run, np.ones((W, T), np.float32))
    for run in ("b1", "g"):
        put_losses(tmp_path, run, np.ones((W, 3), np.float32))
    breakdown = table_of(tmp_path).by_position
    assert breakdown is not None and [profile.row for profile in breakdown.profiles] == ["norm=rms", "pos=rope"]


# ------------------------------------------------------------------------------------------------- the text's noise


def test_the_texts_share_of_the_error_is_that_of_a_bootstrap_over_windows(tmp_path: Path) -> None:
    rng, num_windows = np.random.default_rng(7), 200
    finals = [(1.6, 1.52), (1.7, 1.60), (1.65, 1.58), (1.55, 1.49)]
    records = []
    for seed, (base, swap) in enumerate(finals):
        records += [fake_record(f"b-{seed}", base, seed=seed), fake_record(f"r-{seed}", swap, seed=seed, **RMS)]
    put_study(tmp_path, "s", records)
    by_window = rng.normal(-0.08, 0.3, (num_windows, 1))
    differences = []
    for seed in range(4):
        base = rng.exponential(1.5, (num_windows, T)).astype(np.float32)
        mine = (base + by_window + rng.normal(0, 0.2, (num_windows, T))).astype(np.float32)
        differences.append(mine.astype(float) - base)
        put_losses(tmp_path, f"b-{seed}", base)
        put_losses(tmp_path, f"r-{seed}", mine)
    means = np.mean([difference.mean(axis=1) for difference in differences], axis=0)
    bootstrap = stats.bootstrap((means,), np.mean, n_resamples=20_000, rng=np.random.default_rng(8), method="basic")
    of_seeds = stats.sem([swap - base for base, swap in finals])
    row = table_of(tmp_path).rows[1]
    assert row.text_share == pytest.approx(bootstrap.standard_error / of_seeds, rel=0.03)


@pytest.mark.parametrize(("spread", "is_warned"), [(0.02, False), (0.2, True)])
def test_a_text_that_matters_beside_the_seeds_is_a_warning(tmp_path: Path, spread: float, is_warned: bool) -> None:
    rng, finals = np.random.default_rng(0), (-0.10, -0.08, -0.12)
    records = [fake_record(f"b{s}", 1.6, seed=s) for s in range(3)]
    put_study(tmp_path, "s", [*records, *(fake_record(f"r{s}", 1.6 + finals[s], seed=s, **RMS) for s in range(3))])
    by_window = rng.normal(0, spread, (100, 1))
    for seed in range(3):
        put_losses(tmp_path, f"b{seed}", np.ones((100, T), np.float32))
        put_losses(tmp_path, f"r{seed}", (1 + by_window * np.ones((1, T))).astype(np.float32))
    table = table_of(tmp_path)
    share = float(np.std(by_window)) / math.sqrt(100) / (0.02 / math.sqrt(3))
    assert table.rows[1].text_share == pytest.approx(share, rel=1e-3) and (share > 0.25) == is_warned
    assert any("test text" in warning and "norm=rms" in warning for warning in table.warnings) == is_warned


def test_a_single_seed_has_no_share_of_the_text(tmp_path: Path) -> None:
    put_pair(tmp_path, num_seeds=1)
    table = table_of(tmp_path)
    assert table.rows[1].text_share is None and table.by_position is not None


# ------------------------------------------------------------------------------------------------- samples, digests


def test_a_sample_is_that_of_a_rows_first_finished_seed(tmp_path: Path) -> None:
    records = [
        fake_record("a", status="diverged", sample="lost"),
        fake_record("b", seed=1, sample="In the beginning"),
        fake_record("c", seed=2, sample="And the"),
        fake_record("d", seed=1, sample=None, **RMS),
        fake_record("e", seed=1, sample={"text": "x"}, **ROPE),
    ]
    put_study(tmp_path, "s", records)
    assert table_of(tmp_path).samples == [Sample("base", 1, "In the beginning")]


def test_tensors_are_shared_where_their_first_digests_agree(tmp_path: Path) -> None:
    base = {
        "embed.weight": "e0",
        "blocks.0.norm.weight": "n0",
        "blocks.0.norm.bias": "z0",
        "blocks.1.norm.weight": "n1",
        "blocks.1.norm.bias": "z1",
        "blocks.0.ffn.up_proj.weight": "u0",
        "blocks.11.ffn.up_proj.weight": "u1",
        "norm.bias": "z",
    }
    swap = {name: digest for name, digest in base.items() if not name.endswith("bias")}
    swap |= {"blocks.0.ffn.up_proj.weight": "other", "blocks.11.ffn.up_proj.weight": "another"}
    swap |= {"blocks.0.ffn.gate_proj.weight": "g0", "blocks.1.ffn.gate_proj.weight": "g1"}
    put_study(tmp_path, "s", [fake_record("a", init_digests=base), fake_record("b", init_digests=swap, **RMS)])
    assert table_of(tmp_path).shared == [
        Shared(
            row="norm=rms",
            num_shared=3,
            changed=["blocks.*.ffn.up_proj.weight"],
            only_in_row=["blocks.*.ffn.gate_proj.weight"],
            only_in_base=["blocks.*.norm.bias", "norm.bias"],
        )
    ]


def test_digests_of_different_seeds_are_never_held_against_each_other(tmp_path: Path) -> None:
    records = [fake_record("a", init_digests={"x": "0"}), fake_record("b", seed=1, init_digests={"x": "1"}, **RMS)]
    put_study(tmp_path, "s", records)
    assert table_of(tmp_path).shared == []


def test_digests_are_held_against_each_other_for_a_seed_that_both_have(tmp_path: Path) -> None:
    """Seed 0 of the row diverged."""
    records = [
        fake_record("a", init_digests={"x": "0"}),
        fake_record("b", seed=1, init_digests={"x": "1"}),
        fake_record("c", status="diverged", init_digests={"x": "0"}, **RMS),
        fake_record("d", seed=1, init_digests={"x": "1"}, **RMS),
    ]
    put_study(tmp_path, "s", records)
    assert table_of(tmp_path).shared == [Shared("norm=rms", 1, [], [], [])]


@pytest.mark.parametrize("odd", [None, [], "x", {}])
def test_a_record_without_digests_shares_nothing_that_is_known(tmp_path: Path, odd: object) -> None:
    put_study(tmp_path, "s", [fake_record("a", init_digests={"x": "0"}), fake_record("b", **RMS)])
    put(tmp_path, {**fake_record("b", **RMS), "init_digests": odd})
    assert table_of(tmp_path).shared == []


# ------------------------------------------------------------------------------------------------- how much is read


def test_only_a_tables_first_rows_are_read_so_closely(tmp_path: Path) -> None:
    names = [f"p{i:02}" for i in range(NUM_DETAILED + 3)]
    records = [fake_record("b"), fake_record("f", status="failed", parts={"norm": "failed"})]
    put_study(tmp_path, "s", [*records, *(fake_record(name, sample="x", parts={"norm": name}) for name in names)])
    for run in ("b", *names):
        put_curve(tmp_path, run, {0: 4.0})
        put_losses(tmp_path, run, np.ones((W, T), np.float32))
    table = table_of(tmp_path)
    detailed = [f"norm={name}" for name in names[: NUM_DETAILED - 1]]
    assert len(table.rows) == NUM_DETAILED + 5
    assert [curve.row for curve in table.curves] == ["base", *detailed]
    assert table.by_position is not None and [profile.row for profile in table.by_position.profiles] == detailed
    assert [sample.row for sample in table.samples] == detailed


@pytest.mark.parametrize("odd", [np.nan, np.inf, "words"])
def test_losses_of_the_tables_that_are_no_numbers_sort_nothing(tmp_path: Path, odd: object) -> None:
    put_pair(tmp_path)
    put_rungs(tmp_path, ctx_len=T, num_windows=W, ngram_losses_WT=np.ones((W, T)))
    file = next(tmp_path.glob("corpora/*/rung_losses.npy"))
    np.save(file, np.full((6, W, T), odd, np.dtype(type(odd)) if odd == "words" else np.float32))
    table = table_of(tmp_path)
    assert table.by_knowledge is None and table.by_position is not None
