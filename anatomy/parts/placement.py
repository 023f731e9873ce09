"""Placement: where the norm sits, and with it the wiring of a block.

Each class is one block: an attention and an FFN sub-layer around a residual stream. Dropout acts on what a sub-layer
adds, as in the 2017 paper. `has_final_norm` says whether the model needs one more norm before its output layer.
"""

from typing import Any

from torch import Tensor, nn

from anatomy.parts.attn import AttentionStep, KVCache, TurnArrays
from anatomy.parts.binding import Buffer, bind_ffn, bind_norm
from anatomy.parts.pos import Rotation


class _Block(nn.Module):
    """What blocks have in common: two sub-layers, a norm for each, dropout. Subclasses wire them."""

    attn: Any  # of any class that keeps the axis's interface

    def __init__(
        self, attn: nn.Module, ffn: nn.Module, attn_norm: nn.Module, ffn_norm: nn.Module, dropout: nn.Module
    ) -> None:
        super().__init__()
        self.attn, self.ffn = attn, ffn
        self.attn_norm, self.ffn_norm = attn_norm, ffn_norm
        self.dropout = dropout


class PostNorm(_Block):
    """Normalise after each sum: x = norm(x + sublayer(x)). The last norm of the last block ends the model.

    Shapes:   x (B, T, D) -> (B, T, D).
    Source:   Vaswani et al. 2017, arXiv:1706.03762.
    """

    has_final_norm = False

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache | None = None) -> Tensor:
        x = self.attn_norm(x + self.dropout(self.attn(x, rotation, cache)))
        return self.ffn_norm(x + self.dropout(self.ffn(x)))

    def bind(self, x: Buffer, cache: KVCache) -> AttentionStep:
        attn = self.attn.bind(x, x, cache)
        attn_norm, attn_normed = bind_norm(self.attn_norm, x)
        ffn = bind_ffn(self.ffn, x, x)
        ffn_norm, ffn_normed = bind_norm(self.ffn_norm, x)

        def step(turns: TurnArrays | None) -> None:
            attn(turns)
            attn_norm()
            attn_normed.write_to(x)
            ffn()
            ffn_norm()
            ffn_normed.write_to(x)

        return step


class PreNorm(_Block):
    """Normalise what each sub-layer reads: x = x + sublayer(norm(x)). The stream itself is never normalised.

    Shapes:   x (B, T, D) -> (B, T, D).
    Source:   Xiong et al. 2020, arXiv:2002.04745; used by GPT-2 before.
    """

    has_final_norm = True

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache | None = None) -> Tensor:
        x = x + self.dropout(self.attn(self.attn_norm(x), rotation, cache))
        return x + self.dropout(self.ffn(self.ffn_norm(x)))

    def bind(self, x: Buffer, cache: KVCache) -> AttentionStep:
        attn_norm, attn_normed = bind_norm(self.attn_norm, x)
        attn = self.attn.bind(attn_normed, x, cache)
        ffn_norm, ffn_normed = bind_norm(self.ffn_norm, x)
        ffn = bind_ffn(self.ffn, ffn_normed, x)

        def step(turns: TurnArrays | None) -> None:
            attn_norm()
            attn(turns)
            ffn_norm()
            ffn()

        return step


class BrokenPreNormNoFinalNorm(PreNorm):
    """Pre-norm with the final norm forgotten.

    Broken:   the output layer reads the bare stream, whose size nothing keeps in hand: far too small at the start, and
              from then on the sum of what every layer adds. A norm before each sub-layer hides it from all but the end.
    Learn:    the model trains, and no shape tells. Its first loss is even nearer to ln V, as its logits are near 0. The
              final norm belongs to the placement: post-norm ends in one by itself, pre-norm must be given it.

    Shapes:   x (B, T, D) -> (B, T, D).
    Source:   no paper; a line forgotten.
    """

    has_final_norm = False
