"""Run folders and manifests as the runner leaves them, without training."""

import copy
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from anatomy.axes import BASES, COUNTERPARTS, SWAPPED_AXES
from anatomy.runs import Entry, record_entries

SHA256 = "ab" * 32
KNOBS: Mapping[str, Mapping[str, Any]] = {
    "gqa": {"n_kv_head": None},
    "rope": {"theta": 10000.0},
    "layer": {"eps": 1e-5},
    "rms": {"eps": 1e-5},
    "gelu": {"hidden": None},
    "swiglu": {"hidden": None, "multiple_of": 32},
}
TRAIN = {"steps": 1000, "batch_size": 16, "grad_accum_steps": 1, "lr": 0.004, "warmup_steps": 100}
TRAIN |= {"schedule": "cosine", "min_lr_ratio": 0.1, "betas": [0.9, 0.95], "threads": 1}


def fake_record(
    name: str,
    loss: float | None = 1.5,
    *,
    base: str = "vanilla",
    seed: int = 0,
    status: str = "done",
    parts: Mapping[str, str] | None = None,
    config: Mapping[str, Any] | None = None,
    **values: Any,
) -> dict[str, Any]:
    """A record; `config` holds dotted keys that differ, `values` top-level keys or `data`/`env` to merge."""
    chosen = {**BASES[base], **(parts or {})}
    resolved: dict[str, Any] = {
        "base": base,
        "scale": "quick",
        "seed": seed,
        "output_dir": "outputs",
        **{axis: {"name": chosen[axis], "class": "X", **KNOBS.get(chosen[axis], {})} for axis in SWAPPED_AXES},
        **{axis: chosen[axis] for axis in ("bias", "tying", "init")},
        "model": {"d_model": 48, "n_layer": 3, "n_head": 4, "ctx_len": 64, "vocab_size": None},
        "train": copy.deepcopy(TRAIN),
        "corpus": {"name": "kjv", "path": None, "split": "blocks", "val_fraction": 0.1, "test_fraction": 0.1},
    }
    for key, value in (config or {}).items():
        *sections, last = key.split(".")
        place = resolved
        for section in sections:
            place = place[section]
        place[last] = value
    asked_hidden, asked_kv = resolved["ffn"].get("hidden"), resolved["attn"].get("n_kv_head")
    done = status == "done"
    record = {
        "schema": 1,
        "status": status,
        "error": None if done else "made to fail",
        "run": name,
        "parts": chosen,
        "seed": seed,
        "config": resolved,
        "derived": {
            "ffn_hidden": asked_hidden or (128 if chosen["ffn"] == "swiglu" else 192),
            "n_kv_head": asked_kv or (2 if chosen["attn"] == "gqa" else 4),
            "head_width": 12,
            "vocab_size": 65,
        },
        "overrides": [],
        "data": {"corpus": "kjv", "sha256": SHA256, "num_chars": 900_000, "vocab_size": 65, "epochs": 0.3}
        | {"batch_order_sha256": f"order-{seed}"},
        "num_params": 92_832,
        "num_params_by_axis": {"embed": 3120, "pos": 3072, "norm": 576, "attn": 27648, "ffn": 55296, "output": 3120},
        "flops_per_token": 626_976,
        "kv_bytes_per_token": 576,
        "steps": 1000,
        "tokens": 1_024_000,
        "train_loss_nats": loss,
        "val_loss_nats": loss,
        "best_val_loss_nats": loss,
        "best_step": 1000 if done else None,
        "test_loss_nats": loss if done else None,
        "test_loss_nats_at_best": loss if done else None,
        "test_bits_per_char": loss / 0.6931471805599453 if done and loss is not None else None,
        "num_test_targets": 102_400,
        "tokens_per_s": 50_000.0 if done else None,
        "env": {"device": "cpu", "commit": "c0ffee"},
    }
    for key, value in values.items():
        record[key] = {**record[key], **value} if isinstance(record.get(key), dict) else value
    return record


def put(outputs: Path, record: Mapping[str, Any]) -> str:
    folder = outputs / "runs" / record["run"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text(json.dumps(record), encoding="utf-8")
    return str(record["run"])


def put_study(outputs: Path, name: str, records: Sequence[Mapping[str, Any]], **spec: Any) -> None:
    """Runs and the manifest that names them, in that order."""
    entries = [
        Entry(r["config"]["base"], "none", [f"word={r['run']}"], r["seed"], None, put(outputs, r), None)
        for r in records
    ]
    record_entries(outputs / "studies" / name, {"name": name, "question": "Which?", "metric": None, **spec}, entries)


def put_rungs(
    outputs: Path, *, split: str = "blocks", ctx_len: int = 64, ngram_losses_WT: object = None, num_windows: int = 1600
) -> None:
    """The rungs of a text; where given, what the 6-gram table lost on each test target."""
    folder = outputs / "corpora" / SHA256
    folder.mkdir(parents=True)
    nats = {"1": 3.0, "2": 2.0, "3": 1.7, "4": 1.5, "5": 1.4, "6": 1.3, "xz": 1.45}
    entry = {"split": split, "val_fraction": 0.1, "test_fraction": 0.1, "ctx_len": ctx_len, "num_windows": num_windows}
    entry |= {"losses": "rung_losses.npy", "nats_per_char": nats}
    index = {"schema": 1, "corpus": "kjv", "sha256": SHA256, "entries": [entry]}
    (folder / "rungs.json").write_text(json.dumps(index))
    if ngram_losses_WT is not None:
        best = np.asarray(ngram_losses_WT, np.float32)
        np.save(folder / "rung_losses.npy", np.stack([*[np.full_like(best, 99)] * 5, best]))


def swapped(base: str, axes: Iterable[str]) -> dict[str, str]:
    """The parts of a base after a swap on these axes."""
    return {**BASES[base], **{axis: BASES[COUNTERPARTS[base]][axis] for axis in axes}}


def put_arms(outputs: Path, name: str, asked_for: Sequence[tuple[str, Mapping[str, Any]]], **spec: Any) -> None:
    """Runs and their manifest as the sweep writes it, with the words that asked for each: `base=vanilla swap=norm`."""
    entries = []
    for words, record in asked_for:
        asked = dict(word.split("=", 1) for word in words.split())
        swap = asked.get("swap", "none").strip("[]")
        overrides = [*words.split(), f"seed={record['seed']}"]
        entries.append(Entry(asked["base"], swap, overrides, record["seed"], None, put(outputs, record), None))
    record_entries(outputs / "studies" / name, {"name": name, "question": "Which?", "metric": None, **spec}, entries)


def put_losses(outputs: Path, run: str, losses_WT: object, file: str = "test_losses.npy") -> Path:
    """A run's loss on every test target, as float32 unless the array is of another kind."""
    losses = np.asarray(losses_WT, dtype=None if isinstance(losses_WT, np.ndarray) else np.float32)
    np.save(outputs / "runs" / run / file, losses)
    return outputs / "runs" / run / file


def put_curve(outputs: Path, run: str, losses: Mapping[int, float | None], *, tail: str = "") -> None:
    """A run's metrics.jsonl: step -> validation loss, and what stands behind the last whole line."""
    rows = [
        {"step": step, "tokens": step * 1024, "train_loss_nats": 9.0, "val_loss_nats": losses[step]} for step in losses
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows) + tail
    (outputs / "runs" / run / "metrics.jsonl").write_text(text, encoding="utf-8")
