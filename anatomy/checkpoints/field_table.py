"""Every field of a published config.json: which part of the model it belongs to, what it means, what it can be.

A field belongs to an axis of anatomy.axes, to `sizes` or `vocabulary`, or changes nothing that a trained model
computes: `training`, `use` (how a program runs it), `files` (what the file says of itself). Some fields are there to
be refused: they change the model, and only the value that leaves it as it is can be read.

Defaults are those of the config classes of transformers 5.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

Group = Literal[
    "norm", "placement", "pos", "attn", "ffn", "qk_norm", "window", "bias", "tying",
    "sizes", "vocabulary", "training", "use", "files",
]  # fmt: skip


@dataclass(frozen=True)
class Allowed:
    """What a value can be: in words, and as a test."""

    words: str
    holds: Callable[[Any], bool]
    is_choice: bool = True  # whether there is more than one value

    def or_null(self) -> "Allowed":
        return Allowed(f"{self.words}, or null", lambda value: value is None or self.holds(value))


@dataclass(frozen=True)
class Field:
    """One field. `default` is what its absence means."""

    group: Group
    meaning: str
    allowed: Allowed
    default: Any = None


def _whole(lowest: int, highest: int) -> Allowed:
    return Allowed(
        f"a whole number from {lowest:,} to {highest:,}",
        lambda value: type(value) is int and lowest <= value <= highest,
    )


def _number(lowest: float, below: float, *, above: bool = False) -> Allowed:
    def holds(value: Any) -> bool:
        return type(value) in (int, float) and (lowest < value if above else lowest <= value) and value < below

    return Allowed(f"a number {'above' if above else 'from'} {lowest:g} and below {below:g}", holds)


def _one_of(*values: Any) -> Allowed:
    shown = ["null" if value is None else str(value).lower() if type(value) is bool else str(value) for value in values]
    words = " or ".join((", ".join(shown[:-1]), shown[-1])) if len(shown) > 1 else shown[0]
    return Allowed(
        words,
        lambda given: any(type(given) is type(value) and given == value for value in values),
        is_choice=len(set(shown) - {"null"}) > 1,
    )


def _are_ids(value: Any) -> bool:
    ids = value if isinstance(value, list) else [value]
    return all(type(each) is int and -1 <= each < MAX_VOCABULARY for each in ids)


MAX_VOCABULARY = 2**24
MAX_SIZES: Mapping[str, int] = {  # of what is explained or read: far above anything published, and soon counted
    "d_model": 2**20,
    "n_layer": 1000,
    "n_head": 2**14,
    "head_width": 2**16,
    "ctx_len": 2**31 - 1,
    "vocab_size": MAX_VOCABULARY,
}
MAX_HIDDEN = 2**24

FLAG = _one_of(True, False)
SHARE = _number(0, 1)
NORM_EPS = _number(0, 1, above=True)
THETA = _number(1, 1e15, above=True)
FACTOR = _number(1, 1e6)
TURNS = _number(0, 1e6, above=True)
WHOLE_SHARE = Allowed("1", lambda value: value is None or (type(value) in (int, float) and value == 1), False)
LENGTH = _whole(1, MAX_SIZES["ctx_len"])
WORDS = Allowed("text", lambda value: isinstance(value, str))
WORDS_OR_NULL = WORDS.or_null()
TOKEN_IDS = Allowed("a token's number, a list of them", _are_ids).or_null()
ANY = Allowed("anything", lambda value: True)
NOTHING = _one_of(None)


def _same(group: Group, meaning: str, *names: str, allowed: Allowed = ANY, default: Any = None) -> dict[str, Field]:
    return {name: Field(group, meaning, allowed, default) for name in names}


COMMON: Mapping[str, Field] = {
    **_same("files", "the family: which of transformers' classes reads the rest", "model_type", allowed=WORDS),
    **_same("files", "the class that wrote the file", "architectures"),
    **_same("files", "the version of transformers that wrote the file", "transformers_version", allowed=WORDS_OR_NULL),
    **_same(
        "files", "where the file came from", "_name_or_path", "name_or_path", "_commit_hash", allowed=WORDS_OR_NULL
    ),
    **_same(
        "files",
        "the number format of the stored weights",
        *("torch_dtype", "dtype"),
        allowed=_one_of("float32", "float16", "bfloat16", None),
    ),
    **_same("files", "the class of the tokenizer", "tokenizer_class", "prefix", allowed=WORDS_OR_NULL),
    **_same("files", "a note of the program that wrote or runs the file", "is_llama_config", "transformers.js_config"),
    **_same("files", "a note of the program that wrote or runs the file", "unsloth_fixed", "unsloth_version"),
    **_same("files", "for classifiers made from the model", "id2label", "label2id", "num_labels", "problem_type"),
    **_same("files", "for classifiers made from the model", "finetuning_task", "task_specific_params", "_num_labels"),
    **_same("files", "weights stored in fewer bits; not read", "quantization_config", allowed=NOTHING),
    **_same("files", "a model made by Python code of its own; never run", "auto_map", allowed=NOTHING),
    **_same("vocabulary", "the token that begins a text", "bos_token_id", allowed=TOKEN_IDS),
    **_same("vocabulary", "the token, or tokens, that end a text", "eos_token_id", allowed=TOKEN_IDS),
    **_same("vocabulary", "the token that fills up shorter texts of a batch", "pad_token_id", allowed=TOKEN_IDS),
    **_same("vocabulary", "unused here", "sep_token_id", "decoder_start_token_id", allowed=TOKEN_IDS),
    **_same(
        "training",
        "standard deviation of the matrices when training began",
        "initializer_range",
        allowed=SHARE,
        default=0.02,
    ),
    **_same("use", "whether keys and values are kept while generating", "use_cache", allowed=FLAG, default=True),
    **_same("use", "what a program gets back beside the logits", "output_attentions", "output_hidden_states"),
    **_same("use", "what a program gets back beside the logits", "output_scores", "output_past"),
    **_same("use", "what a program gets back beside the logits", "return_dict_in_generate", "return_dict"),
    **_same("use", "what a program gets back beside the logits", "use_return_dict"),
    **_same("use", "how a program runs the model", "torchscript", "use_bfloat16", "tf_legacy_loss", "is_decoder"),
    **_same("use", "which code computes attention", "_attn_implementation", "_attn_implementation_autoset"),
    **_same("use", "FFN computed in pieces", "chunk_size_feed_forward", allowed=_one_of(0), default=0),
    **_same(
        "use",
        "how tokens are drawn",
        *("do_sample", "temperature", "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty"),
        *("max_length", "min_length", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty"),
        *("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences"),
        *("forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values", "exponential_decay_length_penalty"),
        *("suppress_tokens", "begin_suppress_tokens"),
    ),
    **_same("attn", "a second, reading half", "is_encoder_decoder", allowed=_one_of(False), default=False),
    **_same("attn", "attention to another text", "add_cross_attention", allowed=_one_of(False), default=False),
    **_same("attn", "attention to another text", "cross_attention_hidden_size", allowed=NOTHING),
    **_same("tying", "an encoder's weights shared", "tie_encoder_decoder", allowed=_one_of(False), default=False),
    **_same("attn", "heads that were taken out", "pruned_heads", allowed=_one_of({}, None)),
    **_same("attn", "whether a token sees earlier ones only", "is_causal", allowed=_one_of(True), default=True),
    **_same("sizes", "layers that differ in size", "per_layer_config", allowed=NOTHING),
}
"""Fields that all families know."""


def _gated(
    *,
    hidden_size: int = 4096,
    intermediate_size: int,
    vocab_size: int,
    ctx_len: int,
    kv_heads: int | None,
    head_dim: int | None = None,
    bos: int | None = None,
    eos: int | None = None,
) -> dict[str, Field]:
    """The fields that all families but GPT-2 share, with one family's defaults."""
    head_width = _whole(1, MAX_SIZES["head_width"])
    return {
        **COMMON,
        "hidden_size": Field("sizes", "width: channels of a token", _whole(1, MAX_SIZES["d_model"]), hidden_size),
        "num_hidden_layers": Field("sizes", "blocks", _whole(1, MAX_SIZES["n_layer"]), 32),
        "num_attention_heads": Field("sizes", "query heads of a block", _whole(1, MAX_SIZES["n_head"]), 32),
        "head_dim": Field(
            "sizes",
            "channels of a head; null: hidden_size / num_attention_heads",
            head_width if head_dim else head_width.or_null(),
            head_dim,
        ),
        "max_position_embeddings": Field("sizes", "context: positions the model was made for", LENGTH, ctx_len),
        "max_sequence_length": Field("sizes", "the context, as the first LLaMA files called it", LENGTH.or_null()),
        "vocab_size": Field(
            "vocabulary", "tokens: rows of the two end matrices", _whole(1, MAX_VOCABULARY), vocab_size
        ),
        "bos_token_id": Field("vocabulary", "the token that begins a text", TOKEN_IDS, bos),
        "eos_token_id": Field("vocabulary", "the token, or tokens, that end a text", TOKEN_IDS, eos),
        "num_key_value_heads": Field(
            "attn",
            "heads of keys and values, shared by the query heads; null: as many",
            _whole(1, MAX_SIZES["n_head"]).or_null(),
            kv_heads,
        ),
        "intermediate_size": Field("ffn", "width inside the FFN", _whole(1, MAX_HIDDEN), intermediate_size),
        "hidden_act": Field("ffn", "what opens the FFN's gate: x * sigmoid(x)", _one_of("silu", "swish"), "silu"),
        "rms_norm_eps": Field("norm", "added inside the root of RMSNorm", NORM_EPS, 1e-6),
        "rope_theta": Field("pos", "RoPE's base: the longest wavelength over 2 pi", THETA, 10000.0),
        "rope_scaling": Field("pos", "how RoPE is stretched to longer contexts", ANY),
        "rope_parameters": Field("pos", "RoPE's base and stretching, as newer files have them", ANY),
        "partial_rotary_factor": Field("pos", "the share of a head that RoPE turns", WHOLE_SHARE),
        "rope_interleaved": Field("pos", "RoPE turns neighbouring channels", _one_of(False), False),
        "attention_bias": Field("bias", "biases in q, k, v and o", _one_of(False), False),
        "mlp_bias": Field("bias", "biases in the FFN", _one_of(False), False),
        "tie_word_embeddings": Field("tying", "whether one matrix serves as input and output", FLAG, False),
        "attention_dropout": Field("training", "share of attention weights dropped", SHARE.or_null(), 0.0),
        "pretraining_tp": Field("training", "machines that each product was split over", _whole(1, 1024).or_null(), 1),
        "layer_types": Field("window", "layer by layer, whether it has the window", ANY),
    }


def _qwen(head_dim: int | None) -> dict[str, Field]:
    return {
        **_gated(intermediate_size=22016, vocab_size=151936, ctx_len=32768, kv_heads=32, head_dim=head_dim),
        "use_sliding_window": Field("window", "whether there is a window at all", FLAG, False),
        "sliding_window": Field("window", "keys that a token sees, itself included", LENGTH.or_null(), 4096),
        "max_window_layers": Field("window", "layers below it see everything", _whole(0, 2**31 - 1), 28),
        "use_mrope": Field("pos", "positions of pictures", _one_of(False), False),
    }


GPT2_FIELDS: Mapping[str, Field] = {
    **COMMON,
    "n_embd": Field("sizes", "width: channels of a token", _whole(1, MAX_SIZES["d_model"]), 768),
    "n_layer": Field("sizes", "blocks", _whole(1, MAX_SIZES["n_layer"]), 12),
    "n_head": Field("sizes", "heads of a block, each n_embd / n_head wide", _whole(1, MAX_SIZES["n_head"]), 12),
    "n_positions": Field("pos", "rows of the table of positions: the context", LENGTH, 1024),
    "n_ctx": Field("pos", "the context once more", LENGTH.or_null()),
    "vocab_size": Field("vocabulary", "tokens: rows of the input and output matrix", _whole(1, MAX_VOCABULARY), 50257),
    "bos_token_id": Field("vocabulary", "the token that begins a text", TOKEN_IDS, 50256),
    "eos_token_id": Field("vocabulary", "the token, or tokens, that end a text", TOKEN_IDS, 50256),
    "n_inner": Field("ffn", "width inside the FFN; null: 4 x n_embd", _whole(1, MAX_HIDDEN).or_null()),
    "activation_function": Field(
        "ffn",
        "the FFN's activation: gelu_new and gelu_pytorch_tanh are its tanh form, gelu is exact",
        _one_of("gelu_new", "gelu_pytorch_tanh", "gelu", "relu"),
        "gelu_new",
    ),
    "layer_norm_epsilon": Field("norm", "added inside the root of LayerNorm", NORM_EPS, 1e-5),
    "scale_attn_weights": Field("attn", "scores divided by sqrt(head width)", _one_of(True), True),
    "scale_attn_by_inverse_layer_idx": Field("attn", "scores divided by the layer's number too", _one_of(False), False),
    "reorder_and_upcast_attn": Field("training", "scores in float32 while training in 16 bits", FLAG, False),
    "tie_word_embeddings": Field("tying", "whether one matrix serves as input and output", FLAG, True),
    "embd_pdrop": Field("training", "share of the embeddings' channels dropped", SHARE, 0.1),
    "attn_pdrop": Field("training", "share of attention weights dropped", SHARE, 0.1),
    "resid_pdrop": Field("training", "share of each sub-layer's output dropped", SHARE, 0.1),
    **_same(
        "files",
        "for classifiers made from the model",
        *("summary_type", "summary_use_proj", "summary_activation", "summary_proj_to_labels", "summary_first_dropout"),
    ),
}


@dataclass(frozen=True)
class Family:
    """What is particular to the models that one of transformers' classes builds.

    title          the class of the language model
    fields         name -> field
    other_names    a field's name in other families -> its name here
    """

    title: str
    fields: Mapping[str, Field]
    other_names: Mapping[str, str]

    def is_architecture(self, name: Any) -> bool:
        """Whether weights written by this class are those of the language model."""
        stem = self.title.removesuffix("ForCausalLM").removesuffix("LMHeadModel").lower()
        return isinstance(name, str) and name.lower() in (self.title.lower(), f"{stem}model")


_AS_GPT2 = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "max_position_embeddings": "n_positions",
    "intermediate_size": "n_inner",
    "hidden_act": "activation_function",
    "rms_norm_eps": "layer_norm_epsilon",
}
_FROM_GPT2 = {theirs: ours for ours, theirs in _AS_GPT2.items()}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(
        "LlamaForCausalLM",
        _gated(intermediate_size=11008, vocab_size=32000, ctx_len=2048, kv_heads=None, bos=1, eos=2)
        | {
            "attention_bias": Field("bias", "biases in q, k, v and o", FLAG, False),
            "mlp_bias": Field("bias", "biases in the FFN's three matrices", FLAG, False),
        },
        _FROM_GPT2,
    ),
    "mistral": Family(
        "MistralForCausalLM",
        _gated(intermediate_size=14336, vocab_size=32000, ctx_len=131072, kv_heads=8, bos=1, eos=2)
        | {"sliding_window": Field("window", "keys that a token sees, itself included", LENGTH.or_null(), 4096)},
        _FROM_GPT2,
    ),
    "qwen2": Family("Qwen2ForCausalLM", _qwen(None), _FROM_GPT2),
    "qwen3": Family(
        "Qwen3ForCausalLM",
        _qwen(128) | {"attention_bias": Field("bias", "biases in q, k, v and o", FLAG, False)},
        _FROM_GPT2,
    ),
    "gpt2": Family("GPT2LMHeadModel", GPT2_FIELDS, _AS_GPT2),
}
"""model_type -> family."""


@dataclass(frozen=True)
class RopeKind:
    """One way of stretching RoPE: our part, and the settings it takes (their name -> field)."""

    part: str
    settings: Mapping[str, Field]


REQUIRED: Any = object()  # the default of a setting that has none
_FACTOR = {"factor": Field("pos", "how many times longer the context becomes", FACTOR, REQUIRED)}
_ORIGINAL = {
    "original_max_position_embeddings": Field(
        "pos", "the context before stretching; absent: max_position_embeddings", LENGTH.or_null()
    )
}
ROPE_KINDS: Mapping[str, RopeKind] = {
    "default": RopeKind("rope", {}),
    "linear": RopeKind("rope_linear", _FACTOR),
    "llama3": RopeKind(
        "rope_llama3",
        {
            **_FACTOR,
            "low_freq_factor": Field(
                "pos", "pairs that turn less often in the old context are slowed", FACTOR, REQUIRED
            ),
            "high_freq_factor": Field("pos", "pairs that turn more often in it stay", TURNS, REQUIRED),
            **_ORIGINAL,
        },
    ),
    "yarn": RopeKind(
        "rope_yarn",
        {
            **_FACTOR,
            **_ORIGINAL,
            "beta_fast": Field("pos", "pairs that turn more often in the old context stay", TURNS.or_null(), 32.0),
            "beta_slow": Field("pos", "pairs that turn less often in it are slowed", TURNS.or_null(), 1.0),
            "attention_factor": Field(
                "pos", "queries and keys times this; null: 0.1 ln(factor) + 1", _number(0, 1e3, above=True).or_null()
            ),
            "mscale": Field("pos", "another rule for attention_factor", NOTHING),
            "mscale_all_dim": Field("pos", "another rule for attention_factor", NOTHING),
            "truncate": Field("pos", "borders between pairs at whole numbers", _one_of(True), True),
            "finetuned": Field("training", "whether the model was trained on with this setting", FLAG.or_null()),
        },
    ),
}
"""rope_type -> how RoPE is stretched."""

KNOB_OF: Mapping[str, str] = {  # a setting of RoPE -> our knob, where it has another name
    "rope_theta": "theta",
    "original_max_position_embeddings": "original_len",
}
NOT_BUILT = ("mscale", "mscale_all_dim", "truncate", "finetuned")  # settings that no model computes with
FFN_OF: Mapping[str, str] = {  # GPT-2's activation_function -> our part; the first name of a part is the one we write
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu": "gelu",
    "relu": "relu",
}
