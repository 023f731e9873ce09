"""Where attention looks: how much each query draws from each key.

Attention computes it and throws it away, so it is computed once more here, from what each layer reads.

Tensor legend: B batch, T tokens, H query heads, G key-value heads, K head width.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from anatomy.evaluation import evaluating
from anatomy.model import Transformer


def attention_maps(model: Transformer, ids: Tensor) -> list[Tensor]:
    """The attention of every layer and head over some texts: softmax(q k^T / sqrt(K)) under the causal mask.

    Entry [b, h, t, s] is the share of token s in what head h gives token t: 0 for s > t, and each row sums to 1. The
    model is as it was afterwards.

    Shapes:   ids (B, T) -> (B, H, T, T) for each layer, float32, on the model's device.
    Raises:   ValueError if ids are not (B, T), or reach past the model's last position.
    """
    if ids.ndim != 2:
        raise ValueError(f"ids must be (B, T), got {tuple(ids.shape)}")
    logits: list[Tensor] = []
    with evaluating(model), watched_logits(model, lambda _, logits_BHTT: logits.append(logits_BHTT)):
        model.hidden(ids.to(model.embed.weight.device))
    return [logits_BHTT.softmax(-1) for logits_BHTT in logits]


@contextmanager
def watched_logits(model: Transformer, look: Callable[[int, Tensor], None]) -> Iterator[None]:
    """For a while, show `look` the index and the attention logits of every layer of every forward pass without a cache.

    These are q k^T / sqrt(K), (B, H, T, T) in float32, -inf where the key comes after the query.
    """
    hooks = [
        block.attn.register_forward_pre_hook(lambda attn, given, layer=layer: look(layer, _logits(attn, *given[:2])))
        for layer, block in enumerate(model.blocks)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _logits(attn: Any, x: Tensor, rotation: Any) -> Tensor:
    q_BHTK, k_BGTK, _ = attn.project(x, rotation)
    k_BHTK = k_BGTK.repeat_interleave(attn.n_head // attn.n_kv_head, dim=1)
    logits_BHTT = (q_BHTK.float() @ k_BHTK.float().transpose(-1, -2)) / math.sqrt(attn.head_width)
    num_tokens = logits_BHTT.shape[-1]
    is_hidden = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=logits_BHTT.device).triu(1)
    return logits_BHTT.masked_fill(is_hidden, -math.inf)
