"""Attention: how the query heads share keys and values.

All three parts are one computation in which query head h reads key-value head h // (H/G); they differ in G alone.

Tensor legend: B batch, T tokens, D model width, H query heads, G key-value heads, K head width.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anatomy.parts.pos import Rotation


class _GroupedAttention(nn.Module):
    """Causal softmax attention of H query heads over G key-value heads: softmax(q k^T / sqrt(K)) v, then o_proj."""

    def __init__(self, width: int, n_head: int, n_kv_head: int, head_width: int, bias: bool) -> None:
        super().__init__()
        self.width, self.n_head, self.n_kv_head, self.head_width = width, n_head, n_kv_head, head_width
        self.q_proj = nn.Linear(width, n_head * head_width, bias=bias)
        self.k_proj = nn.Linear(width, n_kv_head * head_width, bias=bias)
        self.v_proj = nn.Linear(width, n_kv_head * head_width, bias=bias)
        self.o_proj = nn.Linear(n_head * head_width, width, bias=bias)
        self.num_biases = (n_head + 2 * n_kv_head) * head_width + width if bias else 0

    def num_linear_weights(self) -> int:
        return 2 * self.width * self.head_width * (self.n_head + self.n_kv_head)

    def num_params(self) -> int:
        return self.num_linear_weights() + self.num_biases

    def project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, G, T, K), ready for the product: turned, if positions turn them."""
        num_rotated = self.n_head + self.n_kv_head
        qkv = _joint_linear(x, self.q_proj, self.k_proj, self.v_proj).unflatten(-1, (-1, self.head_width))
        qk, v_BTGK = qkv.split((num_rotated, self.n_kv_head), dim=-2)
        if rotation is not None:
            qk = rotation.turn(qk, self.n_head)
        q_BTHK, k_BTGK = qk.split((self.n_head, self.n_kv_head), dim=-2)
        return q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2), v_BTGK.transpose(1, 2)

    def forward(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        q_BHTK, k_BGTK, v_BGTK = self.project(x, rotation)
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BGTK, v_BGTK, is_causal=True, enable_gqa=self.n_kv_head != self.n_head
        )
        return self.o_proj(mixed_BHTK.transpose(1, 2).flatten(-2))


def _joint_linear(x: Tensor, *layers: nn.Linear) -> Tensor:
    """The outputs of several Linear layers side by side, as one product: it reads x once, and its gradient once."""
    bias = None if layers[0].bias is None else torch.cat([layer.bias for layer in layers])
    return F.linear(x, torch.cat([layer.weight for layer in layers]), bias)


class MultiHead(_GroupedAttention):
    """Every query head has keys and values of its own: G = H.

    Shapes:   x (B, T, D) -> (B, T, D).
    Source:   Vaswani et al. 2017, arXiv:1706.03762.
    """

    def __init__(self, width: int, n_head: int, head_width: int, bias: bool) -> None:
        super().__init__(width, n_head, n_head, head_width, bias)


class GroupedQuery(_GroupedAttention):
    """Groups of query heads share one head of keys and values: 1 <= G <= H, so the cache shrinks by H/G.

    Shapes:   x (B, T, D) -> (B, T, D).
    Knobs:    n_kv_head, G; None takes the largest divisor of H that is not above H/2.
    Raises:   ValueError if G does not divide H, or if H = 1 leaves nothing to share.
    Source:   Ainslie et al. 2023, arXiv:2305.13245.
    """

    def __init__(self, width: int, n_head: int, head_width: int, bias: bool, *, n_kv_head: int | None = None) -> None:
        divisors = [g for g in range(1, n_head + 1) if n_head % g == 0]
        if n_kv_head is None:
            if n_head == 1:
                raise ValueError("model.n_head=1 leaves nothing to share; take attn=mha, or more heads")
            n_kv_head = max(g for g in divisors if g <= n_head / 2)
        if n_kv_head not in divisors:
            allowed = ", ".join(map(str, divisors))
            raise ValueError(f"attn.n_kv_head={n_kv_head} does not divide model.n_head={n_head}; it can be {allowed}")
        super().__init__(width, n_head, n_kv_head, head_width, bias)


class MultiQuery(_GroupedAttention):
    """All query heads share one head of keys and values: G = 1.

    Shapes:   x (B, T, D) -> (B, T, D).
    Source:   Shazeer 2019, arXiv:1911.02150.
    """

    def __init__(self, width: int, n_head: int, head_width: int, bias: bool) -> None:
        super().__init__(width, n_head, 1, head_width, bias)
