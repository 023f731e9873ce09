"""Tokens per second of a LLaMA that goes on with texts: with its cache, without, and as `transformers` runs it."""

import importlib.util
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from anatomy.checkpoints.exporting import as_transformers
from anatomy.config import Config
from anatomy.decode_steps import Size, decoding_config, decoding_model
from anatomy.generation import Generation
from anatomy.model import Transformer
from anatomy.sampling import Knobs
from anatomy.stopwatch import Task, median_of, median_ratio, take_turns

GREEDY = Knobs(temperature=0.0)
NUM_PROMPT_TOKENS = 8
ANATOMY, NO_CACHE, TRANSFORMERS = "anatomy", "anatomy, no cache", "transformers"


class Case(NamedTuple):
    """How many texts are written side by side, and how much of each."""

    batch_size: int
    num_tokens: int


CASES = (Case(1, 128), Case(32, 128), Case(1, 1000))


def generation_speed(
    config: Config, num_symbols: int, *, rounds: int, cases: tuple[Case, ...] = CASES
) -> list[dict[str, Any]]:
    """A row for each case and way of writing, all greedy, on the CPU, the same weights, taking turns in one process.

    The window holds the whole text, so attention grows with it. Without a cache only the first case is tried.
    `over_transformers` is the ratio of tokens per second within a round, null where transformers is not installed.
    """
    sizes = config.model
    size, n_kv_head = Size(sizes.d_model, sizes.n_layer, sizes.n_head), max(1, sizes.n_head // 2)
    model = decoding_model(config, size, n_kv_head, num_symbols, torch.device("cpu")).eval()
    ways: dict[str, Callable[[Case], Task]] = {ANATOMY: lambda case: _ours(model, case, use_cache=True)}
    if importlib.util.find_spec("transformers"):
        longest = sizes.model_copy(update={"ctx_len": NUM_PROMPT_TOKENS + max(case.num_tokens for case in cases)})
        theirs = as_transformers(model, decoding_config(config.model_copy(update={"model": longest}), size, n_kv_head))
        ways[TRANSFORMERS] = lambda case: _theirs(theirs, case)
    rows = []
    for case in cases:
        tried = {**ways, NO_CACHE: lambda case: _ours(model, case, use_cache=False)} if case == cases[0] else ways
        times = dict(zip(tried, take_turns([way(case) for way in tried.values()], rounds), strict=True))
        for name, ms in times.items():
            num_drawn = case.batch_size * case.num_tokens
            over = median_ratio(times[TRANSFORMERS], ms) if TRANSFORMERS in times else None
            rows.append(
                {
                    **case._asdict(),
                    "way": name,
                    **median_of([1e3 * num_drawn / each for each in ms]).named("tokens_per_s"),
                    "over_transformers": over and over.value,
                    "over_transformers_low": over and over.low,
                    "over_transformers_high": over and over.high,
                    "cache_bytes": _cache_bytes(model, case) if name == ANATOMY else None,
                }
            )
    return rows


def _cache_bytes(model: Transformer, case: Case) -> dict[str, int]:
    """What the cache of a case takes: as its tensors stand, and by the formula. The last token is never read."""
    generation = _generation(model, case, use_cache=True)
    next(iter(generation))
    num_read = NUM_PROMPT_TOKENS + case.num_tokens - 1
    formula = case.batch_size * num_read * model.kv_bytes_per_token(model.embed.weight.itemsize)
    return {"measured": generation.cache_bytes, "formula": formula}


def _generation(model: Transformer, case: Case, *, use_cache: bool) -> Generation:
    prompts = [[0] * NUM_PROMPT_TOKENS] * case.batch_size
    window = NUM_PROMPT_TOKENS + case.num_tokens
    return Generation(
        model, prompts, num_tokens=case.num_tokens, knobs=GREEDY, seed=0, window=window, use_cache=use_cache
    )


def _ours(model: Transformer, case: Case, *, use_cache: bool) -> Task:
    def run() -> None:
        for _ in _generation(model, case, use_cache=use_cache):
            pass

    return run


def _theirs(theirs: Any, case: Case) -> Task:
    ids = torch.zeros(case.batch_size, NUM_PROMPT_TOKENS, dtype=torch.int64)
    mask = torch.ones_like(ids)

    def run() -> None:
        written = theirs.generate(ids, attention_mask=mask, max_new_tokens=case.num_tokens, do_sample=False)
        assert written.shape[1] == NUM_PROMPT_TOKENS + case.num_tokens

    return run
