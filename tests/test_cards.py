"""Exam cards in the views: every word and number is there, nothing acts, and tables of many cells are one."""

import html
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
from made_cards import CLAIMS, ODD, PICTURED, empty_card, made_card, odd_card
from made_report import made_report, made_row, made_table
from markdown_it import MarkdownIt
from rich.cells import cell_len
from rich.console import Console
from test_page import Page

from anatomy.report.cards import measured
from anatomy.report.cells import shown_tables
from anatomy.report.columns import bracketed, estimate
from anatomy.report.data import Card, Estimate, Quantity, Report, Table
from anatomy.report.page import to_html
from anatomy.report.views import show, to_csv, to_json, to_latex, to_markdown

FACTORS = ("model.n_layer", "init")


def report_of(*cards: Card) -> Report:
    return made_report(studies=(), attribution=(), exams=cards)


def terminal(report: Report, width: int = 10_000, *, styled: bool = False) -> str:
    out = io.StringIO()
    colours = "standard" if styled else None
    show(report, Console(file=out, width=width, color_system=colours, markup=False, emoji=False, highlight=False,
                         force_terminal=styled))  # fmt: skip
    return out.getvalue()


def markdown(report: Report) -> str:
    """Rendered by the library that comes with rich, without its tags."""
    rendered = MarkdownIt().enable(["table", "strikethrough"]).render(to_markdown(report))
    return html.unescape(re.sub("<[^>]*>", "", rendered))


def latex(report: Report) -> str:
    """What TeX prints, and its comments."""
    text = to_latex(report).replace(r"$\times$", "×").replace("$-$", "-")
    return re.sub(r"\\([&%$#_{}])", r"\1", text)


def page(report: Report) -> str:
    return Page(re.findall("<main>.*</main>", to_html(report), re.DOTALL)[0]).text.replace("−", "-")


def json_text(report: Report) -> str:
    return json.dumps(json.loads(to_json(report), parse_constant=pytest.fail), ensure_ascii=False)


VIEWS: tuple[Callable[[Report], str], ...] = (terminal, markdown, latex, page)


@cache
def words_of(axis: str) -> list[str]:
    """Every word of a card that a reader should find."""
    card = made_card(axis)
    words = [f"exam of {axis}", card.question or "", card.scenario]
    for claim in card.claims:
        words += [claim.part, claim.text, claim.source, claim.verdict or "not examined yet", claim.rule]
        words += [claim.note] if claim.note else []
        words += [quantity.what for quantity in claim.measured]
    return words


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("axis", PICTURED)
def test_every_view_holds_every_word_of_a_card(axis: str, view: Callable[[Report], str]) -> None:
    text = view(report_of(made_card(axis)))
    assert [word for word in words_of(axis) if word not in text] == []


@pytest.mark.parametrize("view", [terminal, markdown, latex])
def test_text_views_show_numbers_with_their_interval_and_unit(view: Callable[[Report], str]) -> None:
    text = view(report_of(*map(made_card, PICTURED)))
    for number in (
        *("+0.0012 nats (-0.0030 to +0.0054)", "1.83× (1.80 to 1.87)", ": 1 of 3", ": 64 characters", ": 4 of 4"),
        *("268,435,456 bytes", "over vanilla and llama: -0.0510 nats"),
    ):
        assert number in text
    assert "-0.0510 nats (" not in text  # one seed has no interval


def test_the_page_shows_numbers_and_intervals_in_columns() -> None:
    text = page(report_of(*map(made_card, PICTURED)))
    for number in ("+0.0012 nats -0.0030 to +0.0054", "1.83× 1.80 to 1.87", "1 of 3", "268,435,456 bytes"):
        assert number in text
    assert "swiglu minus gelu, mean over vanilla and llama -0.0510 nats one seed" in text


def test_json_holds_a_card_as_it_is_and_is_strict() -> None:
    card = made_card("norm")
    (found,) = json.loads(to_json(report_of(card)), parse_constant=pytest.fail)["exams"]
    assert found["claims"][0]["measured"][0]["low"] == pytest.approx(-0.003)
    assert found["timed"]["norm_calls"]["rows"][0]["norm"] == "rms" and len(found["losses"]) == 8
    assert [claim["verdict"] for claim in found["claims"]] == [claim.verdict for claim in card.claims]


@pytest.mark.parametrize(
    ("quantity", "said"),
    [
        (Quantity("x", -0.00004, -0.001, 0.00092, "nats"), "x: -0.0000 nats (-0.0010 to +0.0009)"),
        (Quantity("x", 1.0849, None, None, "times"), "x: 1.08×"),
        (Quantity("x", 2, None, None, "of 3"), "x: 2 of 3"),
        (Quantity("x", 1_073_741_824.0, None, None, "bytes"), "x: 1,073,741,824 bytes"),
        (Quantity("x", 0.25, 0.2, 0.3, "{0} %s"), "x: 0.25 {0} %s (0.2 to 0.3)"),
    ],
)
def test_a_number_is_said_in_its_unit(quantity: Quantity, said: str) -> None:
    assert measured(quantity) == said


def test_an_estimate_and_a_quantity_bracket_their_interval_alike() -> None:
    assert bracketed(-0.1, 0.2, "+.4f") == " (-0.1000 to +0.2000)" and bracketed(None, 0.2, "+.4f") == ""
    assert estimate(Estimate(0.05, -0.1, 0.2, 3)) == "+0.0500 (-0.1000 to +0.2000)"


def test_cards_stand_before_the_tables() -> None:
    report = made_report(exams=[made_card("norm")])
    for text in (terminal(report), to_markdown(report), to_latex(report)):
        assert text.index("exam of norm") < text.index("base vanilla")
    text = to_html(report)
    assert text.index("<article") < text.index('<section id="t1"') and '<a href="#e0">exam of norm</a>' in text


def test_the_verdict_stands_out() -> None:
    card = made_card("norm")
    assert "\x1b[1msupported here\x1b[0m" in terminal(report_of(card), styled=True)
    assert "**supported here**, rms:" in to_markdown(report_of(card))
    badges = re.findall(r'class="badge (\w+)">([^<]*)<', to_html(report_of(*map(made_card, PICTURED))))
    assert {*badges} == {
        *(("supported", "supported here"), ("unseen", "not seen here"), ("contradicted", "contradicted here")),
        *(("outside", "outside this scale"), ("open", "not examined yet")),
    }


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_card_wraps_in_a_terminal_and_loses_nothing(width: int) -> None:
    lines = terminal(report_of(*map(made_card, PICTURED)), width).splitlines()
    assert max(map(cell_len, lines)) <= width
    shown = " ".join(" ".join(lines).split())
    assert [word for axis in PICTURED for word in words_of(axis) if word not in shown] == []
    assert all(line.startswith("    ") for line in lines if re.match(" *(rule|note|measured):", line))


def test_nothing_is_wrapped_where_it_is_piped() -> None:
    lines = terminal(report_of(odd_card())).splitlines()
    assert len(lines) == 3 + 1 + 3 + 1  # title and facts; claim, number, note and rule; a blank


def test_a_study_of_another_name_is_named() -> None:
    assert "exam of norm, study mine" in terminal(report_of(made_card("norm", study="mine")))
    assert "study" not in terminal(report_of(made_card("norm")))


# ------------------------------------------------------------------------------------------------ what is missing


@pytest.mark.parametrize("axis", PICTURED)
def test_an_exam_that_has_not_begun_is_a_card_without_a_picture(axis: str) -> None:
    report = report_of(empty_card(axis))
    for view in VIEWS:
        text = view(report)
        assert text.count("not examined yet") == len(CLAIMS[axis]) and "no runs yet" in text
    text = to_html(report)
    assert "<figure" not in text and "No picture:" in text and 'class="badge open"' in text
    json_text(report)


def test_a_card_without_a_question_or_claims_is_shown() -> None:
    for view in VIEWS:
        text = view(report_of(made_card("ffn", question=None, claims=[])))
        assert "exam of ffn" in text and "None" not in text and "question" not in text


# ------------------------------------------------------------------------------------------------ hostile words


def test_no_word_of_a_card_acts() -> None:
    report = report_of(odd_card())
    for text in (terminal(report), to_markdown(report), to_latex(report), to_html(report)):
        assert not re.search("[\x00-\x09\x0b-\x1f\u202e]", text)
    html_text = to_html(report)
    assert html_text.count("<script") == 1 and "<b>" not in html_text and "<i>" not in html_text
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(to_markdown(report))
    assert not re.search("<script|<table|<b>|<i>", rendered)
    shown = ODD.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e")
    for view in (terminal, markdown, page):
        assert view(report).count(shown) >= 8


def test_every_line_of_latex_is_a_comment_or_has_three_cells() -> None:
    lines = to_latex(report_of(odd_card(), *map(made_card, PICTURED))).splitlines()
    rows = [re.split(r"(?<!\\)& ", line) for line in lines if line.endswith(r" \\")]
    assert rows and {len(row) for row in rows} == {3}
    others = {line for line in lines if line and not line.startswith("% ") and not line.endswith(r" \\")}
    assert others == {
        r"\begin{tabular}{llp{0.6\textwidth}}",
        r"\toprule",
        r"\midrule",
        r"\bottomrule",
        r"\end{tabular}",
    }


# ------------------------------------------------------------------------------------------------ tables of many cells


def crossed(num_cells: int, base: str = "vanilla") -> list[Table]:
    """A table a cell of depth and init."""
    cells = [{"model.n_layer": str(depth), "init": init} for depth in (3, 16) for init in ("normal", "torch")]
    return [
        made_table(base, [made_row("base"), made_row("placement=pre", 0.01 * i)], study="exam_placement", cell=cell,
                   title=", ".join(f"{key}={value}" for key, value in cell.items()), sizes={"d_model": 48})
        for i, cell in enumerate(cells[:num_cells])
    ]  # fmt: skip


def test_many_cells_are_one_table_a_base_with_every_row_of_every_cell() -> None:
    tables = [*crossed(4), *crossed(4, "llama")]
    one, other = shown_tables(tables)
    assert (one.base, other.base, len(one.rows), len(other.rows)) == ("vanilla", "llama", 8, 8)
    assert one.is_joined and other.is_joined and not any(table.is_joined for table in tables)
    names = [row.name for row in one.rows]
    assert names[:2] == ["model.n_layer=3, init=normal: vanilla", "model.n_layer=3, init=normal: placement=pre"]
    assert [row.difference_nats for row in one.rows[1::2]] == [0.0, 0.01, 0.02, 0.03]


@pytest.mark.parametrize("num_cells", [1, 2, 3])
def test_few_cells_stay_tables_of_their_own(num_cells: int) -> None:
    tables = crossed(num_cells)
    assert list(shown_tables(tables)) == tables and not any(table.is_joined for table in tables)


def test_what_differs_between_cells_is_not_said_of_all() -> None:
    tables = [replace(table, corpus=f"text{i}") for i, table in enumerate(crossed(4))]
    (one,) = shown_tables(tables)
    assert (one.corpus, one.num_chars) == (None, tables[0].num_chars) and one.seeds_command is None


@pytest.mark.parametrize("view", [terminal, to_markdown, to_latex])
def test_text_views_show_many_cells_as_one_table(view: Callable[[Report], str]) -> None:
    text = view(made_report(studies=[*crossed(4), *crossed(4, "llama")], attribution=()))
    assert text.count("4 cells of model.n") == 2 and text.count("placement=pre") + text.count(r"placement\=pre") >= 8


def test_csv_and_json_keep_every_cell_a_table() -> None:
    report = made_report(studies=crossed(4), attribution=())
    assert len(json.loads(to_json(report))["studies"]) == 4 and to_csv(report).count("exam_placement,vanilla") == 8


def test_the_page_shows_many_cells_as_one_grid_without_figures() -> None:
    text = to_html(made_report(studies=[*crossed(4), *crossed(4, "llama"), *crossed(2, "gpt2")], attribution=()))
    assert text.count("<h3>Against vanilla</h3>") == text.count("<h3>Against llama</h3>") == 1
    grid = text[text.index("<h3>Against vanilla") : text.index('<section id="t3"')]
    assert "<figure" not in grid and "No figures here" not in grid and "are not drawn" not in grid
    assert grid.count('<tr class="base"><th scope="row"><div>model.n_layer=16, init=torch: ') == 4  # two grids a base
    assert '<a href="#t1">exam_placement, vanilla and llama</a>' in text
    assert text.count("<figure") == 2  # a forest of each of the two that are left
