"""Open a run that was trained: its model, with the weights it kept, and its characters.

Nothing in a run's folder is trusted: records and vocabularies are JSON, weights are safetensors, and what does not fit
what the record describes is refused by name. No file is ever executed, and no size is believed before the header of
the weights agrees with it.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import exists, isdir, isfile, lexists  # these never raise: what one may not look at is not there
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from anatomy.build import build_model, part_faults
from anatomy.config import Config, parse_config
from anatomy.corpus import Vocabulary
from anatomy.errors import UserError, one_line
from anatomy.files import is_plain_name
from anatomy.model import Transformer
from anatomy.runs import Layout, Status, read_manifest, read_record
from anatomy.sample import SAMPLE_CHARS, Sample, sample
from anatomy.sampling import TEMPERATURE, Knobs
from anatomy.weights import WEIGHT_FILES, read_shapes, read_weights

Weights = Literal["last", "best"]

MAX_PATH_CHARS = 5000  # of a message that begins with a path

WITHOUT_WEIGHTS: Mapping[Status, str] = {
    "running": "it is still running",
    "interrupted": "it was interrupted; the command that began it goes on with it",
    "failed": "it failed; the command that began it tries again",
    "diverged": "it diverged",
    "done": "it is done, so somebody removed them; force=true trains it anew",
}


@dataclass(frozen=True, eq=False)
class LoadedRun:
    """A run, opened. `model, vocabulary = load(...)` takes the two that one mostly wants.

    folder      where it lies
    record      its result.json
    config      its config, checked
    model       in evaluation mode, so without dropout; no gradients; ids (B, T) -> logits (B, T, V)
    vocabulary  its characters; the index of a character is its id
    """

    folder: Path
    record: dict[str, Any] = field(repr=False)
    config: Config = field(repr=False)
    model: Transformer = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.vocabulary))

    def sample(
        self,
        prompt: str = "",
        *,
        num_tokens: int = SAMPLE_CHARS,
        num_samples: int = 1,
        temperature: float = TEMPERATURE,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        seed: int = 0,
        window: int | None = None,
        use_cache: bool = True,
        stop: str | Sequence[str] = (),
    ) -> list[Sample]:
        """Let the model go on with a prompt, `num_samples` times.

        temperature, top_k, top_p, min_p  how the next character is drawn, see sampling.Knobs
        window                            how many characters the model sees at most; None takes the run's context
        the others                        see anatomy.sample.sample

        Raises: UserError for what cannot be asked for; sampling.NotFinite if there is nothing to draw from.
        """
        return sample(
            self.model,
            self.vocabulary,
            prompt,
            window=self.config.model.ctx_len if window is None else window,
            num_tokens=num_tokens,
            num_samples=num_samples,
            knobs=Knobs(temperature, top_k, top_p, min_p),
            seed=seed,
            use_cache=use_cache,
            stop=stop,
        )


def load(folder: str | Path, *, weights: Weights = "last", device: str | torch.device = "cpu") -> LoadedRun:
    """Open the run in a folder, with its last or its best weights.

        model, vocabulary = load("outputs/runs/...")
        ids = torch.from_numpy(vocabulary.encode("some text"))[None]
        logits = model(ids)

    Args:     weights: `last`, as training left them, or `best`, of the evaluation with the lowest validation loss.
              device: where the model is put, by any name that PyTorch knows.
    Raises:   UserError, one line, where the folder holds no run, or its files are absent, damaged or of another model.
    """
    if not str(folder):
        raise UserError("the folder's name is empty; runs lie under outputs/runs")
    folder, device = Path(folder), _device(device)
    record = _record(folder)
    config = _config(folder, record)
    vocabulary = _vocabulary(folder, record)
    file = _weights_file(folder, record, weights)
    _compare_sizes(file, config, len(vocabulary))
    try:
        model = build_model(config, len(vocabulary))
    except UserError as error:
        raise _fault(folder / "result.json", one_line(str(error).partition("\n")[0])) from None
    model.load_state_dict(read_weights(file, model), assign=True)
    return LoadedRun(folder, record, config, model.to(device).eval().requires_grad_(False), vocabulary)


def _device(asked: str | torch.device) -> torch.device:
    try:
        device = torch.device(asked)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError):
        raise UserError(f"device={str(asked)!r}: no device that PyTorch can use here; it can always be cpu") from None
    return device


def _record(folder: Path) -> dict[str, Any]:
    try:
        record = read_record(folder)
    except ValueError as error:
        raise UserError(no_run(folder) if isfile(folder) else one_line(str(error), MAX_PATH_CHARS)) from None
    if record is None:
        raise UserError(no_run(folder))
    return record


def _config(folder: Path, record: Mapping[str, Any]) -> Config:
    resolved = record.get("config")
    if not isinstance(resolved, dict):
        raise _fault(folder / "result.json", "holds no config")
    config, faults = parse_config(resolved)
    faults += part_faults(resolved)
    if config is None or faults:
        more = f" and {len(faults) - 1:,} more faults" if len(faults) > 1 else ""
        hint = "it is damaged, or of another version of anatomy"
        raise _fault(folder / "result.json", f"in its config: {one_line(faults[0])}{more}; {hint}")
    if config.model.d_model % config.model.n_head:  # build_model would say so, after having tried all divisors
        raise _fault(folder / "result.json", "in its config: model.n_head does not divide model.d_model")
    return config


def _vocabulary(folder: Path, record: Mapping[str, Any]) -> Vocabulary:
    file = folder / "vocab.json"
    vocabulary, data = Vocabulary.load(file), record.get("data")
    if not vocabulary:
        raise _fault(file, "holds no characters")
    num_chars = data.get("vocab_size") if isinstance(data, dict) else None
    if isinstance(num_chars, int) and num_chars != len(vocabulary):
        raise _fault(file, f"holds {len(vocabulary):,} characters, the run's text had {num_chars:,}")
    return vocabulary


def _weights_file(folder: Path, record: Mapping[str, Any], weights: Weights) -> Path:
    if weights not in get_args(Weights):
        raise UserError(f"weights={weights!r}: can be {' or '.join(get_args(Weights))}")
    file = folder / WEIGHT_FILES[weights]
    if lexists(file):
        return file
    other: Weights = "last" if weights == "best" else "best"
    is_other = exists(folder / WEIGHT_FILES[other])
    hint = (
        f'; its {other} weights are there: type --weights {other}, or weights="{other}" in Python' if is_other else ""
    )
    raise _fault(folder, f"the run has no {weights} weights ({file.name}): {WITHOUT_WEIGHTS[record['status']]}{hint}")


def _compare_sizes(file: Path, config: Config, num_chars: int) -> None:
    """Hold what the record says of sizes against the header of the weights, before anything of these sizes is made."""
    shapes = read_shapes(file)
    embed = shapes.get("embed.weight", ())
    if len(embed) != 2:
        raise _fault(file, "holds no matrix 'embed.weight', so no weights of a run")
    num_layers = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    sizes = config.model
    compared = {
        "the vocabulary": (embed[0], num_chars if sizes.vocab_size is None else sizes.vocab_size),
        "model.d_model": (embed[1], sizes.d_model),
        "model.n_layer": (num_layers, sizes.n_layer),
    }
    faults = [f"{what} is {here:,}, in its run {there:,}" for what, (here, there) in compared.items() if here != there]
    if faults:
        raise _fault(file, f"weights of another model: {'; '.join(faults)}")


def _fault(path: Path, what: str) -> UserError:
    return UserError(f"{str(path)!r}: {what}")


# ---------------------------------------------------------------------------------------------- not a run


def no_run(folder: Path) -> str:
    """One line for a path that leads to no run: what is there, and what to type instead."""
    where = repr(str(folder))
    if isfile(folder):
        run = folder.parent if exists(folder.parent / "result.json") else "outputs/runs/NAME"
        return f"{where}: is a file; type the folder of a run, such as {str(run)!r}"
    if not isdir(folder):
        return f"{where}: there is no such folder; type the folder of a run, such as outputs/runs/NAME"
    if exists(folder / "study.json"):
        runs = Layout(folder.parent.parent).runs
        return f"{where}: is a study, not a run; type one of its runs, {_example(runs, _runs_of_study(folder))}"
    runs = Layout(folder).runs
    if isdir(runs):
        return f"{where}: holds the runs of many studies; type one of them, {_example(runs, _folders(runs))}"
    if any(exists(folder / name / "result.json") for name in _folders(folder)):
        return f"{where}: is the folder of all runs; type one of them, {_example(folder, _folders(folder))}"
    return f"{where}: holds no run (no result.json); type the folder of a run, such as outputs/runs/NAME"


def _example(runs: Path, names: Iterator[str]) -> str:
    """The first of the runs that can be opened, as one would type it."""
    there = (runs / name for name in names if exists(runs / name / WEIGHT_FILES["last"]))
    return f"such as {str(next(there, runs / 'NAME'))!r}"


def _folders(folder: Path) -> Iterator[str]:
    try:
        yield from sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return


def _runs_of_study(folder: Path) -> Iterator[str]:
    try:
        entries = (read_manifest(folder) or {}).get("entries")
    except ValueError:
        return
    for entry in entries if isinstance(entries, list) else ():
        name = entry.get("run") if isinstance(entry, dict) else None
        if isinstance(name, str) and is_plain_name(name):
            yield name
