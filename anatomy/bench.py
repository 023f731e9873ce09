"""Speed, side by side: a training step of each base against the matrix products that it cannot do without.

Everything is interleaved in one process, so that a machine whose speed drifts slows all alike, and told in medians.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from anatomy.build import build_model
from anatomy.config import Config
from anatomy.corpus import BatchOrder, Corpus, Vocabulary
from anatomy.model import Transformer, initialise
from anatomy.stopwatch import Task, take_turns, wait
from anatomy.train import Training

FIRST_CODE_POINT = 0x4E00  # made-up text: that many CJK characters, drawn at random


@dataclass(frozen=True)
class Timing:
    """Medians in milliseconds, and the median over rounds of the ratio of the two within a round."""

    step_ms: float
    products_ms: float
    step_over_products: float


def time_steps(configs: Mapping[str, Config], *, num_symbols: int, rounds: int) -> dict[str, Timing]:
    """Time one training step and its bare matrix products for each config, `rounds` times, taking turns. On the CPU."""
    tasks: list[Task] = []
    for config in configs.values():
        training = _training(config, num_symbols, torch.device("cpu"))
        shapes = product_shapes(training.model, config.train.batch_size, config.model.ctx_len)
        tasks += [training.step, _products(shapes, training.device)]
    times = take_turns(tasks, rounds)
    return {name: _summary(*times[2 * i : 2 * i + 2]) for i, name in enumerate(configs)}


def step_ms(*configs: Config, num_symbols: int, device: torch.device, rounds: int) -> list[float]:
    """Median milliseconds of a training step of each config, taking turns."""
    steps = [training_step(config, num_symbols, device) for config in configs]
    return [statistics.median(times) for times in take_turns(steps, rounds)]


def training_step(config: Config, num_symbols: int, device: torch.device) -> Task:
    """A training step of a config on made-up text, whole on the device when it returns."""
    training = _training(config, num_symbols, device)

    def step() -> None:
        training.step()
        wait(device)

    return step


def ratio_of_medians(times: Mapping[str, Timing], name: str, other: str) -> float:
    return times[name].step_ms / times[other].step_ms


def product_shapes(model: Transformer, batch_size: int, ctx_len: int) -> list[tuple[int, ...]]:
    """The forward products of one pass as (batch, rows, inner, columns); batch 1 is a Linear layer's."""
    num_tokens = batch_size * ctx_len
    shapes = [
        (1, num_tokens, linear.in_features, linear.out_features)
        for block in model.blocks
        for linear in block.modules()
        if isinstance(linear, nn.Linear)
    ]
    for block in model.blocks:
        heads = batch_size * block.attn.n_head
        shapes.append((heads, ctx_len, block.attn.head_width, ctx_len))  # q k^T
        shapes.append((heads, ctx_len, ctx_len, block.attn.head_width))  # weights v
    return [*shapes, (1, num_tokens, model.embed.embedding_dim, model.num_symbols)]


def _products(shapes: Sequence[tuple[int, ...]], device: torch.device) -> Task:
    """Each product forward, and the two that its gradient takes."""
    operands: list[tuple[Tensor, Tensor, Tensor]] = []
    for batch, rows, inner, columns in shapes:
        lead = () if batch == 1 else (batch,)
        left, right, grad = (
            torch.randn(*lead, *shape, device=device) for shape in ((rows, inner), (columns, inner), (rows, columns))
        )
        operands.append((left, right, grad))

    def run() -> None:
        for left, right, grad in operands:
            if left.dim() == 2:
                F.linear(left, right)
            else:
                torch.matmul(left, right.mT)
            torch.matmul(grad, right)
            torch.matmul(grad.mT, left)
        wait(device)

    return run


def _training(config: Config, num_symbols: int, device: torch.device) -> Training:
    torch.set_num_threads(config.train.threads)
    corpus = _made_up_corpus(num_symbols)
    model = build_model(config, num_symbols, device="cpu")
    initialise(model, config.init, seed=config.seed)
    order = BatchOrder(corpus.train, config.model.ctx_len, seed=config.seed)
    return Training(model.to(device), corpus, order, config.train, ctx_len=config.model.ctx_len, seed=config.seed)


def _made_up_corpus(num_symbols: int) -> Corpus:
    ids = np.random.default_rng(0).integers(num_symbols, size=100_000).astype(np.int32)
    vocabulary = Vocabulary("".join(chr(FIRST_CODE_POINT + i) for i in range(num_symbols)))
    everything = ((0, len(ids)),)
    return Corpus("made up", "", vocabulary, ids, "tail", everything, everything, everything)


def _summary(steps: Sequence[float], products: Sequence[float]) -> Timing:
    return Timing(
        statistics.median(steps),
        statistics.median(products),
        statistics.median(step / product for step, product in zip(steps, products, strict=True)),
    )
