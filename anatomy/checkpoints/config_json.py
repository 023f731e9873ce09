"""A composition of ours as a config.json that transformers opens, or the reason why it has no such model."""

from collections.abc import Iterator, Mapping
from typing import Any

from anatomy.build import build_model, derived
from anatomy.checkpoints.field_table import FAMILIES, FFN_OF, KNOB_OF, NOT_BUILT, ROPE_KINDS
from anatomy.config import Composition
from anatomy.errors import UserError

_GATED_PARTS = {
    "norm": ("rms",),
    "placement": ("pre",),
    "pos": tuple(kind.part for kind in ROPE_KINDS.values()),
    "attn": ("mha", "gqa", "mqa"),
    "ffn": ("swiglu",),
}
_GPT2_PARTS = {
    "norm": ("layer",),
    "placement": ("pre",),
    "pos": ("learned",),
    "attn": ("mha",),
    "ffn": tuple(dict.fromkeys(FFN_OF.values())),
}
_NONE, _MAY_SLIDE = ("none",), ("none", "sliding")
PARTS_OF_FAMILY: Mapping[str, Mapping[str, tuple[str, ...]]] = {  # axis -> the parts that its class can build
    "llama": {**_GATED_PARTS, "qk_norm": _NONE, "window": _NONE, "bias": ("none", "attn", "ffn", "all")},
    "mistral": {**_GATED_PARTS, "qk_norm": _NONE, "window": ("sliding",), "bias": _NONE},
    "qwen2": {**_GATED_PARTS, "qk_norm": _NONE, "window": _MAY_SLIDE, "bias": ("qkv",)},
    "qwen3": {**_GATED_PARTS, "qk_norm": ("rms",), "window": _MAY_SLIDE, "bias": ("none", "attn")},
    "gpt2": {**_GPT2_PARTS, "qk_norm": _NONE, "window": _NONE, "bias": ("all",)},
}


def family_of(composition: Composition) -> str:
    """The family whose class has a composition's parts, if any has; `PARTS_OF_FAMILY` says whether this one does.

    Telling parts decide, one after the other: what is refused is then measured against the family that shares these.
    """
    parts = composition.parts
    if parts["pos"] == "learned" or parts["ffn"] != "swiglu":
        return "gpt2"
    if parts["qk_norm"] != "none":
        return "qwen3"
    if parts["bias"] == "qkv":
        return "qwen2"
    return "llama" if parts["window"] == "none" else "mistral"


def config_json_of(composition: Composition, *, num_symbols: int) -> dict[str, Any]:
    """The config.json of the family that has a composition's parts, for a vocabulary of `num_symbols` tokens: rows
    that stand for no symbol are left out, for transformers would draw them.

    Read again it is the same composition, its null sizes written out, but for `init`, of which it knows nothing.

    Raises: UserError, one line, with the reasons why transformers has no such model.
    """
    family, parts = family_of(composition), composition.parts
    name = FAMILIES[family].title
    faults = [
        f"{axis}={parts[axis]} ({name} has {' or '.join(allowed)})"
        for axis, allowed in PARTS_OF_FAMILY[family].items()
        if parts[axis] not in allowed
    ]
    if not faults:
        sizes = derived(build_model(composition, num_symbols))
        faults = list(_size_faults(family, composition, sizes))
    if faults:
        raise UserError(f"transformers has no such model: {'; '.join(faults)}")
    config: dict[str, Any] = {"architectures": [name], "model_type": family, "vocab_size": num_symbols}
    config |= {"tie_word_embeddings": parts["tying"] == "tied", "bos_token_id": None, "eos_token_id": None}
    return config | (_as_gpt2 if family == "gpt2" else _as_gated)(family, composition, sizes)


def _size_faults(family: str, composition: Composition, sizes: Mapping[str, int]) -> Iterator[str]:
    model, window = composition.model, composition.window
    is_split = sizes["head_width"] == model.d_model / model.n_head
    if not is_split and family == "gpt2":
        yield f"model.head_width={model.head_width} (GPT-2's heads are model.d_model / model.n_head wide)"
    if model.d_model % model.n_head and family == "llama":
        yield f"model.n_head={model.n_head} (LLaMA's must divide model.d_model={model.d_model})"
    if family == "qwen3" and composition.qk_norm["eps"] != composition.norm["eps"]:
        yield f"qk_norm.eps={composition.qk_norm['eps']} (Qwen3 has one eps for all norms)"
    if family == "mistral" and window["first_layer"]:
        yield f"window.first_layer={window['first_layer']} (Mistral has its window in all layers)"


def _as_gpt2(family: str, composition: Composition, sizes: Mapping[str, int]) -> dict[str, Any]:
    model = composition.model
    return {
        "n_embd": model.d_model,
        "n_layer": model.n_layer,
        "n_head": model.n_head,
        "n_positions": model.ctx_len,
        "n_inner": sizes["ffn_hidden"],
        "activation_function": next(name for name, part in FFN_OF.items() if part == composition.parts["ffn"]),
        "layer_norm_epsilon": composition.norm["eps"],
    }


def _as_gated(family: str, composition: Composition, sizes: Mapping[str, int]) -> dict[str, Any]:
    model, parts, window = composition.model, composition.parts, composition.window
    config: dict[str, Any] = {
        "hidden_size": model.d_model,
        "num_hidden_layers": model.n_layer,
        "num_attention_heads": model.n_head,
        "num_key_value_heads": sizes["n_kv_head"],
        "head_dim": sizes["head_width"],
        "intermediate_size": sizes["ffn_hidden"],
        "hidden_act": "silu",
        "max_position_embeddings": model.ctx_len,
        "rms_norm_eps": composition.norm["eps"],
        "rope_parameters": _rope_parameters(composition.pos),
    }
    if family in ("llama", "qwen3"):
        config["attention_bias"] = parts["bias"] in ("attn", "all")
    if family == "llama":
        config["mlp_bias"] = parts["bias"] in ("ffn", "all")
    if family == "mistral":
        config["sliding_window"] = sizes.get("window")
    if family in ("qwen2", "qwen3"):
        slides = sizes.get("window") is not None  # absent too where no layer has the window that is named
        config["use_sliding_window"] = slides
        config["sliding_window"] = sizes.get("window")
        config["max_window_layers"] = window["first_layer"] if slides else model.n_layer
    return config


def _rope_parameters(section: Mapping[str, Any]) -> dict[str, Any]:
    """RoPE's settings as newer files have them; what is null stays away, as absence means the same."""
    name, kind = next((name, kind) for name, kind in ROPE_KINDS.items() if kind.part == section["name"])
    said = {key: section[KNOB_OF.get(key, key)] for key in ("rope_theta", *kind.settings) if key not in NOT_BUILT}
    return {"rope_type": name} | {key: value for key, value in said.items() if value is not None}
