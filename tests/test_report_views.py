"""What the views show of a report's data, and what they must not let through."""

import csv
import html
import io
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from fake_runs import fake_record, put_rungs, put_study, swapped
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console

from anatomy.report.table import Report, build_report
from anatomy.report.views import show, to_csv, to_json, to_latex, to_markdown
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


# ------------------------------------------------------------------------------------------------- names in every view

NAMES = ("None", "null", "NA", "NaN", "007", "1e5", "1_000", "1:30", "true", "语料", "e\u0301", "👩‍👩‍👧", ":smile:")
SIGNS = (
    "a|b",
    "a\\|b",
    "50%_a&b#c{d}$e~f^g\\h",
    "<b>x</b>",
    "`x`",
    "*x*",
    "_x_",
    "-5",
    "--",
    "''x",
    "[x](y)",
    "![x](y)",
)
SIGNS += ("&lt;", "&amp;", "~~x~~", "x^2", "\\textbf{x}", "\\\\", "http://x.y")


def named(outputs: Path, *names: str) -> Report:
    records = [fake_record(f"n{i}", 1.25, parts={"norm": name}) for i, name in enumerate(names)]
    put_study(outputs, "s", [fake_record("a"), *records])
    return build_report(outputs)


def from_latex(cell: str) -> str:
    """What TeX prints for a cell, for the macros that a cell may hold; anything else of TeX's is an error."""
    printed = {"textbackslash{}": "\\", "textasciitilde{}": "~", "textasciicircum{}": "^", "textless{}": "<"}
    printed |= {"textgreater{}": ">", "textbar{}": "|", **{sign: sign for sign in "&%$#_{}"}}
    text = ""
    while cell:
        if cell.startswith("$-$"):
            text, cell = text + "-", cell.removeprefix("$-$")
        elif cell.startswith("\\"):
            macro = next(macro for macro in printed if cell[1:].startswith(macro))
            text, cell = text + printed[macro], cell[1 + len(macro) :]
        else:
            assert cell[0] not in "&%$#_{}~^\\<>|", cell
            text, cell = text + cell[0], cell[1:]
    return text


def latex_rows(report: Report) -> list[list[str]]:
    rows = [line.removesuffix(r" \\") for line in to_latex(report).splitlines() if line.endswith(r" \\")]
    return [re.split(r"(?<=[^\\]) & ", row) for row in rows]


def test_every_name_survives_in_csv_json_and_on_the_terminal(tmp_path: Path) -> None:
    names = [*NAMES, *SIGNS]
    report = named(tmp_path, *names)
    expected = ["base", *(f"norm={name}" for name in names)]
    table = list(csv.DictReader(io.StringIO(to_csv(report))))
    assert [row["name"] for row in table] == expected and [row["parts.norm"] for row in table[1:]] == names
    rows = json.loads(to_json(report))["studies"][0]["rows"]
    assert [row["name"] for row in rows] == expected and [row["parts"]["norm"] for row in rows[1:]] == names
    lines = shown(report).splitlines()
    assert all(any(line.startswith(f"{name} ") for line in lines) for name in expected)


def test_every_name_survives_in_latex(tmp_path: Path) -> None:
    names = [*NAMES, *SIGNS]
    heading, *rows = latex_rows(named(tmp_path, *names))
    assert [from_latex(row[0]) for row in rows] == ["base", *(f"norm={name}" for name in names)]
    assert {len(row) for row in rows} == {len(heading)}


@pytest.mark.parametrize("name", [*NAMES, *SIGNS])
def test_every_name_survives_in_rendered_markdown(tmp_path: Path, name: str) -> None:
    """Rendered by the library that comes with rich."""
    rendered = MarkdownIt().enable(["table", "strikethrough"]).render(to_markdown(named(tmp_path, name)))
    rows = re.findall(r"<tr>\n<td[^>]*>(.*?)</td>", rendered)
    assert [html.unescape(row) for row in rows] == ["base", f"norm={name}"]


def test_latex_has_a_tabular_a_table_with_as_many_cells_as_columns(tmp_path: Path) -> None:
    put_study(
        tmp_path, "s", [fake_record("a", 1.5), fake_record("b", 1.25, **RMS), fake_record("l", 1.0, base="llama")]
    )
    text = to_latex(build_report(tmp_path))
    specs = re.findall(r"\\begin\{tabular\}\{([lr]+)\}", text)
    assert len(specs) == text.count(r"\end{tabular}") == 2 and text.count(r"\toprule") == 2
    assert {len(row) for row in latex_rows(build_report(tmp_path))} == {len(spec) for spec in specs}


def test_latex_sets_signs_of_numbers_as_minus(tmp_path: Path) -> None:
    report = named(tmp_path, "-5")
    (difference,) = [cell for cell in latex_rows(report)[2] if "0.25" in cell]
    assert difference == "$-$0.2500"


def test_a_comment_of_latex_ends_with_its_line(tmp_path: Path) -> None:
    put_study(tmp_path, "s\n\\input{x}", [fake_record("a")])
    lines = to_latex(build_report(tmp_path)).splitlines()
    assert not any(line.startswith("\\input") for line in lines)


# ------------------------------------------------------------------------------------------------- statistics shown


def judged(outputs: Path, **spec: object) -> Report:
    losses = {"b": (1.70, 1.64, 1.75), "r": (1.50, 1.45, 1.56), "p": (1.71, 1.60, 1.78)}
    parts = {"b": {}, "r": {"norm": "rms"}, "p": {"pos": "rope"}}
    records = [fake_record(f"{k}{s}", losses[k][s], seed=s, parts=parts[k]) for k in losses for s in range(3)]
    put_study(outputs, "s", [*records, fake_record("d", seed=0, status="diverged", parts={"ffn": "relu"})], **spec)
    return build_report(outputs)


def test_json_is_strict_whatever_the_rows_came_to(tmp_path: Path) -> None:
    """Prior without end, a diverged row, one without a pair: nothing of it is NaN or Infinity."""
    report = judged(tmp_path)
    data = json.loads(to_json(report), parse_constant=pytest.fail)
    (study,) = data["studies"]
    assert study["rows"][1]["p_holm"] is not None and study["rows"][3]["p"] is None
    assert study["rows"][3]["verdict"] == "diverged 1/1"


def test_a_prior_without_end_is_null_and_called_chance(tmp_path: Path) -> None:
    losses = (1.70, 1.64, 1.75)
    records = [fake_record(f"b{s}", losses[s], seed=s) for s in range(3)]
    for norm, shift in (("x", 0.1), ("y", 0.2)):
        parts = {"norm": norm}
        records += [fake_record(f"{norm}{s}", losses[s] + shift + 0.01 * s, seed=s, parts=parts) for s in range(3)]
    put_study(tmp_path, "s", records)
    report = build_report(tmp_path)
    (study,) = json.loads(to_json(report), parse_constant=pytest.fail)["studies"]
    assert study["prior_df"] is None and study["prior_variance"] == pytest.approx(0.0001)
    assert "around 0.0100 nats no more than by chance" in shown(report)


def test_the_verdict_column_says_what_is_unmatched(tmp_path: Path) -> None:
    records = [fake_record("a", 1.5), fake_record("b", 1.25, num_params_by_axis={"attn": 20_000}, **RMS)]
    put_study(tmp_path, "s", records)
    assert cells(build_report(tmp_path))["norm=rms"]["verdict"].endswith("unmatched")


def test_the_protocol_stands_under_the_table(tmp_path: Path) -> None:
    text = shown(judged(tmp_path, looks=[3, 6], margin=0.02))
    assert "97.5 %, simultaneous over 3 rows, margin 0.02 nats" in text
    assert "fewer than five seeds are a look" in text and "seed 0: made to fail" in text


def test_csv_agrees_with_json_in_every_number(tmp_path: Path) -> None:
    report = judged(tmp_path)
    table = list(csv.DictReader(io.StringIO(to_csv(report))))
    data = json.loads(to_json(report))["studies"][0]["rows"]
    for line, row in zip(table, data, strict=True):
        for key, value in row.items():
            if isinstance(value, float | int) and not isinstance(value, bool):
                assert float(line[key]) == value, key
            elif value is None:
                assert line.get(key, "") == "", key


def test_an_attribution_is_in_every_view_but_the_tables(tmp_path: Path) -> None:
    axes = ("norm", "placement", "pos", "attn", "ffn")
    chain = [fake_record(f"c{i}", 2 - 0.11 * i, parts=swapped("vanilla", axes[:i])) for i in range(6)]
    put_study(tmp_path, "walk", chain)
    report = build_report(tmp_path)
    for text in (shown(report), to_markdown(report)):
        assert "from vanilla to llama" in text and text.count("-0.1100") >= 5
        assert "-0.550 nats: step by step norm -0.110" in text
    assert json.loads(to_json(report))["attribution"][0]["total"]["nats"] == pytest.approx(-0.55)
