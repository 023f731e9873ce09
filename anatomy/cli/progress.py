"""How a run and a sweep show their progress: a bar on a terminal, plain lines elsewhere."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from anatomy.files import RECORD_FILE
from anatomy.runs import read_record
from anatomy.sweep import Plan, Planned
from anatomy.train import Training

SECONDS_BETWEEN_LOOKS = 0.5
ENDED = ("done", "diverged", "failed", "interrupted")


class RunProgress:
    """Watches one run: loss, rate and time left on a terminal, else a line an evaluation."""

    def __init__(self, console: Console, num_steps: int) -> None:
        self.console = console
        self.bar = Progress(
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self.task = self.bar.add_task("train", total=num_steps, numbers="")

    def __enter__(self) -> "RunProgress":
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def stepped(self, training: Training) -> None:
        tokens = training.num_steps * training.config.batch_size * training.config.grad_accum_steps * training.ctx_len
        numbers = f"loss {training.last_loss_nats:.3f} nats, {tokens / training.train_s:,.0f} tokens/s"
        self.bar.update(self.task, completed=training.num_steps, numbers=numbers)

    def evaluated(self, row: dict[str, Any]) -> None:
        train = "" if row["train_loss_nats"] is None else f"train {row['train_loss_nats']:.4f}  "
        self.console.print(f"step {row['step']:>6}  {train}val {row['val_loss_nats']:.4f} nats  {row['time_s']:.1f} s")


@contextmanager
def sweep_progress(console: Console, plan: Plan) -> Iterator[None]:
    """Show how a sweep gets on, as a whole, from what its runs write into the pool."""
    stop = threading.Event()
    watch = threading.Thread(target=_watch, args=(console, plan, stop), daemon=True)
    watch.start()
    try:
        yield
    finally:
        stop.set()
        watch.join()


def _watch(console: Console, plan: Plan, stop: threading.Event) -> None:
    """Look at the pool until told to stop, and once more then: a line for each run that ended, a bar for all steps."""
    open_runs = {planned.job.name: planned for planned in plan.to_do if planned.job}
    begun_as = {name: _stamp(planned) for name, planned in open_runs.items()}
    total = sum(planned.config.train.steps for planned in open_runs.values())
    num_all, num_ended, steps_ended = len(open_runs), 0, 0
    columns = (BarColumn(), TextColumn("{task.description}"), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(f"0/{num_all} runs", total=total)
        while True:
            last_look = stop.wait(SECONDS_BETWEEN_LOOKS)
            for name, planned in list(open_runs.items()):
                if _stamp(planned) == begun_as[name] or (line := _ending(planned)) is None:
                    continue
                num_ended += 1
                steps_ended += planned.config.train.steps
                del open_runs[name]
                console.print(f"[{num_ended}/{num_all}] {line}")
            steps = steps_ended + sum(_steps_so_far(planned) for planned in open_runs.values())
            bar.update(task, completed=steps, description=f"{num_ended}/{num_all} runs")
            if last_look:
                return


def _stamp(planned: Planned) -> int | None:
    """When the run's record was last written; an old record of an earlier try is told from a new one by it."""
    assert planned.job is not None
    try:
        return (planned.job.folder / RECORD_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _ending(planned: Planned) -> str | None:
    """One line on a run that has ended, else None."""
    assert planned.job is not None
    try:
        record = read_record(planned.job.folder)
    except ValueError as damage:
        return f"{planned.label()}: {damage}"
    if record is None or record["status"] not in ENDED:
        return None
    loss = "" if record["test_loss_nats"] is None else f"  test {record['test_loss_nats']:.4f} nats"
    error = "" if record["error"] is None else f"  {record['error']}"
    return f"{record['status']:<8} {planned.label()}{loss}  {record['wall_s']:.0f} s{error}"


def _steps_so_far(planned: Planned) -> int:
    assert planned.job is not None
    return _last_step(planned.job.folder / "metrics.jsonl")


def _last_step(curve: Path) -> int:
    try:
        return int(json.loads(curve.read_text(encoding="utf-8").splitlines()[-1])["step"])
    except (OSError, ValueError, LookupError):
        return 0  # not there yet, or in the middle of being written
