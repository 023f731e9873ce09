"""What a model is made of, and what it costs: every number of an explanation, and no printing.

Counts are closed forms of the sizes, held against a model on the meta device, whose tensors have shapes and no memory.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch

from anatomy.axes import AXES, BASES, differences
from anatomy.build import build_model
from anatomy.errors import UserError
from anatomy.model import Transformer
from anatomy.parts.pos import RoPE
from anatomy.subjects import Subject

COMPARED_BASES = ("vanilla", "gpt2", "llama")
BITS = {"fp32": 32, "bf16": 16, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class BlockParams:
    """Parameters of one block."""

    attn: int
    ffn: int
    norm: int

    @property
    def total(self) -> int:
        return self.attn + self.ffn + self.norm


@dataclass(frozen=True)
class Pair:
    """A pair of channels that RoPE turns: tokens for one full turn, before and after stretching.

    stretching  kept, blended or divided
    """

    index: int
    plain_wavelength: float
    wavelength: float
    stretching: str


@dataclass(frozen=True, eq=False)
class Explanation:
    """A subject with its numbers. `context`: the number of tokens that costs are told at."""

    subject: Subject
    context: int
    model: Transformer
    parts: Mapping[str, str | None]
    sizes: Mapping[str, int]
    num_params_by_axis: Mapping[str, int]
    block: BlockParams
    pairs: tuple[Pair, ...]

    @property
    def num_params(self) -> int:
        return sum(self.num_params_by_axis.values())

    @property
    def vocabulary_share(self) -> float:
        """The share of all parameters that lies in the input and output matrices."""
        return (self.num_params_by_axis["embed"] + self.num_params_by_axis["output"]) / self.num_params

    @property
    def has_context(self) -> bool:
        """Whether there are so many positions; a table of learned ones ends."""
        return self.model.max_len is None or self.context <= self.model.max_len

    @property
    def kv_bytes_per_token(self) -> int:
        return self.model.kv_bytes_per_token()

    @property
    def kv_bytes(self) -> int | None:
        """Of one text of `context` tokens, two bytes a value; layers with a window keep no more than it."""
        return self.model.kv_bytes(self.context) if self.has_context else None

    @property
    def flops_per_token(self) -> int | None:
        """Of training, at the context."""
        return self.model.flops_per_token(self.context) if self.has_context else None

    @property
    def forward_flops_per_token(self) -> int | None:
        """Of reading: the backward pass costs two forward ones."""
        return None if self.flops_per_token is None else self.flops_per_token // 3

    @property
    def num_matrix_weights(self) -> int:
        """Weights that each token is multiplied with, the output matrix included, tied or not."""
        return self.model.flops_per_token(0) // 6

    @property
    def weight_bytes(self) -> Mapping[str, int]:
        """What the weights take by number format."""
        return {name: math.ceil(self.num_params * bits / 8) for name, bits in BITS.items()}

    @property
    def distance(self) -> Mapping[str, tuple[str, ...]]:
        """Base -> the axes on which it has another part; how weights began counts only where it is known."""
        mine = {axis: part for axis, part in self.parts.items() if part is not None}
        return {base: differences(dict(BASES[base]) | mine, BASES[base]) for base in COMPARED_BASES}

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Layer by layer, how many tokens a token sees; None: all."""
        return tuple(block.attn.window.size for block in self.model.blocks)

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        subject = self.subject
        return {
            "name": subject.name,
            "what": subject.what,
            "source": subject.source,
            "family": subject.family,
            "parts": dict(self.parts),
            "sizes": dict(self.sizes),
            "num_params": self.num_params,
            "num_params_by_axis": dict(self.num_params_by_axis),
            "num_params_by_block": {**asdict(self.block), "total": self.block.total},
            "vocabulary_share": self.vocabulary_share,
            "context": self.context,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes_at_context": self.kv_bytes,
            "flops_per_token": self.flops_per_token,
            "forward_flops_per_token": self.forward_flops_per_token,
            "weight_bytes": dict(self.weight_bytes),
            "distance": {base: {"num": len(axes), "axes": list(axes)} for base, axes in self.distance.items()},
            "windows": list(self.windows),
            "fields": [
                {
                    "name": read.name,
                    "value": read.value,
                    "given": read.given,
                    "group": read.field.group,
                    "meaning": read.field.meaning,
                }
                for read in subject.fields
            ],
            "rope_pairs": [asdict(pair) for pair in self.pairs],
        }


def explain(subject: Subject, context: int | None = None) -> Explanation:
    """Build a subject on the meta device and count. `context` None takes the model's own.

    Raises: UserError where the composition cannot be built.
    """
    composition = subject.composition
    try:
        model = build_model(composition, subject.num_symbols)
        pairs = tuple(_pairs(model.pos))
    except UserError as error:
        raise UserError("\n".join(f"{subject.name}: {line}" for line in str(error).splitlines())) from None
    by_axis = model.num_params_by_axis()
    counted = sum(parameter.numel() for parameter in model.parameters())
    if counted != sum(by_axis.values()):
        raise RuntimeError(f"{subject.name}: the formula gives {sum(by_axis.values()):,}, the model has {counted:,}")
    block = model.blocks[0]
    sizes = {
        "d_model": composition.model.d_model,
        "n_layer": len(model.blocks),
        "n_head": block.attn.n_head,
        "n_kv_head": block.attn.n_kv_head,
        "head_width": block.attn.head_width,
        "ffn_hidden": block.ffn.hidden,
        "vocab_size": model.embed.num_embeddings,
        "ctx_len": composition.model.ctx_len,
    }
    return Explanation(
        subject=subject,
        context=sizes["ctx_len"] if context is None else context,
        model=model,
        parts={axis: composition.parts[axis] if axis != "init" or subject.knows_init else None for axis in AXES},
        sizes=sizes,
        num_params_by_axis=by_axis,
        block=BlockParams(
            block.attn.num_params(), block.ffn.num_params(), block.attn_norm.num_params() + block.ffn_norm.num_params()
        ),
        pairs=pairs,
    )


def _pairs(pos: Any) -> list[Pair]:
    """RoPE's pairs, each with its wavelength; none for other positions.

    Raises: UserError where a pair's frequency is none: 0 in float32, or no finite number.
    """
    if not isinstance(pos, RoPE):
        return []
    cpu = torch.device("cpu")
    plain, now = RoPE(pos.head_width, theta=pos.theta).frequencies(cpu).double(), pos.frequencies(cpu).double()
    if not (torch.isfinite(plain / now).all() and torch.isfinite(1 / plain).all()):
        raise UserError("pos: some pairs of channels turn by no angle that float32 can hold; take another theta")
    slowest = float((plain / now).max())
    pairs = []
    for index, (before, after) in enumerate(zip(plain.tolist(), now.tolist(), strict=True)):
        ratio = before / after
        stretching = "kept" if ratio < 1 + SAME else "divided" if ratio > slowest * (1 - SAME) else "blended"
        pairs.append(Pair(index, 2 * math.pi / before, 2 * math.pi / after, stretching))
    return pairs


SAME = 1e-5  # ratios of float32 frequencies that differ by less are the same
