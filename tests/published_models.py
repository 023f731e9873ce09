"""Tiny models of `transformers`, made on the spot, whose sizes and weights hide nothing.

Heads are shared, their width is not the model's divided by their number where a family allows that, gains and biases
are far from what training begins with, windows are shorter than the text, and every kind of RoPE is stretched.
"""

from pathlib import Path
from typing import Any

import torch
import transformers

VOCABULARY, CONTEXT, LENGTH = 67, 128, 71
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 37,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-3,
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
OWN_WIDTH = {**SIZES, "head_dim": 10}
GPT2 = {"vocab_size": VOCABULARY, "n_embd": 24, "n_layer": 3, "n_head": 6, "n_positions": CONTEXT, "n_inner": 37}
GPT2 |= {"layer_norm_epsilon": 1e-3, "bos_token_id": 1, "eos_token_id": 2}


def _rope(kind: str, **settings: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 500.0, **settings}}


_LLAMA3 = {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 32}
_SLIDING = {"use_sliding_window": True, "sliding_window": 9}

KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2-untied": ("gpt2", GPT2 | {"tie_word_embeddings": False, "n_inner": None, "activation_function": "gelu"}),
    "llama": ("llama", OWN_WIDTH | _rope("default")),
    "llama-tied": ("llama", SIZES | {"tie_word_embeddings": True}),
    "llama-biases": ("llama", OWN_WIDTH | {"attention_bias": True, "mlp_bias": True}),
    "llama-attention-bias": ("llama", SIZES | {"attention_bias": True, "num_key_value_heads": 6}),
    "llama-linear": ("llama", OWN_WIDTH | _rope("linear", factor=3.0)),
    "llama-llama3": ("llama", OWN_WIDTH | {"head_dim": 32} | _rope("llama3", **_LLAMA3)),
    "llama-yarn": ("llama", OWN_WIDTH | _rope("yarn", factor=4.0, original_max_position_embeddings=32)),
    "mistral": ("mistral", OWN_WIDTH | {"sliding_window": 7}),
    "mistral-no-window": ("mistral", SIZES | {"sliding_window": None, "num_key_value_heads": 1}),
    "qwen2": ("qwen2", SIZES | _SLIDING | {"max_window_layers": 1}),
    "qwen2-window-off": ("qwen2", SIZES | {"use_sliding_window": False, "sliding_window": 9, "max_window_layers": 1}),
    "qwen3": ("qwen3", OWN_WIDTH | {"tie_word_embeddings": True}),
    "qwen3-window": ("qwen3", OWN_WIDTH | _SLIDING | {"max_window_layers": 2, "attention_bias": True}),
}


def published(kind: str, seed: int = 0, **changed: Any) -> Any:
    """A model of one of KINDS, in evaluation mode. Its weights are drawn so that all of them matter."""
    model_type, settings = KINDS[kind]
    config = transformers.AutoConfig.for_model(model_type, **(settings | changed))
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1 and name.endswith("weight"):
                parameter.uniform_(0.5, 1.5, generator=generator)
            elif parameter.dim() == 1:
                parameter.normal_(generator=generator)
            else:
                parameter.normal_(std=0.3, generator=generator)
    return model


def saved(folder: Path, kind: str, **changed: Any) -> tuple[Path, Any]:
    """The folder of such a model, as transformers writes it, and the model."""
    model = published(kind, **changed)
    model.save_pretrained(folder)
    return folder, model


def random_ids(batch_size: int = 2, length: int = LENGTH, num_symbols: int = VOCABULARY) -> torch.Tensor:
    return torch.randint(num_symbols, (batch_size, length), generator=torch.Generator().manual_seed(3))


@torch.no_grad()
def logits_of(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Logits of a model of transformers."""
    return model(ids).logits
