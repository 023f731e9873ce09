"""What lies beside a run's record: its curve, its loss on every test target, its sample, its tensors' first digests.

Only rows that a reader looks at closely are read: a table's first ones. Nothing found here is trusted; what cannot be
read is as if it were not there.

Shapes:  W test windows, T targets a window.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anatomy.files import read_array
from anatomy.report.data import AT_BEST, Breakdown, Curve, Profile, Sample, Shared
from anatomy.report.gather import DAMAGE
from anatomy.report.rows import Group
from anatomy.runs import finite, read_record

NUM_DETAILED = 12  # rows of a table that are read so closely
KNOWN_NATS = (0.0, 0.1, 0.5, 1.0, 2.0, 4.0)  # edges of the bins by what the 6-gram table lost on a target

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Evidence:
    """Of the detailed rows of one table; text_errors: row -> standard error of its difference, in nats, that comes
    from the choice of test windows."""

    curves: Sequence[Curve]
    by_position: Breakdown | None
    by_knowledge: Breakdown | None
    samples: Sequence[Sample]
    shared: Sequence[Shared]
    text_errors: Mapping[str, float]


def read_evidence(
    runs: Path, groups: Sequence[Group], base: Group | None, metric: str, ngram_losses_WT: Array | None
) -> Evidence:
    """Read what lies beside the records of a table's first rows. `runs` is the folder of run folders,
    `ngram_losses_WT` what the best n-gram table lost on each test target."""
    detailed = [group for group in groups if group.done][:NUM_DETAILED]
    file = "test_losses_best.npy" if metric == AT_BEST else "test_losses.npy"
    differences = _differences(runs, detailed, base, file) if base else {}
    record = cache(lambda run: _record(runs / run))
    return Evidence(
        curves=[curve for group in detailed if (curve := _curve(runs, group))],
        by_position=_by_position(differences),
        by_knowledge=_by_knowledge(differences, ngram_losses_WT),
        samples=[
            Sample(group.name, group.done[0].seed, sample)
            for group in detailed
            if isinstance(sample := record(group.done[0].name).get("sample"), str)
        ],
        shared=[one for group in detailed if base and group is not base and (one := _shared(group, base, record))],
        text_errors={name: _text_error(pairs) for name, pairs in differences.items()},
    )


# ------------------------------------------------------------------------------------------------- files


def _record(folder: Path) -> Mapping[str, Any]:
    """A run's record, empty where it cannot be read."""
    try:
        return read_record(folder) or {}
    except ValueError:
        return {}


def _losses(file: Path) -> Array | None:
    losses = read_array(file)
    if losses is None or losses.ndim != 2 or losses.dtype != np.float32 or not losses.size:
        return None
    return losses if np.isfinite(losses).all() else None


def _curve(runs: Path, group: Group) -> Curve | None:
    """Over the steps that all its seeds were evaluated at."""
    by_run = [rows for run in group.done if (rows := _curve_rows(runs / run.name / "metrics.jsonl"))]
    if not by_run:
        return None
    steps = sorted(set.intersection(*map(set, by_run)))
    losses = np.array([[rows[step] for step in steps] for rows in by_run])
    if not steps:
        return None
    mean, low, high = (summary(losses, axis=0).tolist() for summary in (np.mean, np.min, np.max))
    return Curve(group.name, steps, mean, low, high, len(by_run))


def _curve_rows(file: Path) -> dict[int, float]:
    """Step -> validation loss. A last line that was cut short is left out."""
    rows: dict[int, float] = {}
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if finite(row["val_loss_nats"]) is not None:
                rows[int(row["step"])] = float(row["val_loss_nats"])
    except DAMAGE:
        pass
    return rows


# ------------------------------------------------------------------------------------------------- where it sits


def _differences(runs: Path, groups: Sequence[Group], base: Group, file: str) -> dict[str, list[Array]]:
    """Row -> its loss minus the base's on every test target, (W, T), one array a paired seed."""
    theirs = {run.seed: losses for run in base.done if (losses := _losses(runs / run.name / file)) is not None}
    found: dict[str, list[Array]] = {}
    for group in groups:
        for run in group.done if group is not base else ():
            mine = _losses(runs / run.name / file) if run.seed in theirs else None
            if mine is not None and mine.shape == theirs[run.seed].shape:
                found.setdefault(group.name, []).append(mine - theirs[run.seed])
    shapes = [pairs[0].shape for pairs in found.values()]
    usual = max(shapes, key=shapes.count, default=None)
    return {name: pairs for name, pairs in found.items() if all(pair.shape == usual for pair in pairs)}


def _text_error(pairs: Sequence[Array]) -> float:
    """What a bootstrap over test windows gives as standard error of the mean difference, in its limit of infinitely
    many resamples: the windows' standard deviation over sqrt(W)."""
    by_window = np.mean([pair.mean(axis=1, dtype=np.float64) for pair in pairs], axis=0)
    return float(np.std(by_window) / np.sqrt(len(by_window)))


def _by_position(differences: Mapping[str, Sequence[Array]]) -> Breakdown | None:
    """Bins of positions in the window that double in width: 1, 2, 3-4, 5-8, ..."""
    if not differences:
        return None
    length = next(iter(differences.values()))[0].shape[1]
    edges = [0, *(2**power for power in range(length.bit_length() + 1) if 2**power < length), length]
    names = [str(stop) if stop - start == 1 else f"{start + 1}-{stop}" for start, stop in pairwise(edges)]
    bin_of = np.repeat(np.arange(len(names)), np.diff(edges))
    return _breakdown(differences, names, np.broadcast_to(bin_of, next(iter(differences.values()))[0].shape))


def _by_knowledge(differences: Mapping[str, Sequence[Array]], ngram_losses_WT: Array | None) -> Breakdown | None:
    if ngram_losses_WT is None or not differences:
        return None
    is_sound = ngram_losses_WT.dtype.kind == "f" and np.isfinite(ngram_losses_WT).all()
    if not is_sound or next(iter(differences.values()))[0].shape != ngram_losses_WT.shape:
        return None
    names = [f"{low:g}-{high:g}" for low, high in pairwise(KNOWN_NATS)] + [f"over {KNOWN_NATS[-1]:g}"]
    bin_of = np.digitize(ngram_losses_WT, KNOWN_NATS[1:])
    return _breakdown(differences, names, bin_of)


def _breakdown(differences: Mapping[str, Sequence[Array]], names: Sequence[str], bin_of: NDArray[np.intp]) -> Breakdown:
    """Mean difference in each bin that holds targets; `bin_of` (W, T) is the bin of each target."""
    flat = bin_of.ravel()
    counts = np.bincount(flat, minlength=len(names))
    filled = np.flatnonzero(counts)
    profiles = []
    for row, pairs in differences.items():
        sums = np.array([np.bincount(flat, weights=pair.ravel(), minlength=len(names)) for pair in pairs])
        means = sums[:, filled] / counts[filled]
        mean, low, high = (summary(means, axis=0).tolist() for summary in (np.mean, np.min, np.max))
        profiles.append(Profile(row, mean, low, high))
    return Breakdown([names[int(i)] for i in filled], (counts[filled] / flat.size).tolist(), profiles)


# ------------------------------------------------------------------------------------------------- shared tensors


def _shared(group: Group, base: Group, record: Callable[[str], Mapping[str, Any]]) -> Shared | None:
    """By the digests of every tensor's start, for the first seed that row and base have in common."""
    theirs_of = {run.seed: run.name for run in base.done}
    pair = next(((run.name, theirs_of[run.seed]) for run in group.done if run.seed in theirs_of), None)
    mine, theirs = (record(run).get("init_digests") for run in pair) if pair else (None, None)
    if not isinstance(mine, Mapping) or not isinstance(theirs, Mapping) or not mine or not theirs:
        return None
    both = mine.keys() & theirs.keys()
    same = {name for name in both if mine[name] == theirs[name]}
    return Shared(
        row=group.name,
        num_shared=len(same),
        changed=_over_blocks(both - same),
        only_in_row=_over_blocks(mine.keys() - theirs.keys()),
        only_in_base=_over_blocks(theirs.keys() - mine.keys()),
    )


def _over_blocks(names: set[str]) -> list[str]:
    return sorted({re.sub(r"^blocks\.\d+\.", "blocks.*.", name) for name in names})
