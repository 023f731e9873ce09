"""Figures: what is drawn, what is not, and that it stays readable without colour, in the dark and with any name."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_report import STEPS, made_attribution, made_report, made_row, made_table, odd_table
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text
from rich.cells import cell_len

from anatomy.axes import AXES, BASES
from anatomy.report import drawing
from anatomy.report.attribution_figures import ATTRIBUTION_FIGURES
from anatomy.report.data import Estimate, Table, Tuning
from anatomy.report.figures import MAX_ROWS, MAX_TABLES, TABLE_FIGURES, directions, forest, write_figures

TUNING = tuple(
    Tuning(name, (0.001, 0.004, 0.016), (1.5, 1.4, loss), 0.004, at_edge=False)
    for name, loss in (("base", None), ("llama", 1.6), ("norm=rms", 9.0))
)


def drawn_texts(figure: Figure | None) -> list[str]:
    assert figure is not None
    root = ET.fromstring(drawing.svg(figure, "x-"))
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("table", [made_table(), made_table("llama", tuning=TUNING), odd_table()], ids=lambda t: t.base)
def test_every_figure_is_xml_in_the_ink_of_its_page(table: Table) -> None:
    figures = [forest([table]), *(draw(table) for draw in TABLE_FIGURES.values())]
    drawn = [drawing.svg(figure, "x-") for figure in figures if figure]
    assert len(drawn) >= 3
    for text in drawn:
        ET.fromstring(text)
        tags = "".join(re.findall("<[^>]*>", text))
        assert "currentColor" in tags and drawing.INK not in tags and "<script" not in tags


@pytest.mark.parametrize("draw", ATTRIBUTION_FIGURES.values())
def test_attribution_is_drawn_with_its_intervals(draw: Callable[..., Figure | None]) -> None:
    texts = drawn_texts(draw(made_attribution()))
    assert any("95 %" in text for text in texts)
    lone = made_attribution(
        shapley={"norm": Estimate(0.01, None, None, 1)}, walk=(("norm", Estimate(0, None, None, 1)),)
    )
    assert draw(lone) is not None


def test_what_has_no_data_is_not_drawn() -> None:
    bare = made_table(rows=[made_row("base")], base=None)
    assert forest([bare]) is None
    assert [draw(bare) for draw in TABLE_FIGURES.values()] == [None] * len(TABLE_FIGURES)
    nothing = made_attribution(walk=(), shapley={}, add_one_in={}, leave_one_out={}, interactions={}, main_effects={})
    assert [draw(nothing) for draw in ATTRIBUTION_FIGURES.values()] == [None] * len(ATTRIBUTION_FIGURES)


def test_forest_shows_both_directions_with_their_verdicts() -> None:
    texts = drawn_texts(forest([made_table("vanilla"), made_table("llama")]))
    assert {"against vanilla, 3 seeds", "against llama, 3 seeds", "norm=rms", "norm=layer"} <= {*texts}
    assert {"−0.0527", "+0.1204", "better", "worse", "equivalent", "inconclusive"} <= {*texts}


def test_forest_keeps_rows_that_diverged_or_have_one_seed_and_says_what_is_cut() -> None:
    texts = drawn_texts(forest([odd_table()]))
    assert {"diverged 2/3", "one seed", "worse (exploratory)", "+3.2000"} <= {*texts}
    assert any("an arrow: runs on beyond the picture" in text for text in texts)
    assert not any("arrow" in text for text in drawn_texts(forest([made_table()])))


def test_curves_name_the_rungs_in_reach_and_say_what_is_cut() -> None:
    texts = drawn_texts(TABLE_FIGURES["curves"](made_table()))
    assert {"trigram 1.74", "4-gram 1.35", "xz 1.69"} <= {*texts}
    assert not any(text.startswith(("5-gram", "6-gram")) for text in texts)
    assert any("at the start, are cut off" in text for text in texts)


def test_a_curve_that_ends_early_says_so() -> None:
    whole = made_table().curves
    short = replace(whole[1], steps=STEPS[:4], mean=whole[1].mean[:4], low=whole[1].low[:4], high=whole[1].high[:4])
    texts = drawn_texts(TABLE_FIGURES["curves"](made_table(curves=[whole[0], short])))
    assert "llama (to step 300)" in texts and "base" in texts


def test_tuned_rates_say_what_lies_at_the_edge_and_what_is_cut() -> None:
    at_edge = replace(TUNING[1], best=0.001, at_edge=True)
    texts = drawn_texts(TABLE_FIGURES["tuning"](made_table(tuning=(TUNING[0], at_edge, TUNING[2]))))
    assert {"llama (edge of the grid)", "0.004"} <= {*texts}
    assert any("up to 9.00, are cut off" in text for text in texts)


def test_odd_names_reach_the_picture_as_they_are() -> None:
    texts = drawn_texts(forest([odd_table()]))
    assert {"None", "null", "NA", "👩‍👩‍👧", "<script>x</script>", "$x$", "a|b"} <= {*texts}
    assert not any(char in text for text in texts for char in "\t\x1b\x07\u202e")


def test_only_the_first_rows_are_drawn() -> None:
    rows = [made_row("base"), *(made_row(f"row={i}", 0.01) for i in range(30))]
    texts = drawn_texts(forest([made_table(rows=rows)]))
    assert [text for text in texts if text.startswith("row=")] == [f"row={i}" for i in range(MAX_ROWS - 1)]


# ------------------------------------------------------------------------------------------------ colour and type


def test_an_axis_has_one_colour_in_both_directions_and_for_its_knobs() -> None:
    there, back = drawing.styles(made_table("vanilla")), drawing.styles(made_table("llama"))
    assert there["norm=rms"] == back["norm=layer"] and there["ffn=swiglu"] == back["ffn=gelu"]
    knob = made_table(rows=[made_row("base"), made_row("attn.n_kv_head=1", 0.1)])
    assert drawing.styles(knob)["attn.n_kv_head=1"].colour == there["attn=gqa"].colour
    several = made_row("norm=rms pos=rope", 0.1, parts={**BASES["vanilla"], "norm": "rms", "pos": "rope"})
    assert drawing.styles(made_table(rows=[several]))[several.name].colour == drawing.COLOURS["several"].lower()
    assert {*AXES} < {*drawing.COLOURS}


def test_rows_on_one_axis_differ_without_their_colour() -> None:
    table = made_table(rows=[made_row(f"pos.theta={i}", 0.1) for i in range(MAX_ROWS - 1)])
    looks = [(style.marker, str(style.dashes)) for style in drawing.styles(table).values()]
    assert len({*looks}) == len(looks)


@pytest.mark.parametrize("kind", drawing.COLOURS)
@pytest.mark.parametrize("ground", ["#ffffff", "#14171a"])
def test_colours_stand_out_on_white_and_on_the_dark_page(kind: str, ground: str) -> None:
    template = Path(drawing.__file__).with_name("page.html.j2").read_text(encoding="utf-8")
    assert f"--paper: {ground};" in template.replace("#fff;", "#ffffff;")
    light, dark = sorted((_luminance(drawing.COLOURS[kind]), _luminance(ground)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 3


def _luminance(colour: str) -> float:
    """Relative luminance as the Web Content Accessibility Guidelines define it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@given(st.text())
def test_a_label_is_at_most_two_short_lines(name: str) -> None:
    lines = drawing.label(name).split("\n")
    assert len(lines) <= 2 and all(cell_len(line) <= drawing.LABEL_CELLS for line in lines)


def test_a_short_name_is_not_shortened() -> None:
    assert drawing.label("attn=gqa norm=rms") == "attn=gqa norm=rms"
    assert drawing.label("attn=gqa ffn=swiglu norm=rms pos=rope") == "attn=gqa ffn=swiglu norm=rms\npos=rope"
    assert drawing.label("swap=norm,placement,pos,attn,ffn") == "swap=norm,placement,pos,attn,\nffn"


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 0.1)), min_size=1, max_size=10))
def test_labels_are_spread_without_touching(things: list[tuple[float, float]]) -> None:
    places, sizes = [place for place, _ in things], [size for _, size in things]
    moved = drawing.spread(places, sizes, 0, 1)
    for i, j in combinations(range(len(things)), 2):
        assert abs(moved[i] - moved[j]) >= (sizes[i] + sizes[j]) / 2 - 1e-9
    assert min(moved) >= 0 and max(moved) <= 1 + 1e-9
    assert drawing.spread(moved, sizes, 0, 1) == pytest.approx(moved)


@pytest.mark.parametrize("base", ["vanilla", "llama"])
def test_labels_of_points_do_not_lie_on_each_other(base: str) -> None:
    figure = TABLE_FIGURES["cost"](made_table(base))
    assert figure is not None
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [Text.get_window_extent(text) for text in axes.texts]  # without their ties
        assert len(boxes) == 7
        assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


# ------------------------------------------------------------------------------------------------ tables and files


def test_tables_of_mutual_counterparts_stand_together() -> None:
    tables = [made_table("vanilla", title="a"), made_table("vanilla", title="b"), made_table("gpt2", ())]
    tables += [made_table("llama", title="a"), made_table("llama", title="c"), made_table(rows=(), base=None)]
    groups = [[(table.base, table.title) for table in group] for group in directions(tables)]
    assert groups == [
        [("vanilla", "a"), ("llama", "a")],
        [("vanilla", "b")],
        [("gpt2", None)],
        [("llama", "c")],
        [(None, None)],
    ]


def test_ids_are_prefixed_and_every_reference_is_kept() -> None:
    figure = TABLE_FIGURES["curves"](made_table())
    assert figure is not None
    text = drawing.svg(figure, "t1-")
    ids = re.findall(r' id="([^"]*)"', text)
    assert ids and all(name.startswith("t1-") for name in ids) and len({*ids}) == len(ids)
    assert {*re.findall(r'(?:href="|url\()#([^")]+)', text)} == {*ids}


def test_every_figure_is_written_as_svg_and_png(tmp_path: Path) -> None:
    table = made_table("llama", rows=[made_row("base"), made_row("norm=layer", 0.1)])
    paths = write_figures(made_report(studies=(made_table(), table)), tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(path.name for path in paths)
    assert {path.stem for path in paths if path.suffix == ".svg"} == {
        path.stem for path in paths if path.suffix == ".png"
    }
    assert {path.stem for path in paths} == {
        "swaps-vanilla-llama-forest",
        *(f"swaps-vanilla-{kind}" for kind in ("curves", "position", "knowledge", "cost")),
        *(f"factorial-vanilla-llama-{kind}" for kind in ATTRIBUTION_FIGURES),
    }


def test_a_figure_is_saved_on_white_the_same_twice(tmp_path: Path) -> None:
    one, two = [
        [path.read_bytes() for path in drawing.save(figure, tmp_path, name)]
        for name in "ab"
        if (figure := TABLE_FIGURES["curves"](made_table()))
    ]
    assert one == two
    assert b"fill: #ffffff" in one[0] and one[1].startswith(b"\x89PNG")


def test_file_names_are_safe_and_not_used_twice(tmp_path: Path) -> None:
    table = made_table(rows=[made_row("base"), made_row("x", 0.1)], study="../../etc/中文 $(id)\x00", title="a|b")
    paths = write_figures(made_report(studies=[table, replace(table, title="a/b")], attribution=()), tmp_path)
    assert [path.name for path in paths] == [
        "etc-中文-id-x00-vanilla-a-b-forest.svg",
        "etc-中文-id-x00-vanilla-a-b-forest.png",
        "etc-中文-id-x00-vanilla-a-b-forest~2.svg",
        "etc-中文-id-x00-vanilla-a-b-forest~2.png",
    ]
    assert all(path.parent == tmp_path and path.stat().st_size for path in paths)


def test_only_the_first_tables_are_written(tmp_path: Path) -> None:
    rows = [made_row("base"), made_row("x", 0.1)]
    tables = [made_table(rows=rows, study=f"s{i}") for i in range(MAX_TABLES + 2)]
    assert len(write_figures(made_report(studies=tables, attribution=()), tmp_path)) == 2 * MAX_TABLES
