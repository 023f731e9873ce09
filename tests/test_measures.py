"""Timed measures: what is timed computes the right thing, and what is kept answers the question. Nothing is timed."""

import json
import logging
import math
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import NUM_SYMBOLS, TINY, compose
from scipy.stats import binom

from anatomy import measures
from anatomy.about import offered
from anatomy.arm_steps import arm_steps, base_of, distinct_arms
from anatomy.build import build_model
from anatomy.config import Config
from anatomy.decode_steps import LARGE, Size, decode_steps, decoding_model, filled_cache
from anatomy.measures import KINDS, are_known, ensure_measures, take
from anatomy.measures_file import Measures, read_measures
from anatomy.norm_calls import forms_of, has_fused_rms_norm, norm_calls, norms
from anatomy.stopwatch import interval_rank, median_of, median_ratio, take_turns_for

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Tiny tensors on several threads, beside other work, would wait for each other most of the time."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# ---------------------------------------------------------------------------------------------- intervals


def test_the_interval_is_the_narrowest_of_order_statistics_that_covers_the_median() -> None:
    for num in range(1, 300):
        rank = interval_rank(num)
        misses = [2 * binom.cdf(k - 1, num, 0.5) for k in (rank, rank + 1)]
        assert misses[0] <= 0.05 < misses[1], num


@pytest.mark.parametrize(
    ("num", "rank"), [(5, 0), (6, 1), (8, 1), (9, 2), (12, 3), (15, 4), (20, 6), (25, 8), (100, 40)]
)
def test_ranks_are_those_of_the_published_tables_of_the_sign_test(num: int, rank: int) -> None:
    assert interval_rank(num) == rank


def test_a_median_comes_with_the_values_that_enclose_it_and_with_none_when_there_are_few() -> None:
    assert median_of([9.0, 1.0, 8.0, 2.0, 7.0, 3.0, 6.0, 4.0, 5.0]) == (5.0, 2.0, 8.0)
    assert median_of([2.0, 1.0]) == (1.5, None, None)
    assert median_of([3.0]).named("step_ms") == {"step_ms": 3.0, "step_ms_low": None, "step_ms_high": None}


def test_ratios_are_taken_within_a_round() -> None:
    assert (
        median_ratio([2.0, 40.0, 600.0], [1.0, 10.0, 100.0]).value == 4.0
    )  # the ratio of the medians would be 4.0 too
    assert median_ratio([1.0, 20.0, 30.0], [1.0, 2.0, 30.0]).value == 1.0  # and here 10


def test_each_task_is_called_once_a_round_in_orders_that_change() -> None:
    calls: list[str] = []
    tasks = [lambda name=name: calls.append(name) for name in "abc"]
    times = take_turns_for(tasks, 0.0)
    rounds = ["".join(calls[i : i + 3]) for i in range(3, len(calls), 3)]
    assert calls[:3] == ["a", "b", "c"] and len(rounds) == 15 and len(set(rounds)) > 1
    assert {"".join(sorted(each)) for each in rounds} == {"abc"} and [len(each) for each in times] == [15] * 3


# ---------------------------------------------------------------------------------------------- norms


def test_every_norm_that_computes_something_is_timed_with_its_knobs() -> None:
    made = norms(7, CPU)
    assert set(made) <= set(offered("norm")) - {"none"}
    known = {"layer": 14, "layer_nobias": 7, "rms": 7}
    assert {name: made[name].num_params() for name in known} == known
    assert all(made[name].eps == 1e-5 for name in known)


@pytest.mark.parametrize("name", ["layer", "layer_nobias", "rms"])
def test_all_forms_of_a_norm_and_their_gradients_agree(name: str) -> None:
    norm = norms(7, CPU)[name]
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.copy_(torch.randn(7, generator=generator))
    x = torch.randn(11, 7, generator=generator, requires_grad=True)
    dy = torch.randn(11, 7, generator=generator)
    forms = forms_of(norm)
    assert list(forms) == ["part", "torch", "by hand"]
    outputs = {form: call(norm, x) for form, call in forms.items()}
    gradients = {form: torch.autograd.grad(y, [x, *norm.parameters()], dy) for form, y in outputs.items()}
    for form in ("torch", "by hand"):
        torch.testing.assert_close(outputs[form], outputs["part"])
        torch.testing.assert_close(gradients[form], gradients["part"], rtol=1e-4, atol=1e-5)


def test_a_cpu_decomposes_rms_norm_as_torch_itself_tells() -> None:
    x, gain = torch.randn(3, 4), torch.ones(4)
    with torch.profiler.profile() as profile:
        F.rms_norm(x, (4,), gain, 1e-5)
    is_decomposed = any(event.name == "aten::mean" for event in profile.events())
    assert has_fused_rms_norm(CPU) is not is_decomposed


def test_rows_of_norms_name_what_was_timed_and_hold_it_against_layer() -> None:
    measured = norm_calls(CPU, widths=(521, 523), num_tokens=3, seconds=0.0)
    told = [(row["width"], row["norm"], row["form"], row["num_params"]) for row in measured["rows"]]
    params = {"layer": 2, "layer_nobias": 1, "rms": 1}
    forms = ("part", "torch", "by hand")
    assert told == [
        (width, name, form, n * width) for width in (521, 523) for name, n in params.items() for form in forms
    ]
    for row in measured["rows"]:
        assert row["num_tokens"] == 3 and row["both_ns"] > 0 < row["forward_ns"]
        assert row["both_over_layer_low"] <= row["both_over_layer"] <= row["both_over_layer_high"]
        assert row["norm"] != "layer" or row["forward_over_layer"] == row["both_over_layer_high"] == 1


# ---------------------------------------------------------------------------------------------- decoding


@pytest.mark.parametrize("n_kv_head", [8, 2, 1])
def test_the_cache_takes_the_bytes_of_the_formula_and_a_model_has_the_heads_asked_for(n_kv_head: int) -> None:
    model = decoding_model(compose(*TINY, "match=params"), Size(48, 2, 8), n_kv_head, NUM_SYMBOLS, CPU)
    cache = filled_cache(model, 13)
    assert model.kv_bytes_per_token(4) * 13 == 2 * 2 * n_kv_head * 6 * 13 * 4 == cache.nbytes
    assert cache.layers[0].keys.shape == (1, n_kv_head, 13, 6) and cache.num_cached == 12


def test_rows_of_decoding_cover_both_sizes_and_every_number_of_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("anatomy.decode_steps.LARGE", Size(48, 1, 6))
    measured = decode_steps(compose(*TINY), NUM_SYMBOLS, CPU, num_cached=(5, 7), seconds=0.0)
    told = [(row["width"], row["n_layer"], row["num_cached"], row["n_kv_head"]) for row in measured["rows"]]
    small = [(24, 3, num, heads) for num in (5, 7) for heads in (4, 2, 1)]
    assert told == small + [(48, 1, num, heads) for num in (5, 7) for heads in (6, 3, 2, 1)]
    for row in measured["rows"]:
        assert row["cache_bytes"] == row["cache_bytes_measured"] > 0 and row["attending_share"] < 1
        assert math.isclose(row["tokens_per_s"], 1e6 / row["step_us"])
        assert row["n_kv_head"] != row["n_head"] or row["over_full_heads"] == 1


def test_the_large_cache_outweighs_the_small_one_and_stays_below_a_gigabyte() -> None:
    large = [decoding_model(compose(*TINY), LARGE, heads, NUM_SYMBOLS, torch.device("meta")) for heads in (8, 4, 2, 1)]
    sizes = [16384 * model.kv_bytes_per_token(4) for model in large]
    assert sizes[0] > 16384 * 2 * 3 * 4 * 12 * 4 and sum(sizes) < 2**30


# ---------------------------------------------------------------------------------------------- training steps


def configs(*arms: str) -> list[Config]:
    return [compose(*TINY, "train.batch_size=2", *arm.split()) for arm in arms]


def test_seeds_rates_steps_and_texts_make_no_other_arm_but_parts_sizes_and_labels_do() -> None:
    same = configs(
        "seed=0", "seed=1", "train.lr=1e-3 train.steps=7", "corpus=statutes corpus.split=tail", "init_salt=1"
    )
    assert [arm.config for arm in distinct_arms(same, NUM_SYMBOLS)] == same[:1]
    others = configs("norm=rms", "model.n_layer=2", "train.batch_size=3", "match=params", "base=llama")
    assert [arm.config for arm in distinct_arms(same + others, NUM_SYMBOLS)] == [same[0], *others]


def arms_and_bases(*arms: str) -> list[int | None]:
    made = distinct_arms(configs(*arms), NUM_SYMBOLS)
    assert len(made) == len(arms)
    bases = [base_of(arm, made, NUM_SYMBOLS) for arm in made]
    return [None if base is None else made.index(base) for base in bases]


def test_an_arm_is_held_against_the_arm_with_its_bases_parts_at_its_sizes() -> None:
    assert arms_and_bases("norm=rms", "", "base=llama norm=layer") == [1, 1, None]
    assert arms_and_bases("", "norm=rms", "model.n_layer=2", "norm=rms model.n_layer=2") == [0, 0, 2, 2]
    assert arms_and_bases("", "norm=rms model.n_layer=2") == [0, None]
    assert arms_and_bases("base=llama attn.n_kv_head=1", "base=llama", "base=llama norm=layer") == [1, 1, 1]
    assert arms_and_bases("base=llama attn.n_kv_head=1", "base=llama norm=layer attn.n_kv_head=1") == [0, 0]


def test_rows_of_training_steps_name_the_arm_and_its_ratio() -> None:
    asked = configs("train.lr=1e9", "ffn=swiglu match=params", "base=llama norm=layer", "match=params", "seed=1")
    measured = arm_steps(asked, NUM_SYMBOLS, CPU, most_seconds=0.0)
    sizes = [build_model(config, NUM_SYMBOLS).blocks[0] for config in asked[:4]]
    assert len(measured["rows"]) == 4
    for row, config, block in zip(measured["rows"], asked, sizes, strict=False):
        assert (row["base"], row["match"], row["parts"]) == (config.base, config.match, config.parts)
        assert (row["ffn_hidden"], row["n_kv_head"]) == (block.ffn.hidden, block.attn.n_kv_head)
        assert row["step_ms_low"] <= row["step_ms"] <= row["step_ms_high"]
    assert [row["over_base"] is None for row in measured["rows"]] == [False, False, True, False]
    assert measured["rows"][0]["step_ms"] == measured["rows"][3]["step_ms"]  # one composition, timed once
    assert measured["rows"][3]["over_base_high"] == 1


# ---------------------------------------------------------------------------------------------- the file


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Shortens every measure, and lists those that were taken."""
    kinds: list[str] = []

    def shortened(kind: str) -> measures._Measure:
        def run(arms: Sequence[Config], num_symbols: int, device: torch.device) -> dict[str, Any]:
            kinds.append(kind)
            assert torch.get_num_threads() == arms[0].train.threads
            if kind == "norm_calls":
                return norm_calls(device, widths=(521,), num_tokens=3, seconds=0.0)
            if kind == "decode":
                return decode_steps(arms[0], num_symbols, device, num_cached=(5,), seconds=0.0)
            return arm_steps(arms, num_symbols, device, most_seconds=0.0)

        return run

    monkeypatch.setattr(measures, "_MEASURES", {kind: shortened(kind) for kind in KINDS})
    monkeypatch.setattr("anatomy.decode_steps.LARGE", Size(24, 1, 2))
    return kinds


def ensure(
    folder: Path, kinds: Sequence[str] = KINDS, arms: Sequence[str] = ("", "norm=rms"), threads: int = 1
) -> bool:
    return ensure_measures(folder, kinds, configs(*arms), NUM_SYMBOLS, CPU, threads)


def test_what_is_written_is_strict_json_that_reads_back(asked: list[str], tmp_path: Path) -> None:
    assert ensure(tmp_path / "study")
    raw = (tmp_path / "study" / "measures.json").read_text(encoding="utf-8")
    content = json.loads(raw, parse_constant=lambda word: pytest.fail(f"not strict JSON: {word}"))
    assert list(content) == ["schema", "device", "threads", "torch", "commit", *KINDS]
    assert (content["schema"], content["device"], content["threads"]) == (1, "cpu", 1)
    assert read_measures(tmp_path / "study") == content and asked == list(KINDS)


def test_the_number_of_threads_is_put_back(asked: list[str]) -> None:
    torch.set_num_threads(2)
    assert take(KINDS, configs(""), NUM_SYMBOLS, CPU, 1)["threads"] == 1
    assert torch.get_num_threads() == 2


def test_what_is_there_is_not_measured_again(asked: list[str], tmp_path: Path) -> None:
    assert ensure(tmp_path)
    written = (tmp_path / "measures.json").read_bytes()
    assert not ensure(tmp_path)
    assert not ensure(tmp_path, kinds=["decode"])
    assert not ensure(tmp_path, arms=("seed=3", "norm=rms train.lr=1e-4", "corpus=statutes"))
    assert not ensure(tmp_path, kinds=["norm_calls"], arms=("ffn=relu",))
    assert (tmp_path / "measures.json").read_bytes() == written and len(asked) == len(KINDS)


@pytest.mark.parametrize("arms", [("", "norm=layer_nobias"), ("", "model.n_layer=2")])
def test_other_arms_are_measured_anew(asked: list[str], tmp_path: Path, arms: Sequence[str]) -> None:
    assert ensure(tmp_path, ["train_step"]) and ensure(tmp_path, ["train_step"], arms)
    assert not ensure(tmp_path, ["train_step"], arms)


def test_a_command_over_some_of_the_arms_leaves_what_is_known_of_all(asked: list[str], tmp_path: Path) -> None:
    assert ensure(tmp_path, ["train_step"]) and not ensure(tmp_path, ["train_step"], ("norm=rms",))


def test_a_new_norm_and_other_sizes_are_measured_anew(
    asked: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ensure(tmp_path, ["decode"]) and ensure(tmp_path, ["decode"], ("model.n_layer=2",))
    assert ensure(tmp_path, ["norm_calls"]) and not ensure(tmp_path, ["norm_calls"])
    monkeypatch.setattr(measures, "norms", lambda width, device: {"rms": None, "mine": None})
    assert not are_known(tmp_path, ["norm_calls"], configs(""), NUM_SYMBOLS, CPU, 1)


@pytest.mark.parametrize(("key", "other"), [("threads", 2), ("device", "cuda (made up)"), ("torch", "0.1")])
def test_what_another_device_or_number_of_threads_took_is_measured_anew(
    asked: list[str], tmp_path: Path, key: str, other: object
) -> None:
    assert ensure(tmp_path, ["decode"])
    content = json.loads((tmp_path / "measures.json").read_text())
    (tmp_path / "measures.json").write_text(json.dumps({**content, key: other}))
    assert ensure(tmp_path, ["decode"]) and not ensure(tmp_path, ["decode"])


def test_a_kind_that_is_missing_is_measured(asked: list[str], tmp_path: Path) -> None:
    assert ensure(tmp_path, kinds=["norm_calls"]) and ensure(tmp_path, kinds=["decode"])
    assert asked == ["norm_calls", "decode"]


@pytest.fixture
def sound() -> Measures:
    return {
        "schema": 1,
        "device": "cpu",
        "threads": 1,
        "torch": "2",
        "commit": None,
        "train_step": {
            "num_rounds": 15,
            "rows": [
                {
                    "sha256": "0",
                    "base": "llama",
                    "parts": {"norm": "rms"},
                    "match": None,
                    "ffn_hidden": 128,
                    "n_kv_head": 2,
                    "step_ms": 1.5,
                    "step_ms_low": 1.25,
                    "step_ms_high": 1.75,
                    "over_base": None,
                    "over_base_low": None,
                    "over_base_high": None,
                }
            ],
        },
    }


def test_absent_measures_are_none_and_sound_ones_are_read(sound: Measures, tmp_path: Path) -> None:
    assert read_measures(tmp_path) is None
    (tmp_path / "measures.json").write_text(json.dumps(sound))
    assert read_measures(tmp_path) == sound


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:-1],
        lambda text: "[]",
        lambda text: "null",
        lambda text: text.replace('"schema": 1', '"schema": 2'),
        lambda text: text.replace('"threads": 1', '"threads": "1"'),
        lambda text: text.replace('"threads": 1', '"threads": true'),
        lambda text: text.replace('"threads": 1, ', ""),
        lambda text: text.replace('"torch"', '"trch"'),
        lambda text: text.replace("1.5", "NaN"),
        lambda text: text.replace("1.5", "1e999"),
        lambda text: text.replace("1.5", "null"),
        lambda text: text.replace("1.75", '"1.75"'),
        lambda text: text.replace('"rms"', "7"),
        lambda text: text.replace('"rows": [{', '"rows": [7, {'),
        lambda text: text.replace('"rows": [', '"rows": 7, "x": ['),
        lambda text: text.replace('"n_kv_head": 2, ', ""),
        lambda text: text.replace('"train_step": {', '"train_step": null, "x": {'),
        lambda text: text.replace('"0"', "[" * 100_000 + "]" * 100_000),
        lambda text: "\ud800".join(text),
    ],
)
def test_a_damaged_file_does_not_count_and_is_measured_anew(
    damage: Any, sound: Measures, asked: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "measures.json").write_bytes(damage(json.dumps(sound)).encode("utf-8", "surrogatepass"))
    with caplog.at_level(logging.WARNING, logger="anatomy"):
        assert read_measures(tmp_path) is None
    assert "measures.json" in caplog.text
    assert ensure(tmp_path, kinds=["norm_calls"]) and read_measures(tmp_path) is not None


def test_reading_measures_needs_no_torch() -> None:
    code = "import sys, anatomy.measures_file; print('torch' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"
