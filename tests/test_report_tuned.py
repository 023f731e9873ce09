"""The report of a study that tunes: two tables, one choice of rates, and what there is while the tuning goes on."""

from pathlib import Path

import pytest
from fake_runs import fake_record, put_arms

from anatomy.report.data import Report
from anatomy.report.table import build_report

RATES, TUNING, SEEDS = (0.001, 0.004), (100, 101), (0, 1)
ARMS = {"base=vanilla": {}, "base=vanilla swap=norm": {"norm": "rms"}}
SPEC = {"arms": list(ARMS), "seeds": list(SEEDS), "tune": {"lr": list(RATES), "seeds": list(TUNING)}}


def run(words: str, rate: float, seed: int, loss: float, **what: object) -> tuple[str, dict]:
    name = f"{words}-{rate}-{seed}".replace(" ", "-")
    record = fake_record(name, loss, seed=seed, parts=ARMS[words], config={"train.lr": rate}, **what)  # type: ignore[arg-type]
    return (words if rate == 0.004 and seed in SEEDS else f"{words} train.lr={rate:g}"), record


def tuning(best: float, **what: object) -> list[tuple[str, dict]]:
    """The base is best at 0.004, the swap at `best`."""
    wins = {"base=vanilla": 0.004, "base=vanilla swap=norm": best}
    return [
        run(words, rate, seed, 1.5 + 0.1 * (rate != wins[words]), **what)
        for words in ARMS
        for rate in RATES
        for seed in TUNING
    ]


def judged(*rates: tuple[str, float, float]) -> list[tuple[str, dict]]:
    return [run(words, rate, seed, loss + 0.001 * seed) for words, rate, loss in rates for seed in SEEDS]


def report_of(outputs: Path, runs: list[tuple[str, dict]], **spec: object) -> Report:
    put_arms(outputs, "s", runs, **{**SPEC, **spec})
    return build_report(outputs)


COMMON = [("base=vanilla", 0.004, 1.6), ("base=vanilla swap=norm", 0.004, 1.65)]


def test_each_arm_is_held_against_the_base_at_the_common_and_at_its_best_rate(tmp_path: Path) -> None:
    runs = [*tuning(0.001), *judged(*COMMON, ("base=vanilla swap=norm", 0.001, 1.5))]
    common, best = build_report_pair(tmp_path, runs)
    assert [row.name for row in common.rows] == ["base", "norm=rms"]
    assert [row.name for row in best.rows] == ["base", "norm=rms train.lr=0.001"]
    assert common.rows[1].difference_nats == pytest.approx(0.05)
    assert best.rows[1].difference_nats == pytest.approx(-0.1)
    assert [(one.row, one.best) for one in best.tuning] == [("base", 0.004), ("norm=rms train.lr=0.001", 0.001)]
    assert any("edge of the grid" in warning for warning in best.warnings)
    assert not any("exploratory" in str(row.verdict) for table in (common, best) for row in table.rows)
    assert common.registration is not None and common.registration.deviations == []


def build_report_pair(outputs: Path, runs: list[tuple[str, dict]], **spec: object) -> tuple:
    common, best = report_of(outputs, runs, **spec).studies
    return common, best


@pytest.mark.parametrize("num_runs", [0, 3, 8])
def test_while_the_tuning_goes_on_there_is_a_report_without_a_choice(tmp_path: Path, num_runs: int) -> None:
    tables = report_of(tmp_path, tuning(0.001)[:num_runs]).studies
    assert all(row.num_pairs == 0 for table in tables for row in table.rows)


def test_a_rate_of_which_one_run_is_missing_is_not_chosen(tmp_path: Path) -> None:
    """Its other seed was lucky; the sweep does not choose either before all have ended."""
    runs = tuning(0.001)
    runs[4] = (runs[4][0], fake_record("late", 9.0, seed=100, status="failed", parts={"norm": "rms"}))
    _, best = build_report_pair(tmp_path, [*runs, *judged(*COMMON)])
    assert [one.row for one in best.tuning] == ["base"]


def test_a_common_rate_that_was_typed_is_the_common_one(tmp_path: Path) -> None:
    typed = [f"{words} train.lr=0.002" for words in ARMS]
    runs = [(f"{words} train.lr=0.002", run(words, 0.002, seed, 1.6)[1]) for words in ARMS for seed in SEEDS]
    common, *_ = report_of(tmp_path, [*tuning(0.001), *runs], arms=typed).studies
    assert [row.num_seeds for row in common.rows] == [2, 2]
    assert common.registration is not None and common.registration.deviations == []
