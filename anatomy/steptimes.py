"""match=time: how many steps a model gets so that it trains as long as its base, by step times measured in isolation.

What was measured is kept in outputs/step_times.json, so that asking again gives the same steps: finished runs are
recognised, and the workers of a sweep read what its plan has measured.
"""

import hashlib
from typing import Any

import torch
from filelock import FileLock

from anatomy.bench import step_ms
from anatomy.build import build_base, build_model, derived
from anatomy.config import Config
from anatomy.corpus import Corpus
from anatomy.errors import UserError
from anatomy.files import write_json
from anatomy.model import Transformer
from anatomy.record import device_name
from anatomy.runs import SCHEMA, Layout, canonical_json, identity, read_json

ROUNDS = 25  # steps timed of each model, in turns
# Of a run's identity, what does not decide how long a step takes; so do train's steps, rate and schedule not.
NO_MATTER = ("seed", "init_salt", "order_salt", "eval", "sample")
NO_MATTER_IN_TRAIN = ("steps", "lr", "warmup_steps", "schedule", "min_lr_ratio", "eval_every")


class StepTimes:
    """The step times known under an outputs folder, and those measured since; `save` adds these to the folder."""

    def __init__(self, layout: Layout) -> None:
        self._path = layout.outputs / "step_times.json"
        try:
            self._known = self._read()
        except ValueError as damage:
            raise UserError(f"{damage}; remove it, and the steps are timed again") from None
        self._measured: dict[str, dict[str, Any]] = {}

    def matched_steps(self, config: Config, corpus: Corpus, device: torch.device) -> int:
        """round(steps x the base's step time / the model's own).

        Both are measured together, in turns, unless known. Raises UserError if there is no base of these sizes.
        """
        num_symbols = len(corpus.vocabulary)
        base, base_model = build_base(config, num_symbols)
        ours = timed(config, build_model(config, num_symbols), corpus.sha256)
        bases = timed(base, base_model, corpus.sha256)
        if ours == bases:
            return config.train.steps
        device_word = device_name(device)
        key = hashlib.sha256(canonical_json([ours, bases, device_word]).encode()).hexdigest()
        if key not in self._known:
            own_ms, base_ms = step_ms(config, base, num_symbols=num_symbols, device=device, rounds=ROUNDS)
            self._known[key] = self._measured[key] = {
                "base": config.base,
                "parts": config.parts,
                "device": device_word,
                "threads": config.train.threads,
                "step_ms": own_ms,
                "base_step_ms": base_ms,
            }
        times = self._known[key]
        return max(min(1, config.train.steps), round(config.train.steps * times["base_step_ms"] / times["step_ms"]))

    def save(self) -> None:
        """Write what was measured. Where another process was first, its times stand."""
        if not self._measured:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(self._path.with_name(".step_times.lock")):
            write_json(self._path, {"schema": SCHEMA, "times": self._measured | self._read()})
        self._measured.clear()

    def _read(self) -> dict[str, dict[str, Any]]:
        return (read_json(self._path, "table of step times") or {"times": {}})["times"]


def timed(config: Config, model: Transformer, corpus_sha256: str | None) -> dict[str, Any]:
    """What decides how long a step of a model takes, the device aside."""
    whole = identity(config.model_dump(mode="json"), derived(model), corpus_sha256)
    train = {key: value for key, value in whole["train"].items() if key not in NO_MATTER_IN_TRAIN}
    return {key: value for key, value in whole.items() if key not in NO_MATTER} | {"train": train}
