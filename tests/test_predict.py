"""Predictions: for which arms, what is refused, and that they stand beside the measurement afterwards."""

import json
from pathlib import Path

import pytest
from fake_runs import fake_record, put, swapped
from made_report import made_report, made_row, made_table
from test_runner import SMALL, strict_json

from anatomy.compose import read_command
from anatomy.errors import UserError
from anatomy.report.columns import verdict_columns
from anatomy.report.data import Report
from anatomy.report.finding import table_findings
from anatomy.report.page import to_html
from anatomy.report.table import build_report
from anatomy.report.views import to_csv, to_latex, to_markdown
from anatomy.runner import run
from anatomy.runs import Entry, record_entries
from anatomy.sweep import Plan, make_plan, write_manifest


def plan_of(outputs: Path, text: Path, *words: str, multirun: bool = True) -> Plan:
    given = [*SMALL, "corpus=files", f"corpus.path='{text}'", f"output_dir='{outputs}'", "train.steps=1", *words]
    return make_plan(read_command(given, multirun=multirun))


def entries(outputs: Path, study: str = "adhoc") -> list[dict]:
    return strict_json(outputs / "studies" / study / "study.json")["entries"]


def predictions(plan: Plan) -> list[tuple[str, str, object]]:
    return [(p.config.base, p.request.swap_words, p.prediction) for p in plan.runs]


# ------------------------------------------------------------------------------------------------ for which arms


def test_it_is_for_arms_that_differ_in_that_axis_alone_and_of_the_first_base(tmp_path: Path, text_file: Path) -> None:
    words = ("base=vanilla,llama", "swap=none,pos,ffn,[pos,ffn]", "predict.pos=-0.2")
    found = predictions(plan_of(tmp_path, text_file, *words))
    assert [one for one in found if one[2]] == [("vanilla", "pos", {"pos": -0.2})]
    assert len(found) == 8


def test_it_is_for_a_part_put_on_by_name_too_and_for_each_such_part(tmp_path: Path, text_file: Path) -> None:
    plan = plan_of(tmp_path, text_file, "pos=learned,rope,nope", "predict.pos=1", "predict.norm=null")
    assert [planned.prediction for planned in plan.runs] == [None, {"pos": 1.0}, {"pos": 1.0}]
    (line,) = plan.predictions()
    assert line.startswith("predict.pos=1 is for base=vanilla") and "pos=rope" in line and "pos=nope" in line


def test_each_axis_has_its_own(tmp_path: Path, text_file: Path) -> None:
    plan = plan_of(tmp_path, text_file, "swap=norm,pos", "predict.norm=0", "predict.pos=-0.2")
    assert [planned.prediction for planned in plan.runs] == [{"norm": 0.0}, {"pos": -0.2}]
    assert len(plan.predictions()) == 2


@pytest.mark.parametrize("words", [("swap=none,ffn",), ("swap=none,[pos,ffn]",), ("base=llama,vanilla", "pos=rope")])
def test_one_that_is_for_no_arm_is_refused_in_one_line(tmp_path: Path, text_file: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(UserError, match=r"^predict\.pos=-0\.2: for no arm.*(vanilla|llama) in pos alone$") as error:
        plan_of(tmp_path, text_file, *words, "predict.pos=-0.2")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("predict.poss=-0.2", "Did you mean predict.pos?"),
        ("predict.pos=abc", "valid number"),
        ("predict.pos=nan", "finite number"),
        ("predict.pos=1000", "100"),
        ("predict.pos=-0.1,-0.2", "one value a command"),
        ("predict=-0.2", "predict"),
    ],
)
def test_what_is_no_prediction_is_refused_in_one_line(tmp_path: Path, text_file: Path, word: str, said: str) -> None:
    with pytest.raises(UserError) as error:
        plan_of(tmp_path, text_file, "swap=none,pos", word)
    assert str(error.value).startswith("predict") and said in str(error.value) and "\n" not in str(error.value)


# ------------------------------------------------------------------------------------------------ what is kept


def test_it_is_kept_with_the_arm_and_is_no_word_of_it(tmp_path: Path, text_file: Path) -> None:
    write_manifest(plan_of(tmp_path, text_file, "swap=none,pos", "predict.pos=-0.2", "diagnostics=[gradients]"))
    assert [(entry["swap"], entry["prediction"]) for entry in entries(tmp_path)] == [
        ("none", None),
        ("pos", {"pos": -0.2}),
    ]
    write_manifest(plan_of(tmp_path, text_file, "swap=none,pos"))
    assert [entry["prediction"] for entry in entries(tmp_path)] == [None, {"pos": -0.2}]
    assert not any(
        "predict" in word or "diagnostics" in word for entry in entries(tmp_path) for word in entry["overrides"]
    )


def test_it_holds_for_all_seeds_of_its_arm(tmp_path: Path, text_file: Path) -> None:
    write_manifest(plan_of(tmp_path, text_file, "swap=pos", "seed=0", "predict.pos=-0.2"))
    write_manifest(plan_of(tmp_path, text_file, "swap=pos", "seed=1"))
    assert [entry["prediction"] for entry in entries(tmp_path)] == [{"pos": -0.2}] * 2


def test_a_second_thought_before_any_run_is_an_amendment_of_the_study(tmp_path: Path) -> None:
    def entry(nats: float | None) -> Entry:
        return Entry("vanilla", "pos", ["swap=pos"], 0, None if nats is None else {"pos": nats}, "a", None)

    folder = tmp_path / "studies" / "mine"
    for nats in (-0.2, None, -0.2, -0.3):
        record_entries(folder, {"name": "mine"}, [entry(nats)])
    manifest = strict_json(folder / "study.json")
    assert [one["what"] for one in manifest["amendments"]] == [
        'base=vanilla swap=pos: predicted {"pos": -0.2} -> {"pos": -0.3}'
    ]
    assert [one["prediction"] for one in manifest["entries"]] == [{"pos": -0.3}]


def test_a_single_run_takes_one_too(tmp_path: Path, text_file: Path) -> None:
    plan = plan_of(tmp_path, text_file, "pos=rope", "predict.pos=-0.2", multirun=False)
    write_manifest(plan)
    assert [entry["prediction"] for entry in entries(tmp_path)] == [{"pos": -0.2}]


def test_after_the_run_only_what_was_said_before_it_is_taken(tmp_path: Path, text_file: Path) -> None:
    def ask(*words: str) -> Plan:
        plan = plan_of(tmp_path, text_file, "pos=rope", *words, multirun=False)
        write_manifest(plan)
        (planned,) = plan.runs
        run(planned.job, [])
        return plan

    ask("seed=0", "predict.pos=-0.2")
    assert ask("seed=0", "predict.pos=-0.2").runs[0].prediction == {"pos": -0.2}
    assert ask("seed=1", "predict.pos=-0.2").runs[0].prediction == {"pos": -0.2}
    for words in (["seed=0"], ["seed=2"], ["seed=0", "force=true"]):
        with pytest.raises(UserError, match="has a finished run already") as error:
            ask(*words, "predict.pos=-0.3")
        assert "\n" not in str(error.value)
    assert {entry["prediction"]["pos"] for entry in entries(tmp_path)} == {-0.2}


def test_a_run_that_another_study_finished_is_known_too(tmp_path: Path, text_file: Path) -> None:
    (planned,) = plan_of(tmp_path, text_file, "pos=rope", multirun=False).runs
    run(planned.job, [])
    with pytest.raises(UserError, match=r"predict\.pos=-0\.2: base=vanilla .*pos=rope.* has a finished run"):
        plan_of(tmp_path, text_file, "pos=learned,rope", "predict.pos=-0.2")


# ------------------------------------------------------------------------------------------------ the report


def reported(outputs: Path, prediction: object, shift: float = -0.127) -> Report:
    """Two arms, base and pos, over three seeds; the manifest holds `prediction` for the second."""
    asked = []
    for seed in range(3):
        for swap, loss in (("none", 1.5), ("pos", 1.5 + shift + 0.001 * (seed - 1))):
            parts = swapped("vanilla", [] if swap == "none" else ["pos"])
            record = fake_record(f"{swap}-{seed}", loss, seed=seed, parts=parts)
            overrides = [f"swap={swap}", f"seed={seed}"]
            asked.append(Entry("vanilla", swap, overrides, seed, None, put(outputs, record), None))
    folder = outputs / "studies" / "mine"
    record_entries(folder, {"name": "mine", "question": "Which?", "metric": None}, asked)
    manifest = strict_json(folder / "study.json")
    for entry in manifest["entries"]:
        entry["prediction"] = prediction if entry["swap"] == "pos" else None
    (folder / "study.json").write_text(json.dumps(manifest))
    return build_report(outputs)


def test_the_report_shows_it_beside_the_measurement_in_every_view(tmp_path: Path) -> None:
    report = reported(tmp_path, {"pos": -0.2})
    (table,) = report.studies
    assert [row.prediction_nats for row in table.rows] == [None, -0.2]
    headings = [column.heading for column in verdict_columns(table)]
    assert headings.index("predicted") == headings.index("difference") + 1
    assert "-0.2000" in to_markdown(report) and "predicted" in to_latex(report)
    assert "prediction_nats" in to_csv(report).splitlines()[0] and "−0.2000" in to_html(report)


@pytest.mark.parametrize(
    ("nats", "said"), [(-0.2, "which leaves the prediction out"), (-0.127, "which holds the prediction")]
)
def test_the_finding_says_whether_the_interval_holds_it(tmp_path: Path, nats: float, said: str) -> None:
    (table,) = reported(tmp_path, {"pos": nats}).studies
    finding = table.findings["verdict"]
    assert f"Predicted: pos=rope {nats:+.3f}, measured -0.127 (-0.1" in finding and said in finding


def test_without_predictions_no_column_and_no_sentence_speaks_of_any(tmp_path: Path) -> None:
    (table,) = reported(tmp_path, None).studies
    assert "predicted" not in [column.heading for column in verdict_columns(table)]
    assert "redict" not in " ".join(table.findings.values())


@pytest.mark.parametrize(
    "damage", ["pos", -0.2, [], {}, {"pos": "x"}, {"pos": True}, {"pos": 1e300}, {"pos": 1, "ffn": 2}, {"poss": -0.2}]
)
def test_a_damaged_prediction_reads_as_none(tmp_path: Path, damage: object) -> None:
    (table,) = reported(tmp_path, damage).studies
    assert [row.prediction_nats for row in table.rows] == [None, None] and table.rows[1].num_pairs == 3


def test_one_seed_is_told_without_an_interval() -> None:
    row = made_row("pos=rope", -0.1, prediction_nats=-0.2, ci_low=None, ci_high=None, num_pairs=1, verdict=None)
    finding = table_findings(made_table(rows=[made_row("base"), row]))["verdict"]
    assert finding.endswith("Predicted: pos=rope -0.200, measured -0.100 without an interval.")


def test_the_forest_marks_it() -> None:
    rows = [made_row("base"), made_row("pos=rope", -0.1, prediction_nats=-0.2)]
    assert "open diamond: predicted" in to_html(made_report(studies=[made_table(rows=rows)]))
    assert "open diamond" not in to_html(made_report())
