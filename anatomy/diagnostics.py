"""Diagnostics: what happens inside a run's model, as plain data beside its record.

All of it follows from a run's config, text and kept weights: the start is started anew from its seed, so a run that
ended long ago gives what a run that ends now would. Dropout is off, and nothing here draws from torch's own generator.

Tensor legend: B batch, T tokens, D model width, H query heads, G key-value heads, K head width.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from anatomy.attention_maps import watched_logits
from anatomy.build import build_model
from anatomy.config import Config, Diagnostic
from anatomy.corpus import BatchOrder, Corpus
from anatomy.errors import UserError
from anatomy.evaluation import evaluating
from anatomy.files import write_json
from anatomy.generation import Generation
from anatomy.model import Transformer, autocast, init_digests, initialise
from anatomy.runs import DIAGNOSTICS_FILE, SCHEMA, finite, read_json
from anatomy.sample import PROMPT_CHARS, SAMPLE_CHARS
from anatomy.sampling import DEFAULT_KNOBS
from anatomy.weights import WEIGHT_FILES, read_weights

KINDS: tuple[Diagnostic, ...] = get_args(Diagnostic)
NUM_WINDOWS = 32  # of validation text, that activations and attention are measured on
TOKENS_AT_ONCE = 2048  # attention's distributions are written out, so fewer than an evaluation takes

NUM_SAMPLES = 64
COPY_CHARS = 20  # from this length on, what agrees with the training text counts as copied


def lacking(folder: Path, kinds: Sequence[Diagnostic]) -> tuple[Diagnostic, ...]:
    """Those of the kinds that a run's folder does not hold yet. A damaged file holds none."""
    known = _known(folder)
    return tuple(kind for kind in kinds if kind not in known)


def _known(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / DIAGNOSTICS_FILE, "file of diagnostics") or {}
    except ValueError:
        return {}


def diagnose(
    folder: Path,
    record: Mapping[str, Any],
    config: Config,
    corpus: Corpus,
    device: torch.device,
    kinds: Sequence[Diagnostic],
) -> None:
    """Compute the kinds that are asked for and add them to the folder's diagnostics. The run must have ended.

    What a run does not have is null: a diverged one has no last weights.

    Raises: UserError where the model no longer starts as the run's did, or weights of a run that is done are gone.
    """
    torch.set_num_threads(config.train.threads)
    model = build_model(config, len(corpus.vocabulary), device="cpu")
    initialise(model, config.init, seed=config.seed, salt=config.init_salt)
    if init_digests(model) != record["init_digests"]:
        raise UserError(f"{folder.name}: its tensors start otherwise than they did; force=true trains it anew")
    model.to(device)
    found: dict[str, Any] = {kind: {} for kind in kinds}
    for weights in WEIGHTS:
        wanted = [kind for kind in kinds if weights in OF_WEIGHTS[kind]]
        there = bool(wanted) and (weights == "start" or _load(model, folder, record, weights))
        for kind in wanted:
            found[kind][weights] = MEASURES[kind](model, corpus, config) if there else None
    write_json(folder / DIAGNOSTICS_FILE, {"schema": SCHEMA, **_known(folder), **found})


def _load(model: Transformer, folder: Path, record: Mapping[str, Any], weights: str) -> bool:
    """Put a run's last or best weights into the model; False where it has none."""
    file = folder / WEIGHT_FILES[weights]
    is_done = record["status"] == "done"
    if not is_done and (weights == "last" or not file.exists()):
        return False
    try:
        model.load_state_dict(read_weights(file, model))
    except UserError as error:
        raise UserError(f"{error}; force=true trains the run anew") from None
    return True


# ------------------------------------------------------------------------------------------------ gradients


def gradient_norms(model: Transformer, corpus: Corpus, config: Config) -> dict[str, Any]:
    """The norm of the gradient of the run's first batch, by layer.

    attn, ffn   a block a value: over the sub-layer's tensors and those of the norm beside it
    embed, pos  over the embedding, and over the table of positions
    output      over the final norm and the output layer; a tied one is part of embed
    None where there is no such tensor, or the norm is not finite.
    """
    order = BatchOrder(corpus.train, config.model.ctx_len, seed=config.seed, salt=config.order_salt)
    device, num_batches = model.embed.weight.device, config.train.grad_accum_steps
    model.eval()
    for _ in range(num_batches):
        inputs, targets = corpus.batch_at(order.draw(config.train.batch_size), config.model.ctx_len)
        with autocast(device, config.train.dtype):
            loss = model.mean_loss_nats(torch.from_numpy(inputs).to(device), torch.from_numpy(targets).to(device))
        (loss / num_batches).backward()
    squares: dict[str, float] = {}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            place = _place(name)
            squares[place] = squares.get(place, 0.0) + float(parameter.grad.double().square().sum())
    model.zero_grad()

    def norm(place: str) -> float | None:
        return finite(math.sqrt(squares[place])) if place in squares else None

    layers = range(len(model.blocks))
    by_layer = {sub: [norm(f"{layer}.{sub}") for layer in layers] for sub in ("attn", "ffn")}
    return {"embed": norm("embed"), "pos": norm("pos"), **by_layer, "output": norm("output")}


def _place(name: str) -> str:
    """Where in the model a parameter belongs: `embed`, `pos`, `output`, or a sub-layer as `0.attn`."""
    first, *rest = name.split(".")
    if first == "blocks":
        return f"{rest[0]}.{'attn' if rest[1].startswith('attn') else 'ffn'}"
    return "output" if first == "final_norm" else first


# ------------------------------------------------------------------------------------------------ activations


def activation_rms(model: Transformer, corpus: Corpus, config: Config) -> list[float | None]:
    """The root mean square of the residual stream after the embedding and after each block, over all tokens and
    channels of some validation windows."""
    sums = torch.zeros(len(model.blocks) + 1, dtype=torch.float64)
    num_values = 0

    def add(place: int, x: Tensor) -> None:
        sums[place] += x.double().square().sum().cpu()

    hooks = [model.blocks[0].register_forward_pre_hook(lambda _, given: add(0, given[0]))]
    for layer, block in enumerate(model.blocks, 1):
        hooks.append(block.register_forward_hook(lambda _, __, x, layer=layer: add(layer, x)))
    try:
        for ids in _windows(model, corpus, config):
            model.hidden(ids)
            num_values += ids.numel() * model.embed.embedding_dim
    finally:
        for hook in hooks:
            hook.remove()
    return [finite(value) for value in (sums / num_values).sqrt().tolist()]


def _windows(model: Transformer, corpus: Corpus, config: Config) -> Iterator[Tensor]:
    """Validation windows, the same for every run of a text and context, (B, T) at a time; no gradients, no dropout."""
    length, device = config.model.ctx_len, model.embed.weight.device
    starts = corpus.windows("val", length, NUM_WINDOWS)
    num_at_once = max(1, TOKENS_AT_ONCE // length)
    with evaluating(model), autocast(device, config.train.dtype):
        for begin in range(0, len(starts), num_at_once):
            inputs, _ = corpus.batch_at(starts[begin : begin + num_at_once], length)
            yield torch.from_numpy(inputs).to(device)


# ------------------------------------------------------------------------------------------------ attention


def attention(model: Transformer, corpus: Corpus, config: Config) -> dict[str, Any]:
    """How attention is spread, over some validation windows.

    entropy_nats    layer by layer, head by head: the mean over positions of the entropy of softmax(q k^T / sqrt(K))
    largest_logit   layer by layer: the largest q k^T / sqrt(K), signed, of a query and a key that it may see
    """
    num_layers = len(model.blocks)
    entropies: list[list[Tensor]] = [[] for _ in range(num_layers)]
    largest: list[list[Tensor]] = [[] for _ in range(num_layers)]

    def look(layer: int, logits_BHTT: Tensor) -> None:
        log_p = logits_BHTT.log_softmax(-1)
        entropy_BHT = -(log_p.exp() * log_p.masked_fill(logits_BHTT.isneginf(), 0.0)).sum(-1)
        entropies[layer].append(entropy_BHT.double().mean(-1).cpu())
        largest[layer].append(logits_BHTT.amax().cpu())

    with watched_logits(model, look):
        for ids in _windows(model, corpus, config):
            model.hidden(ids)
    return {
        "entropy_nats": [[finite(value) for value in torch.cat(layer).mean(0).tolist()] for layer in entropies],
        "largest_logit": [finite(float(torch.stack(layer).amax())) for layer in largest],
    }


# ------------------------------------------------------------------------------------------------ copying


def copying(model: Transformer, corpus: Corpus, config: Config) -> dict[str, Any]:
    """How much of what the model writes stands in the training text word for word.

    It goes on from the starts of validation windows; prompts are not counted.

    share           of the characters written, those inside a copy of at least COPY_CHARS characters
    longest_chars   the longest copy, shorter ones than COPY_CHARS included
    share_of_text, longest_chars_of_text   the same of what really follows the prompts, for a text repeats itself
                    too; null where the validation text holds no stretch so long
    """
    length = min(PROMPT_CHARS, config.model.ctx_len)
    starts, is_followed = _prompt_starts(corpus, length)
    prompts, _ = corpus.batch_at(starts, length)
    generation = Generation(
        model,
        prompts.tolist(),
        num_tokens=SAMPLE_CHARS,
        knobs=DEFAULT_KNOBS,
        seed=config.seed,
        window=config.model.ctx_len,
    )
    written = np.array(list(generation)).T
    train = [corpus.ids[start:stop] for start, stop in corpus.train]
    share, longest = copied(written, train)
    of_text = copied(corpus.batch_at(starts + length, SAMPLE_CHARS)[0], train) if is_followed else (None, None)
    return {
        "num_samples": len(written),
        "num_chars": written.size,
        "share": share,
        "longest_chars": longest,
        "share_of_text": of_text[0],
        "longest_chars_of_text": of_text[1],
    }


def _prompt_starts(corpus: Corpus, length: int) -> tuple[NDArray[np.int64], bool]:
    """Where prompts begin, and whether the text goes on behind each of them for as long as a sample does."""
    try:
        return corpus.windows("val", length + SAMPLE_CHARS, NUM_SAMPLES), True
    except UserError:
        return corpus.windows("val", length, NUM_SAMPLES), False


def copied(written: NDArray[np.integer], train: Sequence[NDArray[np.integer]]) -> tuple[float, int]:
    """The share of written ids (B, T) inside a copy of at least COPY_CHARS out of one of the stretches of training
    text, and the length of the longest copy.

    A copy so long is a run of COPY_CHARS-grams that all occur, and a text that holds an n-gram holds all shorter ones
    in it: so the share follows from one look-up of all grams, the longest copy from a search by halves.
    """
    grams = _Grams(written, train)
    occurs = grams.occur(COPY_CHARS)
    is_copied = np.zeros(written.shape, dtype=bool)
    for offset in range(COPY_CHARS):
        is_copied[:, offset : offset + occurs.shape[1]] |= occurs
    low, high = (COPY_CHARS, written.shape[1]) if occurs.any() else (0, min(COPY_CHARS - 1, written.shape[1]))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if grams.occur(middle).any() else (low, middle - 1)
    return float(is_copied.mean()), low


class _Grams:
    """Which n-grams of written ids (B, T) occur in a training text, for any n, by 64-bit hashes: among the 10^10 pairs
    of a text of millions, a false match has a chance of one in 10^9.

    The hash of a gram is a polynomial of random numbers, one an id, modulo 2^64. It is the difference of two prefix
    sums, brought to a common power by an inverse, so every n costs the same.
    """

    BASE = 0x9E3779B97F4A7C15  # odd, so it has an inverse

    def __init__(self, written: NDArray[np.integer], train: Sequence[NDArray[np.integer]]) -> None:
        num_ids = 1 + max(int(ids.max(initial=0)) for ids in (written, *train))
        end = np.array([num_ids])  # an id that nobody writes: no gram reaches over the end of a stretch
        text = np.concatenate([piece for stretch in train for piece in (stretch, end)])
        self._number = np.random.PCG64(0).random_raw(num_ids + 1)
        size = max(len(text), written.shape[1])
        self._unpower = _powers(pow(self.BASE, -1, 1 << 64), size)
        self._power = _powers(self.BASE, size)
        self._text, self._written = self._prefix_sums(text), self._prefix_sums(written)

    def occur(self, length: int) -> NDArray[np.bool_]:
        """Whether the gram of so many ids at each place of the written ones occurs: (B, T - length + 1)."""
        written, text = self._hashes(self._written, length), self._hashes(self._text, length)
        is_likely = np.zeros(1 << 16, dtype=bool)  # by the first bits, which rule most of the text out at little cost
        is_likely[written >> np.uint64(48)] = True
        return np.isin(written, text[is_likely[text >> np.uint64(48)]])

    def _prefix_sums(self, ids: NDArray[np.integer]) -> NDArray[np.uint64]:
        terms = self._number[ids] * self._power[: ids.shape[-1]]
        start = np.zeros((*ids.shape[:-1], 1), dtype=np.uint64)
        return np.concatenate([start, np.cumsum(terms, axis=-1, dtype=np.uint64)], axis=-1)

    def _hashes(self, sums: NDArray[np.uint64], length: int) -> NDArray[np.uint64]:
        num = max(0, sums.shape[-1] - length)
        return (sums[..., length:] - sums[..., :num]) * self._unpower[:num]


def _powers(base: int, num: int) -> NDArray[np.uint64]:
    """base^0 to base^(num - 1), modulo 2^64."""
    factors = np.full(num, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


MEASURES: Mapping[Diagnostic, Callable[[Transformer, Corpus, Config], Any]] = {
    "gradients": gradient_norms,
    "activations": activation_rms,
    "attention": attention,
    "copying": copying,
}
WEIGHTS = ("start", "last", "best")
OF_WEIGHTS: Mapping[Diagnostic, Sequence[str]] = {
    "gradients": ("start",),
    "activations": ("start", "last"),
    "attention": ("start", "last"),
    "copying": ("last", "best"),
}
"""With which of a run's weights each kind is measured."""
