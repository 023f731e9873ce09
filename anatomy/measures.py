"""The timed measures that a study asks for beside its runs, kept in its folder as measures.json."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from anatomy.arm_steps import arm_sha256, arm_steps, distinct_arms
from anatomy.config import Config
from anatomy.decode_steps import decode_steps
from anatomy.files import write_json
from anatomy.measures_file import MEASURES_FILE, Measures, read_measures
from anatomy.norm_calls import norm_calls, norms
from anatomy.record import commit, device_name
from anatomy.runs import SCHEMA
from anatomy.threads import using_threads

_Measure = Callable[[Sequence[Config], int, torch.device], dict[str, Any]]
_MEASURES: Mapping[str, _Measure] = {
    "norm_calls": lambda configs, num_symbols, device: norm_calls(device),
    "decode": lambda configs, num_symbols, device: decode_steps(configs[0], num_symbols, device),
    "train_step": arm_steps,
}
KINDS = tuple(_MEASURES)


def take(
    kinds: Sequence[str], configs: Sequence[Config], num_symbols: int, device: torch.device, threads: int
) -> dict[str, Any]:
    """Measure some of KINDS for a study's configs on a text of `num_symbols` characters: what measures.json holds.

    `decode` takes its smaller size from the first config. All runs on `threads` threads, whatever the configs say.
    """
    configs = [_with_threads(config, threads) for config in configs]
    with using_threads(threads):
        measured = {kind: _MEASURES[kind](configs, num_symbols, device) for kind in kinds}
    return {
        "schema": SCHEMA,
        "device": device_name(device),
        "threads": threads,
        "torch": torch.__version__,
        "commit": commit(),
        **measured,
    }


def ensure_measures(
    folder: Path,
    kinds: Sequence[str],
    configs: Sequence[Config],
    num_symbols: int,
    device: torch.device,
    threads: int,
    announce: Callable[[], None] = lambda: None,
) -> bool:
    """Take a study's measures and keep them in its folder. False if they are there already.

    `announce` is called before anything is timed.
    """
    if are_known(folder, kinds, configs, num_symbols, device, threads):
        return False
    announce()
    measured = take(kinds, configs, num_symbols, device, threads)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / MEASURES_FILE, measured)
    return True


def are_known(
    folder: Path,
    kinds: Sequence[str],
    configs: Sequence[Config],
    num_symbols: int,
    device: torch.device,
    threads: int,
) -> bool:
    """Whether a sound file in the folder answers the same question: of this device, these threads and this torch, all
    norms, the first config's sizes, and every arm."""
    kept = read_measures(folder)
    if kept is None or not set(kinds) <= set(kept):
        return False
    if (kept["device"], kept["threads"], kept["torch"]) != (device_name(device), threads, torch.__version__):
        return False
    configs = [_with_threads(config, threads) for config in configs]
    return all(_ANSWERS[kind](kept, configs, num_symbols) for kind in kinds)


def _has_norms(kept: Measures, configs: Sequence[Config], num_symbols: int) -> bool:
    return set(norms(1, torch.device("cpu"))) <= {row["norm"] for row in kept["norm_calls"]["rows"]}


def _has_sizes(kept: Measures, configs: Sequence[Config], num_symbols: int) -> bool:
    sizes = configs[0].model
    known = {(row["width"], row["n_layer"], row["n_head"]) for row in kept["decode"]["rows"]}
    return (sizes.d_model, sizes.n_layer, sizes.n_head) in known


def _has_arms(kept: Measures, configs: Sequence[Config], num_symbols: int) -> bool:
    asked = {arm_sha256(arm) for arm in distinct_arms(configs, num_symbols)}
    return asked <= {row["sha256"] for row in kept["train_step"]["rows"]}


_ANSWERS: Mapping[str, Callable[[Measures, Sequence[Config], int], bool]] = {
    "norm_calls": _has_norms,
    "decode": _has_sizes,
    "train_step": _has_arms,
}


def _with_threads(config: Config, threads: int) -> Config:
    return config.model_copy(update={"train": config.train.model_copy(update={"threads": threads})})
