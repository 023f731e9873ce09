"""Attention: how the query heads share keys and values.

All three parts are one computation in which query head h reads key-value head h // (H/G); they differ in G alone. What
a layer has read of a text it can keep in a cache of its own, so that each new token is read once.

Tensor legend: B batch, T tokens, S tokens so far, D model width, H query heads, G key-value heads, R = H/G queries a
key-value head, K head width.
"""

import sys
from collections.abc import Callable
from typing import Any, NamedTuple

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


class AttentionSizes(NamedTuple):
    """The sizes D, H and K of an attention layer, and which of its Linear layers have biases."""

    width: int
    n_head: int
    head_width: int
    qkv_bias: bool
    o_bias: bool


class KVCache:
    """The keys and values of all tokens that a layer has read: (B, G, S, K) each, turned, and once a key-value head.

    Room for `num_slots` tokens is taken when the first ones come, in their dtype and on their device. Where it does not
    suffice, it grows to twice its size or to what is needed, whichever is more. With a window it never holds more than
    the last `window` tokens: the next one takes the place of the oldest.

    keys, values  (B, G, num_slots, K): token number t is at t, or at t modulo the window
    num_cached    how many tokens were read
    padding       (B,): how many of the first tokens of each text are none, where texts of different lengths end
                  together
    """

    def __init__(self, num_slots: int, padding: Tensor | None = None, window: int | None = None) -> None:
        self.padding, self.window, self.num_cached = padding, window, 0
        self.span = sys.maxsize if window is None else window
        self.num_slots = min(num_slots, self.span)
        self.keys, self.values = torch.empty(0), torch.empty(0)

    @property
    def nbytes(self) -> int:
        """What the tensors take, filled or not."""
        return self.keys.nbytes + self.values.nbytes

    def extend(self, k_BGTK: Tensor, v_BGTK: Tensor) -> tuple[Tensor, Tensor]:
        """Add the next T tokens. Returns the keys and values of the S tokens that they may see, themselves included.

        They are views and not copies, except where several new tokens outgrow the window.

        Raises: ValueError unless there are as many texts as before.
        """
        if self.keys.numel() and len(k_BGTK) != len(self.keys):
            raise ValueError(f"a cache of {len(self.keys)} texts cannot go on with {len(k_BGTK)}")
        start, stop = self.num_cached, self.num_cached + k_BGTK.shape[2]
        held = min(stop, self.span)
        if self.keys.numel() == 0 or held > self.num_slots:
            self._take_room(k_BGTK, held)
        self.num_cached = stop
        if stop - start > 1 and stop > self.span:
            return self._roll(self.keys, k_BGTK, start), self._roll(self.values, v_BGTK, start)
        keys, values = self.keys.narrow(2, 0, held), self.values.narrow(2, 0, held)
        keys.narrow(2, start % self.span, stop - start).copy_(k_BGTK)
        values.narrow(2, start % self.span, stop - start).copy_(v_BGTK)
        return keys, values

    def visible(self, num_new: int, num_keys: int, device: torch.device) -> Tensor | None:
        """Which of the S keys that `extend` gave each of its T tokens sees: (1 or B, 1, T, S), None for all of them."""
        if num_new == 1 and self.padding is None:
            return None
        stop = self.num_cached
        query_T, key_S = (torch.arange(stop - num, stop, device=device) for num in (num_new, num_keys))
        if num_new == 1 and stop > self.span:  # they lie in a ring
            key_S = key_S.roll(stop % self.span)
        return visible(query_T, key_S, self.window, self.padding)

    def crop(self, num_tokens: int) -> None:
        """Forget all but the first tokens. Raises ValueError as `check_crop`."""
        self.check_crop(num_tokens)
        self.num_cached = num_tokens

    def check_crop(self, num_tokens: int) -> None:
        """Raises: ValueError if there are not so many tokens, or a window let go of the last of them."""
        is_gone = self.num_cached > self.span and num_tokens not in (0, self.num_cached)
        if is_gone or not 0 <= num_tokens <= self.num_cached:
            raise ValueError(f"a cache of {self.num_cached} tokens cannot be cropped to {num_tokens}")

    def _roll(self, ring: Tensor, new_BGTK: Tensor, start: int) -> Tensor:
        """Put the last of the new tokens into a ring. Returns what the first new one sees of the past, then all new."""
        seen = torch.arange(max(0, start - self.span + 1), start, device=ring.device) % self.span
        both = torch.cat((ring[:, :, seen], new_BGTK), dim=2)
        stop = start + new_BGTK.shape[2]
        kept = torch.arange(max(start, stop - self.span), stop, device=ring.device)
        ring[:, :, kept % self.span] = new_BGTK[:, :, kept - start]
        return both

    def _take_room(self, like: Tensor, num_tokens: int) -> None:
        if num_tokens > self.num_slots:
            self.num_slots = min(max(2 * self.num_slots, num_tokens), self.span)
        batch_size, n_kv_head, _, head_width = like.shape
        shape = (batch_size, n_kv_head, self.num_slots, head_width)
        old = self.keys, self.values
        self.keys, self.values = (torch.empty(shape, dtype=like.dtype, device=like.device) for _ in old)
        for new, kept in zip((self.keys, self.values), old, strict=True):
            if self.num_cached:
                new[:, :, : self.num_cached] = kept[:, :, : self.num_cached]


class _GroupedAttention(nn.Module):
    """Causal softmax attention of H query heads over G key-value heads: softmax(q k^T / sqrt(K)) v, then o_proj.

    What sits on the axes `qk_norm` and `window` is handed in: both act on nothing but attention.
    """

    def __init__(self, sizes: AttentionSizes, n_kv_head: int, qk_norm: nn.Module, window: nn.Module) -> None:
        super().__init__()
        width, n_head, head_width, qkv_bias, o_bias = sizes
        self.width, self.n_head, self.n_kv_head, self.head_width = width, n_head, n_kv_head, head_width
        self.q_proj = nn.Linear(width, n_head * head_width, bias=qkv_bias)
        self.k_proj = nn.Linear(width, n_kv_head * head_width, bias=qkv_bias)
        self.v_proj = nn.Linear(width, n_kv_head * head_width, bias=qkv_bias)
        self.o_proj = nn.Linear(n_head * head_width, width, bias=o_bias)
        self.num_biases = ((n_head + 2 * n_kv_head) * head_width if qkv_bias else 0) + (width if o_bias else 0)
        self.qk_norm: Any = qk_norm
        self.window: Any = window

    def num_linear_weights(self) -> int:
        return 2 * self.width * self.head_width * (self.n_head + self.n_kv_head)

    def num_params(self) -> int:
        return self.num_linear_weights() + self.num_biases + self.qk_norm.num_params()

    def project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (B, H, T, K), keys and values (B, G, T, K), ready for the product: normed and turned, if they are."""
        num_rotated = self.n_head + self.n_kv_head
        qkv = _joint_linear(x, self.q_proj, self.k_proj, self.v_proj).unflatten(-1, (-1, self.head_width))
        qk, v_BTGK = qkv.split((num_rotated, self.n_kv_head), dim=-2)
        qk = self.qk_norm(qk, self.n_head)
        if rotation is not None:
            qk = rotation.turn(qk, self.n_head)
        q_BTHK, k_BTGK = qk.split((self.n_head, self.n_kv_head), dim=-2)
        return q_BTHK.transpose(1, 2), k_BTGK.transpose(1, 2), v_BTGK.transpose(1, 2)

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache | None = None) -> Tensor:
        q_BHTK, k_BGTK, v_BGTK = self.project(x, rotation)
        num_new = x.shape[1]
        if cache is not None:
            is_first = not cache.num_cached and cache.padding is None
            k_BGSK, v_BGSK = cache.extend(k_BGTK, v_BGTK)
            if not is_first:
                is_visible = cache.visible(num_new, k_BGSK.shape[2], x.device)
                return self.o_proj(_attend(q_BHTK, k_BGSK, v_BGSK, is_visible))
        is_visible = None
        if self.window.size is not None and num_new > self.window.size:
            slots = torch.arange(num_new, device=x.device)
            is_visible = visible(slots, slots, self.window.size)
        mixed_BHTK = F.scaled_dot_product_attention(
            q_BHTK,
            k_BGTK,
            v_BGTK,
            attn_mask=is_visible,
            is_causal=is_visible is None,
            enable_gqa=self.n_kv_head != self.n_head,
        )
        return self.o_proj(mixed_BHTK.transpose(1, 2).flatten(-2))

    def bind(self, x: Buffer, into: Buffer, cache: KVCache) -> AttentionStep:
        """Attention of the next token of each text, read from x and added to `into`; see anatomy.parts.binding.

        The cache must have been read into by these texts, and must have room for every step (IndexError without).
        """
        batch_size, n_head, n_kv_head, head_width = len(x.array), self.n_head, self.n_kv_head, self.head_width
        qkv_step, qkv = bind_linear(x, self.q_proj, self.k_proj, self.v_proj)
        heads = Buffer(qkv.tensor.view(batch_size, -1, head_width), qkv.array.reshape(batch_size, -1, head_width))
        first_k, first_v = n_head, n_head + n_kv_head
        norm_step, q, k = self.qk_norm.bind(heads.part(0, first_k), heads.part(first_k, first_v))
        q_BHK, k_BGK, v_BGK = q.array, k.array, heads.array[:, first_v:]
        turned, mixed = (Buffer.of(batch_size, n_head * head_width) for _ in range(2))
        o_step = bind_linear_into(mixed, self.o_proj, into)
        turned_BHK = turned.array.reshape(q_BHK.shape)
        shape_BGRK = (batch_size, n_kv_head, n_head // n_kv_head, head_width)
        turned_BGRK, mixed_BGRK = turned.array.reshape(shape_BGRK), mixed.array.reshape(shape_BGRK)
        keys_BGSK, values_BGSK = cache.keys.numpy(), cache.values.numpy()
        keys_BGKS, scale = keys_BGSK.swapaxes(2, 3), np.float32(head_width**-0.5)
        span = cache.span

        def step(turns: TurnArrays | None) -> None:
            num_cached = cache.num_cached
            slot, num_keys = num_cached % span, min(num_cached + 1, span)
            qkv_step()
            if norm_step is not None:
                norm_step()
            if turns is None:
                turned_BHK[:] = q_BHK
                keys_BGSK[:, :, slot] = k_BGK
            else:
                np.matmul(q_BHK, turns[0], out=turned_BHK)
                np.matmul(k_BGK, turns[1], out=keys_BGSK[:, :, slot])
            values_BGSK[:, :, slot] = v_BGK
            cache.num_cached = num_cached + 1
            is_visible = cache.visible(1, num_keys, mixed.tensor.device)
            if shape_BGRK[2] * num_keys <= FEW_LOGITS:
                hidden = None if is_visible is None else ~is_visible.numpy()
                keys, values = keys_BGKS[..., :num_keys], values_BGSK[:, :, :num_keys]
                _attend_to_few(turned_BGRK, keys, values, hidden, scale, mixed_BGRK)
            else:
                q_BH1K = turned.tensor.view(batch_size, n_head, 1, head_width)
                k_BGSK, v_BGSK = cache.keys.narrow(2, 0, num_keys), cache.values.narrow(2, 0, num_keys)
                mixed.tensor.copy_(_attend(q_BH1K, k_BGSK, v_BGSK, is_visible).squeeze(1))
            o_step()

        return step


def _attend_to_few(
    q_BGRK: Floats,
    k_BGKS: Floats,
    v_BGSK: Floats,
    is_hidden: NDArray[np.bool_] | None,
    scale: np.float32,
    mixed_BGRK: Floats,
) -> None:
    """Attention of one token over few keys, in NumPy, into `mixed`; is_hidden (B, 1, 1, S)."""
    num_keys, num_shared = k_BGKS.shape[3], q_BGRK.shape[2]
    if num_shared * num_keys <= FAST_LOGITS:
        weights_BGRS = np.matmul(q_BGRK, k_BGKS)
    else:
        num_at_once = max(1, FAST_LOGITS // num_shared)
        weights_BGRS = np.empty((*q_BGRK.shape[:3], num_keys), dtype=np.float32)
        for start in range(0, num_keys, num_at_once):
            block = slice(start, min(start + num_at_once, num_keys))
            np.matmul(q_BGRK, k_BGKS[..., block], out=weights_BGRS[..., block])
    if is_hidden is not None:
        np.copyto(weights_BGRS, -np.inf, where=is_hidden)
    weights_BGRS -= np.maximum.reduce(weights_BGRS, -1, keepdims=True)
    weights_BGRS *= scale
    np.exp(weights_BGRS, out=weights_BGRS)
    weights_BGRS /= np.add.reduce(weights_BGRS, -1, keepdims=True)
    np.matmul(weights_BGRS, v_BGSK, out=mixed_BGRK)


def _attend(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, is_visible: Tensor | None) -> Tensor:
    """Attention of T tokens over S keys, of which each sees what `visible` says, or all: (B, T, H K).

    The R query heads that share keys are handed over as more queries of one head, so no key is copied.
    """
    n_kv_head, num_queries = k_BGSK.shape[1], q_BHTK.shape[2]
    num_shared = q_BHTK.shape[1] // n_kv_head
    if is_visible is not None:
        is_visible = is_visible.repeat(1, 1, num_shared, 1)
    q_BGQK = q_BHTK.unflatten(1, (n_kv_head, num_shared)).flatten(2, 3)
    mixed_BGQK = F.scaled_dot_product_attention(q_BGQK, k_BGSK, v_BGSK, attn_mask=is_visible)
    mixed_BHTK = mixed_BGQK.unflatten(2, (num_shared, num_queries)).flatten(1, 2)
    return mixed_BHTK.transpose(1, 2).flatten(-2)


def visible(query_T: Tensor, key_S: Tensor, window: int | None, padding: Tensor | None = None) -> Tensor:
    """Which of S keys each of T tokens sees, told where they all stand: (1 or B, 1, T, S).

    It sees itself and what came before, but for padding and for what lies `window` or more tokens back. Every token
    sees itself, padding too: a softmax over nothing would be NaN, and would spread.
    """
    query_T1 = query_T[:, None]
    is_visible = key_S <= query_T1
    if window is not None:
        is_visible = is_visible & (key_S > query_T1 - window)
    is_visible = is_visible[None, None]
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

    def __init__(self, sizes: AttentionSizes, qk_norm: nn.Module, window: nn.Module) -> None:
        super().__init__(sizes, sizes.n_head, qk_norm, window)


class GroupedQuery(_GroupedAttention):
    """Groups of query heads share one head of keys and values: 1 <= G <= H, so the cache shrinks by H/G.

    Shapes:   x (B, T, D) -> (B, T, D).
    Knobs:    n_kv_head, G; None takes the largest divisor of H that is not above H/2.
    Raises:   ValueError if G does not divide H, or if H = 1 leaves nothing to share.
    Source:   Ainslie et al. 2023, arXiv:2305.13245.
    """

    def __init__(
        self, sizes: AttentionSizes, qk_norm: nn.Module, window: nn.Module, *, n_kv_head: int | None = None
    ) -> None:
        n_head = sizes.n_head
        divisors = [g for g in range(1, n_head + 1) if n_head % g == 0]
        if n_kv_head is None:
            if n_head == 1:
                raise ValueError("model.n_head=1 leaves nothing to share; take attn=mha, or more heads")
            n_kv_head = max(g for g in divisors if g <= n_head / 2)
        if n_kv_head not in divisors:
            allowed = ", ".join(map(str, divisors))
            raise ValueError(f"attn.n_kv_head={n_kv_head} does not divide model.n_head={n_head}; it can be {allowed}")
        super().__init__(sizes, n_kv_head, qk_norm, window)


class MultiQuery(_GroupedAttention):
    """All query heads share one head of keys and values: G = 1.

    Shapes:   x (B, T, D) -> (B, T, D).
    Source:   Shazeer 2019, arXiv:1911.02150.
    """

    def __init__(self, sizes: AttentionSizes, qk_norm: nn.Module, window: nn.Module) -> None:
        super().__init__(sizes, 1, qk_norm, window)
