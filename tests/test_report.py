"""The report's data: rows, names, what is compared with what, and what is set aside."""

import json
import math
import statistics
from pathlib import Path

import pytest
from fake_runs import fake_record, put, put_rungs, put_study

from anatomy.errors import UserError
from anatomy.report.data import Row, Table
from anatomy.report.measure import rung_of
from anatomy.report.table import build_report
from anatomy.runs import Entry, owned, record_entries

LOSSES = {0: 1.70, 1: 1.64, 2: 1.75}
RMS_LOSSES = {0: 1.68, 1: 1.66, 2: 1.71}


def seeds_of(label: str, losses: dict[int, float], **what: object) -> list[dict]:
    return [fake_record(f"{label}-{seed}", loss, seed=seed, **what) for seed, loss in losses.items()]  # type: ignore[arg-type]


def table_of(outputs: Path, **kwargs: object) -> Table:
    (table,) = build_report(outputs).studies
    return table


def rows_of(outputs: Path) -> dict[str, Row]:
    return {row.name: row for row in table_of(outputs).rows}


def test_means_spreads_and_paired_differences_are_those_of_the_seeds(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", RMS_LOSSES, parts={"norm": "rms"})])
    rows = rows_of(tmp_path)
    assert list(rows) == ["base", "norm=rms"]
    for row, losses in ((rows["base"], LOSSES), (rows["norm=rms"], RMS_LOSSES)):
        assert (row.num_seeds, row.seeds, row.status) == (3, [0, 1, 2], "done")
        assert row.test_loss_nats_mean == pytest.approx(statistics.fmean(losses.values()))
        assert row.test_loss_nats_sd == pytest.approx(statistics.stdev(losses.values()))
        assert row.test_bits_per_char == pytest.approx(statistics.fmean(losses.values()) / math.log(2))
    expected = statistics.fmean(RMS_LOSSES[seed] - LOSSES[seed] for seed in LOSSES)
    assert rows["norm=rms"].difference_nats == pytest.approx(expected) and rows["base"].difference_nats is None


def test_one_seed_has_no_spread(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.5)])
    assert rows_of(tmp_path)["base"].test_loss_nats_sd is None


def test_only_seeds_that_both_have_are_paired(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", {1: 1.5, 7: 9.0}, parts={"norm": "rms"})])
    row = rows_of(tmp_path)["norm=rms"]
    assert (row.num_seeds, row.num_pairs) == (2, 1)
    assert row.difference_nats == pytest.approx(1.5 - LOSSES[1])


@pytest.mark.parametrize(
    ("parts", "config", "name"),
    [
        ({"norm": "rms"}, {}, "norm=rms"),
        ({"pos": "rope", "norm": "rms"}, {}, "norm=rms pos=rope"),
        ({}, {"train.lr": 0.001}, "train.lr=0.001"),
        ({}, {"norm.eps": 0.5}, "norm.eps=0.5"),
        ({"ffn": "swiglu"}, {"train.lr": 0.001}, "ffn=swiglu train.lr=0.001"),
        ({}, {"ffn.hidden": 96}, "ffn.hidden=96"),
        ({}, {"train.betas": [0.5, 0.9]}, "train.betas=[0.5,0.9]"),
        ({"norm": "rms", "placement": "pre", "pos": "rope", "attn": "gqa", "ffn": "swiglu"}, {}, "llama"),
    ],
)
def test_a_row_is_named_by_its_sorted_differences(tmp_path: Path, parts: dict, config: dict, name: str) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b"), fake_record("c", parts=parts, config=config)])
    assert name in rows_of(tmp_path)


def test_knobs_of_a_changed_part_are_named_where_rows_differ_in_them(tmp_path: Path) -> None:
    rope = [fake_record(f"r{t}", parts={"pos": "rope"}, config={"pos.theta": t}) for t in (500.0, 10000.0)]
    put_study(tmp_path, "s", [fake_record("a"), *rope])
    assert set(rows_of(tmp_path)) == {"base", "pos=rope pos.theta=500", "pos=rope pos.theta=10000"} or set(
        rows_of(tmp_path)
    ) == {"base", "pos.theta=500 pos=rope", "pos.theta=10000 pos=rope"}


def test_labels_and_words_never_make_a_row(tmp_path: Path) -> None:
    same = fake_record("b", seed=1, config={"scale": "article", "output_dir": "elsewhere", "ffn.hidden": 192})
    put_study(tmp_path, "s", [fake_record("a"), same])
    assert rows_of(tmp_path)["base"].seeds == [0, 1]


def test_both_directions_include_the_counterparts_base_once(tmp_path: Path) -> None:
    llama = seeds_of("l", {0: 1.40, 1: 1.41}, base="llama")
    put_study(tmp_path, "s", [*seeds_of("b", {0: 1.70, 1: 1.64}), *llama])
    vanilla, llama_table = build_report(tmp_path).studies
    assert [row.name for row in vanilla.rows] == ["base", "llama"]
    assert [row.name for row in llama_table.rows] == ["base", "vanilla"]
    assert vanilla.rows[1].difference_nats == pytest.approx(((1.40 - 1.70) + (1.41 - 1.64)) / 2)


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"config": {"train.steps": 50}}, "train.steps=50, the base has 1000"),
        ({"config": {"train.batch_size": 8}}, "train.batch_size=8, the base has 16"),
        ({"config": {"train.schedule": "constant"}}, "train.schedule=constant, the base has cosine"),
        ({"data": {"sha256": "cd" * 32}}, "corpus.sha256"),
        ({"data": {"batch_order_sha256": "another"}}, "other batches"),
        ({"num_test_targets": 64}, "num_test_targets=64, the base has 102400"),
    ],
)
def test_what_cannot_be_compared_is_set_aside_with_its_reason(tmp_path: Path, what: dict, reason: str) -> None:
    records = [*seeds_of("b", LOSSES), fake_record("odd", 1.0, parts={"norm": "rms"}, **what)]
    put_study(tmp_path, "s", records)
    table = table_of(tmp_path)
    assert [row.name for row in table.rows] == ["base"]
    (aside,) = table.set_aside
    assert aside.run == "odd" and reason in aside.reason


def test_a_seed_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("first", 1.5), fake_record("second", 9.0)])
    table = table_of(tmp_path)
    assert table.rows[0].test_loss_nats_mean == 1.5
    assert [(aside.run, "seed 0 is there twice" in aside.reason) for aside in table.set_aside] == [("second", True)]


def test_diverged_failed_running_and_planned_runs_stay_visible(tmp_path: Path) -> None:
    rms = {"parts": {"norm": "rms"}}
    put_study(
        tmp_path,
        "s",
        [
            *seeds_of("b", {0: 1.7, 1: 1.6}),
            fake_record("d", status="diverged", **rms),
            fake_record("e", 1.5, seed=1, **rms),
            fake_record("f", status="failed", parts={"pos": "rope"}),
            fake_record("g", status="running", parts={"attn": "mqa"}),
        ],
    )
    refused = Entry("vanilla", "bias", ["swap=bias"], 0, None, None, "changes nothing")
    planned = Entry("vanilla", "none", ["ffn=relu"], 0, None, "not-there-yet", None)
    record_entries(tmp_path / "studies" / "s", {}, [refused, planned])
    with owned(tmp_path / "runs" / "g"):
        rows = rows_of(tmp_path)
    assert (rows["norm=rms"].status, rows["norm=rms"].num_diverged, rows["norm=rms"].num_seeds) == (
        "diverged 1/2",
        1,
        1,
    )
    assert rows["pos=rope"].status == "failed" and rows["pos=rope"].errors == ["seed 0: made to fail"]
    assert rows["attn=mqa"].status == "running" and rows_of(tmp_path)["attn=mqa"].status == "interrupted"
    assert rows["swap=bias"].status == "failed" and rows["swap=bias"].errors == ["seed 0: changes nothing"]
    assert rows["ffn=relu"].status == "planned"


@pytest.mark.parametrize(
    "content", ["", "{", '{"schema": 2}', '{"schema": 1, "status": "odd"}', "[]", '{"schema": 1, "status": "done"}']
)
def test_a_damaged_record_is_set_aside(tmp_path: Path, content: str) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), fake_record("damaged", seed=9)])
    (tmp_path / "runs" / "damaged" / "result.json").write_text(content)
    table = table_of(tmp_path)
    assert table.rows[0].seeds == [0, 1, 2]
    assert [aside.run for aside in table.set_aside] == ["damaged"] and "damaged" in table.set_aside[0].reason


def test_a_damaged_manifest_is_a_warning(tmp_path: Path) -> None:
    put_study(tmp_path, "s", seeds_of("b", LOSSES))
    (tmp_path / "studies" / "s" / "study.json").write_text("{")
    report = build_report(tmp_path)
    assert "damaged manifest" in report.warnings[0] and report.studies[0].study == "adhoc"


def test_runs_of_different_code_are_a_warning(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", seed=1, env={"commit": "other"})])
    assert any("different code" in warning for warning in table_of(tmp_path).warnings)


def test_a_study_without_its_base_has_no_differences_and_says_what_to_type(tmp_path: Path) -> None:
    put_study(tmp_path, "s", seeds_of("r", LOSSES, parts={"norm": "rms"}))
    table = table_of(tmp_path)
    assert table.rows[0].difference_nats is None and not build_report(tmp_path).is_comparable
    assert any("type: anatomy-train study=s" in warning for warning in table.warnings)


def test_runs_that_saw_their_text_more_than_once_are_compared_at_their_best(tmp_path: Path) -> None:
    def records(label: str, final: float, best: float, **what: object) -> dict:
        return fake_record(
            label, final, data={"epochs": 9.3}, test_loss_nats_at_best=best, best_val_loss_nats=best, **what
        )  # type: ignore[arg-type]

    put_study(tmp_path, "s", [records("a", 5.0, 3.7), records("b", 6.0, 3.6, parts={"norm": "rms"})])
    table = table_of(tmp_path)
    assert table.metric == "test_loss_nats_at_best"
    assert table.rows[1].difference_nats == pytest.approx(-0.1) and table.rows[1].over_fitted is True


def test_deviations_are_percent_of_the_base(tmp_path: Path) -> None:
    smaller = fake_record("b", parts={"attn": "mqa"}, num_params=80_000, num_params_by_axis={"attn": 14_816})
    put_study(tmp_path, "s", [fake_record("a"), smaller])
    row = rows_of(tmp_path)["attn=mqa"]
    assert row.num_params_percent == pytest.approx(100 * (80_000 / 92_832 - 1))
    assert row.block_params_percent == pytest.approx(100 * ((576 + 14_816 + 55_296) / (576 + 27_648 + 55_296) - 1))


def test_a_row_stands_between_its_rungs(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.62)])
    assert rows_of(tmp_path)["base"].rung is None
    put_rungs(tmp_path)
    assert rows_of(tmp_path)["base"].rung == pytest.approx(3.4)


@pytest.mark.parametrize(
    ("loss", "rung"), [(9.0, 0), (math.log(65), 0), (3.0, 1), (2.5, 1.5), (2.0, 2), (1.6, 3.5), (1.3, 6), (0.5, 6)]
)
def test_rungs_are_linear_between_tables(loss: float, rung: float) -> None:
    rungs = {"1": 3.0, "2": 2.0, "3": 1.7, "4": 1.5, "5": 1.4, "6": 1.3, "xz": 1.4}
    assert rung_of(loss, rungs, 65) == pytest.approx(rung)


def test_a_longer_table_that_is_worse_is_no_rung() -> None:
    rungs = {"1": 6.0, "2": 4.7, "3": 4.4, "4": 4.5, "5": 4.6, "6": 4.7}
    assert rung_of(4.55, rungs, 4000) == pytest.approx(2.5) and rung_of(4.4, rungs, 4000) == 6


def test_folders_of_every_kind_are_read(tmp_path: Path) -> None:
    put_study(tmp_path, "s", seeds_of("b", LOSSES))
    put(tmp_path, fake_record("loose", parts={"norm": "rms"}))
    assert [table.study for table in build_report(tmp_path).studies] == ["s", "adhoc"]
    assert [table.study for table in build_report(tmp_path / "studies" / "s").studies] == ["s"]
    (pool,) = build_report(tmp_path / "runs").studies
    assert [row.name for row in pool.rows] == ["base", "norm=rms"]
    (single,) = build_report(tmp_path / "runs" / "loose").studies
    assert [row.num_seeds for row in single.rows] == [1]
    assert build_report(tmp_path, ["s"]).studies[0].study == "s"
    with pytest.raises(UserError, match="Did you mean"):
        build_report(tmp_path, ["s", "ss"])


def test_an_empty_folder_has_nothing_and_a_file_is_refused(tmp_path: Path) -> None:
    assert build_report(tmp_path).studies == []
    (tmp_path / "file").write_text("")
    for wrong in ("file", "missing"):
        with pytest.raises(UserError, match="type: anatomy-report DIR"):
            build_report(tmp_path / wrong)


def test_the_json_has_the_keys_of_the_contract(tmp_path: Path) -> None:
    from anatomy.report.views import to_json

    put_study(tmp_path, "s", seeds_of("b", LOSSES))
    data = json.loads(to_json(build_report(tmp_path)))
    assert {"schema", "studies", "attribution"} <= set(data)
    study = data["studies"][0]
    assert {
        "study",
        "base",
        "metric",
        "rows",
        "prior_variance",
        "prior_df",
        "noise_floor",
        "rungs",
        "set_aside",
        "warnings",
    } <= set(study)
    first = ("name", "parts", "status", "num_seeds", "seeds", "num_diverged", "test_loss_nats_mean")
    statistics_of_a_row = ("difference_nats", "ci_low", "ci_high", "own_ci_low", "own_ci_high", "variance", "df")
    rest = ("test_loss_nats_sd", "p", "p_holm", "verdict", "num_params", "flops_per_token", "kv_bytes_per_token")
    assert set(study["rows"][0]) >= {*first, *statistics_of_a_row, *rest, "tokens_per_s"}


# --------------------------------------------------------------------------- which row is the base, and what joins it


def test_the_base_row_is_the_one_that_most_rows_can_be_compared_with(tmp_path: Path) -> None:
    short = {"config": {"train.steps": 50}}
    few = [fake_record("a", 1.5), fake_record("b", 1.25, parts={"norm": "rms"})]
    put_study(tmp_path, "s", [*seeds_of("short", LOSSES, **short), *few])
    table = table_of(tmp_path)
    assert [row.name for row in table.rows] == ["base", "norm=rms"] and table.steps == 1000
    assert {aside.run for aside in table.set_aside} == {"short-0", "short-1", "short-2"}


def test_of_equal_candidates_the_base_row_has_most_seeds(tmp_path: Path) -> None:
    other = {"config": {"train.lr": 0.1}}
    put_study(tmp_path, "s", [fake_record("a", 9.0, **other), *seeds_of("b", LOSSES)])
    assert rows_of(tmp_path)["base"].num_seeds == 3 and "train.lr=0.1" in rows_of(tmp_path)


def test_of_candidates_equal_in_all_the_base_row_is_the_first(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", config={"train.lr": 0.1}), fake_record("b")])
    assert list(rows_of(tmp_path)) == ["base", "train.lr=0.004"]


def test_the_counterpart_comes_right_after_the_base(tmp_path: Path) -> None:
    put_study(
        tmp_path, "s", [fake_record("r", parts={"norm": "rms"}), fake_record("l", base="llama"), fake_record("b")]
    )
    assert [row.name for row in build_report(tmp_path).studies[0].rows] == ["base", "llama", "norm=rms"]


def test_a_run_that_failed_before_it_read_its_text_joins_the_row_it_was_meant_for(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("ffn_hidden", "n_kv_head", "head_width", "vocab_size"))
    early = fake_record("e", seed=1, status="failed", derived=unknown, data={"sha256": None, "corpus": None})
    put_study(tmp_path, "s", [fake_record("a"), early])
    table = table_of(tmp_path)
    assert [(row.name, row.status) for row in table.rows] == [("base", "failed 1/2")] and not table.set_aside


def test_a_finished_run_of_a_seed_counts_before_a_failed_one(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("f", status="failed"), fake_record("d", 1.5)])
    table = table_of(tmp_path)
    assert table.rows[0].seeds == [0] and [aside.run for aside in table.set_aside] == ["f"]


def test_sizes_that_follow_from_others_do_not_name_a_row(tmp_path: Path) -> None:
    narrow = fake_record("n", config={"model.d_model": 24}, derived={"ffn_hidden": 96})
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", seed=1), narrow])
    assert list(rows_of(tmp_path)) == ["base", "model.d_model=24"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("corpus.split", "tail"),
        ("corpus.val_fraction", 0.2),
        ("corpus.test_fraction", 0.2),
        ("train.steps", 999),
        ("train.batch_size", 8),
        ("train.grad_accum_steps", 2),
        ("train.warmup_steps", 7),
        ("train.schedule", "constant"),
        ("train.min_lr_ratio", 0.5),
        ("model.ctx_len", 32),
    ],
)
def test_runs_that_differ_in_a_guarded_setting_are_never_mixed(tmp_path: Path, key: str, value: object) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), fake_record("odd", parts={"norm": "rms"}, config={key: value})])
    (aside,) = table_of(tmp_path).set_aside
    assert aside.run == "odd" and aside.reason.startswith(f"{key}={value}, the base has ")
    assert list(rows_of(tmp_path)) == ["base"]


# ------------------------------------------------------------------------------------------------- numbers of a row


def test_speed_is_the_median_and_best_steps_are_of_each_seed(tmp_path: Path) -> None:
    speeds, steps = (10.0, 20.0, 90.0), (300, 900, 500)
    put_study(
        tmp_path, "s", [fake_record(f"a{i}", seed=i, tokens_per_s=speeds[i], best_step=steps[i]) for i in range(3)]
    )
    row = rows_of(tmp_path)["base"]
    assert (row.tokens_per_s, row.best_step) == (20.0, [300, 900, 500])


@pytest.mark.parametrize(("best", "over_fitted"), [(1.0, False), (0.995, False), (0.985, True)])
def test_over_fitted_means_a_best_more_than_one_percent_below_the_end(
    tmp_path: Path, best: float, over_fitted: bool
) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.0, best_val_loss_nats=best)])
    assert rows_of(tmp_path)["base"].over_fitted is over_fitted


def test_a_study_may_name_its_metric(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", data={"epochs": 9.0})], metric="test_loss_nats")
    assert table_of(tmp_path).metric == "test_loss_nats"


def test_a_metric_that_does_not_exist_is_a_warning(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a")], metric="beauty")
    table = table_of(tmp_path)
    assert table.metric == "test_loss_nats" and any("'beauty'" in warning for warning in table.warnings)


@pytest.mark.parametrize("where", [{"ctx_len": 32}, {"split": "tail"}])
def test_rungs_of_another_question_do_not_count(tmp_path: Path, where: dict) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.62)])
    put_rungs(tmp_path, **where)
    assert table_of(tmp_path).rungs is None and rows_of(tmp_path)["base"].rung is None


def test_a_text_too_short_for_blocks_has_the_rungs_of_its_end(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.62, data={"num_chars": 40_959})])
    put_rungs(tmp_path, split="tail")
    assert rows_of(tmp_path)["base"].rung == pytest.approx(3.4)


# ------------------------------------------------------------------------------------- what is odd, and what is said


def test_validation_that_serves_as_test_is_a_warning(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", config={"corpus.test_fraction": 0.0})])
    assert any("validation serves as test" in warning for warning in table_of(tmp_path).warnings)


def test_a_row_without_a_seed_in_common_with_the_base_is_a_warning(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("r", seed=5, parts={"norm": "rms"})])
    table = table_of(tmp_path)
    assert table.rows[1].difference_nats is None
    assert "no seed in common with the base: norm=rms" in table.warnings


def test_runs_without_a_study_are_told_to_run_their_base_not_a_study(tmp_path: Path) -> None:
    put_study(tmp_path, "adhoc", [fake_record("r", parts={"norm": "rms"})])
    (warning,) = table_of(tmp_path).warnings
    assert "type: anatomy-train base=vanilla" in warning


def test_a_damaged_run_that_no_study_names_is_set_aside(tmp_path: Path) -> None:
    for name in ("a", "z"):
        put(tmp_path, fake_record(name))
    (tmp_path / "runs" / "z" / "result.json").write_text("{")
    assert [aside.run for aside in table_of(tmp_path).set_aside] == ["z"]


def test_a_damaged_entry_of_a_manifest_leaves_the_others(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", seed=1)])
    file = tmp_path / "studies" / "s" / "study.json"
    manifest = json.loads(file.read_text())
    del manifest["entries"][0]["overrides"]
    file.write_text(json.dumps(manifest))
    table = build_report(tmp_path / "studies" / "s").studies[0]
    assert table.rows[0].seeds == [1] and any("entry 0" in warning for warning in table.warnings)


def test_an_arm_is_named_by_its_swap_even_where_the_words_do_not_say_it(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a")])
    record_entries(tmp_path / "studies" / "s", {}, [Entry("vanilla", "norm", ["seed=0"], 0, None, "later", None)])
    assert rows_of(tmp_path)["swap=norm"].status == "planned"


def test_runs_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Sorted as text, run_10 comes before run_2."""
    put(tmp_path, fake_record("run_1"))
    put(tmp_path, fake_record("run_10", parts={"norm": "rms"}))
    put(tmp_path, fake_record("run_2", parts={"pos": "rope"}))
    assert list(rows_of(tmp_path)) == ["base", "pos=rope", "norm=rms"]


@pytest.mark.parametrize(
    ("what", "reason"),
    [
        ({"test_loss_nats": None}, "done, but without test_loss_nats"),
        ({"test_loss_nats": math.nan}, "done, but without test_loss_nats"),
        ({"num_params": "many"}, "num_params 'many' is no number"),
        ({"config": {"train.steps": "many"}}, "train.steps 'many' is no whole number"),
        ({"config": {"train.lr": math.nan}}, "nan is no setting"),
        ({"config": {"train.betas": [0.9, math.inf]}}, "inf is no setting"),
    ],
)
def test_a_record_of_the_wrong_kind_is_damaged(tmp_path: Path, what: dict, reason: str) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("odd", seed=1, **what)])
    (aside,) = table_of(tmp_path).set_aside
    assert (aside.run, aside.reason) == ("odd", f"damaged record: {reason}")


def test_a_number_that_is_not_finite_does_not_exist(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", tokens_per_s=math.inf, flops_per_token=math.nan)])
    row = rows_of(tmp_path)["base"]
    assert row.tokens_per_s is None and row.flops_per_token is None
