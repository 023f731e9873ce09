"""Five ways to load a checkpoint wrongly. Every shape fits, so nothing fails.

Each is told as what it makes of the tensors, so that a wrong model is a model like any other: it can be scored, asked
to speak, and written to a folder.

Tensor legend: T tokens, V vocabulary, D model width, H query heads, G key-value heads, R = H/G, K head width.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from os.path import lexists
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from anatomy.build import build_model
from anatomy.checkpoints.converting import write_tokenizer
from anatomy.checkpoints.importing import PublishedModel, read_source, write_model
from anatomy.checkpoints.names import half_split
from anatomy.checkpoints.sources import DTYPES, StoredTensor
from anatomy.checkpoints.writing import new_folder
from anatomy.errors import UserError
from anatomy.files import MODEL_FILE, RECORD_FILE, write_json
from anatomy.model import NORMAL_STD, Transformer
from anatomy.parts.pos import RoPE
from anatomy.sampling import Knobs, Stream, next_ids
from anatomy.threads import half_the_threads

SEED_OF_OUTPUT = 902_134  # as good as any, but for those that an embedding may well have been drawn from

Tensors = Mapping[str, StoredTensor]


@dataclass(frozen=True)
class Trap:
    """A way to load a model wrongly.

    mistake  what is done, in a line
    spared   why there is nothing to get wrong in a model; empty where there is
    changed  the tensors that come out otherwise than they should, none of them read yet
    """

    name: str
    mistake: str
    spared: Callable[[PublishedModel], str]
    changed: Callable[[PublishedModel], Tensors]

    def spoil(self, published: PublishedModel) -> PublishedModel:
        """The model as one has it who makes this mistake. Raises UserError where it cannot be made."""
        if reason := self.spared(published):
            raise UserError(f"{published.source.where}: --trap {self.name}: nothing to get wrong here: {reason}")
        tensors = {**published.tensors, **self.changed(published)}
        tying = "untied" if "output.weight" in tensors else "tied"
        composition = published.composition.model_copy(update={"tying": tying})
        model = build_model(composition, published.model.num_symbols)
        return replace(published, composition=composition, model=model, tensors=tensors)


def _of_blocks(tensors: Tensors, *modules: str) -> list[str]:
    """The tensors of these modules, in all blocks."""
    return [name for name in tensors if name.split(".", 2)[-1].rpartition(".")[0] in modules]


def _read_as(stored: StoredTensor, otherwise: Callable[[Tensor], Tensor]) -> StoredTensor:
    return stored._replace(read=lambda: otherwise(stored.read()))


def _nothing(published: PublishedModel) -> str:
    return ""


def _other_names(published: PublishedModel) -> Tensors:
    """Two tensors of a block under each other's name: those of a gated FFN that read the input, else the two norms."""
    is_gated = bool(_of_blocks(published.tensors, "ffn.gate_proj"))
    one, other = ("ffn.gate_proj", "ffn.up_proj") if is_gated else ("attn_norm", "ffn_norm")
    pairs = [(name, name.replace(one, other)) for name in _of_blocks(published.tensors, one)]
    names = dict(pairs) | {second: first for first, second in pairs}
    return {name: published.tensors[partner] for name, partner in names.items()}


def _squares(published: PublishedModel) -> list[str]:
    """The matrices of the blocks that are square in the file: any other is refused when it is transposed."""
    return [
        name
        for name, (shape, *_) in published.tensors.items()
        if name.startswith("blocks.") and len(shape) == 2 and shape[0] == shape[1]
        if published.source.naming.place(name).third is None
    ]


def _without_squares(published: PublishedModel) -> str:
    return "" if _squares(published) else "no matrix of its blocks is square, and of another the shape would tell"


def _transposed(published: PublishedModel) -> Tensors:
    return {name: _read_as(published.tensors[name], torch.t) for name in _squares(published)}


def _without_turns(published: PublishedModel) -> str:
    if not isinstance(published.model.pos, RoPE):
        return "it has no RoPE"
    return "" if published.model.pos.head_width > 2 else "each head has but one pair of channels"


def _neighbours_turned(published: PublishedModel) -> Tensors:
    """To turn channels 2i and 2i + 1 is to turn i and i + K/2 of heads in another order of channels."""
    modules = ("attn.q_proj", "attn.k_proj", "attn.qk_norm.q_norm", "attn.qk_norm.k_norm")
    reorder = partial(half_split, head_width=published.model.pos.head_width)
    return {name: _read_as(published.tensors[name], reorder) for name in _of_blocks(published.tensors, *modules)}


def _without_groups(published: PublishedModel) -> str:
    attn = published.model.blocks[0].attn
    if attn.n_kv_head == 1:
        return "all query heads read its one head of keys and values"
    return "" if attn.n_kv_head < attn.n_head else "each query head has keys and values of its own"


def _tiled(published: PublishedModel) -> Tensors:
    """For query head h to read key-value head h % G is for it to stand where heads read that one: a place h // R = g.

    So the heads of q_proj, and with them the columns of o_proj, are put where they would have stood.
    """
    attn = published.model.blocks[0].attn
    heads = torch.arange(attn.n_head).view(-1, attn.n_kv_head).t().flatten()
    tensors = published.tensors

    def rows(q: Tensor) -> Tensor:
        return q.unflatten(0, (attn.n_head, -1))[heads].flatten(0, 1)

    def columns(o: Tensor) -> Tensor:
        return o.unflatten(1, (attn.n_head, -1))[:, heads].flatten(1, 2)

    queries = {name: _read_as(tensors[name], rows) for name in _of_blocks(tensors, "attn.q_proj")}
    outputs = [name for name in _of_blocks(tensors, "attn.o_proj") if name.endswith(".weight")]
    return queries | {name: _read_as(tensors[name], columns) for name in outputs}


def _other_output(published: PublishedModel) -> Tensors:
    """A tied output that was never filled; of an untied one, the embedding in its place."""
    embed = published.tensors["embed.weight"]
    if published.composition.tying == "untied":
        return {"output.weight": embed}
    (dtype,) = (dtype for dtype, name in DTYPES.items() if name == embed.dtype)

    def start() -> Tensor:
        generator = torch.Generator().manual_seed(SEED_OF_OUTPUT)
        return (NORMAL_STD * torch.randn(embed.shape, generator=generator)).to(dtype)

    return {"output.weight": embed._replace(read=start)}


TRAPS: Mapping[str, Trap] = {
    trap.name: trap
    for trap in (
        Trap(
            "names",
            "two tensors of one shape bear each other's name: gate and up of the FFN; without a gate, the two norms",
            _nothing,
            _other_names,
        ),
        Trap(
            "transpose",
            "matrices that are square in the file are read [out, in] where they are [in, out], or the other way round",
            _without_squares,
            _transposed,
        ),
        Trap(
            "rope_pairing",
            "RoPE turns neighbouring channels, 2i and 2i + 1, where it should turn i and i + K/2",
            _without_turns,
            _neighbours_turned,
        ),
        Trap(
            "kv_order",
            "heads of keys and values come as 0, 1, 0, 1 to their query heads, and not as 0, 0, 1, 1",
            _without_groups,
            _tiled,
        ),
        Trap(
            "tying",
            "an output that is the embedding is left as it starts, at random; one that is not becomes the embedding",
            _nothing,
            _other_output,
        ),
    )
}


def published_model(path: Path) -> PublishedModel:
    """The right model, of which a trap makes a wrong one. Raises UserError for one of ours, which is in no file of
    another layout."""
    if lexists(path / RECORD_FILE) or lexists(path / MODEL_FILE):
        raise UserError(
            f"{str(path)!r}: is a model of ours, and --trap is about loading published ones; type: anatomy-convert "
            f"{str(path)!r} NEW, and then --trap with NEW"
        )
    return read_source(path)


def write_wrong(published: PublishedModel, trap: Trap, folder: Path) -> None:
    """Write a wrong model as one that was imported, and say in its model.json that it is wrong.

    Raises: UserError where it would not be wrong, or cannot be written.
    """
    wrong = trap.spoil(published)
    with new_folder(folder) as filling:
        content = write_model(wrong, filling)
        write_json(filling / MODEL_FILE, content | {"trap": trap.name})
        write_tokenizer(wrong, filling)


# ------------------------------------------------------------------------------------------------ what they cost

MAX_TOKENS = 1024  # of a text
TOKENS_AT_ONCE = 256  # logits of more would take much room
FIRST_LOGIT_TOLERANCE = 1e-3  # a difference of rounding, beside logits of some tens


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a model makes of a text and of a prompt.

    losses_nats   (T - 1,), of each token but the first
    likeliest     (T - 1,), what it takes for the next token, behind each token but the last
    is_early      (T - 1,), whether a token stands in the first half of what is read at once
    first_logits  (V,), behind the first token
    written       what it goes on with behind the prompt; empty without one
    """

    losses_nats: Tensor
    likeliest: Tensor
    is_early: Tensor
    first_logits: Tensor
    written: list[int]


@dataclass(frozen=True)
class Cost:
    """What a wrong model loses beside the right one, nats per token; a part of the text without tokens loses NaN.

    same_share        the share of tokens behind which both take the same for the next one
    is_right_at_first whether the logits behind the first token, which sees itself alone, are the right ones
    """

    lost: float
    lost_early: float
    lost_late: float
    same_share: float
    is_right_at_first: bool


def in_memory(published: PublishedModel) -> PublishedModel:
    """The same model with its tensors read, in float32. What a trap leaves as it is, all models made of it share."""
    held = {name: stored.read().to(torch.float32, copy=True) for name, stored in published.tensors.items()}
    return replace(published, tensors={name: _held(tensor) for name, tensor in held.items()})


def _held(tensor: Tensor) -> StoredTensor:
    return StoredTensor(tuple(tensor.shape), "F32", lambda: tensor)


def filled(published: PublishedModel) -> Transformer:
    """The model with its tensors, to be read and not to be trained."""
    model = build_model(published.composition, published.model.num_symbols)
    tensors = {name: stored.read().contiguous() for name, stored in published.tensors.items()}
    model.load_state_dict(tensors, assign=True)
    return model.eval().requires_grad_(False)


@half_the_threads()
@torch.inference_mode()
def read(model: Transformer, ids: Sequence[int], context: int, prompt: Sequence[int], num_written: int) -> Outcome:
    """Let a model read a text, `context` tokens at once at most, and go on with a prompt, the likeliest each time."""
    outcomes = []
    num_at_once = min(context, TOKENS_AT_ONCE)
    for start in range(0, len(ids) - 1, num_at_once):
        piece = torch.tensor(ids[start : start + num_at_once + 1])
        logits_TV = model(piece[None, :-1])[0]
        losses = F.cross_entropy(logits_TV, piece[1:], reduction="none")
        is_early = torch.arange(len(losses)) < len(losses) / 2
        outcomes.append((losses, logits_TV.argmax(-1), is_early, logits_TV[0].clone()))
    losses, likeliest, is_early = (torch.cat(parts) for parts in list(zip(*outcomes, strict=True))[:3])
    written = go_on(model, prompt, num_written, temperature=0.0) if prompt else []
    return Outcome(losses, likeliest, is_early, outcomes[0][3], written)


def cost(wrong: Outcome, right: Outcome) -> Cost:
    """What a wrong model loses beside the right one, on the same text."""
    lost = wrong.losses_nats - right.losses_nats
    first = (wrong.first_logits - right.first_logits).abs().max()
    return Cost(
        float(lost.mean()),
        float(lost[wrong.is_early].mean()),
        float(lost[~wrong.is_early].mean()),
        float((wrong.likeliest == right.likeliest).float().mean()),
        bool(first < FIRST_LOGIT_TOLERANCE),
    )


@half_the_threads()
@torch.inference_mode()
def go_on(model: Transformer, ids: Sequence[int], num_tokens: int, *, temperature: float, seed: int = 0) -> list[int]:
    """What a model writes behind some tokens. By the model itself: what makes decoding fast copies its weights."""
    cache, knobs, stream = model.new_cache(len(ids) + num_tokens), Knobs(temperature), Stream(seed, 0)
    written: list[int] = []
    new = list(ids)
    for _ in range(num_tokens):
        new = next_ids(model.next_logits(torch.tensor([new]), cache), knobs, [stream])
        written += new
    return written
