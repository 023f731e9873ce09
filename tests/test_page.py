"""The page: that it stands alone, says what it shows and what it leaves out, and lets nothing act."""

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from made_report import ODD_NAMES, made_attribution, made_report, made_row, made_table, odd_table

from anatomy.report.captions import CAPTIONS
from anatomy.report.data import AT_BEST, FINAL, Report, Sample, Table
from anatomy.report.figures import MAX_ROWS, MAX_TABLES
from anatomy.report.page import to_html

VOID = ("meta", "br", "path", "use", "rect")


class Page(HTMLParser):
    """A page's text and attributes; raises where a tag is closed that is not open."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


@cache
def whole() -> tuple[str, Page]:
    html = to_html(made_report())
    return html, Page(html)


@cache
def odd() -> tuple[str, Page]:
    names = [row.name for row in odd_table().rows]
    samples = [Sample(name, 0, "</pre><script>alert(1)</script>\n\x00\x1b[0m \ud800") for name in names]
    table = replace(odd_table(), samples=samples, title="<i>", question="a & b", warnings=("<b>\u202e",))
    html = to_html(Report(1, (table,), (made_attribution(findings={"verdict": "<u>"}),), (), ("<s>",)))
    return html, Page(html)


def bare(**values: object) -> Table:
    return replace(made_table(rows=[made_row("base"), made_row("x", 0.1)]), **values)  # type: ignore[arg-type]


def page_of(*tables: Table) -> Page:
    return Page(to_html(Report(1, tables, (), (), ())))


@pytest.mark.parametrize("page", [whole, odd])
def test_the_page_needs_nothing_beside_it(page: Callable[[], tuple[str, Page]]) -> None:
    html, parsed = page()
    sources = [value for _, name, value in parsed.attributes if name in ("src", "href", "xlink:href", "action", "data")]
    assert sources and all(value.startswith("#") for value in sources)
    assert not re.search(r"@import|url\((?!#)", html.split("<script>")[0].replace("url(#y)", ""))
    assert "default-src 'none'" in html
    assert len(html.encode()) < 3_000_000


@pytest.mark.parametrize("page", [whole, odd])
def test_ids_are_unique_and_links_have_their_aim(page: Callable[[], tuple[str, Page]]) -> None:
    _, parsed = page()
    ids = Counter(value for _, name, value in parsed.attributes if name == "id")
    assert max(ids.values()) == 1
    assert {value[1:] for _, name, value in parsed.attributes if name.endswith("href")} <= {*ids}


def test_findings_stand_above_their_figures() -> None:
    html, parsed = whole()
    for table in made_report().studies:
        assert all(sentence in parsed.text for sentence in table.findings.values())
        for kind in ("curves", "position", "knowledge", "cost"):
            start = html.index(f'data-name="swaps-{table.base}-{kind}"')
            figure = html[start : html.index("</figure>", start)]
            assert figure.index(table.findings[kind]) < figure.index("<svg")
    assert made_attribution().findings["verdict"] in parsed.text


def test_every_figure_has_a_description_and_buttons_that_need_a_script() -> None:
    html, parsed = whole()
    described = [value for tag, name, value in parsed.attributes if name == "aria-label"]
    assert all(any(caption.title in label for label in described) for caption in CAPTIONS.values() if caption.missing)
    assert html.count("<figure ") == html.count('class="save" hidden') == 12


def test_the_table_shows_its_numbers_signed_and_its_verdicts_in_words() -> None:
    html, _ = whole()
    assert '<td class="word better">better</td>' in html
    assert "<td>−0.0527</td><td>−0.063 to −0.042</td>" in html
    assert '<td class="word better">better, unmatched</td>' in html
    assert html.index("<div>base</div>") < html.index("<div>llama</div>")


def test_provenance_registration_and_what_was_set_aside_are_there() -> None:
    _, parsed = whole()
    table = made_table()
    assert table.registration and table.corpus_sha256 and table.seeds_command
    for text in (
        *(table.corpus_sha256, table.registration.spec_sha256 or "", table.registration.deviations[0]),
        *(table.set_aside[0].run, table.set_aside[0].reason, table.warnings[0], table.seeds_command),
        *("4,298,239", "10.98", "193dc70", "2.13.0", "Noise floor: 0.0061", "blocks.*.ffn.gate_proj.weight"),
    ):
        assert text in parsed.text


def test_nothing_in_a_name_or_a_sample_acts() -> None:
    html, parsed = odd()
    assert html.count("<script") == 1
    assert not re.search("[\x00-\x08\x0b-\x1f\u202e\ud800-\udfff]", html)
    for name in ODD_NAMES[:8]:
        assert name in parsed.text
    for text in (r"tab\there\x1b[31m\u202e\ud800\n", '#010203 id="x" url(#y) --> &amp;', "<i>", "a & b", r"<b>\u202e"):
        assert text in parsed.text
    assert r"\x00\x1b[0m \ud800" in parsed.text
    html.encode()


def test_columns_that_hold_nothing_are_left_out() -> None:
    with_p, without = (
        page_of(bare()),
        page_of(bare(rows=[made_row("base"), made_row("x", 0.1, p_holm=None, over_fitted=None)])),
    )
    assert "p (Holm)" in with_p.text and "p (Holm)" not in without.text
    assert "over-fitted" in with_p.text


@pytest.mark.parametrize(("metric", "headings"), [(FINAL, (True, False, False)), (AT_BEST, (False, True, True))])
def test_losses_are_named_by_the_step_they_are_of(metric: str, headings: tuple[bool, ...]) -> None:
    html = to_html(Report(1, (bare(metric=metric),), (), (), ()))
    names = ("test nats", "test nats at best", "final nats")
    assert tuple(f">{name}</th>" in html for name in names) == headings


def test_errors_and_what_is_missing_are_said() -> None:
    failed = made_row("x", 0.1, status="done 1, failed 1", errors=("seed 1: ran out of <memory>",))
    text = page_of(bare(rows=[made_row("base"), failed])).text
    assert "x : seed 1: ran out of <memory>" in text
    assert all(CAPTIONS[kind].missing in text for kind in ("curves", "position", "knowledge", "cost"))
    assert CAPTIONS["forest"].missing in page_of(bare(rows=[made_row("base")])).text
    assert "Nothing to show: no runs were found." in page_of().text
    assert "No rows" in page_of(bare(rows=(), base=None, findings={}, registration=None, rungs=None)).text


def test_a_long_table_is_whole_and_says_that_its_figures_are_not() -> None:
    rows = [made_row("base"), *(made_row(f"row={i}", 0.01) for i in range(2000))]
    html = to_html(Report(1, (bare(rows=rows),), (), (), ()))
    assert f"Figures show the first {MAX_ROWS} of 2,001 rows" in html
    assert html.count("<div>row=1999</div>") == 2  # verdicts and costs


def test_many_tables_say_which_have_figures() -> None:
    html = to_html(Report(1, [bare(study=f"s{i}") for i in range(MAX_TABLES + 2)], (), (), ()))
    assert html.count("<figure ") == MAX_TABLES
    assert (
        html.count(f"No figures here: they are drawn for the first {MAX_TABLES} of the report's {MAX_TABLES + 2}") == 2
    )
