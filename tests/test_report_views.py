"""What the views show of a report's data, and what they must not let through."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import fake_record, put_rungs, put_study
from rich.cells import cell_len
from rich.console import Console

from anatomy.report.table import Report, build_report
from anatomy.report.views import show, to_csv, to_json, to_markdown
from anatomy.runs import Entry, record_entries

RMS = {"parts": {"norm": "rms"}}


def shown(report: Report, width: int = 10_000) -> str:
    out = io.StringIO()
    show(report, Console(file=out, width=width, color_system=None, markup=False, emoji=False))
    return out.getvalue()


def cells(report: Report) -> dict[str, dict[str, str]]:
    """Row -> heading -> cell, out of the Markdown."""
    heading, _, *rows = [line[2:-2].split(" | ") for line in to_markdown(report).splitlines() if line.startswith("| ")]
    return {row[0]: dict(zip(heading, row, strict=True)) for row in rows}


def test_loss_spread_and_difference_are_of_one_metric(tmp_path: Path) -> None:
    """At first the loss shown was the final one and the difference that at the best step: 6 against 5 made -0.1."""
    finals, bests = {"a": 5.0, "b": 6.0}, {"a": 3.7, "b": 3.6}
    many = {"data": {"epochs": 9.3}}
    records = [
        fake_record("a", finals["a"], test_loss_nats_at_best=bests["a"], **many),
        fake_record("b", finals["b"], test_loss_nats_at_best=bests["b"], **many, **RMS),
    ]
    put_study(tmp_path, "s", records)
    row = cells(build_report(tmp_path))["norm=rms"]
    assert (row["test nats at best"], row["difference"], row["final nats"]) == ("3.6000", "-0.1000", "6.0000")


def test_final_losses_need_no_second_column(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.5), fake_record("b", 1.25, **RMS)])
    row = cells(build_report(tmp_path))["norm=rms"]
    assert (row["test nats"], row["difference"]) == ("1.2500", "-0.2500") and "final nats" not in row


def test_a_row_says_how_many_of_its_seeds_are_paired(tmp_path: Path) -> None:
    base = [fake_record(f"b{seed}", 1.5, seed=seed) for seed in (0, 1)]
    put_study(tmp_path, "s", [*base, *(fake_record(f"r{seed}", 1.25, seed=seed, **RMS) for seed in (1, 7))])
    rows = cells(build_report(tmp_path))
    assert (rows["base"]["seeds"], rows["norm=rms"]["seeds"]) == ("2", "2 (1 paired)")


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_a_table_wider_than_the_terminal_keeps_every_digit(tmp_path: Path, width: int) -> None:
    put_study(tmp_path, "s", [fake_record("a", 1.5), fake_record("b", 1.4321, **RMS), fake_record("c", 1.25, seed=1)])
    put_rungs(tmp_path)
    report = build_report(tmp_path)
    lines = shown(report, width).splitlines()
    assert max(map(cell_len, lines)) <= width
    words = " ".join(lines).split()
    for row in cells(report).values():
        assert [cell for cell in row.values() if cell not in words and " " not in cell] == []


@pytest.mark.parametrize(
    "sign", ["\x1b[2J", "\x07", "\r", "\n", "\t", "\u202e", "\u200f", "\u2066", "\x9b", "\udcff", "\u2028"]
)
def test_no_sign_in_a_name_or_reason_acts_on_a_terminal_or_breaks_a_file(tmp_path: Path, sign: str) -> None:
    odd = fake_record("b", status="failed", error=f"failed{sign}here", parts={"norm": f"n{sign}m"})
    put_study(tmp_path, "s", [fake_record("a"), odd])
    report = build_report(tmp_path)
    for text in (shown(report), to_markdown(report), to_csv(report)):
        assert sign not in text.replace("\n", "") if sign == "\n" else sign not in text
        assert text.encode() and "failed" in text and "here" in text
    assert "\x1b" not in to_json(report)
    assert json.loads(to_json(report).encode())["studies"][0]["rows"][1]["name"] == f"norm=n{sign}m"
    assert len(list(csv.reader(io.StringIO(to_csv(report))))) == 3


@pytest.mark.parametrize("name", ["语料", "é\u2060", "e\u0301", "👩‍👩‍👧", "a\u3000b", "[red]x", ":smile:"])
def test_a_harmless_name_is_shown_as_it_is(tmp_path: Path, name: str) -> None:
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", parts={"norm": name})])
    report = build_report(tmp_path)
    assert f"norm={name}" in shown(report) and f"norm={name}" in to_csv(report) and f"norm={name}" in to_json(report)
    widths = {cell_len(line) for line in shown(report).splitlines() if line.rstrip().endswith("done")}
    assert len(widths) == 1


def test_a_line_end_in_a_reason_stays_in_its_line(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", status="failed", error="first\nsecond\tthird")])
    report = build_report(tmp_path)
    assert "first\\nsecond\\tthird" in shown(report) and "first\\\\nsecond" in to_markdown(report)


def test_a_whole_number_that_came_as_a_float_is_shown(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a", num_params=92_832.0, best_step=900.0)])
    row = cells(build_report(tmp_path))["base"]
    assert (row["params"], row["best step"]) == ("92,832", "900")


def test_csv_has_every_axis_even_where_no_part_is_known(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [])
    planned = Entry("vanilla", "norm", ["swap=norm"], 0, None, "not-there-yet", None)
    record_entries(tmp_path / "studies" / "s", {}, [planned])
    (row,) = csv.DictReader(io.StringIO(to_csv(build_report(tmp_path))))
    assert (row["name"], row["parts.norm"], row["parts.init"], row["num_params"]) == ("swap=norm", "", "", "")


def test_csv_leaves_text_as_text_and_holes_empty(tmp_path: Path) -> None:
    names = ("None", "null", "NA", "007", "1e5", "1_000", "1:30")
    put_study(tmp_path, "s", [fake_record("a"), *(fake_record(name, parts={"norm": name}) for name in names)])
    rows = list(csv.DictReader(io.StringIO(to_csv(build_report(tmp_path)))))
    assert [row["parts.norm"] for row in rows[1:]] == list(names)
    assert {row["test_loss_nats_sd"] for row in rows} == {""} and {row["num_params"] for row in rows} == {"92832"}


def test_a_failed_row_keeps_whole_numbers_whole(tmp_path: Path) -> None:
    """A hole in a column of integers turned 92832 into 92832.0 elsewhere."""
    put_study(tmp_path, "s", [fake_record("a"), fake_record("b", status="failed", num_params=None, **RMS)])
    report = build_report(tmp_path)
    assert [row["num_params"] for row in csv.DictReader(io.StringIO(to_csv(report)))] == ["92832", ""]
    assert '"num_params": 92832,' in to_json(report) and cells(report)["base"]["params"] == "92,832"


def test_a_refused_arm_that_another_run_made_good_is_named_with_its_reason(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a")])
    refused = Entry("vanilla", "none", ["word=a", "seed=0"], 0, None, None, "no such text")
    record_entries(tmp_path / "studies" / "s", {}, [refused])
    (table,) = build_report(tmp_path).studies
    (aside,) = table.set_aside
    assert aside.run == "word=a" and "no such text" in aside.reason


def test_json_refuses_what_is_not_json(tmp_path: Path) -> None:
    put_study(tmp_path, "s", [fake_record("a")])
    report = build_report(tmp_path)
    with pytest.raises(ValueError, match="JSON compliant"):
        to_json(replace(report, studies=[replace(report.studies[0], tokens=float("nan"))]))
