"""Pictures of exams: what is drawn where, what is not, and that it reads without colour and with any name."""

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import combinations
from pathlib import Path

import pytest
from made_cards import (
    BASE_LOSS,
    LENGTHS,
    NO_MEASURES,
    ODD,
    claim,
    empty_card,
    made_card,
    nats,
    odd_card,
    times,
)
from made_report import made_report
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from anatomy.report import drawing
from anatomy.report.card_picture import GROUNDS, card_picture
from anatomy.report.data import EXAM_VERDICTS, Card, MapCell, PartLoss
from anatomy.report.exam_figures import SKETCHES, exam_picture
from anatomy.report.exam_map import OUTCOMES
from anatomy.report.exam_panels import looks, row_name
from anatomy.report.figures import write_figures


def drawn(card: Card) -> Figure:
    figure = exam_picture(card)
    assert figure is not None
    return figure


@cache
def whole(axis: str) -> Figure:
    """The picture of an axis with all its data; nothing may be changed in it."""
    return drawn(made_card(axis))


def texts(figure: Figure | None) -> list[str]:
    assert figure is not None
    root = ET.fromstring(drawing.svg(figure, "x-"))
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


def panel(figure: Figure, title: str, nth: int = 0) -> Axes:
    return [axes for axes in figure.axes if axes.get_title(loc="left") == title][nth]


def points(axes: Axes) -> dict[str, tuple[float, float]]:
    """Name on the y axis, numbered where it stands there again -> the point on its line, with its marker's place."""
    names = dict(zip(axes.get_yticks(), [label.get_text() for label in axes.get_yticklabels()], strict=True))
    found: dict[str, tuple[float, float]] = {}
    for line in axes.lines:
        xs, ys = (list(map(float, values)) for values in (line.get_xdata(), line.get_ydata()))
        if len(xs) == 1:
            name = names[ys[0]]
            found[f"{name} {sum(other.split(' ')[0] == name for other in found)}"] = (xs[0], ys[0])
    return found


def whiskers(axes: Axes) -> set[tuple[float, float]]:
    return {tuple(map(float, line.get_xdata())) for line in axes.lines if line.get_marker() == "|"}


def ticks(axes: Axes) -> list[Text]:
    """Labels of the ticks that are drawn: those within the scale."""
    found = []
    for axis in (axes.xaxis, axes.yaxis):
        low, high = sorted(axis.get_view_interval())
        found += [tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
    return found


def errorbars(axes: Axes) -> list[ErrorbarContainer]:
    return [container for container in axes.containers if isinstance(container, ErrorbarContainer)]


# ------------------------------------------------------------------------------------------------ all of them


@pytest.mark.parametrize("axis", SKETCHES)
def test_every_axis_has_a_picture_in_the_ink_of_its_page(axis: str) -> None:
    for figure in (exam_picture(made_card(axis)), card_picture(made_card(axis))):
        assert figure is not None
        text = drawing.svg(figure, "x-")
        ET.fromstring(text)
        tags = "".join(re.findall("<[^>]*>", text))
        assert "currentColor" in tags and drawing.INK not in tags


@pytest.mark.parametrize("axis", SKETCHES)
def test_an_exam_that_has_not_begun_has_no_picture(axis: str) -> None:
    assert exam_picture(empty_card(axis)) is None and card_picture(empty_card(axis)) is None


@pytest.mark.parametrize("axis", SKETCHES)
def test_axes_are_labelled_and_panels_do_not_touch(axis: str) -> None:
    figure = whole(axis)
    figure.draw_without_rendering()
    for axes in figure.axes:
        assert axes.get_xlabel() or axes.xaxis.get_ticks_position() == "top"  # a map's columns name their units
    boxes = [axes.bbox for axes in figure.axes]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))


@pytest.mark.parametrize("axis", SKETCHES)
def test_no_text_leaves_a_picture(axis: str) -> None:
    for figure in (whole(axis), card_picture(made_card(axis))):
        assert figure is not None
        figure.draw_without_rendering()
        width, height = figure.bbox.size
        every = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
        every += [label for axes in figure.axes for label in ticks(axes)]
        for text in every:
            box = Text.get_window_extent(text)
            assert not text.get_text() or (box.x0 >= -1 and box.x1 <= width + 1 and box.y0 >= 0 and box.y1 <= height)


def test_an_odd_name_reaches_the_picture_and_acts_nowhere() -> None:
    for figure in (exam_picture(odd_card()), card_picture(odd_card())):
        said = texts(figure)
        assert any("<script>alert(1)</script>" in text for text in said)
        assert not any(char in text for text in said for char in "\x1b\u202e")
    odd = {"model.n_layer": "3", "init": ODD}
    cells = [MapCell(ODD, ODD, odd, {"trained": 1}, 2.0, [1.0]), MapCell(ODD, "b", odd, {"plateau": 1}, 3.0, [0.0])]
    assert any("<script>" in text for text in texts(drawn(made_card("placement", map=cells))))
    lines = [replace(line, base=ODD, row=f"pos={ODD}") for line in made_card("pos").by_length]
    assert any("<script>" in text for text in texts(drawn(made_card("pos", by_length=lines, by_position=[]))))


@pytest.mark.parametrize(
    ("row", "axis", "name"),
    [
        ("norm=rms", "norm", "rms"),
        ("attn=gqa match=params", "attn", "gqa"),
        ("pos.theta=10000 pos=rope", "pos", "rope, theta 10000"),
        ("norm.eps=1e-6 norm=rms train.lr=0.01", "norm", "rms, eps 1e-6, train.lr 0.01"),
        ("base", "ffn", "base"),
        ("", "ffn", "base"),
    ],
)
def test_a_row_is_named_by_its_part(row: str, axis: str, name: str) -> None:
    assert row_name(row, axis) == name


def test_rows_differ_without_their_colour() -> None:
    styles = looks([f"row {i}" for i in range(12)]).values()
    assert len({(style.marker, str(style.dashes), style.colour) for style in styles}) == 12
    assert len({(style.marker, str(style.dashes)) for style in styles}) >= 10


# ------------------------------------------------------------------------------------------------ losses


def test_losses_stand_on_the_line_of_their_row_with_least_and_greatest_seed() -> None:
    card = made_card("attn")
    axes = panel(drawn(card), "test loss")
    found = points(axes)
    expected = {(base, row): mean for base, row, mean in ((x.base, x.row, x.mean) for x in card.losses)}
    assert {key: x for key, (x, _) in found.items()} == {
        f"{part} {i}": expected[base, f"attn={part}"]
        for i, base in enumerate(BASE_LOSS)
        for part in ("mha", "gqa", "mqa")
    }
    assert whiskers(axes) == {(loss.low, loss.high) for loss in card.losses}
    said = [text.get_text() for text in axes.texts]
    assert {"vanilla", "llama", "1.5300", "1.3910"} <= {*said}
    headings = {text.get_text(): text.xy[1] for text in axes.texts if text.get_text() in BASE_LOSS}  # type: ignore[attr-defined]
    assert headings["vanilla"] < found["mha 0"][1] < headings["llama"] < found["mha 1"][1]


def test_a_single_seed_is_a_point_without_a_line() -> None:
    lone = [PartLoss("vanilla", "norm=rms", 1.5, 1.5, 1.5, 1)]
    axes = panel(drawn(made_card("norm", losses=lone, timed=None)), "test loss")
    assert whiskers(axes) == set() and points(axes)["rms 0"][0] == 1.5


def test_a_loss_far_above_the_others_is_an_arrow_with_its_number() -> None:
    figure = whole("norm")
    axes = panel(figure, "test loss")
    arrows = [line for line in axes.lines if line.get_marker() == ">"]
    high = axes.get_xlim()[1]
    assert [list(line.get_xdata()) for line in arrows] == [[high], [high]] and high < 1.6
    assert {"2.1400", "1.9800"} <= {text.get_text() for text in axes.texts}
    assert any("arrow: further to the right" in text for text in texts(figure))
    assert not any("arrow" in text for text in texts(whole("attn")))


def test_what_was_matched_parts_a_ladder() -> None:
    said = texts(whole("ffn"))
    for base in BASE_LOSS:
        assert {f"{base}, equal parameters", f"{base}, equal time"} <= {*said}
    assert "vanilla" in texts(drawn(made_card("attn", losses=[
        replace(loss, row=f"{loss.row} match=params") for loss in made_card("attn").losses
    ])))  # fmt: skip


# ------------------------------------------------------------------------------------------------ what was timed


def test_norm_calls_are_drawn_over_layernorm_by_width() -> None:
    card = made_card("norm")
    assert card.timed
    axes = panel(drawn(card), "a call, forward and backward")
    rows = [row for row in card.timed["norm_calls"]["rows"] if (row["norm"], row["form"]) == ("rms", "torch")]
    lines = {tuple(bar.lines[0].get_ydata()): bar for bar in errorbars(axes)}
    bar = lines[tuple(row["both_over_layer"] for row in rows)]
    assert list(bar.lines[0].get_xdata()) == [48, 256, 1024]
    ends = [segment[:, 1] for segment in bar.lines[2][0].get_segments()]
    assert [list(end) for end in ends] == [
        pytest.approx([row["both_over_layer_low"], row["both_over_layer_high"]]) for row in rows
    ]
    assert len(lines) == 4  # LayerNorm itself is the line at 1
    assert {"rms, torch", "rms, part", "rms, by hand", "layer_nobias, part"} <= {*texts(drawn(card))}
    assert [1, 1] in [list(line.get_ydata()) for line in axes.lines]


@pytest.mark.parametrize(("title", "key"), [("the cache takes", "cache_bytes_measured"), ("a token takes", "step_us")])
def test_decoding_is_drawn_at_its_larger_size_a_line_a_number_of_heads(title: str, key: str) -> None:
    card = made_card("attn")
    assert card.timed
    axes = panel(drawn(card), title)
    rows = [row for row in card.timed["decode"]["rows"] if row["width"] == 512]
    found = {tuple(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) == 5 and line.get_ls() != "None"}
    assert found == {tuple(row[key] for row in rows if row["n_kv_head"] == num) for num in (8, 4, 1)}  # type: ignore[literal-required]
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1k", "2k", "4k", "8k", "16k"]


def test_heads_are_named_and_the_smaller_size_is_left_out() -> None:
    said = texts(whole("attn"))
    assert {"8 KV heads", "4 KV heads", "1 KV head"} <= {*said}
    assert any("decoding: 512 wide" in text for text in said)


def test_training_steps_stand_beside_the_losses_of_their_row() -> None:
    card = made_card("ffn")
    assert card.timed
    figure = drawn(card)
    losses, steps = panel(figure, "test loss"), panel(figure, "a training step")
    assert losses.get_ylim() == steps.get_ylim()
    at = {line.get_ydata()[0]: line.get_xdata()[0] for line in steps.lines if len(line.get_ydata()) == 1}
    names = [
        (base, match, ffn) for base in BASE_LOSS for match in ("params", "time") for ffn in ("gelu", "relu", "swiglu")
    ]
    expected = {(row["base"], row["match"], row["parts"]["ffn"]): row for row in card.timed["train_step"]["rows"]}
    places = list(losses.get_yticks())
    assert [at[place] for place in places] == [expected[name]["over_base"] for name in names]
    assert whiskers(steps) == {
        (row["over_base_low"], row["over_base_high"]) for row in expected.values() if row["over_base"] != 1
    }


@pytest.mark.parametrize(("axis", "titles"), [("norm", 1), ("attn", 2), ("ffn", 1)])
def test_what_was_timed_is_drawn_without_runs_and_runs_without_it(axis: str, titles: int) -> None:
    assert len(drawn(made_card(axis, losses=[])).axes) == titles
    assert len(drawn(made_card(axis, timed=NO_MEASURES)).axes) == len(drawn(made_card(axis, timed=None)).axes) == 1


def test_a_time_without_an_interval_is_a_bare_point() -> None:
    card = made_card("norm")
    assert card.timed
    rows = [
        {**row, "both_over_layer_low": None, "both_over_layer_high": None} for row in card.timed["norm_calls"]["rows"]
    ]
    timed = {**card.timed, "norm_calls": {**card.timed["norm_calls"], "rows": rows}}
    axes = panel(drawn(replace(card, timed=timed)), "a call, forward and backward")  # type: ignore[arg-type]
    for bar in errorbars(axes):
        assert all(segment[0, 1] == segment[1, 1] for segment in bar.lines[2][0].get_segments())


# ------------------------------------------------------------------------------------------------ the map


def patches(axes: Axes, x: int, y: int) -> list[Rectangle]:
    """What is drawn at a place: its fills and hatches, without its frame."""
    inside = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_linewidth() == 0]
    return [patch for patch in inside if abs(patch.get_y() - y) < 0.5 and x - 0.5 < patch.get_x() < x + 0.5]


def said_at(axes: Axes, x: int, y: int) -> list[str]:
    return [text.get_text() for text in axes.texts if text.get_position() == (x, y)]


def test_a_place_of_the_map_is_marked_by_how_its_runs_ended() -> None:
    card = made_card("placement")
    axes = panel(drawn(card), "vanilla")
    rows = [label.get_text() for label in axes.get_yticklabels()]
    columns = [label.get_text() for label in axes.get_xticklabels()]
    assert rows == [f"{part}, {init}" for part in ("post", "pre") for init in ("normal", "xavier", "torch")]
    assert columns == [f"{depth} layers\nwarm-up {warmup}" for depth in (3, 16) for warmup in (0, 100)]
    for cell in card.map:
        if cell.base == "vanilla" and len(cell.outcomes) == 1:
            x = columns.index(f"{cell.factors['model.n_layer']} layers\nwarm-up {cell.factors['train.warmup_steps']}")
            y = rows.index(f"{cell.part}, {cell.factors['init']}")
            ((outcome, num),) = cell.outcomes.items()
            fill, hatch = patches(axes, x, y)
            assert (
                fill.get_facecolor()[:3] == to_rgb(OUTCOMES[outcome][0])
                and (hatch.get_hatch() or "") == OUTCOMES[outcome][2]
            )
            (words,) = said_at(axes, x, y)
            assert outcome in words and (num == 1 or str(num) in words)
            assert ("2.210" in words or "3.030" in words) == (cell.loss_nats is not None)


def test_a_place_whose_runs_ended_differently_is_parted() -> None:
    figure = whole("placement")
    axes = panel(figure, "vanilla")
    parts = patches(axes, 2, 1)  # post, xavier; 16 layers, warm-up 0
    assert [patch.get_hatch() or "" for patch in parts if not patch.get_fill()] == ["", "//", "xx"]
    assert [patch.get_width() for patch in parts] == pytest.approx([0.32] * 6)
    assert said_at(axes, 2, 1) == ["2.640\n1/3 trained"]
    assert any("parted" in text for text in texts(figure))
    alike = [replace(cell, outcomes={"trained": 3}) for cell in made_card("placement").map]
    assert not any("parted" in text for text in texts(drawn(made_card("placement", map=alike))))


def test_a_place_that_nobody_ran_says_so() -> None:
    axes = panel(whole("placement"), "llama")
    assert said_at(axes, 2, 5) == ["not run"] and patches(axes, 2, 5) == []


def test_outcomes_differ_in_grey() -> None:
    assert len({hatch for _, _, hatch in OUTCOMES.values()}) == len(OUTCOMES)


def test_gradients_are_those_of_the_deepest_models_a_line_a_start() -> None:
    card = made_card("placement")
    figure = drawn(card)
    axes = panel(figure, "vanilla", 1)
    assert axes.get_yscale() == "log"
    lines = {tuple(line.get_ydata()) for line in axes.lines}
    deep = [cell for cell in card.map if cell.base == "vanilla" and cell.factors["model.n_layer"] == "16"]
    assert lines == {tuple(cell.gradients) for cell in deep} and list(axes.lines[0].get_xdata()) == [*range(1, 17)]
    colours = {line.get_color() for line in axes.lines}
    assert len(colours) == 2 and {"post, normal", "pre, torch"} <= {*texts(figure)}


def test_a_map_without_gradients_has_no_panel_for_them() -> None:
    bare = [replace(cell, gradients=[]) for cell in made_card("placement").map]
    figure = drawn(made_card("placement", map=bare))
    assert len(figure.axes) == 2 and not any("gradient" in text for text in texts(figure))


# ------------------------------------------------------------------------------------------------ positions


def lines_of(axes: Axes, num: int) -> list[tuple[float, ...]]:
    return [tuple(line.get_ydata()) for line in axes.lines if len(line.get_ydata()) == num]


def test_losses_by_length_and_position_are_drawn_a_panel_a_base_on_one_scale() -> None:
    card = made_card("pos")
    figure = drawn(card)
    for base in BASE_LOSS:
        by_position, by_length = panel(figure, base, 0), panel(figure, base, 1)
        found = lines_of(by_length, len(LENGTHS))
        assert len(found) == sum(line.base == base for line in card.by_length)
        for line in card.by_length:
            if line.base == base and None not in line.mean:
                assert tuple(line.mean) in found
        assert [int(label.get_text()) for label in by_length.get_xticklabels()] == [*LENGTHS]
        assert (by_length.get_xscale(), by_position.get_xscale()) == ("log", "log")
        assert tuple(card.by_position[4 if base == "vanilla" else 9].mean) in lines_of(by_position, 10)
        dotted = [line.get_xdata()[0] for line in by_length.lines if [*line.get_xdata()] == [64, 64]]
        assert dotted == [64]
    assert panel(figure, "vanilla", 0).get_ylim() == panel(figure, "llama", 0).get_ylim()
    assert panel(figure, "vanilla", 1).get_ylim() == panel(figure, "llama", 1).get_ylim()


def test_a_line_ends_in_a_cross_where_nothing_longer_can_be_read() -> None:
    axes = panel(whole("pos"), "vanilla", 1)
    crosses = [(line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == "x"]
    assert crosses == [(64, pytest.approx(1.55))]


def test_the_spread_of_seeds_is_a_band() -> None:
    card = made_card("pos", by_position=[])
    axes = panel(drawn(card), "vanilla")
    bands = [band.get_paths()[0].get_extents() for band in axes.collections]
    sinusoidal = card.by_length[1]
    assert any((band.y0, band.y1) == pytest.approx((sinusoidal.low[0], sinusoidal.high[-1])) for band in bands)


def test_lines_by_position_alone_make_a_picture() -> None:
    assert len(drawn(made_card("pos", by_length=[])).axes) == 2


# ------------------------------------------------------------------------------------------------ the whole card


def test_a_card_says_title_scenario_verdicts_claims_and_numbers() -> None:
    said = texts(card_picture(made_card("norm")))
    for text in ("exam of norm", "supported here", "outside this scale",
                 "trained: kjv, 48 wide, 3 or 16 layers, context 64, batch 16, 1,000 steps, 36 runs, 3 seeds",
                 "rms: Centring buys nothing, so RMSNorm reaches the loss of LayerNorm.",
                 "on this device PyTorch has no fused kernel for RMSNorm"):  # fmt: skip
        assert text in said
    joined = " ".join(said)
    assert "+0.0012 nats (−0.0030 to +0.0054)" in joined and "1.83× (1.80 to 1.87)" in joined
    assert {"layer_nobias", "a call, forward and backward"} <= {*said}  # the picture below


def test_a_verdict_stands_on_its_own_ground_beside_its_claim() -> None:
    said = [claim("p", f"key{i}", f"claim {i}", verdict) for i, verdict in enumerate([*EXAM_VERDICTS, None])]
    figure = card_picture(made_card("norm", claims=said))
    assert figure is not None
    by_text = {text.get_text(): text for text in figure.texts}
    grounds = []
    for i, verdict in enumerate([*EXAM_VERDICTS, "not examined yet"]):
        badge = by_text[verdict]
        assert badge.get_position()[1] == by_text[f"p: claim {i}"].get_position()[1]
        box = badge.get_bbox_patch()
        assert box is not None
        grounds.append(box.get_facecolor())
        if verdict in GROUNDS:
            assert _contrast(GROUNDS[verdict]) >= 4.5
    assert len({*grounds}) == 5


def test_a_verdict_stands_once_beside_a_claim_of_many_lines() -> None:
    said = texts(card_picture(made_card("norm", claims=[claim("p", "key", "many words " * 30, EXAM_VERDICTS[0])])))
    assert said.count(EXAM_VERDICTS[0]) == 1 and sum("many words" in text for text in said) > 2


def _contrast(colour: str) -> float:
    """With white, as the Web Content Accessibility Guidelines define it."""
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in to_rgb(colour)]
    return 1.05 / (0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] + 0.05)


def test_a_card_shows_the_first_numbers_and_all_counts() -> None:
    def joined(*quantities: object) -> str:
        said = [claim("p", "key", "c", None, *quantities)]  # type: ignore[arg-type]
        return " ".join(texts(card_picture(made_card("norm", claims=said))))

    many = joined(*(nats(f"number {i}", 0.1) for i in range(6)))
    assert "number 2" in many and "number 3" not in many
    counts = [replace(times(f"count {i}", 1), unit="of 3", low=None, high=None) for i in range(6)]
    assert "count 5: 1 of 3" in joined(*counts)
    alike = [replace(one, what=f"post trains, init {i}") for i, one in enumerate(counts)]
    assert "post trains, init 0: 1 of 3; init 1: 1 of 3; init 2" in joined(*alike)


def test_words_of_a_card_do_not_lie_on_each_other() -> None:
    figure = card_picture(odd_card())
    assert figure is not None
    figure.draw_without_rendering()
    boxes = sorted((Text.get_window_extent(text) for text in figure.texts), key=lambda box: -box.y0)
    pairs = [(one, other) for one, other in combinations(boxes, 2) if one.overlaps(other)]
    assert all(min(one.y1, other.y1) - max(one.y0, other.y0) < 4 for one, other in pairs)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("a b", ["a b"]),
        ("abc def", ["abc", "def"]),
        ("abcdefgh", ["abcde", "fgh"]),
        ("中文的名字", ["中文", "的名", "字"]),
    ],
)
def test_words_are_wrapped_by_columns(text: str, lines: Sequence[str]) -> None:
    assert drawing.wrapped(text, 5) == lines


# ------------------------------------------------------------------------------------------------ files


def test_cards_are_written_once_each_and_unbegun_ones_not(tmp_path: Path) -> None:
    cards = [made_card("norm"), made_card("ffn"), empty_card("pos"), odd_card()]
    paths = write_figures(made_report(studies=(), attribution=(), exams=cards), tmp_path)
    names = [path.name for path in paths]
    assert names[:4] == ["exam_norm-card.svg", "exam_norm-card.png", "exam_ffn-card.svg", "exam_ffn-card.png"]
    assert len(names) == 6 and all(path.parent == tmp_path and path.stat().st_size for path in paths)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(names)


def test_labels_at_the_ends_of_lines_stand_at_their_height_on_a_logarithmic_axis() -> None:
    figure = whole("attn")
    figure.draw_without_rendering()
    axes = panel(figure, "a token takes")
    for name, bar in zip(("8 KV heads", "4 KV heads", "1 KV head"), errorbars(axes), strict=True):
        (label,) = [text for text in axes.texts if text.get_text() == name]
        end = axes.transData.transform((16384, bar.lines[0].get_ydata()[-1]))[1]
        box = Text.get_window_extent(label)
        assert (box.y0 + box.y1) / 2 == pytest.approx(end, abs=4)
