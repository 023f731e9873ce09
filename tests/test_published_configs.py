"""The config.json files of published models, with every field that they have, and what they must come to.

Typed by hand a second time, so that a slip in conf/published, or in the reading, is seen.
"""

from typing import Any, NamedTuple

import pytest
from omegaconf import OmegaConf

from anatomy.checkpoints.fields import read_fields
from anatomy.config import Composition
from anatomy.files import CONF

# ----------------------------------------------------------------------------------------- what shapes do not say


class Meaning(NamedTuple):
    """What no count of parameters tells."""

    eps: float
    context: int
    is_tied: bool
    theta: float | None = None  # None: positions are learned
    stretching: tuple[str, float, int] | None = None  # kind, factor, context before
    window: int | None = None


GPT2_MEANING = Meaning(1e-5, 1024, True)
LLAMA3_TIMES_8, LLAMA3_TIMES_32 = (("rope_llama3", factor, 8192) for factor in (8.0, 32.0))
MEANINGS = {
    "gpt2": GPT2_MEANING,
    "gpt2-medium": GPT2_MEANING,
    "gpt2-large": GPT2_MEANING,
    "gpt2-xl": GPT2_MEANING,
    "llama-7b": Meaning(1e-6, 2048, False, 1e4),
    "llama-13b": Meaning(1e-6, 2048, False, 1e4),
    "llama2-7b": Meaning(1e-5, 4096, False, 1e4),
    "llama2-13b": Meaning(1e-5, 4096, False, 1e4),
    "llama2-70b": Meaning(1e-5, 4096, False, 1e4),
    "llama3-8b": Meaning(1e-5, 8192, False, 5e5),
    "llama3-70b": Meaning(1e-5, 8192, False, 5e5),
    "llama3.1-8b": Meaning(1e-5, 131072, False, 5e5, LLAMA3_TIMES_8),
    "llama3.2-1b": Meaning(1e-5, 131072, True, 5e5, LLAMA3_TIMES_32),
    "mistral-7b": Meaning(1e-5, 32768, False, 1e4, window=4096),
    "qwen2.5-0.5b": Meaning(1e-6, 32768, True, 1e6),
    "qwen3-0.6b": Meaning(1e-6, 40960, True, 1e6),
    "smollm2-135m": Meaning(1e-5, 8192, True, 1e5),
    "tinyllama-1.1b": Meaning(1e-5, 2048, False, 1e4),
}


def named(name: str) -> Composition:
    content: Any = OmegaConf.to_container(OmegaConf.load(CONF / "published" / f"{name}.yaml"))
    return read_fields(content["config"]).composition


def meaning_of(composition: Composition) -> Meaning:
    pos = composition.pos
    is_stretched = pos["name"] not in ("learned", "rope")
    return Meaning(
        composition.norm["eps"],
        composition.model.ctx_len,
        composition.tying == "tied",
        pos.get("theta"),
        (pos["name"], pos["factor"], pos["original_len"]) if is_stretched else None,
        composition.window.get("size"),
    )


def test_every_published_model_has_a_meaning_here() -> None:
    assert {file.stem for file in (CONF / "published").glob("*.yaml")} == MEANINGS.keys()


@pytest.mark.parametrize("name", MEANINGS)
def test_what_shapes_do_not_say_is_as_published(name: str) -> None:
    composition = named(name)
    assert meaning_of(composition) == MEANINGS[name]
    if composition.qk_norm["name"] == "rms":
        assert composition.qk_norm["eps"] == MEANINGS[name].eps
    if MEANINGS[name].stretching:
        assert (composition.pos["low_freq_factor"], composition.pos["high_freq_factor"]) == (1.0, 4.0)


# ------------------------------------------------------------------------------------------------ whole files

GPT2 = {
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1, "bos_token_id": 50256,
    "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
    "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
    "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1, "summary_proj_to_labels": True,
    "summary_type": "cls_index", "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}}, "vocab_size": 50257,
}  # fmt: skip
GPT2_LARGE = GPT2 | {"n_embd": 1280, "n_head": 20, "n_layer": 36}
GPT2_XL = GPT2 | {"n_embd": 1600, "n_head": 25, "n_layer": 48, "output_past": True}

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 2048,
    "max_sequence_length": 2048, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
    "pad_token_id": 0, "rms_norm_eps": 1e-06, "tie_word_embeddings": False, "torch_dtype": "float16",
    "transformers_version": "4.28.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
LLAMA2 = {
    "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "tie_word_embeddings": False, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
    "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
TWICE = {"hidden_size": 8192, "intermediate_size": 28672, "num_attention_heads": 64, "num_hidden_layers": 80}
LLAMA3 = LLAMA2 | {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": 128001,
    "intermediate_size": 14336, "max_position_embeddings": 8192, "num_key_value_heads": 8, "rope_theta": 500000.0,
    "torch_dtype": "bfloat16", "transformers_version": "4.40.0.dev0", "vocab_size": 128256,
}  # fmt: skip
STRETCHED = {
    "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
LLAMA31 = LLAMA3 | {"max_position_embeddings": 131072, "mlp_bias": False, "rope_scaling": STRETCHED}
LLAMA31 |= {"eos_token_id": [128001, 128008, 128009], "transformers_version": "4.42.3"}
LLAMA32 = LLAMA31 | {
    "head_dim": 64, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "eos_token_id": 128001,
    "rope_scaling": STRETCHED | {"factor": 32.0}, "tie_word_embeddings": True, "transformers_version": "4.45.0.dev0",
}  # fmt: skip
MISTRAL = {
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": True, "vocab_size": 32000,
}  # fmt: skip
MISTRAL02 = MISTRAL | {"attention_dropout": 0.0, "rope_theta": 1000000.0, "sliding_window": None}
MISTRAL03 = MISTRAL02 | {"vocab_size": 32768, "transformers_version": "4.42.0.dev0"}
QWEN25 = {
    "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151643,
    "hidden_act": "silu", "hidden_size": 896, "initializer_range": 0.02, "intermediate_size": 4864,
    "max_position_embeddings": 32768, "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
    "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
    "sliding_window": 32768, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers_version": "4.40.1", "use_cache": True, "use_mrope": False, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
QWEN2 = {name: value for name, value in QWEN25.items() if name != "use_mrope"}
QWEN2 |= {"max_position_embeddings": 131072, "sliding_window": 131072, "transformers_version": "4.40.1"}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 151643,
    "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
    "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3",
    "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_scaling": None, "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
    "vocab_size": 151936,
}  # fmt: skip
TINYLLAMA = LLAMA2 | {
    "attention_bias": False, "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 2048,
    "num_hidden_layers": 22, "num_key_value_heads": 4, "rope_theta": 10000.0, "torch_dtype": "bfloat16",
    "transformers_version": "4.35.0",
}  # fmt: skip
SMOLLM2 = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 0,
    "eos_token_id": 0, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000,
    "tie_word_embeddings": True, "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": True,
    "vocab_size": 49152,
}  # fmt: skip
SMOLLM2_INSTRUCT = SMOLLM2 | {
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2, "transformers_version": "4.42.3",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
}  # fmt: skip

FILES: list[tuple[str, dict[str, Any]]] = [
    ("gpt2", GPT2),
    ("gpt2-large", GPT2_LARGE),
    ("gpt2-xl", GPT2_XL),
    ("llama-7b", LLAMA),
    ("llama-7b", {name: value for name, value in LLAMA.items() if name != "max_sequence_length"}),
    ("llama2-7b", LLAMA2),
    ("llama2-13b", LLAMA2 | {"hidden_size": 5120, "intermediate_size": 13824, "num_attention_heads": 40,
                             "num_hidden_layers": 40, "num_key_value_heads": 40}),
    ("llama2-70b", LLAMA2 | TWICE | {"num_key_value_heads": 8}),
    ("llama3-8b", LLAMA3),
    ("llama3-70b", LLAMA3 | TWICE),
    ("llama3.1-8b", LLAMA31),
    ("llama3.2-1b", LLAMA32),
    ("mistral-7b", MISTRAL),
    ("qwen2.5-0.5b", QWEN25),
    ("qwen3-0.6b", QWEN3),
    ("smollm2-135m", SMOLLM2),
    ("smollm2-135m", SMOLLM2_INSTRUCT),
    ("tinyllama-1.1b", TINYLLAMA),
]  # fmt: skip


@pytest.mark.parametrize(("name", "config"), FILES)
def test_a_published_file_is_the_model_of_its_name(name: str, config: dict[str, Any]) -> None:
    assert read_fields(config).composition == named(name)


@pytest.mark.parametrize(
    ("config", "context", "theta", "rows"),
    [(MISTRAL02, 32768, 1e6, 32000), (MISTRAL03, 32768, 1e6, 32768), (QWEN2, 131072, 1e6, 151936)],
)
def test_their_successors_are_read_too_and_have_no_window(
    config: dict[str, Any], context: int, theta: float, rows: int
) -> None:
    composition = read_fields(config).composition
    assert meaning_of(composition)[1:4:2] == (context, theta) and composition.model.vocab_size == rows
    assert composition.window["name"] == "none"
