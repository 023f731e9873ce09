"""Walk a text through a model and write down every module it meets, with the shape of what comes out.

Nothing is computed: the model lies on the meta device, whose tensors have shapes and no numbers. The text is read in
two steps, first some tokens at once, then one more with what the cache kept of them. Shapes are those of each text:
the batch dimension, in front of all of them, is left out.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from anatomy.checkpoints.names import hf_module
from anatomy.errors import UserError
from anatomy.explaining import Explanation
from anatomy.model import Cache, Transformer
from anatomy.parts.attn import KVCache
from anatomy.parts.pos import RoPE

Shape = tuple[int, ...]
MAX_PAIRS = 8  # of a head, where angles are told
MAX_POSITIONS = 16

DOES: Mapping[str, str] = {  # by the last word of a module's path
    "embed": "a row for each token",
    "attn_norm": "normed",
    "q_proj": "all queries",
    "k_proj": "all keys",
    "v_proj": "all values",
    "q_norm": "q by head, normed",
    "k_norm": "k by head, normed",
    "o_proj": "heads mixed",
    "attn": "added to the stream",
    "ffn_norm": "normed",
    "gate_proj": "gate, before silu",
    "up_proj": "wide inside",
    "down_proj": "back to the width",
    "ffn": "added to the stream",
    "final_norm": "normed",
}


@dataclass(frozen=True)
class Step:
    """One module, or one thing that a module makes inside.

    path         our path of the module
    hf_name      its name in transformers; None where it has none there
    does         what comes out
    weight       the shape of its matrix, table or gain; None where it has none
    first, next  what comes out for the first tokens, and for the one after them
    """

    path: str
    hf_name: str | None
    does: str
    weight: Shape | None
    first: Shape
    next: Shape


@dataclass(frozen=True)
class Stretch:
    """Steps in their order. Those of blocks that are alike are told once, with the paths of `first_block`; steps
    outside of blocks have no block."""

    first_block: int | None
    last_block: int | None
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Angle:
    """How far one pair of channels is turned at one position, in radians."""

    position: int
    pair: int
    radians: float


@dataclass(frozen=True)
class Trace:
    """A walk. `angles` are told of models small enough to look at them all."""

    num_tokens: int
    stretches: tuple[Stretch, ...]
    angles: tuple[Angle, ...]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        return asdict(self)


def trace(explanation: Explanation, num_tokens: int) -> Trace:
    """Walk a text of `num_tokens` and one more through the model of an explanation.

    Raises: UserError where there are not so many positions.
    """
    model, subject = explanation.model, explanation.subject
    if model.max_len is not None and num_tokens >= model.max_len:
        raise UserError(
            f"--tokens {num_tokens}: the table of positions of {subject.name} ends at {model.max_len:,}; with one more "
            f"to come it can be up to {model.max_len - 1:,}"
        )
    ranges = _alike(model.blocks)
    with _only(model, [first for first, _ in ranges]):
        cache = model.new_cache(num_tokens + 1)
        passes = _made(model, num_tokens, cache), _made(model, 1, cache)
    before: list[Step] = []
    blocks: list[list[Step]] = [[] for _ in ranges]
    after: list[Step] = []
    for first, following in zip(*passes, strict=True):
        home, path = (after if blocks[-1] else before), first.path
        if path.startswith("blocks."):
            kind = int(path.split(".")[1])
            home, path = blocks[kind], path.replace(f"blocks.{kind}", f"blocks.{ranges[kind][0]}", 1)
        hf_name = None if subject.family is None else hf_module(path, subject.family)
        home.append(Step(path, hf_name, first.does, first.weight, first.shape, following.shape))
    of_blocks = (Stretch(*layers, tuple(steps)) for layers, steps in zip(ranges, blocks, strict=True))
    stretches = Stretch(None, None, tuple(before)), *of_blocks, Stretch(None, None, tuple(after))
    return Trace(num_tokens, stretches, tuple(_angles(model.pos, num_tokens)))


def _alike(blocks: Sequence[Any]) -> list[tuple[int, int]]:
    """Blocks in a row that are the same but for their weights: the first and the last of each."""
    kinds = [(str(block), block.attn.window.size) for block in blocks]
    starts = [layer for layer, kind in enumerate(kinds) if layer == 0 or kind != kinds[layer - 1]]
    return list(zip(starts, [start - 1 for start in starts[1:]] + [len(kinds) - 1], strict=True))


@contextmanager
def _only(model: Transformer, layers: Sequence[int]) -> Iterator[None]:
    """The model with these blocks alone: one of each kind is enough to see its shapes."""
    all_blocks = model.blocks
    model.blocks = nn.ModuleList(all_blocks[layer] for layer in layers)
    try:
        yield
    finally:
        model.blocks = all_blocks


def _angles(pos: Any, num_tokens: int) -> Iterator[Angle]:
    if not isinstance(pos, RoPE) or pos.head_width // 2 > MAX_PAIRS or num_tokens >= MAX_POSITIONS:
        return
    frequencies = pos.frequencies(torch.device("cpu"))
    for position in range(num_tokens + 1):
        for pair, frequency in enumerate(frequencies.tolist()):
            yield Angle(position, pair, position * frequency)


# ------------------------------------------------------------------------------------------------ one pass


@dataclass(frozen=True)
class _Made:
    """What a module made in one pass."""

    path: str
    does: str
    weight: Shape | None
    shape: Shape


def _made(model: Transformer, num_tokens: int, cache: Cache) -> list[_Made]:
    """All that one pass makes, in its order."""
    made: list[_Made] = []
    with ExitStack() as watched, torch.no_grad():
        for path, module in model.named_modules():
            last = path.rpartition(".")[2]
            if last in DOES:
                watched.enter_context(_watched(module, made, path, DOES[last]))
            elif path.startswith("blocks.") and last.isdigit():
                watched.enter_context(_watched(module, made, path, "the stream"))
        watched.enter_context(_watched_positions(model.pos, made))
        for layer, block in enumerate(model.blocks):
            path = f"blocks.{layer}.attn"
            watched.enter_context(_watched_inside(block.attn, made, path, cache.layers[layer]))
        logits = model(torch.zeros(1, num_tokens, dtype=torch.int64, device="meta"), cache)
    does = "a score for each word" if model.output is not None else "a score for each word, by embed's matrix"
    made.append(_Made("output", does, tuple(model.output_weight.shape), tuple(logits.shape[1:])))
    return made


@contextmanager
def _watched(module: nn.Module, made: list[_Made], path: str, does: str) -> Iterator[None]:
    """Note what a module gives back."""
    own = next((tuple(parameter.shape) for parameter in module.parameters(recurse=False)), None)

    def note(_: nn.Module, given: tuple[Any, ...], output: Tensor) -> None:
        made.append(_Made(path, does, own, tuple(output.shape[1:])))

    handle = module.register_forward_hook(note)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _watched_positions(pos: Any, made: list[_Made]) -> Iterator[None]:
    """Note what positions do: add something to the embeddings, or turn queries and keys by angles, or nothing."""
    own = next((tuple(parameter.shape) for parameter in pos.parameters()), None)

    def note(_: nn.Module, given: tuple[Tensor, Tensor], output: Tensor) -> None:
        x, positions = given
        rotation = pos.rotation(positions)
        if rotation is not None:
            cos = rotation.cos.squeeze(-2)
            made.append(_Made("pos", "cos, sin of angles", own, tuple(cos.shape)))
        elif output is not x:
            made.append(_Made("pos", "positions added", own, tuple(output.shape[1:])))

    handle = pos.register_forward_hook(note)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def _watched_inside(attn: Any, made: list[_Made], path: str, cache: KVCache) -> Iterator[None]:
    """Note what attention makes inside: its three projections are one product, which no module shows."""
    project = attn.project

    def noting(x: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = tuple(getattr(attn, name).weight.shape)
            made.append(_Made(f"{path}.{name}", DOES[name], weight, (x.shape[1], weight[0])))
        qkv: tuple[Tensor, Tensor, Tensor] = project(x, *others)
        turned = ", turned" if others and others[0] is not None else ""
        told = (f"q by head{turned}", f"k by head{turned}", "v by head")
        made.extend(_Made(path, does, None, tuple(each.shape[1:])) for does, each in zip(told, qkv, strict=True))
        return qkv

    def note_cache(*_: Any) -> None:
        num_heads, num_slots, head_width = cache.keys.shape[1:]
        num_held = min(cache.num_cached, num_slots)
        made.append(_Made(path, "cache: k, v as large", None, (num_heads, num_held, head_width)))

    attn.project = noting
    handle = attn.o_proj.register_forward_pre_hook(note_cache)
    try:
        yield
    finally:
        handle.remove()
        del attn.project
