"""Let a model go on with a text: characters in, characters out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anatomy.corpus import Vocabulary
from anatomy.errors import UserError
from anatomy.generation import Generation
from anatomy.model import Transformer
from anatomy.sampling import DEFAULT_KNOBS, Knobs

SAMPLE_CHARS, PROMPT_CHARS = 200, 16
MAX_SEED = 2**63 - 1  # as for a run's own seed

# Samples are drawn side by side, as many as keep what their caches hold near this many tokens.
TOKENS_AT_ONCE, MAX_AT_ONCE = 2**16, 256

Watch = Callable[[int, str], None]
"""Called with a sample's index and each new character of it, as it comes."""


@dataclass(frozen=True)
class Sample:
    """A text that a model went on with.

    text            the prompt, whole, and the continuation
    num_tokens      of the continuation
    tokens_per_s    of all samples drawn side by side with it, together, the reading of the prompt included, and what
                    was drawn behind a stop left out; None where nothing was drawn
    kv_cache_bytes  what the cache set aside for this text; 0 without a cache
    is_cut          whether the text outgrew the window, so that the model no longer saw its beginning
    """

    prompt: str
    text: str
    continuation: str
    num_tokens: int
    tokens_per_s: float | None
    kv_cache_bytes: int
    is_cut: bool


def sample(
    model: Transformer,
    vocabulary: Vocabulary,
    prompt: str = "",
    *,
    window: int,
    num_tokens: int = SAMPLE_CHARS,
    num_samples: int = 1,
    knobs: Knobs = DEFAULT_KNOBS,
    seed: int = 0,
    use_cache: bool = True,
    stop: str | Sequence[str] = (),
    watch: Watch | None = None,
) -> list[Sample]:
    """Go on with a prompt, `num_samples` times. The model is put into evaluation mode.

    An empty prompt starts where a line starts: the model reads a line end, or the vocabulary's first character if it
    has no line end. That character is no part of the text.

    window     how many tokens the model sees at most (see Generation)
    num_tokens how many to draw for each text; `stop` may end it earlier
    seed       sample i draws from the stream of (seed, i): it comes out the same however many are drawn beside it
    stop       a string or several; a text ends right behind the first occurrence of one in its continuation, and
               keeps it

    Raises: UserError for what cannot be asked for; NotFinite if there is nothing to draw from.
    """
    stops = (stop,) if isinstance(stop, str) else tuple(stop)
    ids = prompt_ids(vocabulary, prompt)
    check_window(model, window)
    faults = [
        f"{name}={number}: must be a whole number from {least}"
        for name, number, least in (("num_tokens", num_tokens, 0), ("num_samples", num_samples, 1))
        if number < least
    ]
    if not 0 <= seed <= MAX_SEED:
        faults.append(f"seed={seed}: must be a whole number from 0 to {MAX_SEED}")
    if "" in stops:
        faults.append("stop='': an empty string would end every text at once; give the characters to stop at")
    if faults:
        raise UserError("\n".join(faults))
    num_seen = min(window, len(ids) + num_tokens)
    num_at_once = max(1, min(TOKENS_AT_ONCE // num_seen, MAX_AT_ONCE))
    samples: list[Sample] = []
    for first in range(0, num_samples, num_at_once):
        generation = Generation(
            model,
            [ids] * min(num_at_once, num_samples - first),
            num_tokens=num_tokens,
            knobs=knobs,
            seed=seed,
            window=window,
            use_cache=use_cache,
            first_index=first,
        )
        samples += _carry_out(generation, vocabulary, prompt, stops, watch, first)
    return samples


def prompt_ids(vocabulary: Vocabulary, prompt: str) -> list[int]:
    """What the model reads before it draws: the prompt, or what starts a text. Raises UserError, see `encode`."""
    return vocabulary.encode(prompt or ("\n" if "\n" in vocabulary.chars else vocabulary.chars[0])).tolist()


def check_window(model: Transformer, window: int) -> None:
    """Raises: UserError if the model cannot see so many tokens."""
    if window < 1:
        raise UserError(f"window={window}: must be a whole number from 1")
    if model.max_len is not None and window > model.max_len:
        raise UserError(
            f"window={window}: the table of learned positions ends at {model.max_len}; give at most {model.max_len}"
        )


def _carry_out(
    generation: Generation, vocabulary: Vocabulary, prompt: str, stop: tuple[str, ...], watch: Watch | None, first: int
) -> list[Sample]:
    """Draw until every text has ended. A text that has stays in the batch, and what is drawn for it is dropped."""
    num = len(generation.texts)
    written: list[list[str]] = [[] for _ in range(num)]
    is_cut = [generation.is_cut] * num
    growing = list(range(num))
    longest_stop = max(map(len, stop), default=0)
    drawing_s, steps = 0.0, iter(generation)
    while growing:
        began = time.perf_counter()
        ids = next(steps, None)
        drawing_s += time.perf_counter() - began
        if ids is None:
            break
        for index in list(growing):
            text = written[index]
            text.append(vocabulary.chars[ids[index]])
            is_cut[index] = generation.is_cut
            if watch is not None:
                watch(first + index, text[-1])
            if stop and "".join(text[-longest_stop:]).endswith(stop):
                growing.remove(index)
    continuations = ["".join(text) for text in written]
    num_drawn = sum(map(len, continuations))
    return [
        Sample(
            prompt=prompt,
            text=prompt + continuation,
            continuation=continuation,
            num_tokens=len(continuation),
            tokens_per_s=num_drawn / drawing_s if num_drawn else None,
            kv_cache_bytes=generation.cache_bytes // num,
            is_cut=cut,
        )
        for continuation, cut in zip(continuations, is_cut, strict=True)
    ]
