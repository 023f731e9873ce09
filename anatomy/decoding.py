"""Go on with texts that a model has read, one token at a time, in little more time than the arithmetic takes.

Tensor legend: B texts, D model width, K head width, V vocabulary.
"""

import torch
from torch import Tensor

from anatomy.model import Cache, Transformer
from anatomy.parts.binding import bind_norm
from anatomy.parts.pos import Turns

NUM_PLACES = 64  # slots that are prepared at once


def is_bindable(model: Transformer) -> bool:
    """Whether a Decoder is for this model: its weights are float32, and on a CPU, where it was measured."""
    weight = model.embed.weight
    return weight.is_cpu and weight.dtype == torch.float32


class Decoder:
    """The parts of a model bound to one cache (see anatomy.parts.binding): `Transformer.next_logits`, faster.

    For models that are bindable. The cache must have been read into, and have room for every token to come. Weights
    that change afterwards are not seen.

    Raises: ValueError past the last position.
    """

    def __init__(self, model: Transformer, cache: Cache) -> None:
        self._model, self._cache = model, cache
        self._embedding_VD = model.embed.weight.detach()
        self._x_BD = self._embedding_VD.new_empty(cache.batch_size, model.embed.embedding_dim)
        self._x_B1D = self._x_BD.unsqueeze(1)
        layers = zip(model.blocks, cache.layers, strict=True)
        self._blocks = [block.bind(self._x_BD, layer_cache) for block, layer_cache in layers]
        self._final_norm, self._normed_BD = None, self._x_BD
        if model.final_norm is not None:
            self._final_norm, self._normed_BD = bind_norm(model.final_norm, self._x_BD)
        self._output_DV = model.output_weight.detach().t()
        self._places: list[tuple[Tensor, Turns | None]] = []  # of the slots from `_first_slot` on
        self._first_slot = 0

    def next_logits(self, ids_B: Tensor) -> Tensor:
        """What follows the next token of each text: (B,) -> (B, V)."""
        positions, turns = self._place_of_next()
        torch.index_select(self._embedding_VD, 0, ids_B, out=self._x_BD)
        placed_B1D = self._model.pos(self._x_B1D, positions)
        if placed_B1D is not self._x_B1D:
            self._x_B1D.copy_(placed_B1D)
        for block in self._blocks:
            block(turns)
        if self._final_norm is not None:
            self._final_norm()
        return torch.mm(self._normed_BD, self._output_DV)

    def _place_of_next(self) -> tuple[Tensor, Turns | None]:
        """Where the next tokens stand, (1,) or (B, 1), and how that turns queries and keys."""
        slot = self._cache.num_cached
        if not self._first_slot <= slot < self._first_slot + len(self._places):
            self._first_slot, self._places = slot, self._make_places()
        return self._places[slot - self._first_slot]

    def _make_places(self) -> list[tuple[Tensor, Turns | None]]:
        max_len = self._model.max_len
        num = NUM_PLACES if max_len is None else min(NUM_PLACES, max_len - self._cache.num_tokens_with(0))
        positions = self._model.positions(max(1, num), self._x_BD.device, self._cache)
        by_slot = positions.split(1, dim=-1)
        rotation = self._model.pos.rotation(positions)
        if rotation is None:
            return [(each, None) for each in by_slot]
        turns = (matrices.expand(self._cache.batch_size, -1, -1, -1).unbind(1) for matrices in rotation.turns())
        return [(each, Turns(*pair)) for each, *pair in zip(by_slot, *turns, strict=True)]
