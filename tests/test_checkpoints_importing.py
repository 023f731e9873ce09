"""Models of every family come in, compute what transformers computes, and nothing of them is lost or made up."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from published_models import KINDS, SIZES, logits_of, published, random_ids, saved
from safetensors.torch import load_file, save_file

from anatomy.checkpoints.converting import NotTheSame, convert
from anatomy.checkpoints.importing import read_source
from anatomy.checkpoints.parity import Parity, num_positions
from anatomy.errors import UserError
from anatomy.loading import load

Tensors = dict[str, torch.Tensor]


def rewrite(folder: Path, change: Callable[[Tensors], object]) -> Path:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def configure(folder: Path, **fields: Any) -> Path:
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))
    return folder


def imported(folder: Path) -> Any:
    """The model that a folder comes to, unverified."""
    into = folder.parent / f"{folder.name}-imported"
    convert(folder, into, verify=False)
    return load(into).model


def fault(folder: Path) -> str:
    """The one line that refuses a folder."""
    with pytest.raises(UserError) as error:
        read_source(folder)
    message = str(error.value)
    assert message.isprintable() and len(message) < 1500, repr(message)
    return message


@torch.no_grad()
def difference(folder: Path, theirs: Any) -> float:
    ids = random_ids()
    return float((imported(folder)(ids) - logits_of(theirs, ids)).abs().max())


# ------------------------------------------------------------------------------------------------ the same model


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_of_every_family_gives_the_logits_of_transformers(tmp_path: Path, kind: str) -> None:
    folder, theirs = saved(tmp_path / "theirs", kind)
    converted = convert(folder, tmp_path / "ours")
    parity = converted.parity
    assert parity is not None and parity.positions >= 64
    assert max(parity.max_logit_difference, parity.max_cached_logit_difference) < 1e-4
    opened, ids = load(tmp_path / "ours"), random_ids()
    with torch.no_grad():
        assert (opened.model(ids) - logits_of(theirs, ids)).abs().max() < 1e-4
    assert opened.record["parity"]["positions"] == parity.positions
    assert converted.num_params == sum(parameter.numel() for parameter in theirs.parameters())
    assert opened.record["family"] == converted.family == KINDS[kind][0]
    assert (opened.record["start_id"], opened.record["end_ids"]) == (1, [2])


@pytest.mark.parametrize("kind", ["mistral", "qwen2", "qwen3-window"])
def test_the_text_of_the_gate_outgrows_the_window(tmp_path: Path, kind: str) -> None:
    """Were the window one longer or shorter, the gate would see it."""
    folder, _ = saved(tmp_path / "theirs", kind)
    size = json.loads((folder / "config.json").read_text())["sliding_window"]
    for other in (size - 1, size + 1):
        with pytest.raises(NotTheSame):
            convert_with(folder, tmp_path / f"ours-{other}", sliding_window=other)


@pytest.mark.parametrize(
    ("window", "context", "positions"),
    [(None, 128, 64), (None, 40, 40), (7, 128, 64), (60, 128, 76), (100, 128, 116), (100, 110, 110), (4096, 8192, 64)],
)
def test_the_gate_reads_no_more_than_it_needs_and_there_is(
    tmp_path: Path, window: int | None, context: int, positions: int
) -> None:
    folder, _ = saved(tmp_path / "theirs", "mistral", sliding_window=window, max_position_embeddings=context)
    assert num_positions(read_source(folder).composition) == positions


@pytest.mark.parametrize(
    ("kind", "wrong"),
    [
        ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 510.0}}),
        ("llama", {"rms_norm_eps": 2e-3}),
        ("llama-yarn", {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}),
        ("qwen2", {"max_window_layers": 2, "layer_types": None}),
        ("qwen2", {"use_sliding_window": False, "layer_types": None}),
        ("gpt2-untied", {"activation_function": "relu"}),
    ],
)
def test_the_gate_refuses_what_no_shape_tells(tmp_path: Path, kind: str, wrong: dict[str, Any]) -> None:
    folder, _ = saved(tmp_path / "theirs", kind)
    with pytest.raises(NotTheSame) as error:
        convert_with(folder, tmp_path / "ours", **wrong)
    assert error.value.parity.max_logit_difference > 1e-3
    assert [path.name for path in tmp_path.iterdir() if path.name != "theirs"] == ["wrong"]


def offset_gpt2(folder: Path) -> Path:
    """A GPT-2 whose logits all lie about -100, as those of the published ones do: this changes no probability."""
    saved(folder, "gpt2")

    def shift(tensors: Tensors) -> None:
        tensors["transformer.wte.weight"] += 0.5
        tensors["transformer.ln_f.bias"] -= 8.0

    return rewrite(folder, shift)


def test_logits_that_lie_far_from_zero_widen_nothing(tmp_path: Path) -> None:
    folder = offset_gpt2(tmp_path / "theirs")
    parity = convert(folder, tmp_path / "ours").parity
    assert parity is not None and parity.tolerance < 2e-4
    with torch.no_grad():
        assert load(tmp_path / "ours").model(random_ids()).mean() < -80
    for wrong in ({"activation_function": "gelu"}, {"layer_norm_epsilon": 1.1e-3}):
        with pytest.raises(NotTheSame) as error:
            convert_with(folder, tmp_path / "wrongly", **wrong)
        assert error.value.parity.max_logit_difference < 1e-4 * 80  # what would do, were it a share of their size


def test_another_epsilon_is_another_model_where_activations_are_small(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama", rms_norm_eps=1e-5)
    rewrite(folder, lambda tensors: [tensor.mul_(0.1) for tensor in tensors.values() if tensor.dim() > 1])
    convert(folder, tmp_path / "ours")
    with pytest.raises(NotTheSame):
        convert_with(folder, tmp_path / "wrongly", rms_norm_eps=1e-6)


def test_a_model_of_a_single_position_is_compared_too(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama", max_position_embeddings=1)
    parity = convert(folder, tmp_path / "ours").parity
    assert parity is not None and parity.positions == 1 and parity.holds


@pytest.mark.parametrize(
    ("kind", "changed", "said"),
    [
        ("mistral", {"sliding_window": 7}, ""),
        ("mistral", {"sliding_window": 600, "max_position_embeddings": 1024}, "the end of its window of 600 positions"),
        ("mistral", {"sliding_window": 1024, "max_position_embeddings": 1024}, ""),  # no text outgrows it
        ("llama-yarn", {}, ""),
        ("llama-yarn", {"original": 100}, "positions beyond the 100 that RoPE was stretched from"),
    ],
)
def test_what_the_text_of_the_gate_did_not_reach_is_said(
    tmp_path: Path, kind: str, changed: dict[str, Any], said: str
) -> None:
    if original := changed.get("original"):
        rope = KINDS[kind][1]["rope_parameters"] | {"original_max_position_embeddings": original}
        changed = {"rope_parameters": rope, "max_position_embeddings": 4 * original}
    folder, _ = saved(tmp_path / "theirs", kind, **changed)
    assert convert(folder, tmp_path / "ours").unchecked == (f"the text did not reach {said}" if said else "")


def convert_with(folder: Path, into: Path, **fields: Any) -> None:
    """Convert a folder with another config than the one it is compared under."""
    from anatomy.checkpoints import converting, parity

    wrong = folder.parent / "wrong"
    wrong.mkdir(exist_ok=True)
    (wrong / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | fields))
    (wrong / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    read = read_source(wrong)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(converting, "open_theirs", lambda source: parity.open_folder(folder, source.where))
        converting._import(read, into, verify=True)


def test_the_gate_sees_what_only_the_cache_does_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from anatomy.checkpoints import parity

    folder, _ = saved(tmp_path / "theirs", "mistral")
    real = parity.decoder

    def forgetful(model: Any, cache: Any) -> Any:
        step = real(model, cache)
        return lambda ids: step([ids[0] ^ 1])

    monkeypatch.setattr(parity, "decoder", forgetful)
    with pytest.raises(NotTheSame) as error:
        convert(folder, tmp_path / "ours")
    assert error.value.parity.max_logit_difference < 1e-4 < error.value.parity.max_cached_logit_difference


def test_differences_that_are_no_numbers_are_no_parity() -> None:
    nan, inf = float("nan"), float("inf")
    assert not Parity(nan, 0.0, 64, 1.0).holds and not Parity(0.0, nan, 64, 1.0).holds
    for parity in (Parity(inf, inf, 64, inf), Parity(0.0, 0.0, 64, inf), Parity(0.0, 0.0, 64, nan)):
        assert not parity.holds and not parity.is_finite


def test_the_gate_allows_four_times_what_rounding_costs_but_between_two_limits() -> None:
    for rounding, allowed in ((0.0, 1e-4), (2e-5, 1e-4), (5e-5, 2e-4), (2e-4, 8e-4), (1e-2, 1e-3)):
        assert Parity(0.99 * allowed, 0.99 * allowed, 64, rounding).holds
        assert not Parity(1.01 * allowed, 0.0, 64, rounding).holds
        assert not Parity(0.0, 1.01 * allowed, 64, rounding).holds


def test_a_model_whose_numbers_are_not_finite_is_not_kept(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    rewrite(folder, lambda tensors: tensors["model.norm.weight"].fill_(float("nan")))
    with pytest.raises(NotTheSame):
        convert(folder, tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["theirs"]


def test_without_transformers_nothing_is_compared_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    monkeypatch.setattr("anatomy.checkpoints.converting.is_checkable", lambda: False)
    converted = convert(folder, tmp_path / "ours")
    assert converted.parity is None and "transformers, which is not installed" in converted.unchecked
    assert load(tmp_path / "ours").record["parity"] is None


# ------------------------------------------------------------------------------------------------ tied matrices


@pytest.mark.parametrize("kind", ["llama-tied", "gpt2", "qwen3"])
def test_a_tied_model_that_stores_its_matrix_twice_is_read(tmp_path: Path, kind: str) -> None:
    folder, theirs = saved(tmp_path / "theirs", kind)
    embed = "transformer.wte.weight" if kind == "gpt2" else "model.embed_tokens.weight"
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors[embed].clone()}))
    assert difference(folder, theirs) < 1e-4
    assert imported_names(folder).isdisjoint({"output.weight"})


def imported_names(folder: Path) -> set[str]:
    return set(load_file(folder.parent / f"{folder.name}-imported" / "model.safetensors"))


def test_a_tied_model_that_stores_another_head_is_refused(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama-tied")
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] + 1e-6}))
    assert "'lm_head.weight' and 'model.embed_tokens.weight' should be one matrix" in fault(folder)
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["lm_head.weight"].half()}))
    assert "should be one matrix" in fault(folder)


@pytest.mark.parametrize("kind", ["llama-tied", "gpt2"])
def test_either_name_of_a_tied_matrix_feeds_both(tmp_path: Path, kind: str) -> None:
    folder, theirs = saved(tmp_path / "theirs", kind)
    embed = "transformer.wte.weight" if kind == "gpt2" else "model.embed_tokens.weight"
    rewrite(folder, lambda tensors: tensors.update({"lm_head.weight": tensors.pop(embed)}))
    assert difference(folder, theirs) < 1e-4


def test_an_untied_model_without_its_head_is_refused(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
    assert fault(folder).endswith("missing: 'lm_head.weight'")


def test_without_the_flag_a_family_is_tied_as_transformers_has_it(tmp_path: Path) -> None:
    for kind, is_tied in (("llama", False), ("mistral", False), ("gpt2", True)):
        folder, _ = saved(tmp_path / kind, kind)
        config = json.loads((folder / "config.json").read_text())
        config.pop("tie_word_embeddings", None)
        (folder / "config.json").write_text(json.dumps(config))
        assert (read_source(folder).composition.tying == "tied") is is_tied
        if not is_tied:
            rewrite(folder, lambda tensors: tensors.pop("lm_head.weight"))
            assert fault(folder).endswith("missing: 'lm_head.weight'")


def test_a_flag_of_gpt2_that_changes_its_scores_is_refused_by_name(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "gpt2")
    for flag, value in (("scale_attn_by_inverse_layer_idx", True), ("scale_attn_weights", False)):
        assert flag in fault(configure(folder, **{flag: value}))
        configure(folder, **{flag: not value})


# ------------------------------------------------------------------------------------------------ names


def renamed(tensors: Tensors, rename: Callable[[str], str]) -> None:
    for name in list(tensors):
        tensors[rename(name)] = tensors.pop(name)


@pytest.mark.parametrize("has_base", [True, False])
@pytest.mark.parametrize("has_buffers", [True, False])
def test_gpt2_is_read_with_its_prefix_or_without_and_with_its_masks_or_without(
    tmp_path: Path, has_base: bool, has_buffers: bool
) -> None:
    folder, theirs = saved(tmp_path / "theirs", "gpt2")

    def change(tensors: Tensors) -> None:
        if has_buffers:
            for layer in range(3):
                tensors[f"transformer.h.{layer}.attn.bias"] = torch.ones(1, 1, 128, 128).tril()
                tensors[f"transformer.h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
        if not has_base:
            renamed(tensors, lambda name: name.removeprefix("transformer."))

    rewrite(folder, change)
    assert difference(folder, theirs) < 1e-4


@pytest.mark.parametrize("name", ["transformer.h.1.attn.bias2", "transformer.h.x.attn.bias", "h.1.attn.bias.x", "bias"])
def test_what_is_named_nearly_like_a_mask_is_refused(tmp_path: Path, name: str) -> None:
    folder, _ = saved(tmp_path / "theirs", "gpt2")
    rewrite(folder, lambda tensors: tensors.update({name: torch.ones(3)}))
    assert fault(folder).endswith(f"left over: '{name}'")


def test_saved_frequencies_of_rope_are_ignored_and_ours_are_never_saved(tmp_path: Path) -> None:
    folder, theirs = saved(tmp_path / "theirs", "llama")

    def change(tensors: Tensors) -> None:
        tensors["model.rotary_emb.inv_freq"] = torch.zeros(5)
        tensors["model.layers.1.self_attn.rotary_emb.inv_freq"] = torch.zeros(5)

    rewrite(folder, change)
    assert difference(folder, theirs) < 1e-4
    assert not any("freq" in name or "mask" in name for name in imported_names(folder))
    rewrite(folder, lambda tensors: tensors.update({"model.layers.1.mlp.rotary_emb.inv_freq": torch.zeros(5)}))
    assert "left over: 'model.layers.1.mlp.rotary_emb.inv_freq'" in fault(folder)


# ------------------------------------------------------------------------------------------ tensors that do not fit


def test_missing_tensors_are_named_the_first_few_and_how_many_more(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    rewrite(folder, lambda tensors: tensors.pop("model.layers.1.mlp.up_proj.weight"))
    assert fault(folder).endswith("missing: 'model.layers.1.mlp.up_proj.weight'")
    configure(folder, num_hidden_layers=5)
    assert "missing: 'model.layers." in fault(folder) and fault(folder).endswith(" and 15 more")


def test_tensors_that_are_left_over_are_named(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    configure(folder, num_hidden_layers=2)
    assert re.search(r"left over: 'model\.layers\.2\.[^']+', .* and 5 more$", fault(folder))
    configure(folder, num_hidden_layers=3)
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(60)}))
    assert fault(folder).endswith("left over: 'model.layers.0.self_attn.q_proj.bias'")


def test_a_bias_that_the_config_promises_is_not_made_up(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "qwen2")
    rewrite(folder, lambda tensors: tensors.pop("model.layers.2.self_attn.v_proj.bias"))
    assert fault(folder).endswith("missing: 'model.layers.2.self_attn.v_proj.bias'")
    folder, _ = saved(tmp_path / "biased", "llama")
    configure(folder, mlp_bias=True)
    assert "missing: 'model.layers.0.mlp.gate_proj.bias'" in fault(folder)


def test_tensors_of_another_shape_are_named_with_both(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "gpt2")
    rewrite(folder, lambda tensors: tensors.update({"transformer.h.1.attn.c_attn.weight": torch.ones(72, 24)}))
    assert fault(folder).endswith("of another shape: 'transformer.h.1.attn.c_attn.weight' (72, 24), not (24, 72)")


def test_a_norm_over_all_heads_at_once_is_not_one_of_each_head(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "qwen3")
    rewrite(folder, lambda tensors: tensors.update({"model.layers.0.self_attn.q_norm.weight": torch.ones(60)}))
    assert "'model.layers.0.self_attn.q_norm.weight' (60,), not (10,)" in fault(folder)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int8, torch.float8_e4m3fn])
def test_numbers_of_a_kind_that_is_not_read_are_refused(tmp_path: Path, dtype: torch.dtype) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    rewrite(folder, lambda tensors: tensors.update({"model.norm.weight": tensors["model.norm.weight"].to(dtype)}))
    assert "none of F32, F16, BF16: 'model.norm.weight' " in fault(folder)


@pytest.mark.parametrize(
    "absurd",
    [
        {"hidden_size": 2**20, "intermediate_size": 2**24, "vocab_size": 2**24},
        {"num_hidden_layers": 1000},
        {"num_attention_heads": 2**14, "num_key_value_heads": 2**14},
        {"hidden_size": 10**12},
    ],
)
def test_absurd_sizes_are_refused_before_anything_of_that_size_is_made(tmp_path: Path, absurd: dict[str, int]) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    assert str(folder) in fault(configure(folder, **absurd))


# ------------------------------------------------------------------------------------------------ dtypes, ways to store


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_half_precision_is_kept_as_it_is_and_computed_in_float32(tmp_path: Path, kind: str, dtype: torch.dtype) -> None:
    theirs = published(kind).to(dtype)
    theirs.save_pretrained(tmp_path / "theirs")
    parity = convert(tmp_path / "theirs", tmp_path / "ours").parity
    assert parity is not None and parity.max_logit_difference < 1e-4
    kept = load_file(tmp_path / "ours" / "model.safetensors")
    assert {tensor.dtype for tensor in kept.values()} == {dtype}
    embed = theirs.get_input_embeddings().weight
    assert torch.equal(kept["embed.weight"].view(torch.int16), embed.view(torch.int16))
    assert load(tmp_path / "ours").model.embed.weight.dtype == torch.float32


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_shards_are_read_as_one(tmp_path: Path, kind: str) -> None:
    theirs = published(kind)
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("model-*.safetensors"))) > 2
    assert difference(tmp_path / "theirs", theirs) < 1e-4


@pytest.mark.parametrize("kind", ["llama-tied", "gpt2"])
def test_a_file_of_pytorch_is_read_by_its_weights_alone(tmp_path: Path, kind: str) -> None:
    folder, theirs = saved(tmp_path / "theirs", kind)
    (folder / "model.safetensors").unlink()
    torch.save(theirs.state_dict(), folder / "pytorch_model.bin")
    assert difference(folder, theirs) < 1e-4
    assert load(folder.parent / "theirs-imported").record["source"] == {
        "format": "pytorch",
        "files": ["pytorch_model.bin"],
    }


def test_shards_of_pytorch_are_read_as_one(tmp_path: Path) -> None:
    folder, theirs = saved(tmp_path / "theirs", "qwen2")
    (folder / "model.safetensors").unlink()
    state = theirs.state_dict()
    homes = {name: f"pytorch_model-{index % 2}.bin" for index, name in enumerate(state)}
    for home in set(homes.values()):
        torch.save({name: state[name].clone() for name in state if homes[name] == home}, folder / home)
    (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    assert difference(folder, theirs) < 1e-4


def test_only_the_config_decides_the_base_of_rope(tmp_path: Path) -> None:
    """A folder named like an older model, old spelling of the field."""
    theirs = published("llama", rope_parameters={"rope_type": "default", "rope_theta": 1e6})
    folder = tmp_path / "llama-2-7b-hf"
    theirs.save_pretrained(folder)
    config = {**SIZES, "head_dim": 10, "model_type": "llama", "rope_theta": 1000000.0}
    (folder / "config.json").write_text(json.dumps(config))
    assert difference(folder, theirs) < 1e-4
    assert read_source(folder).composition.pos["theta"] == 1e6


def test_the_tokenizer_comes_along(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder, _ = saved(tmp_path / "theirs", "llama")
    words = Tokenizer(models.WordLevel({"a": 0, "word": 1, "or": 2, "two": 3}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(folder / "tokenizer.json"))
    assert convert(folder, tmp_path / "ours", verify=False).tokenizer == "4 tokens"
    assert load(tmp_path / "ours").codec.encode("two or a word").tolist() == [3, 2, 0, 1]


def test_a_model_of_transformers_is_what_it_was_before_it_was_read(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    convert(folder, tmp_path / "ours")
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
    assert transformers.utils.logging.get_verbosity() != transformers.utils.logging.ERROR
