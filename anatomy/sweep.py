"""Many runs: plan them, write them into the study's manifest, launch what is left to do, sum up.

What a run came to is read from the pool, never handed back by a launcher, so that any of Hydra's launchers will do and
a killed sweep loses nothing.
"""

import os
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from hydra._internal.callbacks import Callbacks
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.core.utils import JobStatus
from hydra.types import HydraContext
from omegaconf import DictConfig, OmegaConf

from anatomy.about import claims_on, without_about
from anatomy.build import part_faults
from anatomy.compose import Asked, Request
from anatomy.config import Config, StudySpec, parse_config
from anatomy.diagnostics import lacking
from anatomy.errors import UserError
from anatomy.predictions import Prediction, prediction_for, refuse_afterthoughts, refuse_idle
from anatomy.proof import Prover
from anatomy.record import tokens_after
from anatomy.runner import Job, finished_record, prepare, run
from anatomy.runs import ADHOC, Busy, Entry, Layout, arm_words, read_record, record_entries
from anatomy.steptimes import StepTimes

NO_STUDY = StudySpec(name=ADHOC, question="Runs asked for one by one.")
NOMINAL_FLOPS_PER_S, NOMINAL_STEP_S = 75e9, 0.013  # of one thread; finished runs tell how far this machine is off
DIAGNOSIS_S = 5.0  # about what all diagnostics of a run that is done take

Outcome = Literal["done", "diverged", "failed", "interrupted", "running", "planned", "refused"]


@dataclass(frozen=True)
class Planned:
    """One run of a plan: what was asked, the job it comes to or the reason why it was refused.

    lacks   diagnostics that were asked for and that a run which is done does not have yet
    """

    request: Request
    config: Config
    job: Job | None
    error: str | None
    was_done: bool
    lacks: Sequence[str] = ()
    prediction: Prediction | None = None

    @property
    def to_do(self) -> bool:
        return self.job is not None and (not self.was_done or bool(self.lacks))

    @property
    def arm(self) -> str:
        """The arm as one would type it."""
        return arm_words(self.config.base, self.request.swap_words, self.request.overrides)

    def record(self) -> dict[str, Any] | None:
        """What the pool has of the run now; a damaged record counts as none."""
        return _record_or_none(self.job.folder) if self.job else None

    def outcome(self) -> Outcome:
        """What the pool says of the run now."""
        if self.job is None:
            return "refused"
        record = self.record()
        return record["status"] if record is not None else "planned"

    def label(self) -> str:
        """The run in the words it was asked for."""
        return " ".join(self.request.overrides) or "defaults"


@dataclass(frozen=True)
class Plan:
    """Runs to make, in the order asked: those of a command, or of a stage of it."""

    runs: tuple[Planned, ...]
    study: StudySpec
    asked: Asked
    layout: Layout
    step_times: StepTimes

    @property
    def to_do(self) -> tuple[Planned, ...]:
        """The runs to launch: each once, in the words it was first asked for in."""
        by_name: dict[str, Planned] = {}
        for planned in self.runs:
            if planned.job and planned.to_do:
                by_name.setdefault(planned.job.name, planned)
        return tuple(by_name.values())

    @property
    def num_workers(self) -> int:
        asked = self.asked.master.hydra.launcher.get("n_jobs") or 1
        return asked if asked > 0 else max(1, num_cpus() + 1 + asked)

    def about_seconds(self) -> float:
        """A guess of how long the runs to do will take, from what finished runs of the plan took."""
        known = [seconds / _nominal_s(planned) for planned in self.runs if (seconds := _seconds(planned))]
        pace = statistics.median(known) if known else 1
        seconds = sum(DIAGNOSIS_S if p.was_done else _nominal_s(p) * pace for p in self.to_do)
        return seconds / min(self.num_workers, max(1, len(self.to_do)))

    def __str__(self) -> str:
        """`36 runs: 12 done, 24 to do, about 5 min`."""
        counts = Counter("refused" if p.job is None else "to do" if p.to_do else "done" for p in self.runs)
        parts = [f"{counts[word]} {word}" for word in ("done", "to do", "refused") if counts[word]]
        about = [f"about {_duration(self.about_seconds())}"] if self.to_do else []
        runs = "1 run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return f"{runs}: {', '.join(parts + about)}"

    def predictions(self) -> list[str]:
        """A line a prediction: what is predicted, and for which arms."""
        arms: dict[str, dict[str, None]] = {}
        for planned in self.runs:
            for axis, nats in (planned.prediction or {}).items():
                arms.setdefault(f"predict.{axis}={nats:g}", {})[planned.arm] = None
        return [f"{predicted} is for {'; '.join(rows)}" for predicted, rows in arms.items()]


def make_plan(asked: Asked, requests: Sequence[Request] | None = None) -> Plan:
    """Check every run asked for, or those of a stage (`requests`). Writes nothing.

    Raises UserError on a wrong type or name anywhere, on a run that cannot be where it is the only one, and where every
    run was refused; otherwise a run that cannot be is part of the plan, as refused.
    """
    configs: list[Config | None] = []
    faults: list[str] = []
    requests = asked.requests if requests is None else requests
    for request in requests:
        config, wrong = parse_config(request.resolved)
        faults += wrong + part_faults(request.resolved)
        configs.append(config)
    if faults:
        raise UserError("\n".join(dict.fromkeys(faults)))
    checked = [config for config in configs if config is not None]
    layout = Layout(Path(checked[0].output_dir))
    prover, step_times = Prover() if asked.is_sweep else None, StepTimes(layout)
    runs = tuple(
        replace(_plan_run(request, config, prover, step_times), prediction=prediction_for(config, checked[0].base))
        for request, config in zip(requests, checked, strict=True)
    )
    if all(planned.job is None for planned in runs):
        raise UserError("\n".join(dict.fromkeys(str(planned.error) for planned in runs)))
    study = checked[0].study or NO_STUDY
    refuse_idle(checked[0], [planned.prediction for planned in runs])
    predicted = [(p.arm, p.prediction, p.job.name if p.job else None) for p in runs if p.prediction]
    refuse_afterthoughts(layout, study.name, predicted)
    return Plan(runs, study, asked, layout, step_times)


def _plan_run(request: Request, config: Config, prover: Prover | None, step_times: StepTimes) -> Planned:
    """Check one run; what a sweep still has to train is held against its base as well."""
    try:
        if fault := request.swap_fault():
            raise UserError(fault)
        job = prepare(config, request.resolved, step_times)
        was_done = not config.force and finished_record(job) is not None
        lacks = lacking(job.folder, config.diagnostics) if was_done else ()
        if prover and not was_done and (faults := prover.faults(config, len(job.corpus.vocabulary))):
            raise UserError("\n".join(faults))
    except UserError as error:
        return Planned(request, config, None, str(error), was_done=False)
    return Planned(request, job.config, job, None, was_done, lacks)


def write_manifest(plan: Plan) -> None:
    """Enter every run of the plan, refused ones included, into the study's manifest; keep what was timed for it.

    What the study promises is all that the command asks for, whatever the stage, and the seeds of the study's file: a
    first look at some of them leaves the plan as it is.
    """
    plan.step_times.save()
    entries = [
        Entry(
            base=planned.config.base,
            swap=planned.request.swap_words,
            overrides=planned.request.overrides,
            seed=planned.config.seed,
            prediction=planned.prediction,
            run=planned.job.name if planned.job else None,
            error=planned.error,
        )
        for planned in plan.runs
    ]
    seeds: dict[str, set[int]] = {}
    for each in plan.asked.requests:
        arm = arm_words(each.resolved["base"], each.swap_words, each.overrides)
        seeds.setdefault(arm, set()).update({each.resolved["seed"], *each.study_seeds})
    spec = {**plan.study.model_dump(mode="json"), "arms": list(seeds), "seeds": sorted(set().union(*seeds.values()))}
    if any(some != set(spec["seeds"]) for some in seeds.values()):
        spec["seeds_of_arms"] = [sorted(some) for some in seeds.values()]
    if plan.study.exam:
        spec["claims"] = claims_on(plan.study.exam, plan.study.margin)
    record_entries(plan.layout.study(plan.study.name), spec, entries)


def launch(plan: Plan) -> list[str]:
    """Run what is left to do with Hydra's launcher. Returns what went wrong outside the runs themselves."""
    loader = GlobalHydra.instance().config_loader()
    launcher = Plugins.instance().instantiate_launcher(
        hydra_context=HydraContext(config_loader=loader, callbacks=Callbacks(plan.asked.master)),
        task_function=task,
        config=plan.asked.master,
    )
    jobs = [planned.request.launch_overrides for planned in plan.to_do]
    try:
        returns = launcher.launch(jobs, initial_job_idx=0)
    except Exception as error:  # a worker that was killed ends joblib's whole pool; the pool of runs knows the rest
        reason = str(error).partition("\n")[0]
        return [f"the launcher gave up ({type(error).__name__}: {reason}); the same command goes on with what is left"]
    return [str(job._return_value) for job in returns if job.status is not JobStatus.COMPLETED]


def task(config: DictConfig) -> str:
    """Carry out one job of a sweep, in whatever process the launcher chose; its status, as the record has it."""
    resolved = without_about(cast(dict[str, Any], OmegaConf.to_container(config, resolve=True)))
    checked, faults = parse_config(resolved)
    if checked is None:
        raise UserError("\n".join(faults))
    try:
        return str(run(prepare(checked, resolved), HydraConfig.get().overrides.task)["status"])
    except Busy:
        return "busy"


def num_cpus() -> int:
    """How many CPUs this process may use, where the system tells (Linux), else how many there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _record_or_none(folder: Path) -> dict[str, Any] | None:
    try:
        return read_record(folder)
    except ValueError:
        return None


def _nominal_s(planned: Planned) -> float:
    """How long a run would take on the nominal machine: its arithmetic, and what every step costs beside it."""
    assert planned.job is not None
    config = planned.config
    flops = planned.job.model.flops_per_token(config.model.ctx_len) * tokens_after(config, config.train.steps)
    return flops / NOMINAL_FLOPS_PER_S + config.train.steps * NOMINAL_STEP_S + 1


def _seconds(planned: Planned) -> float | None:
    record = _record_or_none(planned.job.folder) if planned.job and planned.was_done else None
    return record["wall_s"] if record is not None and record["status"] == "done" else None


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def summarise(plan: Plan) -> Counter[str]:
    """How many runs of the plan ended how."""
    return Counter(planned.outcome() for planned in plan.runs)


def reasons(runs: Sequence[Planned]) -> list[str]:
    """A line for each run that was refused, failed or diverged, with its reason."""
    lines = []
    for planned in runs:
        if planned.job is None:
            lines.append(f"refused   {planned.label()}: {planned.error}")
        elif (record := _record_or_none(planned.job.folder)) and record["status"] in ("failed", "diverged"):
            lines.append(
                f"{record['status']:<9} {planned.label()}: {record['error']} (see {planned.job.folder / 'run.log'})"
            )
    return lines
