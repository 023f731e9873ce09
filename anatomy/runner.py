"""One run, from a checked config to a finished folder: train, evaluate, record, and resume where a run was cut.

The folder is made here and only after the config was checked and the text was read, so a refused run leaves nothing.
"""

import io
import json
import logging
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import safetensors.torch
import torch
from omegaconf import OmegaConf

from anatomy import diagnostics
from anatomy.build import build_model, derived, with_floats
from anatomy.config import Config
from anatomy.corpus import BatchOrder, Corpus, Part, load_corpus
from anatomy.errors import UserError
from anatomy.evaluation import NUM_CURVE_WINDOWS, NUM_FINAL_WINDOWS, losses_at_length, mean_nats, window_losses
from anatomy.files import BEST_WEIGHTS_FILE, RECORD_FILE, VOCABULARY_FILE, WEIGHTS_FILE, write_atomic, write_json
from anatomy.model import Transformer, init_digests, initialise
from anatomy.record import PeakMemory, first_record, tokens_after
from anatomy.rungs import ensure_rungs
from anatomy.runs import DIAGNOSTICS_FILE, FINISHED, POSITIONS_FILE, Layout, finite, owned, read_record, run_name
from anatomy.sample import PROMPT_CHARS, sample
from anatomy.steptimes import StepTimes
from anatomy.train import Diverged, Training
from anatomy.weights import read_weights

log = logging.getLogger("anatomy")


class Watcher(Protocol):
    """Somebody who looks on while a run trains."""

    def stepped(self, training: Training) -> None: ...

    def evaluated(self, row: dict[str, Any]) -> None: ...


@dataclass(frozen=True)
class Job:
    """A run that was checked and can start: its config, its text, its model (on the meta device) and its name."""

    config: Config
    resolved: dict[str, Any]
    corpus: Corpus
    model: Transformer
    device: torch.device
    name: str

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.config.output_dir))

    @property
    def folder(self) -> Path:
        return self.layout.run(self.name)


def prepare(config: Config, resolved: dict[str, Any], step_times: StepTimes | None = None) -> Job:
    """Check all that can be checked before a run starts. Writes nothing. Raises UserError.

    Under match=time the job's steps are solved, from `step_times` or what the outputs folder knows of them.
    """
    resolved = with_floats(resolved, config)
    corpus = corpus_of(config)
    model = build_model(config, len(corpus.vocabulary))
    BatchOrder(corpus.train, config.model.ctx_len, seed=config.seed, salt=config.order_salt)
    for part in ("val", "test"):
        corpus.windows(part, config.model.ctx_len)
    if config.eval.lengths:
        corpus.windows("test", max(config.eval.lengths))
    if config.sample.prompt is not None:
        corpus.vocabulary.encode(config.sample.prompt)
    device = _device(config.train.device)
    if config.match == "time":
        step_times = step_times or StepTimes(Layout(Path(config.output_dir)))
        steps = step_times.matched_steps(config, corpus, device)
        config = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
        resolved = {**resolved, "train": {**resolved["train"], "steps": steps}}
    name = run_name(resolved, derived(model), corpus.sha256)
    return Job(config, resolved, corpus, model, device, name)


def corpus_of(config: Config) -> Corpus:
    """The run's text, split; read once a process."""
    settings = config.corpus
    return _load(settings.name, settings.path, settings.split, settings.val_fraction, settings.test_fraction)


@lru_cache(maxsize=4)
def _load(name: str, path: str | None, split: str, val_fraction: float, test_fraction: float) -> Corpus:
    return load_corpus(name, path=path, split=split, val_fraction=val_fraction, test_fraction=test_fraction)


def _device(asked: str) -> torch.device:
    accelerators = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if asked == "auto":
        return torch.device(next((name for name, there in accelerators.items() if there), "cpu"))
    if not accelerators.get(asked, True):
        raise UserError(f"train.device={asked}: this machine has none that PyTorch can use; type train.device=cpu")
    return torch.device(asked)


def run(job: Job, overrides: Sequence[str], watcher: Watcher | None = None) -> dict[str, Any]:
    """Carry a run to its end and return its record; a finished one is returned as it stands unless `force`.

    A run that was cut goes on from its last evaluation. Whatever goes wrong inside is recorded: `failed` with the
    traceback in run.log, `diverged`, or `interrupted` (and KeyboardInterrupt raised on).

    The diagnostics that are asked for and not there yet are added to a run that has ended, however long ago.

    Raises: runs.Busy where another process owns the folder; UserError where diagnostics cannot be had.
    """
    with owned(job.folder):
        record = None if job.config.force else finished_record(job)
        if record is not None:
            (job.folder / "state.pt").unlink(missing_ok=True)  # left if the end was cut between record and removal
        else:
            _clear(job.folder, everything=job.config.force)
            with _logging_to(job.folder / "run.log"):
                record = _Run(job, overrides, watcher).carry_out()
        if record["status"] in FINISHED and (kinds := diagnostics.lacking(job.folder, job.config.diagnostics)):
            diagnostics.diagnose(job.folder, record, job.config, job.corpus, job.device, kinds)
        return record


def finished_record(job: Job) -> dict[str, Any] | None:
    """The record of a run that need not run again, else None. A damaged record counts as none."""
    try:
        record = read_record(job.folder)
    except ValueError as error:
        log.warning("%s: runs again", error)
        return None
    return record if record is not None and record["status"] in FINISHED else None


class _Run:
    """The work of `run`, inside an owned folder."""

    def __init__(self, job: Job, overrides: Sequence[str], watcher: Watcher | None) -> None:
        config, corpus = job.config, job.corpus
        self.job, self.folder, self.watcher = job, job.folder, watcher
        self.record = first_record(job.name, config, job.resolved, overrides, job.model, corpus, job.device)
        self.curve_windows = corpus.windows("val", config.model.ctx_len, NUM_CURVE_WINDOWS)
        self.training: Training | None = None
        self.best_val_loss_nats = math.inf
        self.best_step: int | None = None
        self.began, self.wall_s_before = time.perf_counter(), 0.0

    def carry_out(self) -> dict[str, Any]:
        self._write_record("running")
        try:
            self._prepare_text()
            self.peak_memory = PeakMemory()
            training = self.training = self._start_or_resume()
            self._train(training)
            self._finish(training)
            self._write_record("done")
        except Diverged as reason:
            log.warning("diverged: %s", reason)
            self._write_record("diverged", str(reason))
        except KeyboardInterrupt:
            self._write_record("interrupted", "interrupted from the keyboard")
            raise
        except Exception as reason:
            log.exception("failed")
            self._write_record("failed", f"{type(reason).__name__}: {reason}")
            return self.record
        (self.folder / "state.pt").unlink(missing_ok=True)
        return self.record

    def _prepare_text(self) -> None:
        """Write what the folder says of its config and text, and see to the text's rungs."""
        config, corpus = self.job.config, self.job.corpus
        OmegaConf.save(OmegaConf.create(self.job.resolved), self.folder / "config.yaml")
        corpus.vocabulary.save(self.folder / VOCABULARY_FILE)
        ensure_rungs(
            corpus,
            outputs=self.job.layout.outputs,
            val_fraction=config.corpus.val_fraction,
            test_fraction=config.corpus.test_fraction,
            ctx_len=config.model.ctx_len,
            num_windows_limit=NUM_FINAL_WINDOWS,
        )

    # ------------------------------------------------------------------------------------ training and resuming

    def _start_or_resume(self) -> Training:
        config, corpus = self.job.config, self.job.corpus
        torch.set_num_threads(config.train.threads)
        model = build_model(config, len(corpus.vocabulary), device="cpu")
        initialise(model, config.init, seed=config.seed, salt=config.init_salt)
        self.record["init_digests"] = init_digests(model)
        order = BatchOrder(corpus.train, config.model.ctx_len, seed=config.seed, salt=config.order_salt)
        training = Training(
            model.to(self.job.device), corpus, order, config.train, ctx_len=config.model.ctx_len, seed=config.seed
        )
        if (self.folder / "state.pt").exists():
            self._resume(training)
        else:
            (self.folder / "metrics.jsonl").unlink(missing_ok=True)
            self._evaluate(training)
        return training

    def _resume(self, training: Training) -> None:
        """Go back to the last evaluation. Rows of the curve that came after it are dropped."""
        state = torch.load(self.folder / "state.pt", map_location="cpu", weights_only=True)
        training.restore(state["training"])
        self.best_val_loss_nats, self.best_step = state["best_val_loss_nats"], state["best_step"]
        self.record["train_loss_nats"] = state["train_loss_nats"]
        self.wall_s_before = state["wall_s"]
        curve = self.folder / "metrics.jsonl"
        num_rows = state["num_rows"]
        rows = curve.read_text(encoding="utf-8").split("\n")[:num_rows]
        write_atomic(curve, "".join(row + "\n" for row in rows).encode())
        log.info("goes on from step %d", training.num_steps)

    def _train(self, training: Training) -> None:
        train = self.job.config.train
        if train.warmup_steps >= train.steps > 0:
            log.warning("the warm-up of %d steps outlasts the run of %d", train.warmup_steps, train.steps)
        while training.num_steps < train.steps:
            training.step()
            if self.watcher:
                self.watcher.stepped(training)
            if training.num_steps % train.eval_every == 0 or training.num_steps == train.steps:
                self._evaluate(training)

    def _evaluate(self, training: Training) -> None:
        """Add a row to the curve, keep the weights if they are the best yet, and a state to resume from."""
        config = self.job.config
        losses = window_losses(
            training.model, self.job.corpus, self.curve_windows, config.model.ctx_len, dtype=config.train.dtype
        )
        val_loss_nats = mean_nats(losses)
        row = {
            "step": training.num_steps,
            "tokens": tokens_after(config, training.num_steps),
            "train_loss_nats": training.mean_loss_since_last_asked(),
            "val_loss_nats": finite(val_loss_nats),
            "lr": training.last_lr,
            "grad_norm": training.last_grad_norm,
            "time_s": self._wall_s(),
        }
        with (self.folder / "metrics.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")
        if not math.isfinite(val_loss_nats):
            raise Diverged(f"step {training.num_steps}: validation loss {val_loss_nats:g} nats")
        if val_loss_nats < self.best_val_loss_nats:
            self.best_val_loss_nats, self.best_step = val_loss_nats, training.num_steps
            self._save_weights(training.model, BEST_WEIGHTS_FILE)
        self.record["train_loss_nats"] = row["train_loss_nats"]
        self._save_state(training)
        log.info("step %d: train %s, val %.4f nats", training.num_steps, row["train_loss_nats"], val_loss_nats)
        if self.watcher:
            self.watcher.evaluated(row)

    def _save_state(self, training: Training) -> None:
        num_rows = len((self.folder / "metrics.jsonl").read_bytes().splitlines())
        state = {
            "training": training.state(),
            "best_val_loss_nats": self.best_val_loss_nats,
            "best_step": self.best_step,
            "train_loss_nats": self.record["train_loss_nats"],
            "num_rows": num_rows,
            "wall_s": self._wall_s(),
        }
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomic(self.folder / "state.pt", buffer.getvalue())

    # ------------------------------------------------------------------------------------ the end

    def _finish(self, training: Training) -> None:
        """Evaluate the last and the best weights on the long slices, and let the last ones speak."""
        config, model = self.job.config, training.model
        self._save_weights(model, WEIGHTS_FILE)
        last_val, last_test = self._long_losses(model, "val"), self._long_losses(model, "test")
        at_length = self._losses_at_length(model, last_test.size) if config.eval.lengths else {}
        sample = self._sample(model)
        best_val, best_test = last_val, last_test
        if self.best_step != training.num_steps:
            model.load_state_dict(read_weights(self.folder / BEST_WEIGHTS_FILE, model))
            best_val, best_test = self._long_losses(model, "val"), self._long_losses(model, "test")
        self._save_array(last_test, "test_losses.npy")
        self._save_array(best_test, "test_losses_best.npy")
        self.record |= {
            "val_loss_nats": mean_nats(last_val),
            "best_val_loss_nats": mean_nats(best_val),
            "test_loss_nats": mean_nats(last_test),
            "test_loss_nats_at_best": mean_nats(best_test),
            "test_bits_per_char": mean_nats(last_test) / math.log(2),
            "num_test_targets": last_test.size,
            "test_loss_nats_at_length": at_length,
            "sample": sample,
        }

    def _long_losses(self, model: Transformer, part: Part) -> np.ndarray:
        config, corpus = self.job.config, self.job.corpus
        starts = corpus.windows(part, config.model.ctx_len, NUM_FINAL_WINDOWS)
        return window_losses(model, corpus, starts, config.model.ctx_len, dtype=config.train.dtype)

    def _losses_at_length(self, model: Transformer, num_tokens: int) -> dict[str, float | None]:
        """The test loss at each of eval.lengths; the loss by position of the longest windows goes into a file."""
        config = self.job.config
        losses = losses_at_length(
            model, self.job.corpus, config.eval.lengths, num_tokens=num_tokens, dtype=config.train.dtype
        )
        if losses.by_position is not None:
            self._save_array(losses.by_position, POSITIONS_FILE)
        return losses.by_length

    def _sample(self, model: Transformer) -> str:
        """What the model makes of the prompt, the prompt included."""
        config, corpus = self.job.config, self.job.corpus
        if config.sample.prompt is None:
            start, stop = corpus.val[0]
            prompt = corpus.vocabulary.decode(corpus.ids[start : min(stop, start + PROMPT_CHARS)])
        else:
            prompt = config.sample.prompt
        (spoken,) = sample(model, corpus.vocabulary, prompt, window=config.model.ctx_len, seed=config.seed)
        return spoken.text

    # ------------------------------------------------------------------------------------ files

    def _save_weights(self, model: Transformer, name: str) -> None:
        tensors = {key: tensor.contiguous().cpu() for key, tensor in model.state_dict().items()}
        write_atomic(self.folder / name, safetensors.torch.save(tensors, metadata={"format": "pt"}))

    def _save_array(self, array: np.ndarray, name: str) -> None:
        buffer = io.BytesIO()
        np.save(buffer, array)
        write_atomic(self.folder / name, buffer.getvalue())

    def _wall_s(self) -> float:
        return self.wall_s_before + time.perf_counter() - self.began

    def _write_record(self, status: str, error: str | None = None) -> None:
        training = self.training
        self.record |= {"status": status, "error": error, "wall_s": self._wall_s()}
        if training is not None:
            tokens = tokens_after(self.job.config, training.num_steps)
            self.record["data"]["batch_order_sha256"] = training.order.sha256
            self.record |= {
                "steps": training.num_steps,
                "tokens": tokens,
                "best_step": self.best_step,
                "max_grad_norm": training.max_grad_norm,
                "clipped_fraction": training.num_clipped / training.num_steps if training.num_steps else None,
                "train_s": training.train_s,
                "tokens_per_s": tokens / training.train_s if training.train_s else None,
                "peak_rss_mib": self.peak_memory.mib(),
            }
        write_json(self.folder / RECORD_FILE, self.record)


def _clear(folder: Path, *, everything: bool) -> None:
    """Remove what a killed writer left behind, and what was made of a former end; of a run that starts afresh, all."""
    for path in folder.iterdir():
        if path.name != ".lock" and (everything or path.name.startswith(".") or path.name == DIAGNOSTICS_FILE):
            path.unlink()


@contextmanager
def _logging_to(path: Path) -> Iterator[None]:
    """Send the package's log to a file for a while."""
    handler = logging.FileHandler(path, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    level = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
        handler.close()
