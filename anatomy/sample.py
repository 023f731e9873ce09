"""Let a model go on with a text: text in, text out."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from anatomy.errors import UserError
from anatomy.generation import Generation
from anatomy.model import Transformer
from anatomy.sampling import DEFAULT_KNOBS, Knobs
from anatomy.tokens import Codec, Speller

SAMPLE_CHARS, PROMPT_CHARS = 200, 16
MAX_SEED = 2**63 - 1  # as for a run's own seed

# Samples are drawn side by side, as many as keep what their caches and logits take near this much memory.
BYTES_AT_ONCE, MAX_AT_ONCE = 2**28, 256
BYTES_PER_LOGIT = 64  # while one is drawn: the logits, and some arrays of float64 made of them

Watch = Callable[[int, str], None]
"""Called with a sample's index and each new piece of its text, as it comes: one character, or several."""


@dataclass(frozen=True)
class Sample:
    """A text that a model went on with.

    text            the prompt, whole, and the continuation
    num_tokens      so many were drawn for the continuation
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
    vocabulary: Codec,
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

    An empty prompt starts where a text or a line starts: the model reads what its tokenizer or config has for the
    beginning; or else a line end, or the vocabulary's first character if it has no line end. That is no part of the
    text. No token ends a text by itself: one that stands for an end is written as it is spelled, and can be a `stop`.

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
    bytes_each = model.kv_bytes(num_seen, bytes_per_value=4) + BYTES_PER_LOGIT * model.num_symbols
    num_at_once = max(1, min(BYTES_AT_ONCE // bytes_each, MAX_AT_ONCE))
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


def prompt_ids(vocabulary: Codec, prompt: str) -> list[int]:
    """What the model reads before it draws: the prompt, or what starts a text. Raises UserError, see `encode`."""
    return vocabulary.encode(prompt).tolist() or vocabulary.start_ids


def check_window(model: Transformer, window: int) -> None:
    """Raises: UserError if the model cannot see so many tokens."""
    if window < 1:
        raise UserError(f"window={window}: must be a whole number from 1")
    if model.max_len is not None and window > model.max_len:
        raise UserError(
            f"window={window}: the table of learned positions ends at {model.max_len}; give at most {model.max_len}"
        )


class _Continuation:
    """A text as it grows behind its prompt, up to the first occurrence of a stop string."""

    def __init__(self, speller: Speller, stops: Sequence[str]) -> None:
        self.num_tokens, self.is_ended, self.is_cut = 0, False, False
        self._speller, self._stops = speller, stops
        self._pieces: list[str] = []
        self._tail, self._num_kept = "", max(map(len, stops), default=1) - 1  # a stop may have begun in the tail

    @property
    def text(self) -> str:
        return "".join(self._pieces)

    def add(self, new_id: int) -> str:
        """Take one more token. Returns what it adds to the text."""
        self.num_tokens += 1
        return self._write(self._speller.add(new_id))

    def end(self) -> str:
        """There are no more tokens. Returns what was held back."""
        return "" if self.is_ended else self._write(self._speller.rest())

    def _write(self, new: str) -> str:
        seen, num_old = self._tail + new, len(self._tail)
        if ends := [place + len(stop) for stop in self._stops if (place := seen.find(stop)) >= 0]:
            self.is_ended, new = True, seen[num_old : min(ends)]
        self._tail = seen[max(0, len(seen) - self._num_kept) :]
        self._pieces.append(new)
        return new


def _carry_out(
    generation: Generation, vocabulary: Codec, prompt: str, stops: tuple[str, ...], watch: Watch | None, first: int
) -> list[Sample]:
    """Draw until every text has ended. A text that has stays in the batch, and what is drawn for it is dropped."""
    written = [_Continuation(vocabulary.speller(ids), stops) for ids in generation.texts]
    for text in written:
        text.is_cut = generation.is_cut
    drawing_s, steps = 0.0, iter(generation)
    while growing := [index for index, text in enumerate(written) if not text.is_ended]:
        began = time.perf_counter()
        ids = next(steps, None)
        drawing_s += time.perf_counter() - began
        for index in growing:
            text = written[index]
            new = text.end() if ids is None else text.add(ids[index])
            text.is_cut = generation.is_cut
            if watch is not None and new:
                watch(first + index, new)
        if ids is None:
            break
    num_drawn = sum(text.num_tokens for text in written)
    return [
        Sample(
            prompt=prompt,
            text=prompt + text.text,
            continuation=text.text,
            num_tokens=text.num_tokens,
            tokens_per_s=num_drawn / drawing_s if num_drawn else None,
            kv_cache_bytes=generation.cache_bytes // len(written),
            is_cut=text.is_cut,
        )
        for text in written
    ]
