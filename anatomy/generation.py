"""Let a model go on with texts, token by token.

Tensor legend: B texts, T tokens, V vocabulary.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from anatomy.model import Transformer
from anatomy.sampling import Knobs, Stream, next_ids


class Generation:
    """B texts that a model goes on with. Iterating gives the next token of each, B ids at a time, `num_tokens` times.

    prompts      the ids that each text begins with, at least one; they may differ in length
    window       how many tokens the model sees at most. When a text outgrows it, the older half is dropped and the rest
                 is read anew, as a text of its own; of a longer prompt the last `window` tokens are seen.
    use_cache    False reads every text alone and whole for each token: the slow way that the cache is held against
    first_index  the number of the first text, where only some of many are drawn at once

    The texts themselves stay whole: `texts` holds the ids of each, prompts included. Text number i draws from the
    stream of (seed, i), so it comes out the same in whatever company.

    Raises: ValueError for an empty prompt; while iterating, if the logits are not finite.
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
        if not all(map(len, prompts)):
            raise ValueError("a text must begin with at least one token")
        self.model, self.num_tokens, self.knobs = model.eval(), num_tokens, knobs
        self.window, self.use_cache = window, use_cache
        self.texts = [list(prompt) for prompt in prompts]
        self.begins = [max(0, len(text) - window) for text in self.texts]  # where what the model sees begins
        self.streams = [Stream(seed, first_index + index) for index in range(len(self.texts))]
        self.cache_bytes = 0

    @property
    def is_cut(self) -> bool:
        """Whether the model no longer sees the beginning of some text."""
        return any(self.begins)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(self.num_tokens):
            for index, text in enumerate(self.texts):
                if len(text) - self.begins[index] > self.window:
                    self.begins[index] = len(text) - max(1, self.window // 2)
            with torch.inference_mode():  # entered for each token anew: it must not reach into the caller's own code
                ids = next_ids(self._logits(), self.knobs, self.streams)
            for text, new in zip(self.texts, ids, strict=True):
                text.append(new)
            yield ids

    def _logits(self) -> Tensor:
        seen = [text[begin:] for text, begin in zip(self.texts, self.begins, strict=True)]
        device = self.model.embed.weight.device
        return torch.cat([self.model(torch.tensor([ids], device=device))[:, -1] for ids in seen])
