"""What was measured inside the models of a table's first rows, over their seeds (see anatomy/diagnostics.py).

Nothing found in a run's folder is trusted; what cannot be read is as if it were not there.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import reduce
from operator import getitem
from pathlib import Path
from statistics import fmean
from typing import Any

from anatomy.report.data import Copying, Diagnosis, Layers
from anatomy.report.evidence import NUM_DETAILED
from anatomy.report.gather import DAMAGE, LARGEST
from anatomy.report.rows import Group
from anatomy.runs import DIAGNOSTICS_FILE, FINISHED, read_json

SUB_LAYERS, MOMENTS, WEIGHTS = ("attn", "ffn"), ("start", "last"), ("last", "best")

Numbers = Sequence[float | None]
Measured = Mapping[str, Any]
"""What a run's file holds."""


def read_diagnosis(runs: Path, groups: Sequence[Group]) -> Diagnosis | None:
    """Read the diagnostics of a table's first rows; None where no run has any. `runs` is the folder of run folders.

    Runs that diverged count too: how they started is why one looks.
    """
    finished = {group.name: [run.name for run in group.runs if run.status in FINISHED] for group in groups}
    detailed = [(row, names) for row, names in finished.items() if names][:NUM_DETAILED]
    by_row = {row: [found for name in names if (found := read_measured(runs / name))] for row, names in detailed}

    def layers(first: int, *path: str) -> list[Layers]:
        lines = [_layers(row, first, [layer_numbers(one, path) for one in found]) for row, found in by_row.items()]
        return [line for line in lines if line]

    diagnosis = Diagnosis(
        gradients={sub: layers(1, "gradients", "start", sub) for sub in SUB_LAYERS},
        activations={moment: layers(0, "activations", moment) for moment in MOMENTS},
        entropy_nats={moment: layers(1, "attention", moment, "entropy_nats") for moment in MOMENTS},
        largest_logit={moment: layers(1, "attention", moment, "largest_logit") for moment in MOMENTS},
        copying=[one for row, found in by_row.items() for weights in WEIGHTS if (one := _copying(row, found, weights))],
    )
    by_layer = (diagnosis.gradients, diagnosis.activations, diagnosis.entropy_nats, diagnosis.largest_logit)
    return diagnosis if diagnosis.copying or any(lines for kind in by_layer for lines in kind.values()) else None


def read_measured(folder: Path) -> Measured:
    """A run's diagnostics, empty where there are none or they cannot be read."""
    try:
        return read_json(folder / DIAGNOSTICS_FILE, "file of diagnostics") or {}
    except ValueError:
        return {}


def layer_numbers(measured: Measured, path: Sequence[str]) -> Numbers:
    """A value a layer out of a run's file, the mean over heads where it has one a head; empty where there is no sound
    list."""
    try:
        return [_number(value) for value in reduce(getitem, path, measured)]
    except DAMAGE:
        return []


def _number(value: Any) -> float | None:
    """A number, or the mean of several; None where it is, or one of them is, null. Raises ValueError on all else."""
    if isinstance(value, list):
        heads = [number for head in value if (number := _number(head)) is not None]
        return fmean(heads) if heads and len(heads) == len(value) else None
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST:
        raise ValueError(f"{value!r} is no number that it could be")
    return value


def _layers(row: str, first: int, by_run: Sequence[Numbers]) -> Layers | None:
    """Over the runs that have as many layers as the first one."""
    sound = [numbers for numbers in by_run if numbers]
    sound = [numbers for numbers in sound if len(numbers) == len(sound[0])]
    if not sound:
        return None
    layers = [[value for value in layer if value is not None] for layer in zip(*sound, strict=True)]
    whole = [layer if len(layer) == len(sound) else None for layer in layers]

    def over(summary: Callable[[list[float]], float]) -> Numbers:
        return [summary(layer) if layer else None for layer in whole]

    return Layers(row, first, over(fmean), over(min), over(max), len(sound))


def _copying(row: str, by_run: Sequence[Measured], weights: str) -> Copying | None:
    shares, longest, of_text = [], [], []
    for measured in by_run:
        with suppress(*DAMAGE):
            of_weights = measured["copying"][weights]
            share, chars = _number(of_weights["share"]), _number(of_weights["longest_chars"])
            if share is not None and chars is not None:
                shares.append(share)
                longest.append(chars)
                of_text.append(_number(of_weights.get("share_of_text")))
    if not shares:
        return None
    known = [share for share in of_text if share is not None]
    text = fmean(known) if known else None
    return Copying(row, weights, fmean(shares), min(shares), max(shares), max(longest), text, len(shares))


def diagnosis_notes(diagnosis: Diagnosis | None) -> list[str]:
    """A line a row for what it copies; nothing where nothing was measured."""
    by_row: dict[str, list[str]] = {}
    for one in diagnosis.copying if diagnosis else ():
        said = f"{one.share:.1%} with the {one.weights} weights, {one.longest_chars:,.0f} characters at most"
        by_row.setdefault(one.row, []).append(said)
        if one.share_of_text is not None and one.weights == WEIGHTS[-1]:
            by_row[one.row].append(f"the text itself, going on from the same prompts, {one.share_of_text:.1%}")
    return [f"{row} writes training text word for word: {'; '.join(said)}" for row, said in by_row.items()]


def diagnosis_numbers(diagnosis: Diagnosis | None) -> dict[str, list[list[str]]]:
    """The numbers behind each figure of a diagnosis: a heading line, then lines."""
    if diagnosis is None:
        return {}
    copies = [
        [
            *(one.row, one.weights, f"{one.share:.1%}"),
            *(f"{one.share_low:.1%} to {one.share_high:.1%}", f"{one.longest_chars:,.0f}"),
        ]
        for one in diagnosis.copying
    ]
    return {
        "gradients": _by_layer({"of": diagnosis.gradients}),
        "activations": _by_layer({"weights": diagnosis.activations}),
        "attention": _by_layer({"entropy": diagnosis.entropy_nats, "largest logit": diagnosis.largest_logit}),
        "copying": [["row", "weights", "copied", "least to greatest seed", "longest copy, characters"], *copies],
    }


def _by_layer(kinds: Mapping[str, Mapping[str, Sequence[Layers]]]) -> list[list[str]]:
    lines = [
        (layers.first, [layers.row, " ".join([*([kind] if len(kinds) > 1 else []), at])], layers.mean)
        for kind, by in kinds.items()
        for at, found in by.items()
        for layers in found
    ]
    most = max((len(mean) for *_, mean in lines), default=0)
    first = lines[0][0] if lines else 0
    cells = [
        [*names, *("–" if value is None else f"{value:.3g}" for value in mean), *[""] * (most - len(mean))]
        for _, names, mean in lines
    ]
    return [["row", "what", *(f"layer {first + i}" for i in range(most))], *cells]
