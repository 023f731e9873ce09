"""What the report makes of diagnostics: over seeds, of rows that diverged too, and of files that are damaged."""

import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from fake_runs import fake_record, put_study, swapped
from made_report import made_report, made_row, made_table

from anatomy.diagnostics import KINDS
from anatomy.report.data import Copying, Diagnosis, Layers, Table
from anatomy.report.diagnosis_figures import DIAGNOSIS_FIGURES
from anatomy.report.page import to_html
from anatomy.report.table import build_report
from anatomy.report.views import notes, to_json, to_markdown
from anatomy.runs import DIAGNOSTICS_FILE

NAMES = ("base", "norm=rms", "placement=pre")


def content(scale: float = 1.0, *, is_done: bool = True) -> dict[str, Any]:
    """A run's file with two layers and two heads."""
    attention = {"entropy_nats": [[1.0 * scale, 2.0], [3.0, 4.0]], "largest_logit": [scale, -0.5]}
    return {
        "schema": 1,
        "gradients": {"start": {"embed": 9.0, "pos": None, "attn": [scale, 2.0], "ffn": [3.0, None], "output": 1.0}},
        "activations": {"start": [scale, 2.0, 3.0], "last": [4.0, 5.0, 6.0] if is_done else None},
        "attention": {"start": attention, "last": attention if is_done else None},
        "copying": {
            "last": {"num_samples": 16, "num_chars": 3200, "share": 0.1 * scale, "longest_chars": 40}
            if is_done
            else None,
            "best": {"num_samples": 16, "num_chars": 3200, "share": 0.0, "longest_chars": int(10 * scale)},
        },
    }


def put_runs(outputs: Path, contents: list[Any], status: str = "done") -> None:
    """A base without diagnostics, and a row whose seeds hold these."""
    records = [fake_record(f"base-{seed}", 1.5, seed=seed) for seed in range(len(contents))]
    parts = swapped("vanilla", ["norm"])
    records += [
        fake_record(f"norm-{seed}", 1.4, seed=seed, parts=parts, status=status) for seed in range(len(contents))
    ]
    put_study(outputs, "mine", records)
    for seed, one in enumerate(contents):
        text = one if isinstance(one, str) else json.dumps(one)
        (outputs / "runs" / f"norm-{seed}" / DIAGNOSTICS_FILE).write_text(text)


def table_of(outputs: Path) -> Table:
    (table,) = build_report(outputs).studies
    return table


def test_it_is_the_mean_over_seeds_with_the_least_and_the_greatest(tmp_path: Path) -> None:
    put_runs(tmp_path, [content(1.0), content(2.0), content(6.0)])
    found = table_of(tmp_path).diagnosis
    assert found is not None
    assert found.gradients["attn"] == [Layers("norm=rms", 1, [3.0, 2.0], [1.0, 2.0], [6.0, 2.0], 3)]
    assert found.gradients["ffn"] == [Layers("norm=rms", 1, [3.0, None], [3.0, None], [3.0, None], 3)]
    assert found.activations["start"] == [Layers("norm=rms", 0, [3.0, 2.0, 3.0], [1.0, 2.0, 3.0], [6.0, 2.0, 3.0], 3)]
    assert found.entropy_nats["last"][0].mean == [2.5, 3.5] and found.entropy_nats["last"][0].high == [4.0, 3.5]
    assert found.largest_logit["start"][0].mean == [3.0, -0.5]
    last, best = found.copying
    assert (last.weights, best.weights) == ("last", "best")
    assert (last.share, last.share_low, last.share_high) == pytest.approx((0.3, 0.1, 0.6))
    assert best == Copying("norm=rms", "best", 0.0, 0.0, 0.0, 60, None, 3)


def test_a_row_that_diverged_shows_how_it_started(tmp_path: Path) -> None:
    put_runs(tmp_path, [content(is_done=False), content(is_done=False)], status="diverged")
    found = table_of(tmp_path).diagnosis
    assert found is not None and found.gradients["attn"][0].num_seeds == 2
    assert found.activations["start"] and not found.activations["last"]
    assert [one.weights for one in found.copying] == ["best"]


def test_a_study_without_diagnostics_has_none(tmp_path: Path) -> None:
    put_study(tmp_path, "other", [fake_record("base-0"), fake_record("base-1", seed=1)])
    assert all(table.diagnosis is None for table in build_report(tmp_path).studies)


def _with(path: str, value: object) -> dict[str, Any]:
    changed = content(5.0)
    *sections, last = path.split(".")
    place = changed
    for section in sections:
        place = place[section]
    place[last] = value
    return changed


@pytest.mark.parametrize(
    "damage",
    [
        *("", "[]", "{}", '{"schema": 2}', '{"schema": 1, "gradients": 3}', "[" * 5000, json.dumps(content())[:200]),
        *[
            _with("gradients.start.attn", value)
            for value in (None, "x", ["1", 2], [True, 2], [math.nan, 1], [1e300], 7)
        ],
        *[_with("gradients.start", value) for value in (None, [], "attn")],
    ],
    ids=str,
)
def test_what_is_damaged_reads_as_absent(tmp_path: Path, damage: Any) -> None:
    put_runs(tmp_path, [content(1.0), damage])
    found = table_of(tmp_path).diagnosis
    assert found is not None and found.gradients["attn"] == [
        Layers("norm=rms", 1, [1.0, 2.0], [1.0, 2.0], [1.0, 2.0], 1)
    ]
    to_json(build_report(tmp_path))


def test_the_names_are_those_that_runs_are_written_with() -> None:
    assert set(DIAGNOSIS_FIGURES) == set(KINDS)


# ------------------------------------------------------------------------------------------------ views


def made_diagnosis(names: tuple[str, ...] = NAMES, num_layers: int = 3) -> Diagnosis:
    def layers(first: int = 1) -> list[Layers]:
        num = num_layers + (first == 0)
        mean = [0.5 * (i + 1) for i in range(num)]
        return [Layers(name, first, mean, [0.9 * m for m in mean], [1.1 * m for m in mean], 3) for name in names]

    moments = ("start", "last")
    return Diagnosis(
        gradients={sub: layers() for sub in ("attn", "ffn")},
        activations={moment: layers(0) for moment in moments},
        entropy_nats={moment: layers() for moment in moments},
        largest_logit={moment: layers() for moment in moments},
        copying=[Copying(name, w, 0.123, 0.1, 0.15, 47, 0.031, 3) for name in names for w in ("last", "best")],
    )


def made_rows(names: tuple[str, ...]) -> list[Any]:
    return [made_row(name, None if name == "base" else 0.01) for name in names]


def test_each_row_that_was_measured_has_a_line_on_what_it_copies() -> None:
    lines = notes(made_table(rows=made_rows(NAMES), diagnosis=made_diagnosis()))
    expected = "norm=rms writes training text word for word: 12.3% with the last weights, 47 characters at most; "
    expected += "12.3% with the best weights, 47 characters at most; "
    assert expected + "the text itself, going on from the same prompts, 3.1%" in lines
    report = made_report(studies=[made_table(rows=made_rows(NAMES), diagnosis=made_diagnosis())])
    assert "47 characters at most" in to_markdown(report)
    assert json.loads(to_json(report))["studies"][0]["diagnosis"] == json.loads(json.dumps(asdict(made_diagnosis())))


@pytest.mark.parametrize("num_layers", [1, 3, 40])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_figure_that_names_its_rows(kind: str, num_layers: int) -> None:
    table = made_table(rows=made_rows(NAMES), diagnosis=made_diagnosis(num_layers=num_layers))
    figure = DIAGNOSIS_FIGURES[kind](table)
    assert figure is not None
    texts = {text.get_text() for axes in figure.axes for text in (*axes.texts, *axes.get_yticklabels())}
    assert set(NAMES) <= texts


@pytest.mark.parametrize("kind", KINDS)
def test_there_is_no_figure_where_nothing_was_measured_or_can_be_drawn(kind: str) -> None:
    draw = DIAGNOSIS_FIGURES[kind]
    empty = made_diagnosis(names=())
    assert draw(made_table()) is None
    assert draw(made_table(rows=made_rows(NAMES), diagnosis=empty)) is None
    nothing = [Layers("norm=rms", 1, [None, 0.0], [None, 0.0], [None, 0.0], 3)]
    bare = replace(empty, gradients={"attn": nothing, "ffn": nothing}, activations={"start": nothing, "last": []})
    assert draw(made_table(rows=made_rows(NAMES), diagnosis=bare)) is None


def test_a_row_that_ended_early_is_named_as_such() -> None:
    whole = made_diagnosis()
    early = replace(whole, activations={**whole.activations, "last": whole.activations["last"][:2]})
    figure = DIAGNOSIS_FIGURES["activations"](made_table(rows=made_rows(NAMES), diagnosis=early))
    assert figure is not None
    assert "placement=pre (start only)" in {text.get_text() for axes in figure.axes for text in axes.texts}


def test_the_page_shows_the_figures_with_their_numbers_only_where_something_was_measured() -> None:
    with_it = to_html(made_report(studies=[made_table(rows=made_rows(NAMES), diagnosis=made_diagnosis())]))
    without = to_html(made_report(studies=[made_table(rows=made_rows(NAMES))]))
    for title in ("Gradients at the start, by layer", "The residual stream, by layer", "What is copied"):
        assert title in with_it and title not in without
    assert "<td>12.3%</td>" in with_it and ">layer 3</th>" in with_it
