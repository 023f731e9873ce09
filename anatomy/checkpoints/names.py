"""What published models call their tensors, and how they lay them out: one table a family.

A LLaMA and its like differ from ours in names alone. GPT-2 keeps its matrices transposed, [in, out], and queries, keys
and values in one. GGUF files have names of their own, and those of LLaMA turn neighbouring channels of a head where we
turn channel i with channel i + K/2, so their rows of q and k stand in another order.

Tensor legend: D model width, H heads, K head width.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from torch import Tensor

WORDS = {"gain": "weight", "shift": "bias", "table": "weight"}  # what a module calls its tensors: ours -> theirs


class Place(NamedTuple):
    """Where a file holds a tensor of ours.

    name           the tensor's name there
    third          which third of its rows is ours, where queries, keys and values are one
    is_transposed  whether it is stored [in, out]
    is_adjacent    whether its rows stand in the order that turns neighbouring channels
    """

    name: str
    third: int | None
    is_transposed: bool
    is_adjacent: bool

    def shape(self, ours: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of what is stored, given that of our tensor."""
        rows = ours if self.third is None else (3 * ours[0], *ours[1:])
        return rows[::-1] if self.is_transposed else rows

    def ours(self, stored: Tensor, head_width: int) -> Tensor:
        """Our tensor out of the stored one: a view where that can be."""
        rows = stored.t() if self.is_transposed else stored
        if self.third is not None:
            rows = rows.tensor_split(3)[self.third]
        return half_split(rows, head_width) if self.is_adjacent else rows


def half_split(rows: Tensor, head_width: int) -> Tensor:
    """Rows of q or k, (H K, ...), whose heads turn channels 2i and 2i + 1, reordered to turn channels i and i + K/2."""
    return rows.unflatten(0, (-1, head_width // 2, 2)).transpose(1, 2).flatten(0, 2)


@dataclass(frozen=True)
class Naming:
    """What a kind of file calls its modules, and what it does to their tensors.

    base        the module around all but the output layer; files of the bare model leave it out
    blocks      their list of blocks
    ends        our module -> theirs, outside of the blocks
    parts       our module -> theirs, inside a block
    thirds      our module -> which third of theirs it is
    transposed  our modules whose matrices are stored [in, out]
    adjacent    our modules whose rows stand in the order of neighbouring channels
    ignored     tensors that follow from the sizes, which some files hold
    """

    base: str
    blocks: str
    ends: Mapping[str, str]
    parts: Mapping[str, str]
    thirds: Mapping[str, int]
    transposed: frozenset[str]
    adjacent: frozenset[str]
    ignored: re.Pattern[str]

    def module(self, path: str) -> str | None:
        """Their module, given the path of ours; None where they have none."""
        if path == "blocks":
            return self.blocks
        if not path.startswith("blocks."):
            return self.ends.get(path)
        _, layer, *rest = path.split(".")
        block = f"{self.blocks}.{layer}"
        if not rest:
            return block
        part = self.parts.get(".".join(rest))
        return None if part is None else f"{block}.{part}"

    def place(self, name: str) -> Place:
        """Where a tensor of ours is. Raises KeyError for one that no model of this kind has."""
        path, _, word = name.rpartition(".")
        if (module := self.module(path)) is None:
            raise KeyError(name)
        part = path.split(".", 2)[-1]
        is_matrix = word == "weight"
        return Place(
            f"{module}.{WORDS.get(word, word)}",
            self.thirds.get(part),
            is_matrix and part in self.transposed,
            part in self.adjacent,
        )

    def without_base(self) -> "Naming":
        """The same of a file of the bare model."""
        cut = f"{self.base}."
        ends = {ours: theirs.removeprefix(cut) for ours, theirs in self.ends.items()}
        return replace(self, base="", blocks=self.blocks.removeprefix(cut), ends=ends)


_LLAMA = Naming(
    base="model",
    blocks="model.layers",
    ends={
        "embed": "model.embed_tokens",
        "pos": "model.rotary_emb",
        "final_norm": "model.norm",
        "output": "lm_head",
    },
    parts={
        "attn_norm": "input_layernorm",
        "attn": "self_attn",
        "attn.q_proj": "self_attn.q_proj",
        "attn.k_proj": "self_attn.k_proj",
        "attn.v_proj": "self_attn.v_proj",
        "attn.o_proj": "self_attn.o_proj",
        "attn.qk_norm.q_norm": "self_attn.q_norm",
        "attn.qk_norm.k_norm": "self_attn.k_norm",
        "ffn_norm": "post_attention_layernorm",
        "ffn": "mlp",
        "ffn.gate_proj": "mlp.gate_proj",
        "ffn.up_proj": "mlp.up_proj",
        "ffn.down_proj": "mlp.down_proj",
    },
    thirds={},
    transposed=frozenset(),
    adjacent=frozenset(),
    ignored=re.compile(r"(model\.)?(layers\.\d+\.self_attn\.)?rotary_emb\.inv_freq"),
)

_GPT2 = Naming(
    base="transformer",
    blocks="transformer.h",
    ends={
        "embed": "transformer.wte",
        "pos": "transformer.wpe",
        "final_norm": "transformer.ln_f",
        "output": "lm_head",
    },
    parts={
        "attn_norm": "ln_1",
        "attn": "attn",
        "attn.q_proj": "attn.c_attn",
        "attn.k_proj": "attn.c_attn",
        "attn.v_proj": "attn.c_attn",
        "attn.o_proj": "attn.c_proj",
        "ffn_norm": "ln_2",
        "ffn": "mlp",
        "ffn.up_proj": "mlp.c_fc",
        "ffn.down_proj": "mlp.c_proj",
    },
    thirds={"attn.q_proj": 0, "attn.k_proj": 1, "attn.v_proj": 2},
    transposed=frozenset(("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj", "ffn.up_proj", "ffn.down_proj")),
    adjacent=frozenset(),
    ignored=re.compile(r"(transformer\.)?h\.\d+\.attn\.(bias|masked_bias)"),
)

_GGUF_QWEN = Naming(
    base="",
    blocks="blk",
    ends={"embed": "token_embd", "final_norm": "output_norm", "output": "output"},
    parts={
        "attn_norm": "attn_norm",
        "attn.q_proj": "attn_q",
        "attn.k_proj": "attn_k",
        "attn.v_proj": "attn_v",
        "attn.o_proj": "attn_output",
        "attn.qk_norm.q_norm": "attn_q_norm",
        "attn.qk_norm.k_norm": "attn_k_norm",
        "ffn_norm": "ffn_norm",
        "ffn.gate_proj": "ffn_gate",
        "ffn.up_proj": "ffn_up",
        "ffn.down_proj": "ffn_down",
    },
    thirds={},
    transposed=frozenset(),
    adjacent=frozenset(),
    ignored=re.compile(r"(?!)"),  # nothing
)

HUGGING_FACE: Mapping[str, Naming] = {
    "gpt2": _GPT2,
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _LLAMA,
    "qwen3": _LLAMA,
}
"""model_type -> what its files call their tensors."""

GGUF: Mapping[str, Naming] = {
    "llama": replace(_GGUF_QWEN, adjacent=frozenset(("attn.q_proj", "attn.k_proj"))),
    "qwen2": _GGUF_QWEN,
    "qwen3": _GGUF_QWEN,
}
"""general.architecture -> what its files call their tensors."""


def hf_module(our_path: str, family: str) -> str | None:
    """The module of transformers that does what ours does: `blocks.0.attn.q_proj` -> `model.layers.0.self_attn.q_proj`.

    None where it has none. Three of ours can share one of theirs (GPT-2's c_attn).
    """
    return HUGGING_FACE[family].module(our_path)
