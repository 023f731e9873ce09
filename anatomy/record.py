"""What a run's record says of things that are not losses: what was run, on what, and what it cost."""

import os
import platform
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from anatomy.build import derived
from anatomy.config import Config
from anatomy.corpus import Corpus
from anatomy.model import Transformer
from anatomy.runs import SCHEMA

ABSENT = (
    "train_loss_nats",
    "val_loss_nats",
    "best_val_loss_nats",
    "best_step",
    "test_loss_nats",
    "test_loss_nats_at_best",
    "test_bits_per_char",
    "num_test_targets",
    "test_loss_nats_at_length",
    "max_grad_norm",
    "clipped_fraction",
    "wall_s",
    "train_s",
    "tokens_per_s",
    "peak_rss_mib",
    "sample",
)  # null before a run has trained


def first_record(
    name: str,
    config: Config,
    resolved: Mapping[str, Any],
    overrides: Sequence[str],
    model: Transformer,
    corpus: Corpus,
    device: torch.device,
) -> dict[str, Any]:
    """A run's record as it stands before the first step, with every key it will ever have."""
    by_axis = model.num_params_by_axis()
    return {
        "schema": SCHEMA,
        "status": "running",
        "error": None,
        "run": name,
        "parts": config.parts,
        "seed": config.seed,
        "config": dict(resolved),
        "derived": derived(model),
        "overrides": list(overrides),
        "init_digests": {},
        "data": {
            "corpus": corpus.name,
            "sha256": corpus.sha256,
            "num_chars": corpus.num_chars,
            "vocab_size": len(corpus.vocabulary),
            "num_train_chars": corpus.num_train_chars,
            "num_val_chars": corpus.num_val_chars,
            "num_test_chars": corpus.num_test_chars,
            "epochs": tokens_after(config, config.train.steps) / corpus.num_train_chars,
            "batch_order_sha256": None,
        },
        "num_params": sum(by_axis.values()),
        "num_params_by_axis": by_axis,
        "flops_per_token": model.flops_per_token(config.model.ctx_len),
        "kv_bytes_per_token": model.kv_bytes_per_token(),
        "steps": 0,
        "tokens": 0,
        **dict.fromkeys(ABSENT),
        "env": {
            "torch": torch.__version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "device": device_name(device),
            "threads": config.train.threads,
            "commit": commit(),
        },
    }


def tokens_after(config: Config, num_steps: int) -> int:
    """How many tokens a run has trained on after so many steps."""
    return num_steps * config.train.batch_size * config.train.grad_accum_steps * config.model.ctx_len


def device_name(device: torch.device) -> str:
    """The device and, for a GPU, its model."""
    return f"cuda ({torch.cuda.get_device_name(device)})" if device.type == "cuda" else device.type


@lru_cache
def commit() -> str | None:
    """The commit of a checkout that the package runs from, with `+changes` if files differ; None elsewhere."""
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        changed = _git(root, "status", "--porcelain", "--untracked-files=no", "--", "anatomy", "conf")
    except (OSError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True, text=True).stdout.strip()


class PeakMemory:
    """The largest resident memory since this object was made, where the system can tell (Linux), else None.

    Workers carry out many runs, so a process's own peak is not a run's: the kernel's mark is set back first.
    """

    def __init__(self) -> None:
        self._is_reset = False
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            self._is_reset = True

    def mib(self) -> float | None:
        if not self._is_reset:
            return None
        status = Path(f"/proc/{os.getpid()}/status").read_text()
        kib = next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
        return int(kib) / 1024
