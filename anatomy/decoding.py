"""Go on with texts that a model has read, one token at a time, in little more time than the arithmetic takes.

Tensor legend: B texts, D model width, V vocabulary.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from anatomy.model import Cache, Transformer
from anatomy.parts.attn import TurnArrays
from anatomy.parts.binding import Buffer, bind_norm, bind_products, says_how_it_is_bound

NUM_PLACES = 64  # slots that are prepared at once


def is_bindable(model: Transformer, cache: Cache) -> bool:
    """Whether a Decoder is for this model and cache: float32 on a CPU, and every block says how it is bound."""
    tensors = (model.embed.weight, *(layer.keys for layer in cache.layers))
    return all(tensor.is_cpu and tensor.dtype == torch.float32 for tensor in tensors) and all(
        says_how_it_is_bound(part) for block in model.blocks for part in (block, block.attn, block.attn.qk_norm)
    )


def decoder(model: Transformer, cache: Cache) -> Callable[[Sequence[int]], Tensor]:
    """What tells, given the next token of each of B texts, what follows: B ids -> (B, V), and keeps them in the cache.

    It is a Decoder's where there can be one, and otherwise the model's own.
    """
    if is_bindable(model, cache):
        return Decoder(model, cache).next_logits
    device = model.embed.weight.device

    @torch.inference_mode()
    def next_logits(ids: Sequence[int]) -> Tensor:
        return model.next_logits(torch.tensor(ids, device=device).unsqueeze(1), cache)

    return next_logits


class Decoder:
    """The parts of a model bound to one cache (see anatomy.parts.binding): `Transformer.next_logits`, faster.

    For a model and a cache that are bindable. The cache must have been read into, and have room for every token to
    come. When weights change, make a new one.

    Raises: ValueError past the last position; IndexError where the cache is full.
    """

    @torch.inference_mode()
    def __init__(self, model: Transformer, cache: Cache) -> None:
        self._model, self._cache = model, cache
        self._embedding_VD = model.embed.weight.detach().numpy()
        self._x = Buffer.of(cache.batch_size, model.embed.embedding_dim)
        self._x_B1D = self._x.tensor.unsqueeze(1)
        # Parts that only turn queries and keys give back what they were given.
        self._is_placed = model.pos(self._x_B1D, torch.zeros(1, dtype=torch.int64)) is not self._x_B1D
        layers = zip(model.blocks, cache.layers, strict=True)
        self._blocks = [block.bind(self._x, layer_cache) for block, layer_cache in layers]
        self._final_norm, self._normed = None, self._x
        if model.final_norm is not None:
            self._final_norm, self._normed = bind_norm(model.final_norm, self._x)
        self._output, self._logits = bind_products(self._normed, [model.output_weight], [None])
        self._places: list[tuple[Tensor, TurnArrays | None]] = []  # of the slots from `_first_slot` on
        self._first_slot = 0

    @torch.inference_mode()
    def next_logits(self, ids: Sequence[int]) -> Tensor:
        """What follows the next token of each of B texts, given as B ids: (B, V)."""
        position, turns = self._place_of_next()
        self._embedding_VD.take(ids, 0, self._x.array)
        if self._is_placed:
            self._x_B1D.copy_(self._model.pos(self._x_B1D, position))
        with np.errstate(all="ignore"):  # numbers that are not finite show in the logits
            for block in self._blocks:
                block(turns)
            if self._final_norm is not None:
                self._final_norm()
            self._output()
        return self._logits.tensor.clone()

    def _place_of_next(self) -> tuple[Tensor, TurnArrays | None]:
        """Where the next tokens stand, (1,) or (B, 1), and how that turns queries and keys."""
        slot = self._cache.num_cached
        if not self._first_slot <= slot < self._first_slot + len(self._places):
            self._first_slot, self._places = slot, self._make_places()
        return self._places[slot - self._first_slot]

    def _make_places(self) -> list[tuple[Tensor, TurnArrays | None]]:
        max_len = self._model.max_len
        num = NUM_PLACES if max_len is None else min(NUM_PLACES, max_len - self._cache.num_tokens_with(0))
        if self._cache.padding is not None:
            num //= self._cache.batch_size  # every text has turns of its own
        positions = self._model.positions(max(1, num), torch.device("cpu"), self._cache)
        by_slot = positions.split(1, dim=-1)
        rotation = self._model.pos.rotation(positions)
        if rotation is None:
            return [(each, None) for each in by_slot]
        turns = (matrices.movedim(-3, 0).contiguous().numpy() for matrices in rotation.turns())
        return [(each, (of_queries, of_keys)) for each, of_queries, of_keys in zip(by_slot, *turns, strict=True)]
