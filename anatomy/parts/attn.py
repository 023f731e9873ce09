"""Attention: how the query heads share keys and values.

All three parts are one computation in which query head h reads key-value head h // (H/G); they differ in G alone. What
a layer has read of a text it can keep in a cache of its own, so that each new token is read once.

Tensor legend: B batch, T tokens, S tokens so far, D model width, H query heads, G key-value heads, R = H/G queries a
key-value head, K head width.
"""

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from anatomy.parts.binding import Buffer, bind_linear, bind_linear_into
from anatomy.parts.pos import Rotation

Floats = NDArray[np.float32]
TurnArrays = tuple[Floats, Floats]
"""The matrices that turn the queries and the keys of one position, (K, K) each, or (B, K, K)."""

AttentionStep = Callable[[TurnArrays | None], None]
"""A step that is told how the position of each text's next token turns its query and key."""

FAST_LOGITS = 1024  # of one key-value head: larger products of few rows slow down tenfold in NumPy
FEW_LOGITS = 4 * FAST_LOGITS  # beyond so many PyTorch is faster


class KVCache:
    """The keys and values of all tokens that a layer has read: (B, G, S, K) each, turned, and once a key-value head.

    Room for `num_slots` tokens is taken when the first ones come, in their dtype and on their device. Where it does not
    suffice, it grows to twice its size or to what is needed, whichever is more.

    keys, values  (B, G, num_slots, K), of which the first `num_cached` slots are filled
    padding       (B,): how many of the first slots of each text hold nothing, where texts of different lengths end
                  together
    """

    def __init__(self, num_slots: int, padding: Tensor | None = None) -> None:
        self.num_slots, self.padding, self.num_cached = num_slots, padding, 0
        self.keys, self.values = torch.empty(0), torch.empty(0)

    @property
    def nbytes(self) -> int:
        """What the tensors take, filled or not."""
        return self.keys.nbytes + self.values.nbytes

    def extend(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Add the next T tokens. Returns the keys and values of all S tokens so far: views, not copies.

        Raises: ValueError unless there are as many texts as before.
        """
        if self.keys.numel() and len(k_BGTK) != len(self.keys):
            raise ValueError(f"a cache of {len(self.keys)} texts cannot go on with {len(k_BGTK)}")
        start, stop = self.num_cached, self.num_cached + k_BGTK.shape[2]
        if self.keys.numel() == 0 or stop > self.num_slots:
            self._take_room(k_BGTK, stop)
        self.num_cached = stop
        keys, values = self.keys.narrow(2, 0, stop), self.values.narrow(2, 0, stop)
        keys.narrow(2, start, stop - start).copy_(k_BGTK)
        values.narrow(2, start, stop - start).copy_(v_BGTK)
        return keys, values

    def crop(self, num_tokens: int) -> None:
        """Forget all but the first tokens. Raises ValueError if there are not so many."""
        if not 0 <= num_tokens <= self.num_cached:
            raise ValueError(f"a cache of {self.num_cached} tokens cannot be cropped to {num_tokens}")
        self.num_cached = num_tokens

    def _take_room(self, like: Tensor, num_tokens: int) -> None:
        if num_tokens > self.num_slots:
            self.num_slots = max(2 * self.num_slots, num_tokens)
        batch_size, n_kv_head, _, head_width = like.shape
        shape = (batch_size, n_kv_head, self.num_slots, head_width)
        old = self.keys, self.values
        self.keys, self.values = (torch.empty(shape, dtype=like.dtype, device=like.device) for _ in old)
        for new, kept in zip((self.keys, self.values), old, strict=True):
            if self.num_cached:
                new[:, :, : self.num_cached] = kept[:, :, : self.num_cached]


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

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache | None = None) -> Tensor:
        q_BHTK, k_BGTK, v_BGTK = self.project(x, rotation)
        if cache is not None:
            is_first = not cache.num_cached and cache.padding is None
            k_BGSK, v_BGSK = cache.extend(k_BGTK, v_BGTK)
            if not is_first:
                return self.o_proj(_attend(q_BHTK, k_BGSK, v_BGSK, cache.padding))
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK, k_BGTK, v_BGTK, is_causal=True, enable_gqa=self.n_kv_head != self.n_head
        )
        return self.o_proj(mixed_BHTK.transpose(1, 2).flatten(-2))

    def bind(self, x: Buffer, into: Buffer, cache: KVCache) -> AttentionStep:
        """Attention of the next token of each text, read from x and added to `into`; see anatomy.parts.binding.

        The cache must have been read into by these texts, and must have room for every step (IndexError without).
        """
        batch_size, n_head, n_kv_head, head_width = len(x.array), self.n_head, self.n_kv_head, self.head_width
        qkv_step, qkv = bind_linear(x, self.q_proj, self.k_proj, self.v_proj)
        heads_BHK = qkv.array.reshape(batch_size, -1, head_width)
        q_BHK, k_BGK, v_BGK = np.split(heads_BHK, (n_head, n_head + n_kv_head), axis=1)
        turned, mixed = (Buffer.of(batch_size, n_head * head_width) for _ in range(2))
        o_step = bind_linear_into(mixed, self.o_proj, into)
        turned_BHK = turned.array.reshape(q_BHK.shape)
        shape_BGRK = (batch_size, n_kv_head, n_head // n_kv_head, head_width)
        turned_BGRK, mixed_BGRK = turned.array.reshape(shape_BGRK), mixed.array.reshape(shape_BGRK)
        keys_BGSK, values_BGSK = cache.keys.numpy(), cache.values.numpy()
        keys_BGKS, scale = keys_BGSK.swapaxes(2, 3), np.float32(head_width**-0.5)
        is_padding = None
        if cache.padding is not None:
            is_padding = (np.arange(cache.num_slots) < cache.padding.numpy()[:, None])[:, None, None]

        def step(turns: TurnArrays | None) -> None:
            slot, num_keys = cache.num_cached, cache.num_cached + 1
            qkv_step()
            if turns is None:
                turned_BHK[:] = q_BHK
                keys_BGSK[:, :, slot] = k_BGK
            else:
                np.matmul(q_BHK, turns[0], out=turned_BHK)
                np.matmul(k_BGK, turns[1], out=keys_BGSK[:, :, slot])
            values_BGSK[:, :, slot] = v_BGK
            cache.num_cached = num_keys
            if shape_BGRK[2] * num_keys <= FEW_LOGITS:
                hidden = None if is_padding is None else is_padding[..., :slot]
                keys, values = keys_BGKS[..., :num_keys], values_BGSK[:, :, :num_keys]
                _attend_to_few(turned_BGRK, keys, values, hidden, scale, mixed_BGRK)
            else:
                q_BH1K = turned.tensor.view(batch_size, n_head, 1, head_width)
                k_BGSK, v_BGSK = cache.keys.narrow(2, 0, num_keys), cache.values.narrow(2, 0, num_keys)
                mixed.tensor.copy_(_attend(q_BH1K, k_BGSK, v_BGSK, cache.padding).squeeze(1))
            o_step()

        return step


def _attend_to_few(
    q_BGRK: Floats,
    k_BGKS: Floats,
    v_BGSK: Floats,
    is_padding: NDArray[np.bool_] | None,
    scale: np.float32,
    mixed_BGRK: Floats,
) -> None:
    """Attention of one token over few keys, in NumPy, into `mixed`. Padding is told of all keys but the token's own."""
    num_keys, num_shared = k_BGKS.shape[3], q_BGRK.shape[2]
    if num_shared * num_keys <= FAST_LOGITS:
        weights_BGRS = np.matmul(q_BGRK, k_BGKS)
    else:
        num_at_once = max(1, FAST_LOGITS // num_shared)
        weights_BGRS = np.empty((*q_BGRK.shape[:3], num_keys), dtype=np.float32)
        for start in range(0, num_keys, num_at_once):
            block = slice(start, min(start + num_at_once, num_keys))
            np.matmul(q_BGRK, k_BGKS[..., block], out=weights_BGRS[..., block])
    if is_padding is not None:  # as in _visible, every token sees itself
        np.copyto(weights_BGRS[..., :-1], -np.inf, where=is_padding)
    weights_BGRS -= np.maximum.reduce(weights_BGRS, -1, keepdims=True)
    weights_BGRS *= scale
    np.exp(weights_BGRS, out=weights_BGRS)
    weights_BGRS /= np.add.reduce(weights_BGRS, -1, keepdims=True)
    np.matmul(weights_BGRS, v_BGSK, out=mixed_BGRK)


def _attend(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, padding: Tensor | None) -> Tensor:
    """Attention of the last T of S tokens over all that each may see: (B, T, H K).

    The R query heads that share keys are handed over as more queries of one head, so no key is copied.
    """
    n_kv_head, num_queries, num_keys = k_BGSK.shape[1], q_BHTK.shape[2], k_BGSK.shape[2]
    num_shared = q_BHTK.shape[1] // n_kv_head
    is_visible = None
    if num_queries > 1 or padding is not None:
        is_visible = _visible(num_queries, num_keys, padding, q_BHTK.device).repeat(1, 1, num_shared, 1)
    q_BGQK = q_BHTK.unflatten(1, (n_kv_head, num_shared)).flatten(2, 3)
    mixed_BGQK = F.scaled_dot_product_attention(q_BGQK, k_BGSK, v_BGSK, attn_mask=is_visible)
    mixed_BHTK = mixed_BGQK.unflatten(2, (num_shared, num_queries)).flatten(1, 2)
    return mixed_BHTK.transpose(1, 2).flatten(-2)


def _visible(num_queries: int, num_keys: int, padding: Tensor | None, device: torch.device) -> Tensor:
    """Which of S keys each of the last T tokens sees: itself and what came before, padding excepted; (1 or B, 1, T, S).

    Every token sees itself, padding too: a softmax over nothing would be NaN, and would spread.
    """
    key_S = torch.arange(num_keys, device=device)
    query_T1 = key_S[num_keys - num_queries :, None]
    is_visible = (key_S <= query_T1)[None, None]
    if padding is not None:
        is_visible = is_visible & ((key_S >= padding[:, None, None, None]) | (key_S == query_T1))
    return is_visible


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
