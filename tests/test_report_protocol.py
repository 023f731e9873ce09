"""The report's protocol: null arms and their floor, what was planned, looks, verdicts, seeds to come, matching."""

import json
import math
import shlex
import statistics
from collections.abc import Sequence
from pathlib import Path

import pytest
from fake_runs import fake_record, put_arms, put_rungs, put_study
from scipy import stats

from anatomy.config import StudySpec
from anatomy.report.data import Row, Table
from anatomy.report.table import MARGIN_NATS, build_report
from anatomy.report.views import to_csv, to_json, to_latex, to_markdown
from anatomy.runs import Entry, record_entries

LOSSES = {0: 1.70, 1: 1.64, 2: 1.75}
RMS_LOSSES = {0: 1.68, 1: 1.66, 2: 1.71}
RMS = {"parts": {"norm": "rms"}}


def seeds_of(label: str, losses: dict[int, float], **what: object) -> list[dict]:
    return [fake_record(f"{label}-{seed}", loss, seed=seed, **what) for seed, loss in losses.items()]  # type: ignore[arg-type]


def table_of(outputs: Path) -> Table:
    (table,) = build_report(outputs).studies
    return table


def rows_of(outputs: Path) -> dict[str, Row]:
    return {row.name: row for row in table_of(outputs).rows}


# ------------------------------------------------------------------------------------------------- null arms, the floor


OTHER_ORDER = {"data": {"batch_order_sha256": "another"}}


def null_arms(label: str, losses: dict[int, float], *salts: str, config: dict | None = None) -> list[dict]:
    order = OTHER_ORDER if "order_salt" in salts else {}
    return seeds_of(label, losses, config={**dict.fromkeys(salts, 1), **(config or {})}, **order)


@pytest.mark.parametrize("salts", [("init_salt",), ("order_salt",), ("init_salt", "order_salt")])
def test_the_base_in_another_order_or_from_another_start_is_compared(tmp_path: Path, salts: tuple[str, ...]) -> None:
    nulls = null_arms("n", {0: 1.71, 1: 1.62, 2: 1.75}, *salts)
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *nulls, *seeds_of("r", RMS_LOSSES, parts={"norm": "rms"})])
    table = table_of(tmp_path)
    name = " ".join(f"{salt}=1" for salt in salts)
    rows = {row.name: row for row in table.rows}
    assert list(rows) == ["base", name, "norm=rms"] and not table.set_aside
    assert [row.is_null for row in table.rows] == [False, True, False]
    assert rows[name].difference_nats == pytest.approx((0.01 - 0.02) / 3) and rows[name].num_pairs == 3
    assert table.num_compared == 2 and table.noise_floor == pytest.approx(0.01 / 3)


def test_another_part_in_another_order_is_set_aside(tmp_path: Path) -> None:
    rms = seeds_of("r", RMS_LOSSES, parts={"norm": "rms"}, config={"order_salt": 1}, **OTHER_ORDER)
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *rms])
    table = table_of(tmp_path)
    assert [row.name for row in table.rows] == ["base"] and table.noise_floor is None
    assert len(table.set_aside) == 3 and all("in another order" in aside.reason for aside in table.set_aside)


def test_the_base_in_another_order_at_another_rate_is_no_null_arm(tmp_path: Path) -> None:
    odd = seeds_of("o", RMS_LOSSES, config={"order_salt": 1, "train.lr": 0.001}, **OTHER_ORDER)
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *odd])
    assert [row.name for row in table_of(tmp_path).rows] == ["base"] and len(table_of(tmp_path).set_aside) == 3


def test_the_base_row_is_the_one_without_salts_wherever_it_stands(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [*null_arms("n", {**LOSSES, 3: 1.7}, "init_salt"), *seeds_of("b", LOSSES)])
    assert [(row.name, row.is_null) for row in table_of(tmp_path).rows] == [("base", False), ("init_salt=1", True)]


@pytest.mark.parametrize("shifts", [(0.004, -0.007), (0.007, -0.004)])
def test_the_noise_floor_is_the_largest_mean_difference_of_a_null_arm_in_size(
    tmp_path: Path, shifts: tuple[float, float]
) -> None:
    up, down = ({seed: loss + shift for seed, loss in LOSSES.items()} for shift in shifts)
    nulls = [*null_arms("u", up, "init_salt"), *null_arms("d", down, "order_salt")]
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *nulls, *seeds_of("r", RMS_LOSSES, parts={"norm": "rms"})])
    assert table_of(tmp_path).noise_floor == pytest.approx(0.007)


def put_floor_and_swaps(outputs: Path, config: dict | None = None) -> None:
    base = seeds_of("b", LOSSES)
    put_study(outputs, "swaps", [*base, *seeds_of("r", RMS_LOSSES, parts={"norm": "rms"})])
    shifted = {seed: loss - 0.006 for seed, loss in LOSSES.items()}
    floor_base = seeds_of("f", LOSSES, config=config) if config else base
    put_study(outputs, "noise_floor", [*floor_base, *null_arms("n", shifted, "order_salt", config=config)])


@pytest.mark.parametrize("where", ["", "studies/swaps"])
@pytest.mark.parametrize("name", [None, "swaps"])
def test_a_study_without_null_arms_has_the_floor_of_the_study_beside_it(
    tmp_path: Path, where: str, name: str | None
) -> None:
    """Of an outputs folder, of one study of it, and of a study's folder alone."""
    put_floor_and_swaps(tmp_path)
    tables = {table.study: table for table in build_report(tmp_path / where, [name] if name else []).studies}
    assert tables["swaps"].noise_floor == pytest.approx(0.006)
    assert "noise floor" not in {row.name for row in tables["swaps"].rows} and tables["swaps"].num_compared == 1


def test_a_floor_of_another_base_is_none(tmp_path: Path) -> None:
    put_floor_and_swaps(tmp_path, config={"train.lr": 0.1})
    assert build_report(tmp_path, ["swaps"]).studies[0].noise_floor is None


def test_a_damaged_floor_is_no_concern_of_another_study(tmp_path: Path) -> None:
    put_floor_and_swaps(tmp_path)
    (tmp_path / "studies" / "noise_floor" / "study.json").write_text("{")
    report = build_report(tmp_path / "studies" / "swaps")
    assert report.studies[0].noise_floor is None and report.studies[0].rows and not report.warnings


# ------------------------------------------------------------------------------------------------- the plan

PLAN = {"arms": ["base=vanilla swap=none", "base=vanilla swap=norm"], "seeds": [0, 1, 2]}


def arms_of(words: str, label: str, losses: dict[int, float], **what: object) -> list[tuple[str, dict]]:
    return [(words, record) for record in seeds_of(label, losses, **what)]


def put_plan(outputs: Path, *more: tuple[str, dict], run_seeds: tuple[int, ...] = (0, 1, 2), **spec: object) -> Table:
    base = {seed: 1.70 + 0.01 * (seed % 3) for seed in run_seeds}
    swap = {seed: loss - 0.30 - 0.002 * (seed % 2) for seed, loss in base.items()}
    planned = [*arms_of("base=vanilla", "b", base), *arms_of("base=vanilla swap=norm", "r", swap, **RMS)]
    put_arms(outputs, "s", [*planned, *more], **{**PLAN, **spec})
    return table_of(outputs)


def test_what_went_by_the_plan_has_no_deviations(tmp_path: Path) -> None:
    table = put_plan(tmp_path)
    assert table.registration is not None and table.registration.deviations == []
    assert (
        table.registration.spec["seeds"] == [0, 1, 2]
        and table.registration.started
        and table.rows[1].verdict == "better"
    )
    assert table.registration.spec_sha256 is not None and len(table.registration.spec_sha256) == 64


def test_a_seed_beyond_the_plan_makes_verdicts_exploratory(tmp_path: Path) -> None:
    table = put_plan(tmp_path, run_seeds=(0, 1, 2, 3))
    assert table.rows[1].verdict == "better (exploratory)" and table.registration is not None
    added = [line for line in table.registration.deviations if "added after the start" in line]
    assert len(added) == 2 and all("seed 3" in line for line in added)


def test_an_arm_beyond_the_plan_is_exploratory_and_the_planned_ones_are_not(tmp_path: Path) -> None:
    rope = {seed: 1.4 + 0.01 * (seed % 3) for seed in range(3)}
    table = put_plan(tmp_path, *arms_of("base=vanilla swap=pos", "p", rope, parts={"pos": "rope"}))
    verdicts = {row.name: row.verdict for row in table.rows}
    assert verdicts == {"base": None, "norm=rms": "better", "pos=rope": "better (exploratory)"}
    assert table.registration is not None
    (line,) = table.registration.deviations
    assert "swap=pos" in line and "seed 0, 1, 2" in line


def test_against_a_base_beyond_the_plan_all_is_exploratory(tmp_path: Path) -> None:
    assert put_plan(tmp_path, arms=["base=vanilla swap=norm"]).rows[1].verdict == "better (exploratory)"


def test_a_seed_beyond_the_plan_of_an_arm_alone_pairs_with_nothing_and_changes_no_verdict(tmp_path: Path) -> None:
    table = put_plan(tmp_path, *arms_of("base=vanilla swap=norm", "x", {7: 1.0}, **RMS))
    assert table.rows[1].verdict == "better" and table.registration is not None and table.registration.deviations


def test_what_was_planned_and_is_not_there_is_a_deviation(tmp_path: Path) -> None:
    table = put_plan(tmp_path, arms=[*PLAN["arms"], "base=vanilla swap=ffn"])
    assert table.registration is not None
    assert table.registration.deviations == ["planned, but not in the study: base=vanilla swap=ffn"]


def test_planned_runs_that_are_not_finished_are_counted(tmp_path: Path) -> None:
    put_plan(tmp_path, *arms_of("base=vanilla swap=ffn", "f", {0: 1.0}, status="failed", parts={"ffn": "swiglu"}),
             arms=[*PLAN["arms"], "base=vanilla swap=ffn"])  # fmt: skip
    table = table_of(tmp_path)
    assert table.registration is not None and table.registration.deviations == [
        "planned, but not asked for yet: seed 1, 1 arms",
        "planned, but not asked for yet: seed 2, 1 arms",
        "1 planned runs are not finished",
    ]


@pytest.mark.parametrize(
    ("planned", "asked"),
    [
        ("base=vanilla swap=[norm,pos]", "base=vanilla swap=[norm,pos]"),
        ("base=vanilla swap=[norm]", "base=vanilla swap=norm"),
        ("swap=norm base=vanilla", "base=vanilla swap=norm"),
        ("base=vanilla swap=norm match=null", "base=vanilla swap=norm"),
        ("base=vanilla swap=norm seed=1", "base=vanilla swap=norm"),
    ],
)
def test_two_ways_to_type_an_arm_are_one(tmp_path: Path, planned: str, asked: str) -> None:
    parts = {"norm": "rms", "pos": "rope"} if "pos" in asked else {"norm": "rms"}
    arms = [*arms_of("base=vanilla", "b", LOSSES), *arms_of(asked, "r", RMS_LOSSES, parts=parts)]
    put_arms(tmp_path, "s", arms, arms=["base=vanilla", planned], seeds=[0, 1, 2])
    table = table_of(tmp_path)
    assert table.registration is not None and table.registration.deviations == []
    assert "exploratory" not in str(table.rows[1].verdict)


def test_amendments_of_a_manifest_are_deviations(tmp_path: Path) -> None:
    put_plan(tmp_path)
    file = tmp_path / "studies" / "s" / "study.json"
    manifest = json.loads(file.read_text())
    file.write_text(json.dumps(manifest | {"amendments": [{"at": "2026-01-02", "what": "margin 0.01 -> 0.02"}]}))
    table = table_of(tmp_path)
    assert table.registration is not None and table.registration.deviations == ["2026-01-02: margin 0.01 -> 0.02"]


def test_a_study_without_a_plan_has_no_exploratory_verdicts(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", RMS_LOSSES, **RMS)])
    table = table_of(tmp_path)
    assert (
        table.registration is not None
        and table.registration.deviations == []
        and "expl" not in str(table.rows[1].verdict)
    )


def test_planned_looks_split_alpha_evenly(tmp_path: Path) -> None:
    whole = put_plan(tmp_path / "whole")
    split = put_plan(tmp_path / "split", looks=[3, 6])
    assert (whole.alpha, split.alpha) == (0.05, 0.025)
    plain, look = whole.rows[1], split.rows[1]
    ratio = stats.t.isf(0.0125, plain.df) / stats.t.isf(0.025, plain.df)
    assert (look.ci_high - look.ci_low) / (plain.ci_high - plain.ci_low) == pytest.approx(ratio)
    assert (look.own_ci_low, look.p, look.verdict) == (plain.own_ci_low, plain.p, "better")


@pytest.mark.parametrize(("num_seeds", "verdict"), [(3, "better"), (4, "better (exploratory)"), (6, "better")])
def test_only_planned_looks_are_claims(tmp_path: Path, num_seeds: int, verdict: str) -> None:
    table = put_plan(tmp_path, run_seeds=tuple(range(num_seeds)), seeds=list(range(6)), looks=[3, 6])
    assert table.rows[1].verdict == verdict


# ------------------------------------------------------------------------------------------------- verdicts of rows


def test_a_rows_statistics_are_those_of_its_paired_losses(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", RMS_LOSSES, **RMS)])
    row = rows_of(tmp_path)["norm=rms"]
    mine, theirs = list(RMS_LOSSES.values()), list(LOSSES.values())
    interval = stats.ttest_rel(mine, theirs).confidence_interval()
    assert (row.ci_low, row.ci_high) == (pytest.approx(interval.low), pytest.approx(interval.high))
    assert row.p == pytest.approx(stats.ttest_rel(mine, theirs).pvalue) and row.df == 2
    assert row.correlation == pytest.approx(stats.pearsonr(mine, theirs).statistic)
    assert row.sd_paired == pytest.approx(statistics.stdev(m - t for m, t in zip(mine, theirs, strict=True)))
    assert row.sd_unpaired == pytest.approx(math.sqrt(statistics.variance(mine) + statistics.variance(theirs)))


def test_a_family_is_all_rows_of_a_base_whatever_their_status(tmp_path: Path) -> None:
    """Three rows, one of them failed: the interval of the others is over three."""
    records = [
        *seeds_of("b", LOSSES),
        *seeds_of("r", RMS_LOSSES, **RMS),
        *seeds_of("l", {0: 1.4, 1: 1.43, 2: 1.41}, base="llama"),
    ]
    put_study(tmp_path, "s", [*records, fake_record("f", status="failed", parts={"ffn": "relu"})])
    table = build_report(tmp_path).studies[0]
    row = {row.name: row for row in table.rows}["norm=rms"]
    assert [row.name for row in table.rows] == ["base", "llama", "norm=rms", "ffn=relu"] and table.num_compared == 3
    half = stats.t.isf(0.05 / 6, row.df) * math.sqrt(row.variance / 3)
    assert row.ci_high - row.difference_nats == pytest.approx(half)
    p = sorted(row.p for row in table.rows if row.p is not None)
    assert sorted(row.p_holm for row in table.rows if row.p_holm is not None) == [
        pytest.approx(min(1, 3 * p[0])),
        pytest.approx(max(min(1, 3 * p[0]), min(1, 2 * p[1]))),
    ]


@pytest.mark.parametrize(("num_diverged", "verdict"), [(0, "better"), (1, "diverged 1/3"), (3, "diverged 3/3")])
def test_diverged_seeds_are_the_verdict(tmp_path: Path, num_diverged: int, verdict: str) -> None:
    base = seeds_of("b", LOSSES)
    rms = [
        fake_record(f"r{s}", LOSSES[s] - 0.5, seed=s, status="diverged" if s < num_diverged else "done", **RMS)
        for s in range(3)
    ]
    put_study(tmp_path, "s", [*base, *rms])
    row = rows_of(tmp_path)["norm=rms"]
    assert row.verdict == verdict and row.num_diverged == num_diverged and row.num_arms == 3
    assert row.num_pairs == 3 - num_diverged


def test_one_seed_has_a_difference_and_no_verdict(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.5), fake_record("b", 1.25, **RMS)])
    table = table_of(tmp_path)
    row = table.rows[1]
    assert row.difference_nats == pytest.approx(-0.25)
    nothing = ("ci_low", "ci_high", "own_ci_low", "own_ci_high", "variance", "df", "p", "p_holm", "verdict")
    nothing += ("smallest_margin_nats", "minimum_detectable_effect_nats", "seeds_needed", "correlation", "sd_paired")
    assert {getattr(row, name) for name in (*nothing, "sd_unpaired")} == {None}
    assert table.prior_variance is None and table.prior_df is None


def test_the_base_is_not_compared_with_itself(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", RMS_LOSSES, **RMS)])
    row = rows_of(tmp_path)["base"]
    assert {row.difference_nats, row.verdict, row.p, row.ci_low, row.unmatched, row.block_params_percent} == {None}
    assert row.num_pairs == 0


@pytest.mark.parametrize(
    ("margin", "expected", "used"),
    [(0.5, "equivalent (better)", 0.5), (None, "better", 0.01), (True, "better", 0.01), (-1, "better", 0.01),
     ("0.5", "better", 0.01), (0, "better", 0.01), (1, "equivalent (better)", 1)],
)  # fmt: skip
def test_the_margin_is_the_studys_where_it_is_one(tmp_path: Path, margin: object, expected: str, used: float) -> None:
    rms = {seed: loss - 0.2 - 0.001 * seed for seed, loss in LOSSES.items()}
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", rms, **RMS)], margin=margin)
    table = table_of(tmp_path)
    assert (table.margin_nats, table.rows[1].verdict) == (used, expected)


def test_fewer_than_five_seeds_are_called_a_look(tmp_path: Path) -> None:
    for num_seeds in (4, 5):
        records = [fake_record(f"{p}{s}", 1.5 + 0.01 * s * (p == "r"), seed=s, **(RMS if p == "r" else {}))
                   for p in "br" for s in range(num_seeds)]  # fmt: skip
        put_study(tmp_path / str(num_seeds), "s", records)
        warned = any("not a claim" in warning for warning in table_of(tmp_path / str(num_seeds)).warnings)
        assert warned == (num_seeds < 5)


# ------------------------------------------------------------------------------------------------- seeds to come


def put_undecided(outputs: Path, spread: float, study: str = "s", seeds: int = 3) -> Table:
    base = {seed: 1.7 for seed in range(seeds)}
    rms = {seed: 1.7 + spread * (-1, 0, 1, 0.5)[seed % 4] for seed in base}
    put_study(outputs, study, [*seeds_of("b", base), *seeds_of("r", rms, **RMS)])
    return table_of(outputs)


def test_the_command_runs_as_many_seeds_as_the_spread_asks_for(tmp_path: Path) -> None:
    few, many = put_undecided(tmp_path / "few", 0.006), put_undecided(tmp_path / "many", 0.02)
    needed, more = few.rows[1].seeds_needed, many.rows[1].seeds_needed
    assert needed is not None and more is not None and 3 < needed <= 12 < more
    assert few.seeds_command == f"anatomy-train study=s seed={','.join(map(str, range(needed)))}"
    assert many.seeds_command == f"anatomy-train study=s 'seed=range(0,{more})'"


def test_where_all_is_decided_or_no_study_asks_there_is_no_command(tmp_path: Path) -> None:
    assert put_undecided(tmp_path / "decided", 0.0).seeds_command is None
    assert put_undecided(tmp_path / "adhoc", 0.02, study="adhoc").seeds_command is None
    hopeless = put_undecided(tmp_path / "hopeless", 9.0)
    assert hopeless.rows[1].seeds_needed is None and hopeless.seeds_command is None


# ------------------------------------------------------------------------------------------------- matching


@pytest.mark.parametrize(
    ("attn", "flops", "unmatched"),
    [(27_648, 626_976, False), (28_065, 626_976, False), (28_067, 626_976, True), (27_648, 630_200, True),
     (27_229, 626_976, True), (27_648, 630_100, False)],
)  # fmt: skip
def test_a_row_that_deviates_by_more_than_half_a_percent_is_unmatched(
    tmp_path: Path, attn: int, flops: int, unmatched: bool
) -> None:
    """The base's blocks have 576 + 27,648 + 55,296 = 83,520 parameters, half a percent of which is 417.6."""
    other = fake_record("b", num_params_by_axis={"attn": attn}, flops_per_token=flops, **RMS)
    put_study(tmp_path, "s", [fake_record("a"), other])
    assert rows_of(tmp_path)["norm=rms"].unmatched is unmatched


def test_embedding_positions_and_output_are_no_part_of_the_match(tmp_path: Path) -> None:
    other = fake_record("b", num_params_by_axis={"pos": 0, "embed": 1, "output": 0}, num_params=50_000, **RMS)
    put_study(tmp_path, "s", [fake_record("a"), other])
    row = rows_of(tmp_path)["norm=rms"]
    assert (row.block_params_percent, row.unmatched) == (0, False) and row.num_params_percent < -40


def put_matched(outputs: Path, match: str, matched: list[dict], plain: Sequence[dict] = ()) -> None:
    arms = [("base=vanilla", record) for record in seeds_of("b", LOSSES)]
    arms += [("base=vanilla swap=norm", record) for record in plain]
    put_arms(outputs, "s", [*arms, *((f"base=vanilla swap=norm match={match}", record) for record in matched)])


def test_a_row_matched_in_time_is_compared_whatever_its_steps(tmp_path: Path) -> None:
    slow = seeds_of(
        "t", RMS_LOSSES, config={"match": "time", "train.steps": 700}, data={"batch_order_sha256": "own"}, **RMS
    )
    put_matched(tmp_path, "time", slow)
    table = table_of(tmp_path)
    assert [row.name for row in table.rows] == ["base", "match=time norm=rms"] and table.rows[1].num_pairs == 3
    assert not table.set_aside and table.steps == 1000


def test_matched_in_time_means_nothing_but_the_steps(tmp_path: Path) -> None:
    slow = seeds_of("t", RMS_LOSSES, config={"match": "time", "train.batch_size": 8}, **RMS)
    put_matched(tmp_path, "time", slow)
    assert len(table_of(tmp_path).set_aside) == 3


@pytest.mark.parametrize("match", ["params", "flops"])
def test_a_matched_swap_and_the_plain_one_are_two_rows(tmp_path: Path, match: str) -> None:
    matched = seeds_of("m", RMS_LOSSES, config={"match": match}, derived={"ffn_hidden": 197}, **RMS)
    put_matched(tmp_path, match, matched, seeds_of("r", RMS_LOSSES, **RMS))
    assert list(rows_of(tmp_path)) == ["base", "norm=rms", f"match={match} norm=rms"]


def test_a_plain_run_in_another_row_of_steps_is_still_set_aside(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("t", RMS_LOSSES, config={"train.steps": 700}, **RMS)])
    assert len(table_of(tmp_path).set_aside) == 3


# ------------------------------------------------------------------------------------------------- strange manifests


@pytest.mark.parametrize("margin", ["NaN", "Infinity", "-Infinity", "1" + "0" * 400, "[1]", "{}", '"wide"'])
def test_a_margin_that_is_no_number_is_not_used_and_breaks_no_view(tmp_path: Path, margin: str) -> None:
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", RMS_LOSSES, **RMS)], margin="ODD")
    file = tmp_path / "studies" / "s" / "study.json"
    file.write_text(file.read_text().replace('"ODD"', margin))
    report = build_report(tmp_path)
    assert report.studies[0].margin_nats == 0.01
    for view in (to_json, to_csv, to_markdown, to_latex):
        assert "norm" in view(report)
    json.loads(to_json(report), parse_constant=pytest.fail)


@pytest.mark.parametrize("looks", [[], None, "3", [True, 2.5, "3"], {"at": 3}])
def test_looks_that_are_none_spend_all_of_alpha(tmp_path: Path, looks: object) -> None:
    table = put_plan(tmp_path, looks=looks)
    assert (table.alpha, table.rows[1].verdict) == (0.05, "better")


def test_without_the_base_nothing_is_the_base_again(tmp_path: Path) -> None:
    again = seeds_of("x", RMS_LOSSES, config={"init_salt": 1}, **RMS)
    put_study(tmp_path, "s", [*seeds_of("r", RMS_LOSSES, **RMS), *again])
    table = table_of(tmp_path)
    assert len(table.rows) == 2 and not any(row.is_null for row in table.rows) and table.noise_floor is None


def test_a_run_that_was_first_asked_for_as_matched_is_named_as_this_study_asks_for_it(tmp_path: Path) -> None:
    """SwiGLU comes to the base's parameters by itself, so the matched run and the plain one are the same run."""
    swiglu = seeds_of("s", RMS_LOSSES, parts={"ffn": "swiglu"}, config={"match": "params"})
    arms = [("base=vanilla", record) for record in seeds_of("b", LOSSES)]
    arms += [("base=vanilla swap=ffn", record) for record in swiglu]
    arms += [("base=vanilla swap=ffn match=params", record) for record in swiglu]
    put_arms(tmp_path, "plain", arms)
    assert [row.name for row in table_of(tmp_path).rows] == ["base", "ffn=swiglu"]


def test_the_command_for_more_seeds_says_what_all_arms_were_asked_for_with(tmp_path: Path) -> None:
    same = "corpus.path=a,b train.lr=0.001"
    arms = [(f"base=vanilla {same}", record) for record in seeds_of("b", LOSSES)]
    arms += [(f"base=vanilla swap=norm {same}", record) for record in seeds_of("r", RMS_LOSSES, **RMS)]
    put_arms(tmp_path, "s", arms, arms=[f"base=vanilla {same}", f"base=vanilla swap=norm {same}"], seeds=[0, 1, 42])
    command = str(table_of(tmp_path).seeds_command)
    assert shlex.split(command)[:5] == ["anatomy-train", "study=s", "base=vanilla", "corpus.path=a,b", "train.lr=0.001"]
    assert "seed=0,1,42,2," in command


def test_another_scale_is_another_arm(tmp_path: Path) -> None:
    more = arms_of("base=vanilla swap=norm scale=article", "a", RMS_LOSSES, config={"model.d_model": 128}, **RMS)
    table = put_plan(tmp_path, *more)
    assert table.registration is not None and "scale=article" in table.registration.deviations[0]


def test_a_base_that_diverged_and_verdicts_off_the_plan_are_said_in_the_headline(tmp_path: Path) -> None:
    broken = fake_record("b-9", None, seed=9, status="diverged")
    table = put_plan(tmp_path, ("base=vanilla", broken), seeds=[0, 1])
    assert any("the base diverged in 1 of 4 seeds" in warning for warning in table.warnings)
    assert "exploratory" in table.findings["verdict"]


@pytest.mark.parametrize("name", ["../../elsewhere/runs/r-0", "..", "", "a/b"])
def test_a_run_is_never_looked_for_outside_its_folder(tmp_path: Path, name: str) -> None:
    record = fake_record("r-0", 1.0, **RMS)
    put_study(tmp_path / "elsewhere", "t", [record])
    put_study(tmp_path / "outputs", "s", [fake_record("b-0", 1.5)])
    entry = Entry("vanilla", "norm", ["base=vanilla", "swap=norm"], 0, None, name, None)
    record_entries(tmp_path / "outputs" / "studies" / "s", {}, [entry])
    (table,) = build_report(tmp_path / "outputs").studies
    assert [row.name for row in table.rows] == ["base"] and "no name of a run" in table.set_aside[0].reason


@pytest.mark.parametrize("content", ["[" * 100_000, '{"schema": 1', "\x00", '{"schema": 1, "study": "s"}'])
def test_a_damaged_manifest_leaves_the_rest_standing(tmp_path: Path, content: str) -> None:
    put_plan(tmp_path)
    (tmp_path / "studies" / "t").mkdir()
    (tmp_path / "studies" / "t" / "study.json").write_text(content)
    report = build_report(tmp_path)
    assert len(report.studies) == 1 and any("damaged" in warning for warning in report.warnings)


@pytest.mark.parametrize("what", [{"num_params": 1e300}, {"test_loss_nats": 1.7e308}, {"data": {"vocab_size": -3}}])
def test_numbers_that_cannot_be_are_no_end_of_the_report(tmp_path: Path, what: dict) -> None:
    put_rungs(tmp_path)
    put_study(tmp_path, "s", [*seeds_of("b", LOSSES), *seeds_of("r", RMS_LOSSES, **RMS, **what)])
    data = json.loads(to_json(build_report(tmp_path)), parse_constant=pytest.fail)
    assert data["studies"][0]["rows"][0]["test_loss_nats_mean"] == pytest.approx(statistics.fmean(LOSSES.values()))


def test_the_margin_of_a_study_and_of_the_report_are_one() -> None:
    assert StudySpec(name="s", question="?").margin == MARGIN_NATS


def test_a_plan_that_was_edited_after_the_start_is_told(tmp_path: Path) -> None:
    put_plan(tmp_path)
    file = tmp_path / "studies" / "s" / "study.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"spec": {**PLAN, "name": "s", "margin": 0.5}}))
    table = table_of(tmp_path)
    assert table.registration is not None and "not the one that was hashed" in table.registration.deviations[0]


def test_a_row_matched_in_parameters_is_held_to_its_parameters(tmp_path: Path) -> None:
    flops = {"flops_per_token": 640_000}
    put_matched(tmp_path, "params", seeds_of("m", RMS_LOSSES, derived={"ffn_hidden": 193}, **RMS, **flops))
    assert rows_of(tmp_path)["match=params norm=rms"].unmatched is False
    put_matched(tmp_path / "flops", "flops", seeds_of("m", RMS_LOSSES, derived={"ffn_hidden": 193}, **RMS, **flops))
    assert rows_of(tmp_path / "flops")["match=flops norm=rms"].unmatched is True


def test_a_spec_that_names_seeds_alone_plans_those_of_every_arm(tmp_path: Path) -> None:
    records = [*seeds_of("b", {**LOSSES, 3: 1.7}), *seeds_of("r", {**RMS_LOSSES, 3: 1.6}, **RMS)]
    put_study(tmp_path, "s", records, seeds=[0, 1, 2])
    table = table_of(tmp_path)
    assert table.registration is not None and len(table.registration.deviations) == 2
    assert "(exploratory)" in str(table.rows[1].verdict)
