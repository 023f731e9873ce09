"""What an explanation says: against published numbers, against transformers, and against everything wrong to ask."""

import json
import math
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import compose
from fake_runs import fake_record, put

from anatomy.axes import AXES, BASES
from anatomy.build import build_model
from anatomy.checkpoints.config_json import config_json_of
from anatomy.checkpoints.fields import composition_of
from anatomy.errors import UserError
from anatomy.explaining import Explanation, explain
from anatomy.subjects import subjects_of
from anatomy.tracing import Step, Trace, trace

WORKED = (  # the example of three words
    "base=llama", "model.d_model=4", "model.n_layer=2", "model.n_head=2", "model.vocab_size=3", "ffn.hidden=3",
)  # fmt: skip


@cache
def told(*words: str, context: int | None = None) -> Explanation:
    (subject,) = subjects_of(words)
    return explain(subject, context)


def refusal(*words: str) -> str:
    with pytest.raises(UserError) as caught:
        for subject in subjects_of(words):
            explain(subject)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ numbers


def test_the_worked_example_has_212_parameters() -> None:
    example = told(*WORKED)
    assert example.num_params == 212
    assert (example.block.attn, example.block.ffn, example.block.norm, example.block.total) == (48, 36, 8, 92)
    assert dict(example.num_params_by_axis) == {"embed": 12, "pos": 0, "norm": 20, "attn": 96, "ffn": 72, "output": 12}
    assert example.vocabulary_share == 24 / 212


def test_blocks_of_gpt2_and_llama3_at_one_width() -> None:
    old, new = (explain(subject).block for subject in subjects_of(["base=gpt2 model.d_model=4096", "llama3-8b"]))
    assert (old.attn, old.ffn, old.norm, old.total) == (67_125_248, 134_238_208, 16_384, 201_379_840)
    assert (new.attn, new.ffn, new.norm, new.total) == (41_943_040, 176_160_768, 8_192, 218_112_000)


@pytest.mark.parametrize(
    ("name", "per_token", "context", "in_all"),
    [
        ("gpt2", 36_864, 1024, 36 * 2**20),
        ("llama2-7b", 524_288, 131_072, 64 * 2**30),
        ("llama3-8b", 131_072, 131_072, 16 * 2**30),
        ("mistral-7b", 131_072, 131_072, 4096 * 131_072),  # no more than its window
        ("mistral-7b", 131_072, 100, 100 * 131_072),
        ("qwen2.5-0.5b", 12_288, 32_768, 32_768 * 12_288),  # its window is not in use
    ],
)
def test_the_cache_takes_the_published_bytes(name: str, per_token: int, context: int, in_all: int) -> None:
    explanation = told(name, context=context)
    assert (explanation.kv_bytes_per_token, explanation.kv_bytes) == (per_token, in_all)


def test_layers_below_the_window_keep_everything() -> None:
    words = "base=qwen2 window=sliding window.size=8 window.first_layer=1 model.n_layer=3 model.vocab_size=9"
    explanation = told(words, context=32)
    assert explanation.windows == (None, 8, 8)
    assert explanation.kv_bytes == (32 + 8 + 8) * explanation.kv_bytes_per_token // 3


def test_flops_are_those_of_the_formula() -> None:
    gpt2 = told("gpt2")
    assert gpt2.flops_per_token == 854_438_400 == 3 * (gpt2.forward_flops_per_token or 0)
    assert gpt2.num_matrix_weights == 123_532_032


def test_a_table_of_positions_ends() -> None:
    gpt2 = told("gpt2", context=1025)
    assert gpt2.kv_bytes is gpt2.flops_per_token is gpt2.forward_flops_per_token is None
    assert told("gpt2", context=1024).kv_bytes is not None and told("llama-7b", context=10**6).kv_bytes is not None


def test_weights_take_their_bits() -> None:
    assert dict(told(*WORKED).weight_bytes) == {"fp32": 848, "bf16": 424, "int8": 212, "int4": 106}


@pytest.mark.parametrize(
    ("words", "vanilla", "gpt2", "llama"),
    [
        (["base=vanilla"], 0, 4, 5),
        (["base=gpt2"], 4, 0, 6),
        (["base=llama"], 5, 6, 0),
        (["base=llama", "init=gpt2"], 6, 7, 1),  # of ours it is known how they began
        (["gpt2"], 4, 0, 6),
        (["llama3-8b"], 5, 6, 0),
        (["llama2-7b"], 4, 5, 1),  # its heads share nothing
        (["llama3.2-1b"], 6, 5, 2),
        (["mistral-7b"], 6, 7, 1),
        (["qwen3-0.6b"], 7, 6, 2),
    ],
)
def test_distance_counts_the_axes_that_differ(words: list[str], vanilla: int, gpt2: int, llama: int) -> None:
    distance = told(*words).distance
    assert [len(distance[base]) for base in ("vanilla", "gpt2", "llama")] == [vanilla, gpt2, llama]
    assert "init" not in distance["llama"] or "init=gpt2" in words


def test_how_a_published_model_began_is_unknown() -> None:
    assert told("llama3-8b").parts["init"] is None and told("base=llama", "init=gpt2").parts["init"] == "gpt2"
    assert list(told("gpt2").parts) == list(AXES)


def test_llama31_keeps_29_pairs_blends_6_and_divides_29() -> None:
    pairs = told("llama3.1-8b").pairs
    assert Counter(pair.stretching for pair in pairs) == {"kept": 29, "blended": 6, "divided": 29}
    assert 2 * math.pi / pairs[29].plain_wavelength == pytest.approx(2.616099253e-3, rel=1e-6)
    assert 2 * math.pi / pairs[29].wavelength == pytest.approx(2.166570764e-3, rel=1e-6)
    assert pairs[63].wavelength == pytest.approx(8 * pairs[63].plain_wavelength)


def test_unstretched_wavelengths_are_two_pi_theta_to_the_share_of_the_head() -> None:
    pairs = told("tinyllama-1.1b").pairs
    assert [pair.wavelength for pair in pairs] == pytest.approx([2 * math.pi * 10000 ** (i / 32) for i in range(32)])
    assert {pair.stretching for pair in pairs} == {"kept"} and told("gpt2").pairs == ()


def test_linear_stretching_divides_every_pair() -> None:
    pairs = told("base=llama pos=rope_linear pos.factor=4").pairs
    assert {pair.stretching for pair in pairs} == {"divided"}
    assert [pair.wavelength / pair.plain_wavelength for pair in pairs] == pytest.approx([4.0] * len(pairs))


@pytest.mark.parametrize("theta", [1e100, 1e-300])
def test_angles_that_float32_cannot_hold_are_refused_and_not_divided_by(theta: float) -> None:
    (subject,) = subjects_of(["base=llama model.vocab_size=9"])
    pos = {**subject.composition.pos, "theta": theta}  # past what a config may ask for
    extreme = replace(subject, composition=subject.composition.model_copy(update={"pos": pos}))
    with pytest.raises(UserError, match=r"^base=llama model.vocab_size=9: pos: .* no angle that float32 can hold"):
        explain(extreme)


@pytest.mark.parametrize(
    "pos",
    [
        "pos.theta=9e14",
        "pos=rope_linear pos.theta=9e14 pos.factor=9e5",
        "pos=rope_llama3 pos.theta=9e14 pos.factor=9e5 pos.high_freq_factor=1e300",
        "pos=rope_yarn pos.theta=9e14 pos.factor=9e5 pos.beta_fast=1e300 pos.beta_slow=1e-300",
    ],
)
def test_the_most_extreme_rope_that_is_allowed_is_told(pos: str) -> None:
    pairs = told(f"base=llama model.vocab_size=9 {pos}").pairs
    assert pairs and all(0 < pair.plain_wavelength <= pair.wavelength * (1 + 1e-6) < math.inf for pair in pairs)


def test_json_holds_what_the_design_promises() -> None:
    content = json.loads(json.dumps(told("llama3-8b").as_json(), allow_nan=False))
    promised = {
        "name",
        "parts",
        "num_params",
        "num_params_by_axis",
        "kv_bytes_per_token",
        "flops_per_token",
        "distance",
    }
    assert promised <= content.keys()
    assert content["num_params"] == sum(content["num_params_by_axis"].values()) == 8_030_261_248
    assert content["distance"]["llama"] == {"num": 0, "axes": []}
    assert {"name": "rms_norm_eps", "value": 1e-05, "given": True, "group": "norm"}.items() <= next(
        field for field in content["fields"] if field["name"] == "rms_norm_eps"
    ).items()
    assert len(content["rope_pairs"]) == 64 and len(content["windows"]) == 32


# ------------------------------------------------------------------------------------------------ what can be asked


def test_overrides_side_by_side_make_one_composition_until_the_next_base() -> None:
    words = [
        "gpt2",
        "base=llama",
        "norm=layer",
        "base=gpt2",
        "model.n_head=2",
        "llama-7b",
        "base=vanilla seed=3",
        "seed=1",
    ]
    names = [subject.name for subject in subjects_of(words)]
    assert names == [
        "gpt2",
        "base=llama norm=layer",
        "base=gpt2 model.n_head=2",
        "llama-7b",
        "base=vanilla seed=3",
        "seed=1",
    ]


def test_several_values_are_several_compositions() -> None:
    subjects = subjects_of(["base=llama", "attn=mha,gqa,mqa"])
    assert [subject.composition.parts["attn"] for subject in subjects] == ["mha", "gqa", "mqa"]


def test_a_vocabulary_below_the_texts_is_allowed_and_null_is_the_texts(text_file: Path) -> None:
    corpus = ["corpus=files", f"corpus.path={text_file}"]
    assert told("base=llama", "model.vocab_size=3").sizes["vocab_size"] == 3
    assert told(*corpus).sizes["vocab_size"] == len(set(text_file.read_text(encoding="utf-8")))


@pytest.mark.parametrize("base", ["gpt2", "llama", "mistral", "qwen2", "qwen3"])
def test_ours_are_told_as_a_config_json_too(base: str) -> None:
    (subject,) = subjects_of([f"base={base}", "model.vocab_size=9"])
    assert subject.family == base
    assert {field.name: field.value for field in subject.fields}["vocab_size"] == 9


def test_what_has_no_counterpart_says_why() -> None:
    (subject,) = subjects_of(["base=vanilla", "model.vocab_size=9"])
    assert subject.family is None and subject.fields == () and "placement=post" in subject.no_family


def test_a_config_json_its_folder_and_its_name_are_the_same_model(tmp_path: Path) -> None:
    config = config_json_of(told("qwen3-0.6b").subject.composition, num_symbols=151_936)
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    named, file, folder = subjects_of(["qwen3-0.6b", str(tmp_path / "config.json"), str(tmp_path)])
    assert named.composition == file.composition == folder.composition
    assert not file.knows_init and file.family == "qwen3"


def test_what_lies_here_goes_before_a_built_in_name_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = {"model_type": "qwen2", "hidden_size": 48, "num_attention_heads": 6, "num_key_value_heads": 2}
    (tmp_path / "gpt2").mkdir()
    (tmp_path / "gpt2" / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "llama3-8b").mkdir()
    monkeypatch.chdir(tmp_path)
    (subject,) = subjects_of(["gpt2"])
    assert subject.family == "qwen2" and "what lies here as 'gpt2'" in subject.what
    (subject,) = subjects_of(["gpt2-xl"])
    assert subject.family == "gpt2" and "lies here" not in subject.what
    assert "this is what lies here as 'llama3-8b'" in refusal("llama3-8b")


def test_a_run_is_explained_from_its_record(tmp_path: Path) -> None:
    config = compose("base=llama", "model.d_model=24")
    record = fake_record("llama") | {"config": config.model_dump(mode="json")}
    name = put(tmp_path, record)
    (subject,) = subjects_of([str(tmp_path / "runs" / name)])
    rows = record["data"]["vocab_size"]
    assert subject.num_symbols == rows and subject.knows_init
    assert subject.composition.parts == config.parts
    assert explain(subject).num_params == sum(build_model(config, rows).num_params_by_axis().values())


def imported(folder: Path, **changed: Any) -> Path:
    composition = composition_of({"model_type": "qwen2", "hidden_size": 48, "num_attention_heads": 6,
                                  "num_key_value_heads": 2, "num_hidden_layers": 2, "vocab_size": 19})  # fmt: skip
    content = {"schema": 1, "family": "qwen2", "composition": composition.model_dump(mode="json"), **changed}
    (folder / "model.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def test_an_imported_model_is_explained_from_its_folder(tmp_path: Path) -> None:
    (subject,) = subjects_of([str(imported(tmp_path))])
    assert subject.family == "qwen2" and not subject.knows_init and explain(subject).sizes["n_kv_head"] == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"schema": 2}, {"composition": 3}, {"family": "gemma"}, {"family": ["x"]}, {"composition": {"norm": []}},
        {"start_id": 19}, {"end_ids": [10**12]},
    ],
)  # fmt: skip
def test_a_damaged_imported_model_is_one_line(changed: dict[str, Any], tmp_path: Path) -> None:
    assert "model.json" in refusal(str(imported(tmp_path, **changed)))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["lama3-8b"], "Did you mean llama3-8b?"),
        (["vanilla"], "Did you mean base=vanilla?"),
        (["no/such/folder"], "is no model known by name, no file or folder, no override"),
        ([""], "is no model known by name"),
        (["norm=rmss"], "Did you mean rms?"),
        (["nrom=rms"], "no such setting"),
        (["model.d_modle=4"], "Did you mean model.d_model?"),
        (["base=llama", "norm.epz=1"], "norm.eps"),
        (["study=swaps"], "study=swaps"),
        (["base=llama", "swap=bias"], "changes nothing"),
        (["base=llama 'x"], "cannot be taken apart"),
        (["model.n_layer=2000000000"], "it can be up to 1,000"),
        (["base=llama", "model.n_head=2000000000", "model.d_model=2000000000"], "more than can be explained"),
        (["base=llama model.vocab_size=9 pos.theta=1e100"], "pos.theta"),
        (["base=llama model.vocab_size=9 pos.theta=1e-300"], "pos.theta"),
        (["base=llama model.vocab_size=9 pos=rope_linear pos.factor=1e-40"], "pos.factor"),
        (["base=llama model.vocab_size=9 pos=rope_yarn pos.theta=1e300"], "pos.theta"),
        (["base=qwen2 model.vocab_size=9 window=sliding window.first_layer=99"], "window.first_layer=99"),
        (["base=llama", "attn.n_kv_head=3", "model.vocab_size=9"], "does not divide"),
        (["gpt2"] * 13, "at most 12"),
    ],
)
def test_what_cannot_be_explained_is_one_line(words: list[str], said: str) -> None:
    assert said in refusal(*words)


@pytest.mark.parametrize("content", ["{", "[]", '{"config": 3}', '{"status": "done", "config": {}, "data": {}}'])
def test_a_damaged_run_is_one_line(content: str, tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(content, encoding="utf-8")
    assert "result.json" in refusal(str(tmp_path))


def test_an_empty_folder_is_one_line(tmp_path: Path) -> None:
    assert "without config.json, result.json or model.json" in refusal(str(tmp_path))


# ------------------------------------------------------------------------------------------------ a walk


def steps_of(walked: Trace) -> list[Step]:
    return [step for stretch in walked.stretches for step in stretch.steps]


def test_the_worked_example_walks_as_it_is_told() -> None:
    walked = trace(told(*WORKED), 3)
    attention = {step.does: (step.first, step.next) for step in steps_of(walked) if step.path == "blocks.0.attn"}
    assert attention == {
        "q by head, turned": ((2, 3, 2), (2, 1, 2)),
        "k by head, turned": ((1, 3, 2), (1, 1, 2)),
        "v by head": ((1, 3, 2), (1, 1, 2)),
        "cache: k, v as large": ((1, 3, 2), (1, 4, 2)),
        "added to the stream": ((3, 4), (1, 4)),
    }
    assert [(angle.position, angle.radians) for angle in walked.angles] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 3.0)]
    assert [(stretch.first_block, stretch.last_block) for stretch in walked.stretches] == [
        (None, None), (0, 1), (None, None),
    ]  # fmt: skip


TINY = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 10,
    "intermediate_size": 37, "vocab_size": 19,
}  # fmt: skip
TINY_GPT2 = {"n_embd": 48, "n_layer": 2, "n_head": 6, "n_positions": 16, "vocab_size": 19}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_every_module_gives_the_shape_that_its_namesake_in_transformers_gives(family: str, tmp_path: Path) -> None:
    config = {"model_type": family, **(TINY_GPT2 if family == "gpt2" else TINY)}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config)).eval()
    shapes: dict[str, tuple[int, ...]] = {}

    def note(name: str) -> Any:
        def hook(_: Any, given: Any, output: Any) -> None:
            first = output[0] if isinstance(output, tuple) else output
            if isinstance(first, torch.Tensor):
                shapes[name] = tuple(first.shape[1:])

        return hook

    for name, module in theirs.named_modules():
        module.register_forward_hook(note(name))
    with torch.no_grad():
        theirs(torch.zeros(1, 5, dtype=torch.int64), use_cache=False)
    walked = {step.path: step for step in steps_of(trace(told(str(tmp_path)), 5))}  # the last of each path
    fused = {"transformer.h.0.attn.c_attn"} if family == "gpt2" else {"model.rotary_emb"}
    assert {step.hf_name for step in walked.values()} - fused <= shapes.keys()
    for step in walked.values():
        assert step.hf_name in fused or step.first == shapes[step.hf_name or ""], step.path
    leaves = {
        name for name, module in theirs.named_modules() if next(module.parameters(recurse=False), None) is not None
    }
    blocks_0 = {name for name in leaves if ".1." not in name}
    assert blocks_0 <= {step.hf_name for step in walked.values()}


def test_a_window_ends_the_growth_of_its_layers_alone() -> None:
    words = "base=qwen2 window=sliding window.size=4 window.first_layer=1 model.n_layer=3 model.vocab_size=9"
    walked = trace(told(words), 6)
    spans = [(s.first_block, s.last_block) for s in walked.stretches if s.first_block is not None]
    caches = [(step.first[1], step.next[1]) for step in steps_of(walked) if step.does.startswith("cache")]
    assert spans == [(0, 0), (1, 2)] and caches == [(6, 7), (4, 4)]


@pytest.mark.parametrize("base", BASES)
def test_every_base_can_be_walked_and_is_left_as_it_was(base: str) -> None:
    explanation = told(f"base={base}", "model.vocab_size=9")
    first, second = (trace(explanation, 3) for _ in range(2))
    assert first == second
    assert all((step.hf_name is None) == (explanation.subject.family is None) for step in steps_of(first))
    json.dumps(first.as_json(), allow_nan=False)


def test_a_walk_past_the_table_of_positions_is_refused() -> None:
    gpt2 = told("gpt2")
    assert steps_of(trace(gpt2, 1023))
    with pytest.raises(UserError, match="up to 1,023"):
        trace(gpt2, 1024)
