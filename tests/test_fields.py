"""What a published config.json says: against transformers' own classes, and against files of every kind."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from omegaconf import OmegaConf
from transformers.masking_utils import sliding_window_causal_mask_function

from anatomy.axes import AXES, BASES
from anatomy.build import build_model, part_faults, part_section
from anatomy.checkpoints.config_json import config_json_of
from anatomy.checkpoints.field_table import COMMON, FAMILIES
from anatomy.checkpoints.fields import composition_of, read_fields, read_json
from anatomy.config import Composition, parse_composition
from anatomy.errors import UserError
from anatomy.files import CONF

CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
    "gpt2": transformers.GPT2Config,
}
TINY = {  # sizes that hide nothing: six heads, two of keys and values, widths that nothing divides by accident
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "intermediate_size": 37,
    "vocab_size": 19,
    "max_position_embeddings": 64,
}
TINY_GPT2 = {"n_embd": 48, "n_layer": 3, "n_head": 6, "n_positions": 64, "vocab_size": 19}


def tiny(family: str, **fields: Any) -> dict[str, Any]:
    return {"model_type": family, **(TINY_GPT2 if family == "gpt2" else TINY), **fields}


def refusal(config: Any) -> str:
    with pytest.raises(UserError) as caught:
        read_fields(config)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


# ------------------------------------------------------------------------------------------------ the table


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_of_transformers_is_in_the_table_with_its_default(family: str) -> None:
    theirs = {field.name: field.default for field in dataclasses.fields(CLASSES[family])}
    ours = FAMILIES[family].fields
    assert theirs.keys() <= ours.keys()
    filled_later = {"rope_parameters", "dtype", "id2label", "label2id", "return_dict", "output_hidden_states"}
    for name, default in theirs.items():
        if name not in filled_later and not name.startswith("summary_"):
            assert ours[name].default == default, name


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("use_diff", [True, False])
def test_what_transformers_writes_is_understood(family: str, use_diff: bool) -> None:
    written = json.loads(CLASSES[family]().to_json_string(use_diff=use_diff))
    assert read_fields(written).composition == composition_of({"model_type": family})


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_has_a_meaning_and_an_axis_or_group(family: str) -> None:
    groups = {*AXES, "sizes", "vocabulary", "training", "use", "files"}
    for name, field in FAMILIES[family].fields.items():
        assert field.group in groups and field.meaning and len(field.meaning) < 90, name
        assert field.allowed.holds(field.default) or name in ("model_type", "transformers_version"), name


def test_what_no_trained_model_depends_on_leaves_the_composition_alone() -> None:
    told = {
        "torch_dtype": "bfloat16",
        "_name_or_path": "x",
        "use_cache": False,
        "attention_dropout": 0.1,
        "eos_token_id": [1, 2],
    }
    told |= {"task_specific_params": {"text-generation": {"max_length": 50}}, "temperature": 0.6, "architectures": None}
    assert composition_of(tiny("llama", **told)) == composition_of(tiny("llama"))


# ------------------------------------------------------------------------------------------------ reading

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("llama", {}),
    ("llama", {"num_key_value_heads": None}),
    ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    ("llama", {"head_dim": 10}),
    ("llama", {"head_dim": None, "attention_bias": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True}),
    ("llama", {"mlp_bias": True}),
    ("mistral", {"sliding_window": 4}),
    ("mistral", {"sliding_window": None, "head_dim": 10}),
    ("qwen2", {}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1, "tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 10}),
    ("qwen3", {"head_dim": 10, "attention_bias": True}),
    ("qwen3", {}),
    ("gpt2", {}),
    ("gpt2", {"n_inner": 37, "tie_word_embeddings": False, "activation_function": "gelu"}),
]


@pytest.mark.parametrize(("family", "fields"), VARIANTS, ids=str)
def test_a_config_means_the_model_that_transformers_builds(family: str, fields: dict[str, Any]) -> None:
    config = tiny(family, **fields)
    ours = build_model(composition_of(config), config["vocab_size"])
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**config))
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())
    if family != "gpt2":
        attn = theirs.model.layers[0].self_attn
        assert ours.blocks[0].attn.head_width == attn.head_dim
        assert ours.blocks[0].attn.n_kv_head * attn.num_key_value_groups == config["num_attention_heads"]
        assert (ours.blocks[0].attn.o_proj.bias is None) == (attn.o_proj.bias is None)


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize("fields", [
    {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0},
    {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 3},
    {"use_sliding_window": True, "sliding_window": None, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 4},
    {"sliding_window": 4, "max_window_layers": 1},
    {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 0,
     "layer_types": ["full_attention", "full_attention", "sliding_attention"]},
])  # fmt: skip
def test_layers_slide_where_transformers_lets_them(family: str, fields: dict[str, Any]) -> None:
    config = tiny(family, **fields)
    theirs = transformers.AutoConfig.for_model(**config)
    model = build_model(composition_of(config), config["vocab_size"])
    expected = [theirs.sliding_window if each == "sliding_attention" else None for each in theirs.layer_types]
    assert [block.attn.window.size for block in model.blocks] == expected


def test_mistral_slides_everywhere_and_null_nowhere() -> None:
    windows = [
        [block.attn.window.size for block in build_model(composition_of(tiny("mistral", **fields)), 19).blocks]
        for fields in ({}, {"sliding_window": 7}, {"sliding_window": None})
    ]
    assert windows == [[4096] * 3, [7] * 3, [None] * 3]


def test_the_window_of_transformers_counts_the_token_itself() -> None:
    sees, places = sliding_window_causal_mask_function(4), torch.arange(10)
    visible = sees(places[:1], places[:1], places[:, None], places[None])
    assert visible.sum(dim=-1).tolist() == [1, 2, 3] + 7 * [4]


STRETCHED: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("linear", {"factor": 4}, {"name": "rope_linear", "factor": 4.0}),
    (
        "llama3",
        {"factor": 8.0, "low_freq_factor": 1, "high_freq_factor": 4.0, "original_max_position_embeddings": 16},
        {"name": "rope_llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_len": 16},
    ),
    (
        "yarn",
        {"factor": 4.0, "original_max_position_embeddings": 16},
        {"name": "rope_yarn", "factor": 4.0, "original_len": 16, "beta_fast": 32.0, "attention_factor": None},
    ),
    (
        "yarn",
        {"factor": 2.0, "attention_factor": 0.5, "beta_fast": 16, "beta_slow": 2},
        {"name": "rope_yarn", "original_len": 64, "beta_slow": 2.0, "attention_factor": 0.5},
    ),
]


@pytest.mark.parametrize(("kind", "settings", "expected"), STRETCHED)
def test_rope_is_read_in_its_old_and_its_new_spelling(
    kind: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    spellings = (
        {"rope_theta": 5000.0, "rope_scaling": {"type": kind, **settings}},
        {"rope_theta": 5000, "rope_scaling": {"rope_type": kind, "type": kind, **settings}},
        {"rope_parameters": {"rope_type": kind, "rope_theta": 5000.0, **settings}},
    )
    read = [composition_of(tiny("llama", **json.loads(json.dumps(fields)))).pos for fields in spellings]
    assert read[0] == read[1] == read[2] and expected.items() <= read[0].items() and read[0]["theta"] == 5000.0
    assert part_faults(composition_of(tiny("llama", **spellings[0])).model_dump()) == []


@pytest.mark.parametrize(("kind", "settings", "expected"), STRETCHED)
def test_stretched_frequencies_are_those_of_transformers(
    kind: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    config = tiny("llama", rope_theta=5000.0, rope_scaling={"rope_type": kind, **settings})
    pos = build_model(composition_of(config), 19).pos
    theirs = transformers.models.llama.modeling_llama.LlamaRotaryEmbedding(transformers.AutoConfig.for_model(**config))
    torch.testing.assert_close(pos.frequencies(torch.device("cpu")), theirs.inv_freq, rtol=1e-6, atol=0)
    assert getattr(pos, "attention_factor", 1.0) == pytest.approx(theirs.attention_scaling)


def test_only_the_file_decides_about_rope() -> None:
    assert composition_of(tiny("llama", rope_theta=1000000)).pos == part_section("pos", "rope", {"theta": 1e6})
    assert composition_of(tiny("llama")).pos["theta"] == 10000.0
    assert composition_of(tiny("llama", rope_scaling=None, rope_parameters={})).pos["name"] == "rope"


def test_how_ties_are_left_unsaid_depends_on_the_family() -> None:
    assert {family: composition_of({"model_type": family}).tying for family in FAMILIES} == {
        "llama": "untied", "mistral": "untied", "qwen2": "untied", "qwen3": "untied", "gpt2": "tied",
    }  # fmt: skip


def test_the_fields_read_say_what_was_given() -> None:
    read = {
        field.name: field for field in read_fields(tiny("llama", rope_scaling={"type": "linear", "factor": 2})).fields
    }
    assert read["hidden_size"].given and read["hidden_size"].field.group == "sizes"
    assert read["rope_scaling.factor"].value == 2 and read["rope_scaling.type"].value == "linear"
    assert (read["tie_word_embeddings"].given, read["tie_word_embeddings"].value) == (False, False)
    assert not {"quantization_config", "use_cache", "attention_dropout"} & read.keys()


# ------------------------------------------------------------------------------------------------ refusing

REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("llama", {"quantization_config": {"bits": 4}}, "quantization_config"),
    ("llama", {"auto_map": {"AutoModel": "m.M"}}, "auto_map"),
    ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act"),
    ("llama", {"pretraining_tp": 0}, "pretraining_tp"),
    ("llama", {"rope_interleaved": True}, "rope_interleaved"),
    ("llama", {"is_causal": False}, "is_causal"),
    ("llama", {"pruned_heads": {"0": [1]}}, "pruned_heads"),
    ("llama", {"per_layer_config": {"0": {"head_dim": 4}}}, "per_layer_config"),
    ("llama", {"sliding_window": 4}, "sliding_window"),
    ("llama", {"architectures": ["LlamaForSequenceClassification"]}, "LlamaForCausalLM"),
    ("llama", {"hiden_size": 4}, "Did you mean hidden_size?"),
    ("llama", {"n_embd": 4}, "Did you mean hidden_size?"),
    ("gpt2", {"hidden_size": 4}, "Did you mean n_embd?"),
    ("llama", {"num_attention_heads": 5, "num_key_value_heads": 5}, "does not divide hidden_size=48"),
    ("llama", {"num_key_value_heads": 4}, "num_key_value_heads=4 does not divide num_attention_heads=6"),
    ("llama", {"head_dim": 7}, "must be even"),
    ("llama", {"max_sequence_length": 3}, "max_sequence_length=3"),
    ("mistral", {"attention_bias": True}, "attention_bias"),
    ("mistral", {"layer_types": ["full_attention"] * 3}, "layer_types"),
    ("qwen2", {"use_mrope": True}, "use_mrope"),
    ("qwen2", {"layer_types": ["sliding_attention", "full_attention", "full_attention"]}, "full below a layer"),
    ("qwen2", {"layer_types": ["full_attention", "full_attention", "sliding_attention"]}, "no window"),
    ("qwen2", {"layer_types": ["full_attention"]}, "names 1 layers"),
    ("qwen2", {"layer_types": ["linear_attention"] * 3}, "linear_attention"),
    ("qwen3", {"head_dim": None}, "head_dim=null"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention"),
    ("gpt2", {"activation_function": "silu"}, "activation_function"),
    ("gpt2", {"n_ctx": 32}, "n_ctx=32 is not n_positions=64"),
    ("gpt2", {"n_head": 7}, "n_head=7 does not divide n_embd=48"),
    ("llama", {"rope_scaling": {"type": "dynamic", "factor": 2.0}}, 'rope_scaling.type="dynamic"'),
    ("llama", {"rope_scaling": {"rope_type": "longrope"}}, "longrope"),
    ("llama", {"rope_scaling": {"rope_type": "yarm", "factor": 2.0}}, "Did you mean yarn?"),
    ("llama", {"rope_scaling": {"rope_type": "linear"}}, "rope_scaling.factor: missing"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 0.5}}, "rope_scaling.factor"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 2, "beta_fast": 1}}, "rope_scaling.beta_fast"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "mscale": 1.0}}, "rope_scaling.mscale"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "truncate": False}}, "rope_scaling.truncate"),
    ("llama", {"rope_scaling": {"rope_type": "yarn", "factor": 2.0, "beta_fast": 1}}, "above beta_slow"),
    (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "type": "yarn", "factor": 2.0}},
        'rope_scaling.type="yarn" is not rope_scaling.rope_type="linear"',
    ),
    ("llama", {"rope_scaling": {"rope_type": None, "factor": 2.0}}, "rope_scaling.rope_type=null"),
    *(("llama", {"rope_scaling": nothing}, "rope_scaling=") for nothing in (False, [], 0, "")),
    ("llama", {"rope_parameters": []}, "rope_parameters=[]"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": False}, "differ"),
    ("llama", {"rope_theta": None}, "rope_theta=null"),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": None}}, "rope_parameters.rope_theta=null"),
    ("llama", {"rope_scaling": {"rope_type": "linear", "factor": None}}, "rope_scaling.factor=null"),
    ("llama", {"rope_scaling": "linear"}, "rope_scaling"),
    ("llama", {"rope_scaling": {"type": ["x"]}}, "rope_scaling.type"),
    ("llama", {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, "rope_theta"),
    ("llama", {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}}, "differ"),
]


@pytest.mark.parametrize(("family", "fields", "said"), REFUSED, ids=lambda value: str(value)[:60])
def test_what_would_make_another_model_is_refused_by_name(family: str, fields: dict[str, Any], said: str) -> None:
    assert said in refusal(tiny(family, **fields))


SIZES = {
    "llama": ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "head_dim",
              "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta"),
    "gpt2": ("n_embd", "n_layer", "n_head", "n_positions", "n_inner", "vocab_size", "layer_norm_epsilon"),
}  # fmt: skip


@pytest.mark.parametrize(("family", "name"), [(family, name) for family, names in SIZES.items() for name in names])
@pytest.mark.parametrize("value", [0, -1, 1e30, 10**40, float("nan"), "4", True, [4], {"a": 4}], ids=repr)
def test_absurd_sizes_are_refused_by_name(family: str, name: str, value: Any) -> None:
    assert f"{name}=" in refusal(tiny(family, **{name: value}))


def test_all_faults_are_told_at_once_and_control_characters_act_on_nothing() -> None:
    text = refusal(tiny("llama", hidden_act="gelu\x1b[31m\n", quantization_config={"bits": 4}, vocab_size=-1, oddity=1))
    for name in ("hidden_act", "quantization_config", "vocab_size", "oddity"):
        assert name in text
    assert "\x1b" not in text and "\n" not in text
    many = refusal(tiny("llama", **{f"field{i}": "x" * 1000 for i in range(1000)}))
    assert "and 988 more" in many and len(many) < 3000


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "has no model_type"),
        ({"model_type": "gemma"}, "it can be llama, mistral, qwen2, qwen3, gpt2"),
        ({"model_type": "lama"}, "Did you mean llama?"),
        ({"model_type": ["llama"]}, "model_type"),
        ({"model_type": None}, "model_type=null"),
    ],
)
def test_another_family_is_refused_by_name(config: dict[str, Any], said: str) -> None:
    assert said in refusal(config)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{", b"[]", b"3", b"null", b'{"model_type": "llama", "rms_norm_eps": NaN}', b'{"a": 1e999}', b"\xff{}",
        b'{"model_type": "llama", "vocab_size": 9, "vocab_size": 10}', b'{"a": {"b": 1, "c": 2, "b": 1}}',
        b"[" * 100_000, b'{"a":' * 50_000, b'{"a": ' + b"1" * 10_000 + b"}", b" " * (5 * 2**20),
    ],
    ids=lambda content: repr(content[:12]),
)  # fmt: skip
def test_a_file_that_is_no_config_is_one_line(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_fields(read_json(file))
    assert str(file) in str(caught.value) or "no model_type" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_name_given_twice_is_named(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama", "rope_theta": 1e4, "x": [{"\\u001b": 1, "\\u001b": 1}]}', encoding="utf-8")
    with pytest.raises(UserError, match=r"\\x1b is given twice"):
        read_json(file)
    file.write_text('{"rope_theta": 1e4, "rope_theta": 1e6}', encoding="utf-8")
    with pytest.raises(UserError, match="rope_theta is given twice in one object"):
        read_json(file)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        read_json(tmp_path / "config.json")


# ------------------------------------------------------------------------------------------------ and back


@pytest.mark.parametrize(("family", "fields"), VARIANTS, ids=str)
def test_a_composition_goes_out_and_comes_back_the_same(family: str, fields: dict[str, Any]) -> None:
    composition = composition_of(tiny(family, **fields))
    assert composition_of(config_json_of(composition, num_symbols=19)) == composition


@pytest.mark.parametrize(("kind", "settings", "expected"), STRETCHED)
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_stretched_rope_goes_out_and_comes_back_the_same(
    family: str, kind: str, settings: dict[str, Any], expected: dict[str, Any]
) -> None:
    composition = composition_of(tiny(family, rope_scaling={"rope_type": kind, **settings}))
    assert composition_of(config_json_of(composition, num_symbols=19)) == composition


@pytest.mark.parametrize(("family", "fields"), VARIANTS, ids=str)
def test_transformers_understands_what_goes_out(family: str, fields: dict[str, Any]) -> None:
    config = tiny(family, **fields)
    out = config_json_of(composition_of(config), num_symbols=19)
    theirs, meant = (transformers.AutoConfig.for_model(**each) for each in (dict(out), dict(config)))
    for name in FAMILIES[out["model_type"]].fields.keys() - COMMON.keys() - {"initializer_range"}:
        if hasattr(meant, name) and out["model_type"] == family:
            if name in ("max_window_layers", "bos_token_id", "eos_token_id"):
                continue  # the layers' kinds tell; tokens are the exporter's
            expected = 4 * meant.n_embd if name == "n_inner" and meant.n_inner is None else getattr(meant, name)
            assert getattr(theirs, name) == expected, name


def of_base(base: str, **parts: Any) -> Composition:
    sections = {axis: part_section(axis, part) for axis, part in BASES[base].items()}
    sizes = {"d_model": 48, "n_layer": 2, "n_head": 6, "ctx_len": 32, "vocab_size": None}
    composition, faults = parse_composition({**sections, "model": sizes, **parts})
    assert composition is not None, faults
    return composition


@pytest.mark.parametrize("base", ["gpt2", "llama", "mistral", "qwen2", "qwen3"])
def test_bases_named_after_families_go_out_as_these(base: str) -> None:
    out = config_json_of(of_base(base), num_symbols=19)
    assert out["model_type"] == base and out["vocab_size"] == 19
    assert composition_of(out).parts == dict(BASES[base])


@pytest.mark.parametrize(
    ("base", "parts", "said"),
    [
        ("vanilla", {}, "placement=post"),
        ("transformer2017", {}, "pos=sinusoidal"),
        ("gpt2", {"bias": "none"}, "bias=none"),
        ("gpt2", {"norm": part_section("norm", "rms")}, "norm=rms (GPT2LMHeadModel has layer)"),
        ("llama", {"norm": part_section("norm", "layer")}, "norm=layer (LlamaForCausalLM has rms)"),
        ("llama", {"pos": part_section("pos", "nope")}, "pos=nope"),
        ("qwen3", {"qk_norm": part_section("qk_norm", "rms", {"eps": 0.1})}, "qk_norm.eps=0.1"),
        ("mistral", {"window": part_section("window", "sliding", {"first_layer": 1})}, "window.first_layer=1"),
        ("qwen2", {"qk_norm": part_section("qk_norm", "rms")}, "bias=qkv"),
    ],
    ids=str,
)
def test_what_transformers_cannot_build_is_refused_with_the_reason(base: str, parts: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as caught:
        config_json_of(of_base(base, **parts), num_symbols=19)
    assert said in str(caught.value) and len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------------------------------------------ published models

TOTALS = {
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "llama-7b": 6_738_415_616,
    "llama-13b": 13_015_864_320,
    "llama2-7b": 6_738_415_616,
    "llama2-13b": 13_015_864_320,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-70b": 70_553_706_496,
    "llama3.1-8b": 8_030_261_248,
    "llama3.2-1b": 1_235_814_400,
    "mistral-7b": 7_241_732_096,
    "qwen2.5-0.5b": 494_032_768,
    "qwen3-0.6b": 596_049_920,
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
}


def test_every_published_model_has_a_total_here() -> None:
    assert {file.stem for file in (CONF / "published").glob("*.yaml")} == TOTALS.keys()


@pytest.mark.parametrize("name", TOTALS)
def test_published_sizes_come_to_the_published_total(name: str) -> None:
    content: Any = OmegaConf.to_container(OmegaConf.load(CONF / "published" / f"{name}.yaml"))
    composition = composition_of(content["config"])
    rows = composition.model.vocab_size
    assert rows is not None
    assert sum(build_model(composition, rows).num_params_by_axis().values()) == TOTALS[name]
    assert content["about"].keys() == {"hub", "source"}
