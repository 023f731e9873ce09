"""Exam cards: the claims of an axis's parts, as the study registered them, held against what it measured."""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from anatomy.axes import SWAPPED_AXES
from anatomy.exam_rules import PLATEAU_RUNG, rule_in_words
from anatomy.files import is_plain_name, read_array
from anatomy.measures_file import read_measures
from anatomy.report.cells import cells_of
from anatomy.report.data import Card, Examined, MapCell, PartLoss, Rungs, Series
from anatomy.report.diagnosis import layer_numbers, read_measured
from anatomy.report.gather import DAMAGE, LARGEST, Arm, Run, Study
from anatomy.report.material import DIVERGED, PLATEAU, TRAINED, UNKNOWN, Material
from anatomy.report.measure import rung_of
from anatomy.report.plan import Plan
from anatomy.report.rules import RULES
from anatomy.runs import FINISHED, POSITIONS_FILE, finite, read_record

FindRungs = Callable[[Run], Rungs | None]
Rows = Mapping[tuple[str, str], Sequence[Run]]
"""Base and the words asked for -> runs that are done."""


def make_card(
    study: Study, *, margin_nats: float, metric: str, set_aside: Container[str | None], find_rungs: FindRungs
) -> Card | None:
    """The card of a study that is an exam, None of any other.

    Over the runs that were planned before it started, so that what was added later decides nothing, and without those
    that the tables set aside; no claim is judged before all planned runs have ended. What is damaged is as if it were
    not there.
    """
    axis = study.spec.get("exam")
    if axis not in SWAPPED_AXES:
        return None
    planned = [arm for arm in study.arms if arm.is_planned is not False and arm.run not in set_aside]
    finished = [arm for arm in planned if arm.found and arm.status in FINISHED]
    runs = list({arm.found.name: arm.found for arm in finished if arm.found}.values())
    lengths = {run.name: _lengths(study.runs / run.name) for run in runs}
    factors = study.spec.get("factors") or []
    material = Material(
        axis=axis,
        arms=finished,
        factors=factors if isinstance(factors, list) else [],
        margin_nats=margin_nats,
        metric=metric,
        at_length=lambda run: lengths.get(run.name, {}),
        map=_map(replace(study, arms=finished), axis, metric, find_rungs),
        timed=read_measures(study.runs.parent / "studies" / study.name) if is_plain_name(study.name) else None,
    )
    rows, num_open = _rows(finished), _num_open(study)
    question = study.spec.get("question")
    return Card(
        study=study.name,
        axis=axis,
        question=question if isinstance(question, str) else None,
        scenario=_scenario(runs),
        claims=[_examine(claim, material, num_open) for claim in _registered(study.spec.get("claims"))],
        margin_nats=margin_nats,
        trained_at=next((ctx for run in runs if isinstance(ctx := run.settings.get("model.ctx_len"), int)), None),
        losses=[] if material.map else _losses(rows, metric),
        by_length=_by_length(rows, lengths),
        by_position=_by_position(study.runs, rows, lengths),
        map=material.map,
        timed=material.timed,
    )


def _num_open(study: Study) -> int:
    """How many planned runs have not ended, asked for or not."""
    ended = {(arm.words, arm.seed) for arm in study.arms if arm.status in (*FINISHED, "failed")}
    plan = Plan.of(study.spec)
    if plan is None or not plan.arms:
        return sum((arm.words, arm.seed) not in ended for arm in study.arms)
    return sum((words, seed) not in ended for words in plan.arms for seed in plan.seeds(words))


def _registered(claims: Any) -> list[Mapping[str, str]]:
    """The claims in a study's spec that are sound, in their order."""
    keys = ("part", "claim", "text", "source")
    found = claims if isinstance(claims, list) else []
    return [one for one in found if isinstance(one, Mapping) and all(isinstance(one.get(key), str) for key in keys)]


def _examine(claim: Mapping[str, str], material: Material, num_open: int) -> Examined:
    said = {key: claim[key] for key in ("part", "claim", "text", "source")}
    if claim["claim"] not in RULES:
        return Examined(**said, rule="", verdict=None, measured=[], note="there is no rule for this claim")
    found, words = RULES[claim["claim"]](material), rule_in_words(claim["claim"], material.margin_nats)
    notes = [found.note] if found.note else []
    if num_open:
        notes = [f"not judged yet: {num_open} of the planned runs have not ended"]
    if claim.get("rule", words) != words:
        notes.append("the study was started under another rule")
    verdict = None if num_open else found.verdict
    return Examined(**said, rule=words, verdict=verdict, measured=found.measured, note="; ".join(notes) or None)


def _scenario(runs: Sequence[Run]) -> str:
    """What was trained, in a line; values that differ between the runs stand side by side."""
    keys = {"model.d_model": "{} wide", "model.n_layer": "{} layers", "model.ctx_len": "context {}"}
    keys |= {"train.batch_size": "batch {}", "train.lr": "rate {}", "train.warmup_steps": "warm-up {}"}
    keys |= {"train.steps": "{} steps"}
    values = {key: list(dict.fromkeys(run.settings.get(key) for run in runs)) for key in keys}
    told = [
        keys[key].format(" or ".join(map(str, some))) for key, some in values.items() if some and key != "train.steps"
    ]
    steps = [int(step) for step in values["train.steps"] if isinstance(step, int)]
    told += [f"{min(steps):,} steps" if len(steps) == 1 else f"{min(steps):,} to {max(steps):,} steps"] if steps else []
    texts = list(dict.fromkeys(text for run in runs if (text := run.texts["data.corpus"])))
    seeds = len({run.seed for run in runs})
    return ", ".join([*texts, *told, f"{len(runs)} runs, {seeds} seed{'s' * (seeds != 1)}"]) if runs else "no runs yet"


# ------------------------------------------------------------------------------------------------ losses


def _rows(arms: Sequence[Arm]) -> Rows:
    """The runs that are done, by base and what was asked for, so that a picture has a line for each."""
    rows: dict[tuple[str, str], list[Run]] = defaultdict(list)
    for arm in arms:
        if arm.base is not None and arm.found and arm.found.status == "done":
            rows[arm.base, arm.asked].append(arm.found)
    return rows


def _losses(rows: Rows, metric: str) -> list[PartLoss]:
    found = []
    for (base, asked), runs in rows.items():
        losses = [loss for run in runs if (loss := run.numbers[metric]) is not None]
        if losses:
            found.append(PartLoss(base, asked, fmean(losses), min(losses), max(losses), len(losses)))
    return found


def _lengths(folder: Path) -> dict[int, float | None]:
    """A run's test loss by length of the window."""
    try:
        by_length = (read_record(folder) or {}).get("test_loss_nats_at_length") or {}
        return {int(length): None if loss is None else finite(float(loss)) for length, loss in by_length.items()}
    except DAMAGE:
        return {}


def _by_length(rows: Rows, lengths: Mapping[str, Mapping[int, float | None]]) -> list[Series]:
    found = []
    for (base, asked), runs in rows.items():
        several = [lengths[run.name] for run in runs if lengths[run.name]]
        at = sorted(set[int]().union(*several))
        if at:
            found.append(_series(base, asked, at, [[losses.get(length) for losses in several] for length in at]))
    return found


def _by_position(folder: Path, rows: Rows, lengths: Mapping[str, Mapping[int, float | None]]) -> list[Series]:
    """Mean loss over positions 1, 2, 3-4, 5-8, ... of the longest windows."""
    found = []
    for (base, asked), runs in rows.items():
        arrays = [read_array(folder / run.name / POSITIONS_FILE) for run in runs if lengths[run.name]]
        sound = [array for array in arrays if array is not None and _is_sound(array)]
        if not sound:
            continue
        size = min(len(array) for array in sound)
        edges = [0, *(2**power for power in range(size.bit_length()) if 2**power < size), size]
        columns = [[float(array[start:stop].mean()) for array in sound] for start, stop in pairwise(edges)]
        found.append(_series(base, asked, edges[1:], columns))
    return found


def _is_sound(array: np.ndarray) -> bool:
    is_list = array.ndim == 1 and array.size > 0 and array.dtype.kind == "f"
    return is_list and bool((np.abs(array) < LARGEST).all())  # neither endless nor no number


def _series(base: str, row: str, x: Sequence[float], columns: Sequence[Sequence[float | None]]) -> Series:
    def over(summary: Callable[[list[float]], float]) -> list[float | None]:
        return [summary([y for y in column if y is not None]) if None not in column else None for column in columns]

    return Series(base, row, x, over(fmean), over(min), over(max))


# ------------------------------------------------------------------------------------------------ map


def _map(study: Study, axis: str, metric: str, find_rungs: FindRungs) -> list[MapCell]:
    """How the runs of each base and part ended in each cell."""
    found = []
    for cell in cells_of(study):
        by_row: dict[tuple[str, str], list[Run]] = defaultdict(list)
        for arm in cell.study.arms:
            if cell.values and arm.base is not None and arm.found:
                by_row[arm.base, arm.found.parts[axis]].append(arm.found)
        for (base, part), runs in by_row.items():
            once = list({run.name: run for run in runs}.values())
            losses = [loss for run in once if (loss := run.numbers[metric]) is not None]
            found.append(
                MapCell(
                    base=base,
                    part=part,
                    factors=cell.values,
                    outcomes=dict(Counter(_outcome(run, metric, find_rungs) for run in once)),
                    loss_nats=fmean(losses) if losses else None,
                    gradients=_gradients([study.runs / run.name for run in once]),
                )
            )
    return found


def _outcome(run: Run, metric: str, find_rungs: FindRungs) -> str:
    rungs, loss, num_symbols = find_rungs(run), run.numbers[metric], run.numbers["data.vocab_size"]
    if run.status == "diverged" or loss is None:
        return DIVERGED
    if rungs is None or not num_symbols or num_symbols < 0:
        return UNKNOWN
    return PLATEAU if rung_of(loss, rungs, num_symbols) < PLATEAU_RUNG else TRAINED


def _gradients(folders: Sequence[Path]) -> list[float]:
    """The gradient norm at the start of each block, attention and FFN together, mean over runs."""
    by_run = [norms for folder in folders if (norms := _gradient_norms(folder))]
    return [fmean(norms) for norms in zip(*by_run, strict=False)]


def _gradient_norms(folder: Path) -> list[float]:
    measured = read_measured(folder)
    attn, ffn = (layer_numbers(measured, ("gradients", "start", sub)) for sub in ("attn", "ffn"))
    pairs = list(zip(attn, ffn, strict=False)) if len(attn) == len(ffn) else []
    norms = [math.hypot(one, other) for one, other in pairs if one is not None and other is not None]
    return norms if len(norms) == len(pairs) else []
