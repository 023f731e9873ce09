"""One token decoded with a cache of keys and values: what a step costs, by the heads that share them.

The cache is a synthetic one, for timing alone; the parts around it are LLaMA's own.

Tensor legend: T tokens (1 here), S cached tokens, D model width, H query heads, G key-value heads, R = H/G queries a
key-value head, K head width.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anatomy.axes import BASES
from anatomy.build import build_model, with_parts
from anatomy.config import Config
from anatomy.model import Transformer, initialise
from anatomy.parts.pos import Rotation
from anatomy.stopwatch import Task, median_of, median_ratio, take_turns_for, wait

NUM_CACHED = (1024, 2048, 4096, 8192, 16384)
SECONDS = 1.5  # for each size and length


class Size(NamedTuple):
    """The sizes of a block stack."""

    width: int
    n_layer: int
    n_head: int


LARGE = Size(512, 4, 8)
"""Large enough for its cache to outweigh its weights, small enough for seconds and a gigabyte."""


class _CachedAttention(nn.Module):
    """Attention of the token at hand over the cache. It takes an attention part's place, and its weights.

    Keys and values are stored once a key-value head, (1, G, S, K). The R query heads that share one are handed over
    as R queries of one head, so each is read where it lies and never repeated.
    """

    def __init__(self, attn: Any, num_slots: int) -> None:
        super().__init__()
        self.attn = attn
        shape = (1, attn.n_kv_head, num_slots, attn.head_width)
        device = attn.q_proj.weight.device
        self.keys, self.values = (torch.randn(shape, device=device) for _ in range(2))
        self.position = num_slots - 1  # of the token at hand: the slot that it fills, and the last that it reads

    def forward(self, x_1TD: Tensor, rotation: Rotation | None) -> Tensor:
        attn, stop = self.attn, self.position + 1
        # One product would have to join the three weights first, at every token: for one token that costs more.
        qk_1TD = torch.cat((attn.q_proj(x_1TD), attn.k_proj(x_1TD)), dim=-1)
        qk_1THK, v_1TGK = (y.unflatten(-1, (-1, attn.head_width)) for y in (qk_1TD, attn.v_proj(x_1TD)))
        if rotation is not None:
            qk_1THK = rotation.turn(qk_1THK, attn.n_head)
        q_1HK, k_1GK = qk_1THK[:, 0].split((attn.n_head, attn.n_kv_head), dim=1)
        self.keys[:, :, self.position] = k_1GK
        self.values[:, :, self.position] = v_1TGK[:, 0]
        q_1GRK = q_1HK.unflatten(1, (attn.n_kv_head, -1))
        mixed_1GRK = F.scaled_dot_product_attention(q_1GRK, self.keys[:, :, :stop], self.values[:, :, :stop])
        return attn.o_proj(mixed_1GRK.flatten(1).unsqueeze(1))


class Decoder:
    """A model made to decode one token at a time, its cache of `num_slots` tokens filled with random numbers."""

    def __init__(self, model: Transformer, num_slots: int) -> None:
        self.model = model.eval()
        self.caches = [_CachedAttention(block.attn, num_slots) for block in model.blocks]
        for block, cache in zip(model.blocks, self.caches, strict=True):
            block.attn = cache

    @torch.inference_mode()
    def logits(self, ids_11: Tensor, position: int) -> Tensor:
        """What follows a token at `position`: (1, 1) -> (1, 1, V). Its past is what the slots before hold."""
        model, positions = self.model, torch.tensor([position], device=ids_11.device)
        for cache in self.caches:
            cache.position = position
        x = model.pos(model.embed(ids_11), positions)
        rotation = model.pos.rotation(positions)
        for block in model.blocks:
            x = block(x, rotation)
        return F.linear(x if model.final_norm is None else model.final_norm(x), model.output_weight)

    def cache_bytes(self) -> int:
        """What the tensors of the cache take, as they stand."""
        return sum(tensor.nbytes for cache in self.caches for tensor in (cache.keys, cache.values))


def decode_steps(
    config: Config,
    num_symbols: int,
    device: torch.device,
    *,
    num_cached: Sequence[int] = NUM_CACHED,
    seconds: float = SECONDS,
) -> dict[str, Any]:
    """Microseconds to decode one token, by heads and cached tokens, at the config's sizes and LARGE; see DecodeSteps.

    The token decoded is the last of those cached. A model of each number of key-value heads takes its turn with a full
    cache and with an empty one, which holds the token alone: the difference is what attending to the past takes.
    """
    own = Size(config.model.d_model, config.model.n_layer, config.model.n_head)
    rows: list[dict[str, Any]] = []
    num_rounds = []
    for size in dict.fromkeys((own, LARGE)):
        for num in num_cached:
            new_rows, rounds = _at(config, size, num, num_symbols, device, seconds)
            rows += new_rows
            num_rounds.append(rounds)
    return {"num_rounds": min(num_rounds), "rows": rows}


def _at(
    config: Config, size: Size, num_cached: int, num_symbols: int, device: torch.device, seconds: float
) -> tuple[list[dict[str, Any]], int]:
    n_kv_heads = [heads for heads in range(size.n_head, 0, -1) if size.n_head % heads == 0]

    def decoder(n_kv_head: int, num_slots: int) -> Decoder:
        return Decoder(decoding_model(config, size, n_kv_head, num_symbols, device), num_slots)

    full = [decoder(n_kv_head, num_cached) for n_kv_head in n_kv_heads]
    empty = [decoder(n_kv_head, 1) for n_kv_head in n_kv_heads]
    times = take_turns_for([_step(each) for each in (*full, *empty)], seconds)
    full_ms, empty_ms = times[: len(full)], times[len(full) :]

    def rows() -> Iterator[dict[str, Any]]:
        for i, (n_kv_head, made) in enumerate(zip(n_kv_heads, full, strict=True)):
            head_width = size.width // size.n_head
            step_us = median_of([1e3 * ms for ms in full_ms[i]])
            attending = [1 - bare / whole for whole, bare in zip(full_ms[i], empty_ms[i], strict=True)]
            yield {
                **size._asdict(),
                "n_kv_head": n_kv_head,
                "head_width": head_width,
                "num_cached": num_cached,
                "cache_bytes": cache_bytes(size.n_layer, n_kv_head, head_width, num_cached),
                "cache_bytes_measured": made.cache_bytes(),
                **step_us.named("step_us"),
                "tokens_per_s": 1e6 / step_us.value,
                **median_ratio(full_ms[i], full_ms[0]).named("over_full_heads"),
                **median_of(attending).named("attending_share"),
            }

    return list(rows()), len(times[0])


def cache_bytes(n_layer: int, n_kv_head: int, head_width: int, num_cached: int) -> int:
    """The formula: a key and a value for each layer, key-value head, channel and token, in the dtype of the models."""
    return 2 * n_layer * n_kv_head * head_width * num_cached * torch.get_default_dtype().itemsize


def decoding_model(config: Config, size: Size, n_kv_head: int, num_symbols: int, device: torch.device) -> Transformer:
    """LLaMA's parts at some sizes, but for the number of key-value heads; started."""
    llama = with_parts(config, BASES["llama"])
    sizes = {"d_model": size.width, "n_layer": size.n_layer, "n_head": size.n_head}
    made = llama.model_copy(
        update={
            "attn": {**llama.attn, "n_kv_head": n_kv_head},
            "model": config.model.model_copy(update=sizes),
            "match": None,
        }
    )
    model = build_model(made, num_symbols, device="cpu")
    initialise(model, made.init, seed=0)
    return model.to(device)


def _step(decoder: Decoder) -> Task:
    device = decoder.model.embed.weight.device
    ids, position = torch.zeros(1, 1, dtype=torch.int64, device=device), decoder.caches[0].position

    def run() -> None:
        decoder.logits(ids, position)
        wait(device)

    return run
