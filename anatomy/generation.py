"""Let a model go on with texts, token by token.

Tensor legend: B texts, T tokens, V vocabulary.
"""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from anatomy.decoding import decoder
from anatomy.model import Cache, Transformer
from anatomy.sampling import Knobs, Stream, next_ids


class Generation:
    """B texts that a model goes on with. Iterating gives the next token of each, B ids at a time, `num_tokens` times.

    prompts      the ids that each text begins with, at least one; they may differ in length
    window       how many tokens the model sees at most. When a text outgrows it, the older half is dropped and the rest
                 is read anew, as a text of its own; of a longer prompt the last `window` tokens are seen.
    use_cache    False reads every text alone and whole for each token: the slow way that the cache is held against
    first_index  the number of the first text, where only some of many are drawn at once

    The texts themselves stay whole: `texts` holds the ids of each, prompts included. Text number i draws from the
    stream of (seed, i), so it comes out the same in whatever company: logits differ by rounding alone. The model is put
    into evaluation mode. Iterating again goes on with the texts.

    Raises: ValueError without prompts, for an empty one, or a window below 1; while iterating, NotFinite.
    """

    def __init__(
        self,
        model: Transformer,
        prompts: Sequence[Sequence[int]],
        *,
        num_tokens: int,
        knobs: Knobs,
        seed: int,
        window: int,
        use_cache: bool = True,
        first_index: int = 0,
    ) -> None:
        if not prompts or not all(map(len, prompts)):
            raise ValueError("there must be texts, and each must begin with at least one token")
        if window < 1:
            raise ValueError(f"window={window}: a model must see at least one token")
        self.model, self.num_tokens, self.knobs = model, num_tokens, knobs
        if model.training:
            model.eval()
        self.window, self.use_cache = window, use_cache
        self.texts = [list(prompt) for prompt in prompts]
        self.begins = [max(0, len(text) - window) for text in self.texts]  # where what the model sees begins
        self.streams = [Stream(seed, first_index + index) for index in range(len(self.texts))]
        self._cache: Cache | None = None
        self._next_logits: Callable[[Sequence[int]], Tensor] | None = None  # of that cache

    @property
    def is_cut(self) -> bool:
        """Whether the model no longer sees the beginning of some text."""
        return any(self.begins)

    @property
    def cache_bytes(self) -> int:
        """What the tensors of the cache take, of all texts together."""
        return 0 if self._cache is None else self._cache.nbytes

    def __iter__(self) -> Iterator[list[int]]:
        self._cache = self._next_logits = None
        room = 0  # for how many more tokens no text outgrows the window
        for num_drawn in range(self.num_tokens):
            is_full, room = not room, room - 1
            if is_full:
                self._slide()
                room = self.window - max(map(len, self._seen()))
            if not self.use_cache:
                logits_BV = self._read_each_alone()
            elif is_full:
                logits_BV = self._read_anew(self.num_tokens - num_drawn)
            else:
                logits_BV = self._read_last()
            ids = next_ids(logits_BV, self.knobs, self.streams)
            for text, new in zip(self.texts, ids, strict=True):
                text.append(new)
            yield ids

    def _slide(self) -> None:
        """Drop the older half of what is seen of each text that has outgrown the window."""
        for i, text in enumerate(self.texts):
            if len(text) - self.begins[i] > self.window:
                self.begins[i] = len(text) - max(1, self.window // 2)

    def _seen(self) -> list[list[int]]:
        return [text[begin:] for text, begin in zip(self.texts, self.begins, strict=True)]

    @torch.inference_mode()
    def _read_each_alone(self) -> Tensor:
        device = self.model.embed.weight.device
        return torch.cat([self.model(torch.tensor([ids], device=device))[:, -1] for ids in self._seen()])

    @torch.inference_mode()
    def _read_anew(self, num_left: int) -> Tensor:
        """Fill the cache with what the model sees of all texts. They end together; shorter ones are padded in front."""
        seen, device = self._seen(), self.model.embed.weight.device
        longest = max(map(len, seen))
        missing = [longest - len(ids) for ids in seen]
        if any(missing) or self._cache is None or self._cache.padding is not None:
            self._cache = self.model.new_cache(
                min(self.window, longest + num_left - 1), torch.tensor(missing, device=device) if any(missing) else None
            )
            self._next_logits = None
        else:
            self._cache.crop(0)
        padded = [[0] * num + ids for num, ids in zip(missing, seen, strict=True)]
        return self.model.next_logits(torch.tensor(padded, device=device), self._cache)

    def _read_last(self) -> Tensor:
        """Add the last token of each text to the cache."""
        assert self._cache is not None
        if self._next_logits is None:
            self._next_logits = decoder(self.model, self._cache)
        return self._next_logits([text[-1] for text in self.texts])
