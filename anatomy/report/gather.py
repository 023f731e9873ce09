"""What lies under a folder: its studies, and the runs that answer them.

Nothing found here is trusted. A record or manifest that cannot be read as what it claims to be becomes a sentence
about itself, and the rest is reported without it.
"""

import math
import os
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from anatomy.axes import AXES, BASES, Parts
from anatomy.errors import UserError
from anatomy.files import is_plain_name
from anatomy.report.plan import Plan, Words, words_of
from anatomy.runs import (
    ADHOC,
    FINISHED,
    LABELS,
    Layout,
    Status,
    finite,
    identity,
    part_name,
    read_manifest,
    read_record,
    spec_sha256,
)

NOISE_FLOOR = "noise_floor"
"""The study whose null arms say how far a base is from itself."""

Setting = str | int | float | tuple["Setting", ...]
Settings = Mapping[str, Setting]
"""A flat config: `train.lr` -> 0.004, and axis -> part. What is null is left out."""

DAMAGE = (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError, OSError)
"""What reading strange JSON can raise."""

LARGEST = 1e18  # nothing that is counted or measured here comes near
LARGEST_PREDICTION = 100.0  # nats; no loss differs by more

NUMBERS = (
    "num_params",
    "num_params_by_axis.norm",
    "num_params_by_axis.attn",
    "num_params_by_axis.ffn",
    "flops_per_token",
    "kv_bytes_per_token",
    "tokens",
    "val_loss_nats",
    "best_val_loss_nats",
    "best_step",
    "test_loss_nats",
    "test_loss_nats_at_best",
    "test_bits_per_char",
    "num_test_targets",
    "tokens_per_s",
    "data.num_chars",
    "data.vocab_size",
    "data.epochs",
)
TEXTS = ("error", "data.corpus", "data.sha256", "data.batch_order_sha256", "env.device", "env.commit", "env.torch")


@dataclass(frozen=True)
class Run:
    """What the report reads out of a run's record, checked.

    settings     what makes the run's row: `runs.identity`, flat and without the seed
    is_resolved  whether the record says what sizes left null came to, and which text it was; a run that failed early
                 never found out
    asked        the config as it stood before any of that, to recognise such a run by
    match        what it was to match its base in when it was first asked for: params, flops, time, or None
    numbers      NUMBERS -> value, None for what does not exist
    texts        TEXTS -> value, likewise
    """

    name: str
    status: Status
    base: str | None
    seed: int
    parts: Parts
    settings: Settings
    is_resolved: bool
    asked: Settings
    match: str | None
    numbers: Mapping[str, float | None]
    texts: Mapping[str, str | None]


@dataclass(frozen=True)
class Arm:
    """One arm and seed of a study: what was asked for, and what came of it.

    base     whose table it belongs to; None where that cannot be read
    asked    the request in the user's words, seed and labels left out: `swap=norm`, or `base`
    run      the run's folder, None where the request was refused
    words    `asked` and the base, in no order
    found    the run, None where nothing is there yet
    refused  why there is no run
    damage   why what is there cannot be read
    is_planned   whether the study's plan holds it; None where there is no plan
    prediction_nats   the difference to the base that somebody predicted before it ran
    """

    base: str | None
    asked: str
    seed: int | None
    run: str | None
    words: Words = frozenset()
    found: Run | None = None
    refused: str | None = None
    damage: str | None = None
    is_planned: bool | None = None
    prediction_nats: float | None = None

    @property
    def match(self) -> str | None:
        """What it was to match its base in, as asked for here: a run may have been asked for in other words before."""
        if not self.words:
            return self.found.match if self.found else None
        return next((word.removeprefix("match=") for word in self.words if word.startswith("match=")), None)

    @property
    def status(self) -> str:
        if self.refused is not None:
            return "failed"
        return self.found.status if self.found else "planned"


@dataclass(frozen=True)
class Study:
    """A question and the arms that answer it, in the order of the manifest.

    runs            the folder where its runs lie
    spec            what was asked, as it stood when the study first started; spec_sha256 and started go with it
    deviations      what was done otherwise
    """

    name: str
    runs: Path
    arms: Sequence[Arm]
    spec: Mapping[str, Any] = field(default_factory=dict)
    spec_sha256: str | None = None
    started: str | None = None
    deviations: Sequence[str] = ()
    warnings: Sequence[str] = ()


@dataclass(frozen=True)
class Gathered:
    """All that a folder holds.

    outputs      where its texts' rungs are
    noise_floor  the study of that name, also where another was gathered alone
    """

    outputs: Path
    studies: Sequence[Study]
    warnings: Sequence[str] = ()
    noise_floor: Study | None = None


def gather(folder: Path) -> Gathered:
    """Read an outputs folder, a study's folder, a run's folder, or a folder of runs.

    Runs that no manifest names make up the study `adhoc`; their base is the one their record names.

    Raises: UserError if there is no such folder, or it cannot be read.
    """
    if not folder.is_dir():
        what = "a file, not a folder" if folder.exists() else "no such folder"
        raise UserError(f"{str(folder)!r}: {what}; type: anatomy-report DIR with a folder of outputs, runs or a study")
    folder = Path(os.path.abspath(folder))  # so that `.` has a parent
    try:
        if (folder / "study.json").exists():
            return _gather_study(folder)
        if (folder / "runs").is_dir() or (folder / "studies").is_dir():
            return _gather_outputs(Layout(folder))
        is_run = (folder / "result.json").exists()
        pool = _Pool(folder.parent if is_run else folder)
        arms = [pool.unasked_arm(name) for name in ([folder.name] if is_run else pool.names())]
        return Gathered(pool.folder.parent, [Study(ADHOC, pool.folder, arms)] if arms else [])
    except OSError as error:
        raise UserError(f"{str(folder)!r}: cannot read it ({error.strerror})") from error


def pick_studies(gathered: Gathered, names: Sequence[str]) -> Gathered:
    """Keep only the studies of these names, in their order. Raises UserError if there is none of a name."""
    there = {study.name for study in gathered.studies}
    for name in names:
        if name not in there:
            near = "".join(f" Did you mean {match}?" for match in get_close_matches(name, there, n=1))
            here = f"there is {', '.join(sorted(there)) or 'none'}.{near}"
            raise UserError("; ".join([f"--study {name!r}: no such study here", here, *gathered.warnings]))
    picked = [study for name in dict.fromkeys(names) for study in gathered.studies if study.name == name]
    return replace(gathered, studies=picked)


def _gather_study(folder: Path) -> Gathered:
    layout = Layout(folder.parent.parent)
    pool = _Pool(layout.runs)
    try:
        study = _read_study(folder, pool)
    except ValueError as error:
        return Gathered(layout.outputs, [], [f"damaged manifest: {error}"])
    if not layout.runs.is_dir():
        study = replace(study, warnings=[*study.warnings, "no folder of runs two levels up"])
    floor = None
    with suppress(ValueError):  # its damage is no concern of this study
        beside = layout.study(NOISE_FLOOR)
        floor = _read_study(beside, pool) if beside != folder and (beside / "study.json").exists() else None
    return Gathered(layout.outputs, [study], noise_floor=floor)


def _gather_outputs(layout: Layout) -> Gathered:
    pool = _Pool(layout.runs)
    studies: list[Study] = []
    warnings: list[str] = []
    for folder in _subfolders(layout.studies, "study.json"):
        try:
            studies.append(_read_study(folder, pool))
        except ValueError as error:
            warnings.append(f"damaged manifest: {error}")
    named = {arm.run for study in studies for arm in study.arms}
    unasked = [pool.unasked_arm(name) for name in pool.names() if name not in named]
    if unasked:
        adhoc = next((study for study in studies if study.name == ADHOC), Study(ADHOC, pool.folder, []))
        joined = replace(adhoc, arms=[*adhoc.arms, *unasked])
        studies = [*(study for study in studies if study is not adhoc), joined]
    floor = next((study for study in studies if study.name == NOISE_FLOOR), None)
    return Gathered(layout.outputs, studies, warnings, floor)


def _read_study(folder: Path, pool: "_Pool") -> Study:
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(f"{folder.name}: gone while it was read")
    name, spec, entries = (manifest.get(key) for key in ("study", "spec", "entries"))
    if not (isinstance(name, str) and isinstance(spec, Mapping) and isinstance(entries, list)):
        raise ValueError(f"{folder.name}: it needs study (text), spec (object) and entries (list)")
    try:
        plan = Plan.of(spec) if name != ADHOC else None
        kept, started = _text(manifest, "spec_sha256"), _text(manifest, "started")
        changes = [f"{item['at']}: {item['what']}" for item in manifest.get("amendments") or []]
        if kept is not None and kept != spec_sha256(spec):
            changes.append("the plan in the manifest is not the one that was hashed when the study started")
    except DAMAGE as error:
        raise ValueError(f"{folder.name}: {error!r}") from error
    arms, warnings = [], []
    for index, entry in enumerate(entries):
        try:
            arms.append(pool.asked_arm(entry, plan))
        except DAMAGE as error:
            warnings.append(f"entry {index} of the manifest is damaged and left out ({error!r})")
    return Study(
        name=name,
        runs=pool.folder,
        arms=arms,
        spec=spec,
        spec_sha256=kept,
        started=started,
        deviations=[*changes, *(_deviations(plan, arms) if plan else [])],
        warnings=warnings,
    )


def _deviations(plan: Plan, arms: Sequence[Arm]) -> list[str]:
    """Arms and seeds that were added after the start, or are not there."""
    added: dict[str, list[int | None]] = defaultdict(list)
    for arm in arms:
        if arm.is_planned is False:
            added[f"base={arm.base} {arm.asked}"].append(arm.seed)
    lines = [f"added after the start: {words}, seed {', '.join(map(str, seeds))}" for words, seeds in added.items()]
    asked: dict[Words, set[int | None]] = defaultdict(set)
    for arm in arms:
        asked[arm.words].add(arm.seed)
    lines += [
        f"planned, but not in the study: {' '.join(typed)}" for arm, typed in plan.arms.items() if arm not in asked
    ]
    missing = Counter(seed for arm in plan.arms if arm in asked for seed in plan.seeds(arm) - asked[arm])
    lines += [f"planned, but not asked for yet: seed {seed}, {num} arms" for seed, num in sorted(missing.items())]
    num_open = sum(arm.status not in FINISHED for arm in arms if arm.is_planned)
    return [*lines, f"{num_open} planned runs are not finished"] if num_open else lines


class _Pool:
    """A folder of runs. Each is read once, however many studies name it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, Run | str | None] = {}

    def names(self) -> list[str]:
        return [folder.name for folder in _subfolders(self.folder, "result.json")]

    def asked_arm(self, entry: Mapping[str, Any], plan: Plan | None) -> Arm:
        """The arm of a manifest's entry, held against the plan. Raises one of DAMAGE on a damaged entry."""
        base, swap, overrides, seed, run = (entry[key] for key in ("base", "swap", "overrides", "seed", "run"))
        refused = entry.get("error")
        words = words_of([f"base={base}", *overrides, *([] if swap == "" else [f"swap={swap}"])])
        outcome = run if refused is None else refused
        if base not in BASES or type(seed) is not int or not isinstance(outcome, str):
            raise ValueError(f"base={base} seed={seed} run={run} error={refused}")
        asked = " ".join(sorted(words - {f"base={base}"})) or "base"
        is_planned = None if plan is None else plan.holds(words, seed)
        prediction_nats = _predicted(entry.get("prediction"))
        arm = Arm(base, asked, seed, run, words, is_planned=is_planned, prediction_nats=prediction_nats)
        if refused is not None:
            return replace(arm, run=None, refused=refused)
        found = self._find(run)
        return replace(arm, damage=found) if isinstance(found, str) else replace(arm, found=found)

    def unasked_arm(self, name: str) -> Arm:
        """The arm of a run that no manifest names, so only its own record says whose it is."""
        found = self._find(name)
        if isinstance(found, str):
            return Arm(None, name, None, name, damage=found)
        if found is None or found.base not in BASES:
            damage = f"base={found.base} is none of {', '.join(BASES)}" if found else "gone while it was read"
            return Arm(None, name, None, name, damage=damage)
        return Arm(found.base, name, found.seed, name, found=found)

    def _find(self, name: str) -> Run | str | None:
        """The run, None where there is no record, or what is wrong with it."""
        if not is_plain_name(name):
            return f"{name!r} is no name of a run"
        if name not in self._read:
            folder = self.folder / name
            try:
                record = read_record(folder)
                self._read[name] = None if record is None else parse_record(name, record)
            except DAMAGE as error:
                reason = f"no {error}" if isinstance(error, KeyError) else str(error)
                reason = reason.removeprefix(f"{folder / 'result.json'}: ")
                self._read[name] = f"damaged record: {reason}"
        return self._read[name]


def _predicted(prediction: Any) -> float | None:
    """The nats of a prediction, {axis: nats}; None of anything else."""
    if not isinstance(prediction, Mapping) or len(prediction) != 1:
        return None
    ((axis, nats),) = prediction.items()
    is_number = isinstance(nats, int | float) and not isinstance(nats, bool) and abs(nats) <= LARGEST_PREDICTION
    return float(nats) if axis in AXES and is_number else None


def parse_record(name: str, record: Mapping[str, Any]) -> Run:
    """Check a run's record and take out of it what the report needs.

    Raises ValueError, or what Python raises where a value is not of its kind, on a damaged record.
    """
    status, seed, config = record["status"], record["seed"], record["config"]
    if type(seed) is not int:
        raise ValueError(f"seed {seed!r} is no whole number")
    if not isinstance(config, Mapping):
        raise ValueError("no config")
    if type(steps := config["train"]["steps"]) is not int:
        raise ValueError(f"train.steps {steps!r} is no whole number")
    numbers = {key: _number(record, key) for key in NUMBERS}
    texts = {key: _text(record, key) for key in TEXTS}
    if status == "done" and numbers["test_loss_nats"] is None:
        raise ValueError("done, but without test_loss_nats")

    asked_sizes = {
        "vocab_size": config["model"]["vocab_size"],
        "ffn_hidden": config["ffn"].get("hidden"),
        "n_kv_head": config["attn"].get("n_kv_head"),
        "window": config.get("window", {}).get("size"),
    }
    derived = {key: value for key, value in (record.get("derived") or {}).items() if value is not None}
    parts = {axis: part_name(config, axis) for axis in AXES}
    return Run(
        name=name,
        status=status,
        base=_text(config, "base"),
        seed=seed,
        parts=parts,
        settings=_settings(identity(config, asked_sizes | derived, texts["data.sha256"]), parts),
        is_resolved=bool(derived) and texts["data.sha256"] is not None,
        asked=_settings({key: value for key, value in config.items() if key not in LABELS}, parts),
        match=_text(config, "match"),
        numbers=numbers,
        texts=texts,
    )


NAMES = ("seed", *(f"{axis}.{word}" for axis in AXES for word in ("name", "class")))
"""What of a config says which part it is, and so is told by the part itself; and the seed."""


def _settings(config: Mapping[str, Any], parts: Parts) -> Settings:
    leaves: dict[str, Setting] = {}
    _collect(config, "", leaves)
    for key in NAMES:
        leaves.pop(key, None)
    return {**leaves, **parts}


def _collect(config: Mapping[str, Any], prefix: str, leaves: dict[str, Setting]) -> None:
    """Put the leaves of a nested config, as JSON gives it, under their dotted keys. Types are asked for by the
    cheapest means: half of a report's time over thousands of runs is spent here."""
    for key, value in config.items():
        kind = type(value)
        if kind is dict:
            _collect(value, f"{prefix}{key}.", leaves)
        elif kind is int or kind is str or kind is bool:
            leaves[prefix + key] = value
        elif value is not None:
            leaves[prefix + key] = _frozen(value)


def _frozen(value: Any) -> Setting:
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, str | int) or (isinstance(value, float) and finite(value) is not None):
        return value
    raise ValueError(f"{value!r} is no setting")


def _at(record: Mapping[str, Any], path: str) -> Any:
    value: Any = record
    for key in path.split("."):
        value = None if value is None else value.get(key)
    return value


def _number(record: Mapping[str, Any], path: str) -> float | None:
    value = _at(record, path)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{path} {value!r} is no number")
    if value is not None and LARGEST < abs(value) < math.inf:
        raise ValueError(f"{path} {value!r} is no number that it could be")
    return finite(value)


def _text(record: Mapping[str, Any], path: str) -> str | None:
    value = _at(record, path)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{path} {value!r} is no text")
    return value


def _subfolders(folder: Path, marker: str) -> list[Path]:
    """The subfolders that hold a file named `marker`, so that run_2 comes before run_10."""
    if not folder.is_dir():
        return []
    return sorted((file.parent for file in folder.glob(f"*/{marker}")), key=_natural_key)


def _natural_key(path: Path) -> tuple[list[tuple[int, str]], str]:
    pieces = re.split(r"([0-9]+)", path.name)
    return [(int(piece), "") if piece.isdecimal() else (-1, piece) for piece in pieces], path.name
