"""The training loop: one step at a time, an evaluation that cannot disturb it, a state it resumes from exactly.

It knows no command line and prints nothing: runner.py drives it and keeps its results.
"""

import math
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from anatomy.config import TrainConfig
from anatomy.corpus import BatchOrder, Corpus
from anatomy.model import Transformer, autocast

EXPLODED = 3.0  # times the larger of ln V and the first loss


class Diverged(Exception):
    """Training left the finite numbers, or its loss rose far above where it began."""


class Training:
    """One model in training: everything that a step changes lives here.

    A step takes `grad_accum_steps` micro-batches of `batch_size` windows. They all hold the same number of targets, so
    the mean over micro-batches is the mean over targets.

    Raises Diverged from `step`. Dropout draws from torch's own generator, which `seed` starts and `state` keeps;
    batches come from `order` and nothing else, so neither dropout nor an evaluation can change them.
    """

    def __init__(
        self,
        model: Transformer,
        corpus: Corpus,
        order: BatchOrder,
        config: TrainConfig,
        *,
        ctx_len: int,
        seed: int,
    ) -> None:
        self.model, self.corpus, self.order, self.config, self.ctx_len = model, corpus, order, config, ctx_len
        self.device = model.embed.weight.device
        self.parameters = list(model.parameters())
        self.optimizer = optimizer_for(model, config)
        if config.compile:
            for block in model.blocks:
                block.compile()
        torch.manual_seed(seed)
        self.num_steps = 0
        self.train_s = 0.0
        self.first_loss_nats = math.nan
        self.last_loss_nats = math.nan
        self.last_lr: float | None = None
        self.last_grad_norm: float | None = None
        self.max_grad_norm = 0.0
        self.num_clipped = 0
        self._loss_sum = 0.0  # since the last evaluation
        self._num_summed = 0

    def step(self) -> None:
        """Draw the next batch and move every weight once."""
        began = time.perf_counter()
        config = self.config
        self.last_lr = learning_rate(self.num_steps, config)
        for group in self.optimizer.param_groups:
            group["lr"] = self.last_lr
        total = torch.zeros((), device=self.device)
        for _ in range(config.grad_accum_steps):
            inputs, targets = self._batch(self.order.draw(config.batch_size))
            with autocast(self.device, config.dtype):
                loss = self.model.mean_loss_nats(inputs, targets) / config.grad_accum_steps
            loss.backward()
            total += loss.detach()
        loss_nats, grad_norm = total.item(), nn.utils.clip_grad_norm_(self.parameters, config.grad_clip).item()
        self._refuse_divergence(loss_nats, grad_norm)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.num_steps += 1
        self.last_loss_nats, self.last_grad_norm = loss_nats, grad_norm
        self.max_grad_norm = max(self.max_grad_norm, grad_norm)
        self.num_clipped += grad_norm > config.grad_clip
        self._loss_sum += loss_nats
        self._num_summed += 1
        self.train_s += time.perf_counter() - began

    def mean_loss_since_last_asked(self) -> float | None:
        """The mean training loss of the steps since the last call, None where there was no step."""
        mean = self._loss_sum / self._num_summed if self._num_summed else None
        self._loss_sum, self._num_summed = 0.0, 0
        return mean

    def state(self) -> dict[str, Any]:
        """All that an exact resume needs, as plain tensors and plain values. Taken after an evaluation."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "order": self.order.state(),
            "cpu_generator": torch.get_rng_state(),
            "cuda_generators": torch.cuda.get_rng_state_all() if self.device.type == "cuda" else [],
            "counters": {name: getattr(self, name) for name in COUNTERS},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go back to where `state` was taken. The tensors of `state` lie on the CPU."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.order.restore(state["order"])
        torch.set_rng_state(state["cpu_generator"])
        if state["cuda_generators"]:
            torch.cuda.set_rng_state_all(state["cuda_generators"])
        for name, value in state["counters"].items():
            setattr(self, name, value)

    def _batch(self, starts: np.ndarray) -> tuple[Tensor, Tensor]:
        inputs, targets = self.corpus.batch_at(starts, self.ctx_len)
        return torch.from_numpy(inputs).to(self.device), torch.from_numpy(targets).to(self.device)

    def _refuse_divergence(self, loss_nats: float, grad_norm: float) -> None:
        if self.num_steps == 0:
            self.first_loss_nats = loss_nats
        where = f"step {self.num_steps + 1}"
        if not math.isfinite(loss_nats) or not math.isfinite(grad_norm):
            raise Diverged(f"{where}: loss {loss_nats:g} nats, gradient norm {grad_norm:g}")
        ceiling = EXPLODED * max(math.log(self.model.num_symbols), self.first_loss_nats)
        if loss_nats > ceiling:
            raise Diverged(f"{where}: loss {loss_nats:.3g} nats, above {EXPLODED:g} times where it began")


COUNTERS = ("num_steps", "train_s", "first_loss_nats", "max_grad_norm", "num_clipped")


def optimizer_for(model: nn.Module, config: TrainConfig) -> torch.optim.AdamW:
    """AdamW that decays the weights of Linear layers and nothing else: no embedding, tied or not, no bias, no norm."""
    decayed = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    ids = set(map(id, decayed))
    rest = [parameter for parameter in model.parameters() if id(parameter) not in ids]
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)


def learning_rate(step: int, config: TrainConfig) -> float:
    """The rate of a step, counted from 0.

    Warm-up over w steps: lr (step + 1) / (w + 1), so no step is wasted on a rate of 0. Then constant, or a cosine that
    is lr at step w and exactly min_lr_ratio * lr at the last step.
    """
    if step < config.warmup_steps:
        return config.lr * (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return config.lr
    progress = (step - config.warmup_steps) / max(1, config.steps - 1 - config.warmup_steps)
    return config.lr * (config.min_lr_ratio + (1 - config.min_lr_ratio) * (1 + math.cos(math.pi * progress)) / 2)
