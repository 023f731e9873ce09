"""One token decoded with a cache of keys and values: what a step costs, by the heads that share them.

Cache and decoder are those that runs are sampled with, the parts LLaMA's own. The keys and values are random: a step
takes as long whatever it reads.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch

from anatomy.axes import BASES
from anatomy.build import build_model, with_parts
from anatomy.config import Config
from anatomy.decoding import decoder
from anatomy.model import Cache, Transformer, initialise
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

    models = [decoding_model(config, size, n_kv_head, num_symbols, device) for n_kv_head in n_kv_heads]
    full = [filled_cache(model, num_cached) for model in models]
    empty = [filled_cache(model, 1) for model in models]
    steps = [_step(model, cache) for caches in (full, empty) for model, cache in zip(models, caches, strict=True)]
    times = take_turns_for(steps, seconds)
    full_ms, empty_ms = times[: len(full)], times[len(full) :]

    def rows() -> Iterator[dict[str, Any]]:
        for i, (n_kv_head, model, cache) in enumerate(zip(n_kv_heads, models, full, strict=True)):
            head_width = size.width // size.n_head
            step_us = median_of([1e3 * ms for ms in full_ms[i]])
            attending = [1 - bare / whole for whole, bare in zip(full_ms[i], empty_ms[i], strict=True)]
            yield {
                **size._asdict(),
                "n_kv_head": n_kv_head,
                "head_width": head_width,
                "num_cached": num_cached,
                "cache_bytes": model.kv_bytes_per_token(model.embed.weight.itemsize) * num_cached,
                "cache_bytes_measured": cache.nbytes,
                **step_us.named("step_us"),
                "tokens_per_s": 1e6 / step_us.value,
                **median_ratio(full_ms[i], full_ms[0]).named("over_full_heads"),
                **median_of(attending).named("attending_share"),
            }

    return list(rows()), len(times[0])


def decoding_config(config: Config, size: Size, n_kv_head: int) -> Config:
    """LLaMA's parts at some sizes, but for the number of key-value heads."""
    llama = with_parts(config, BASES["llama"])
    sizes = {"d_model": size.width, "n_layer": size.n_layer, "n_head": size.n_head}
    return llama.model_copy(
        update={
            "attn": {**llama.attn, "n_kv_head": n_kv_head},
            "model": config.model.model_copy(update=sizes),
            "match": None,
        }
    )


def decoding_model(config: Config, size: Size, n_kv_head: int, num_symbols: int, device: torch.device) -> Transformer:
    """The model of that config, started."""
    made = decoding_config(config, size, n_kv_head)
    model = build_model(made, num_symbols, device="cpu")
    initialise(model, made.init, seed=0)
    return model.to(device)


def filled_cache(model: Transformer, num_tokens: int) -> Cache:
    """A cache of one text of so many tokens that lacks the last: random keys and values, and room for one more."""
    cache = model.new_cache(num_tokens)
    for block, layer in zip(model.blocks, cache.layers, strict=True):
        shape = (1, block.attn.n_kv_head, num_tokens - 1, block.attn.head_width)
        layer.extend(*(torch.randn(shape, device=model.embed.weight.device) for _ in range(2)))
    return cache


def _step(model: Transformer, cache: Cache) -> Task:
    device, num_before = model.embed.weight.device, cache.num_cached
    next_logits = decoder(model, cache)

    def run() -> None:
        next_logits([0])
        cache.crop(num_before)
        wait(device)

    return run
