"""The skeleton: embedding, blocks, final norm, output layer; how it starts; what it counts.

It differs from a plain GPT only in what it leaves open: positions, blocks and the final norm come from outside, and
blocks are a list that need not be alike. Tied weights are one tensor with one name (`embed.weight`), read twice.

Tensor legend: B batch, T tokens, D model width, V vocabulary.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anatomy.parts.attn import KVCache

RESIDUAL_PROJECTIONS = ("o_proj", "down_proj")  # the matrices that write into the residual stream
NORMAL_STD = 0.02


class Cache:
    """What a model keeps of B texts that it has read: a cache of keys and values a layer, and where each text stands.

    Made by `Transformer.new_cache`. It belongs to these texts alone: another prompt takes another cache.
    """

    def __init__(self, windows: Sequence[int | None], num_slots: int, padding: Tensor | None) -> None:
        self.layers = [KVCache(num_slots, padding, window) for window in windows]
        self.padding = padding
        self._least_padding = 0 if padding is None else int(padding.min())

    @property
    def batch_size(self) -> int:
        """How many texts it holds; known when the first tokens have been read."""
        return len(self.layers[0].keys)

    @property
    def num_cached(self) -> int:
        """How many tokens were read of each text, padding included."""
        return self.layers[0].num_cached

    @property
    def nbytes(self) -> int:
        """What all its tensors take."""
        return sum(layer.nbytes for layer in self.layers)

    def num_tokens_with(self, num_new: int) -> int:
        """How many tokens the longest text has with so many new ones."""
        return self.num_cached + num_new - self._least_padding

    def positions(self, num_new: int, device: torch.device) -> Tensor:
        """Where the next tokens stand: (T,), or (B, T) where the texts differ; padding stands at 0."""
        slots = torch.arange(self.num_cached, self.num_cached + num_new, device=device)
        return slots if self.padding is None else (slots - self.padding[:, None]).clamp(min=0)

    def crop(self, num_tokens: int) -> None:
        """Forget all but the first tokens. Raises ValueError, and forgets none, where some layer no longer has them."""
        for layer in self.layers:
            layer.check_crop(num_tokens)
        for layer in self.layers:
            layer.crop(num_tokens)


class Transformer(nn.Module):
    """A decoder-only language model made of the parts it is given.

    Shapes:   ids (B, T) -> logits (B, T, V). With a cache ids are the next T tokens of texts that it holds, in as many
              pieces as one likes: the logits are those of one pass over all.
    Args:     num_symbols: how many of the vocabulary's rows stand for a symbol of the text; the surplus (a vocabulary
              padded to a round size) takes no part in the softmax, so it is neither learned nor ever sampled.
    """

    pos: Any  # parts are of any class that keeps their axis's interface, which nn.Module's own types cannot say
    blocks: Any

    def __init__(
        self,
        *,
        vocab_size: int,
        num_symbols: int,
        width: int,
        pos: nn.Module,
        blocks: Sequence[nn.Module],
        final_norm: nn.Module | None,
        tied: bool,
        dropout: nn.Module,
    ) -> None:
        super().__init__()
        self.num_symbols = num_symbols
        # From a tensor, for its own start on the meta device would import torch's compiler: a second.
        self.embed = nn.Embedding.from_pretrained(torch.empty(vocab_size, width), freeze=False)
        self.pos = pos
        self.blocks = nn.ModuleList(blocks)
        self.final_norm = final_norm
        self.output = None if tied else nn.Linear(width, vocab_size, bias=False)
        self.dropout = dropout

    @property
    def max_len(self) -> int | None:
        """How many positions exist; None where there is no end."""
        return self.pos.max_len

    def new_cache(self, num_slots: int, padding: Tensor | None = None) -> Cache:
        """An empty cache with room for so many tokens a text, which it takes when the first are read.

        padding  (B,): so many of each text's first ids are not its own; they only bring texts to one length
        """
        return Cache([block.attn.window.size for block in self.blocks], num_slots, padding)

    def positions(self, num_new: int, device: torch.device, cache: Cache | None = None) -> Tensor:
        """Where the next T tokens stand, (T,) or (B, T). Raises ValueError past the last position."""
        num_in_all = num_new if cache is None else cache.num_tokens_with(num_new)
        if self.max_len is not None and num_in_all > self.max_len:
            raise ValueError(
                f"position {num_in_all} does not exist: the table of learned positions ends at {self.max_len}"
            )
        return torch.arange(num_new, device=device) if cache is None else cache.positions(num_new, device)

    def hidden(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        """What the output layer reads: (B, T) -> (B, T, D). Raises ValueError past the last position."""
        positions = self.positions(ids.shape[1], ids.device, cache)
        x = self.dropout(self.pos(self.embed(ids), positions))
        rotation = self.pos.rotation(positions)
        for layer, block in enumerate(self.blocks):
            x = block(x, rotation, None if cache is None else cache.layers[layer])
        return x if self.final_norm is None else self.final_norm(x)

    @property
    def output_weight(self) -> Tensor:
        """The rows of the output matrix that stand for a symbol: (num_symbols, D)."""
        matrix = self.embed.weight if self.output is None else self.output.weight
        return matrix[: self.num_symbols]

    def forward(self, ids: Tensor, cache: Cache | None = None) -> Tensor:
        return F.linear(self.hidden(ids, cache), self.output_weight)

    def next_logits(self, ids: Tensor, cache: Cache) -> Tensor:
        """What follows the last of the next T tokens alone: (B, T) -> (B, V)."""
        return F.linear(self.hidden(ids, cache)[:, -1], self.output_weight)

    def mean_loss_nats(self, ids: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy over all targets (B, T). The logits are made and used up chunk by chunk."""
        return F.linear_cross_entropy(
            self.hidden(ids).flatten(0, 1), self.output_weight, targets.flatten(), options=LOSS_IN_CHUNKS
        )

    def losses_nats(self, ids: Tensor, targets: Tensor) -> Tensor:
        """The cross-entropy of every single target, (B, T), in float32. Few logits are in memory at once."""
        weight_VD, num_at_once = self.output_weight, max(1, MAX_LOGITS // (len(ids) * self.num_symbols))
        stretches = zip(self.hidden(ids).split(num_at_once, 1), targets.split(num_at_once, 1), strict=True)
        losses = [
            F.cross_entropy(F.linear(hidden, weight_VD).float().transpose(1, 2), own_targets, reduction="none")
            for hidden, own_targets in stretches
        ]
        return torch.cat(losses, dim=1)

    def num_params_by_axis(self) -> dict[str, int]:
        """Parameters by the axis they belong to, in closed form from the sizes; a tied output counts 0."""
        norms = [norm for block in self.blocks for norm in (block.attn_norm, block.ffn_norm)]
        if self.final_norm is not None:
            norms.append(self.final_norm)
        vocabulary = self.embed.num_embeddings * self.embed.embedding_dim
        return {
            "embed": vocabulary,
            "pos": self.pos.num_params(),
            "norm": sum(norm.num_params() for norm in norms),
            "attn": sum(block.attn.num_params() for block in self.blocks),
            "ffn": sum(block.ffn.num_params() for block in self.blocks),
            "output": 0 if self.output is None else vocabulary,
        }

    def flops_per_token(self, ctx_len: int) -> int:
        """Training FLOPs per token: 6 a weight of a Linear layer, and 12 a channel of a head and token in context.

        The output layer counts, tied or not; lookups are free; what lies behind a window is no context. Source: Kaplan
        et al. 2020, arXiv:2001.08361, and the attention term of Chowdhery et al. 2022, arXiv:2204.02311, which takes no
        advantage of the causal mask.
        """
        weights = self.embed.num_embeddings * self.embed.embedding_dim
        weights += sum(block.attn.num_linear_weights() + block.ffn.num_linear_weights() for block in self.blocks)
        seen = sum(
            block.attn.n_head * block.attn.head_width * min(ctx_len, block.attn.window.size or ctx_len)
            for block in self.blocks
        )
        return 6 * weights + 12 * seen

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """What a cache keeps for each token: a key and a value per layer and key-value head."""
        return self.kv_bytes(1, bytes_per_value)

    def kv_bytes(self, num_tokens: int, bytes_per_value: int = 2) -> int:
        """What a cache keeps of a text: of its tokens, or in layers with a window of the last of them."""
        return (
            sum(
                2 * block.attn.n_kv_head * block.attn.head_width * min(num_tokens, block.attn.window.size or num_tokens)
                for block in self.blocks
            )
            * bytes_per_value
        )


LOSS_IN_CHUNKS = nn.LinearCrossEntropyOptions()
MAX_LOGITS = 2**25  # in float32 128 MiB, and as much again for their softmax


def autocast(device: torch.device, dtype: str) -> torch.autocast:
    """bfloat16 where an operation allows it, if `dtype` is bf16; weights stay float32."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=dtype == "bf16")


def initialise(model: Transformer, init: str, *, seed: int, salt: int = 0) -> None:
    """Start every tensor from a generator of its own, seeded by (seed, salt, parameter name).

    Two models therefore agree bit for bit in every tensor whose name, shape and init they share. Gains start at 1,
    shifts and biases at 0 (`torch`: biases uniform), matrices by `init`, one of the options of the axis of that name.
    """
    num_residuals = 2 * len(model.blocks)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(_seed_of(seed, salt, name))
            start = torch.empty(parameter.shape)
            fan_in = model.get_parameter(_matrix_of(name)).shape[-1]
            _fill(start, name, init, fan_in, num_residuals, generator)
            parameter.copy_(start)


def init_digests(model: nn.Module) -> dict[str, str]:
    """The sha256 of every parameter's bytes by name: what two runs shared at their start, and what they could not."""
    return {
        name: hashlib.sha256(parameter.detach().cpu().numpy().tobytes()).hexdigest()
        for name, parameter in model.named_parameters()
    }


def _seed_of(seed: int, salt: int, name: str) -> int:
    digest = hashlib.sha256(f"{seed}/{salt}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little", signed=True)


def _matrix_of(name: str) -> str:
    return name.removesuffix("bias") + "weight" if name.endswith(".bias") else name


def _fill(start: Tensor, name: str, init: str, fan_in: int, num_residuals: int, generator: torch.Generator) -> None:
    *_, module, kind = name.split(".")
    if kind == "gain":
        start.fill_(1.0)
    elif kind == "shift" or (kind == "bias" and init != "torch"):
        start.zero_()
    elif init == "xavier":
        nn.init.xavier_uniform_(start, generator=generator)
    elif init == "torch" and module in ("embed", "pos"):
        start.normal_(generator=generator)
    elif init == "torch":
        start.uniform_(-1 / math.sqrt(fan_in), 1 / math.sqrt(fan_in), generator=generator)
    elif init == "gpt2" and module in RESIDUAL_PROJECTIONS:
        start.normal_(std=NORMAL_STD / math.sqrt(num_residuals), generator=generator)
    else:
        start.normal_(std=NORMAL_STD, generator=generator)
