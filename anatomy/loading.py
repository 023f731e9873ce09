"""Open a run that was trained, or a model that was imported: the model, and what turns text into its ids.

Nothing in a folder is trusted: records and vocabularies are JSON, weights are safetensors, and what does not fit what
the record describes is refused by name. No file is ever executed, and no size is believed before the header of the
weights agrees with it.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from os.path import exists, isdir, isfile, lexists  # these never raise: what one may not look at is not there
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch

from anatomy.about import offered
from anatomy.axes import PART_AXES
from anatomy.build import build_model, part_faults, part_section
from anatomy.checkpoints.field_table import FAMILIES
from anatomy.config import Composition, Config, parse_composition, parse_config
from anatomy.corpus import Vocabulary
from anatomy.errors import UserError, one_line
from anatomy.files import (
    CONFIG_FILE,
    MODEL_FILE,
    RECORD_FILE,
    STUDY_FILE,
    TOKENIZER_FILE,
    VOCABULARY_FILE,
    is_plain_name,
)
from anatomy.model import Transformer
from anatomy.runs import Layout, Status, read_json, read_manifest, read_record
from anatomy.sample import SAMPLE_CHARS, Sample, sample
from anatomy.sampling import TEMPERATURE, Knobs
from anatomy.tokens import Codec, Tokens
from anatomy.weights import OURS, THEIRS, WEIGHT_FILES, read_shapes, read_weights

Weights = Literal["last", "best"]
Checked = TypeVar("Checked", bound=Composition)

MAX_EVAL_LEN = 1024  # of an imported model: its whole context may be a hundred times as long, and time its square
THREADS = torch.get_num_threads()  # as PyTorch starts: one a core

MAX_NAME_CHARS = 60
MAX_PATH_CHARS = 5000  # of a message that begins with a path

WITHOUT_WEIGHTS: Mapping[Status, str] = {
    "running": "it is still running",
    "interrupted": "it was interrupted; the command that began it goes on with it",
    "failed": "it failed; the command that began it tries again",
    "diverged": "it diverged",
    "done": "it is done, so somebody removed them; force=true trains it anew",
}


@dataclass(frozen=True, eq=False)
class LoadedModel:
    """A model, opened. `model, vocabulary = load(...)` takes the two that one mostly wants.

    folder       where it lies
    record       what its folder says of it: a run's result.json, an imported model's model.json
    composition  what it is made of, checked
    model        in evaluation mode, so without dropout; no gradients; float32; ids (B, T) -> logits (B, T, V)
    vocabulary   turns text into ids and back; None where the model came without a tokenizer
    """

    folder: Path
    record: dict[str, Any] = field(repr=False)
    composition: Composition = field(repr=False)
    model: Transformer = field(repr=False)
    vocabulary: Codec | None = field(repr=False)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.vocabulary))

    @property
    def codec(self) -> Codec:
        """Its vocabulary. Raises UserError where there is none."""
        if self.vocabulary is None:
            raise _fault(self.folder, f"came without a tokenizer (no {TOKENIZER_FILE}), so it reads ids, not text")
        return self.vocabulary

    @property
    def context(self) -> int:
        """How many tokens it was made to see."""
        return self.composition.model.ctx_len

    @property
    def eval_len(self) -> int:
        """How many tokens it reads at once when it is evaluated, unless asked otherwise."""
        return min(self.context, MAX_EVAL_LEN)

    @property
    def labels(self) -> dict[str, str]:
        """What tells it from others."""
        return self.composition.parts

    @property
    def status(self) -> Status | None:
        """How its training went, where that is known."""
        return None

    @property
    def threads(self) -> int:
        """How many threads of the CPU its commands take."""
        return THREADS

    @property
    def dtype(self) -> Literal["fp32", "bf16"]:
        """What it is evaluated in."""
        return "fp32"

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

        temperature, top_k, top_p, min_p  how the next token is drawn, see sampling.Knobs
        window                            how many tokens the model sees at most; None takes its context
        the others                        see anatomy.sample.sample

        Raises: UserError for what cannot be asked for; sampling.NotFinite if there is nothing to draw from.
        """
        return sample(
            self.model,
            self.codec,
            prompt,
            window=self.context if window is None else window,
            num_tokens=num_tokens,
            num_samples=num_samples,
            knobs=Knobs(temperature, top_k, top_p, min_p),
            seed=seed,
            use_cache=use_cache,
            stop=stop,
        )


@dataclass(frozen=True, eq=False)
class LoadedRun(LoadedModel):
    """A run, opened: a model whose training is on record.

    composition  its config, all of it
    vocabulary   its characters; the index of a character is its id
    """

    composition: Config = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)

    @property
    def config(self) -> Config:
        """Its config, checked."""
        return self.composition

    @property
    def eval_len(self) -> int:
        return self.context

    @property
    def labels(self) -> dict[str, str]:
        return {**super().labels, "seed": str(self.config.seed)}

    @property
    def status(self) -> Status:
        return self.record["status"]

    @property
    def threads(self) -> int:
        return min(self.config.train.threads, os.cpu_count() or 1)

    @property
    def dtype(self) -> Literal["fp32", "bf16"]:
        return self.config.train.dtype


def load(folder: str | Path, *, weights: Weights = "last", device: str | torch.device = "cpu") -> LoadedModel:
    """Open the run in a folder, with its last or its best weights, or the model that anatomy-convert put there.

        model, vocabulary = load("outputs/runs/...")
        ids = torch.from_numpy(vocabulary.encode("some text"))[None]
        logits = model(ids)

    Args:     weights: of a run `last`, as training left them, or `best`, of the evaluation with the lowest validation
              loss; an imported model has one set, `last`.
              device: where the model is put, by any name that PyTorch knows.
    Returns:  LoadedRun, or LoadedModel.
    Raises:   UserError, one line, where the folder holds neither, or its files are absent, damaged or of another model.
    """
    if not str(folder):
        raise UserError("the folder's name is empty; runs lie under outputs/runs")
    folder, device = Path(folder), _device(device)
    record, composition = read_folder(folder)
    if isinstance(composition, Config):
        return _load_run(folder, record, composition, weights, device)
    return _load_imported(folder, record, composition, weights, device)


def read_folder(folder: Path) -> tuple[dict[str, Any], Composition]:
    """The record of a folder and the composition that it describes, both checked; no weights are opened.

    Returns:  of a run its result.json and a Config; of an imported model its model.json and a Composition, whose
              model.vocab_size is not null.
    Raises:   UserError, one line, as `load`.
    """
    if lexists(folder / MODEL_FILE) and not lexists(folder / RECORD_FILE):
        return _read_imported(folder / MODEL_FILE)
    record = _record(folder)
    return record, _checked(folder / RECORD_FILE, record.get("config"), "config", parse_config)


def _read_imported(path: Path) -> tuple[dict[str, Any], Composition]:
    try:
        record = read_json(path, "model") or {}
    except ValueError as error:
        raise UserError(one_line(str(error), MAX_PATH_CHARS)) from None
    composition = _checked(path, record.get("composition"), "composition", parse_composition)
    for axis in PART_AXES:
        section = getattr(composition, axis)
        name, kind = section["name"], section["class"]
        if name not in offered(axis) or part_section(axis, name)["class"] != kind:
            shown = f"{axis}={one_line(name, MAX_NAME_CHARS)} of class {kind}"
            raise _fault(path, f"in its composition: {shown} is no built-in part; it is damaged")
    num_ids = composition.model.vocab_size
    if num_ids is None:
        raise _fault(path, "in its composition: model.vocab_size is null; it is damaged")
    family, start_id, end_ids = record.get("family"), record.get("start_id"), record.get("end_ids", [])
    if not isinstance(family, str) or family not in FAMILIES:
        raise _fault(path, f"family: can be {', '.join(FAMILIES)}; it is damaged")
    if start_id is not None and not _are_tokens([start_id], num_ids):
        raise _fault(path, f"start_id: must be null or one of the model's {num_ids:,} tokens")
    if not _are_tokens(end_ids, num_ids):
        raise _fault(path, f"end_ids: must be a list of some of the model's {num_ids:,} tokens")
    return record, composition


def _are_tokens(ids: Any, num_ids: int) -> bool:
    return isinstance(ids, list) and all(type(each) is int and 0 <= each < num_ids for each in ids)


def _load_run(
    folder: Path, record: dict[str, Any], config: Config, weights: Weights, device: torch.device
) -> LoadedRun:
    vocabulary = _vocabulary(folder, record)
    file = _weights_file(folder, record, weights)
    model = _model(folder / RECORD_FILE, config, len(vocabulary), file, OURS)
    return LoadedRun(folder, record, config, model.to(device), vocabulary)


def _load_imported(
    folder: Path, record: dict[str, Any], composition: Composition, weights: Weights, device: torch.device
) -> LoadedModel:
    if weights != "last":
        _check_weights(weights)
        raise _fault(folder, "no best weights: an imported model has one set; leave weights out")
    num_ids = composition.model.vocab_size
    assert num_ids is not None
    model = _model(folder / MODEL_FILE, composition, num_ids, folder / WEIGHT_FILES["last"], THEIRS)
    vocabulary = _tokens(folder, record.get("start_id"), num_ids)
    return LoadedModel(folder, record, composition, model.to(device), vocabulary)


def _tokens(folder: Path, start_id: int | None, num_ids: int) -> Tokens | None:
    from anatomy.checkpoints.tokenizers_of import read_tokenizer  # runs need no tokenizer

    if not lexists(folder / TOKENIZER_FILE):
        return None
    return Tokens(read_tokenizer(folder / TOKENIZER_FILE), num_ids, start_id)


def _model(path: Path, composition: Composition, num_symbols: int, file: Path, dtypes: Sequence[str]) -> Transformer:
    """The model that a record describes, with the weights in a file: to be read, not to be trained."""
    _compare_sizes(file, composition, num_symbols)
    try:
        model = build_model(composition, num_symbols)
    except UserError as error:
        raise _fault(path, one_line(str(error).partition("\n")[0])) from None
    model.load_state_dict(read_weights(file, model, dtypes), assign=True)
    return model.eval().requires_grad_(False)


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


def _checked(
    path: Path, content: Any, what: str, parse: Callable[[Mapping[str, Any]], tuple[Checked | None, list[str]]]
) -> Checked:
    """A composition out of a record, or a whole config, checked: sizes, parts, and what each part takes."""
    if not isinstance(content, dict):
        raise _fault(path, f"holds no {what}")
    parsed, faults = parse(content)
    faults += part_faults(content)
    if parsed is None or faults:
        more = f" and {len(faults) - 1:,} more faults" if len(faults) > 1 else ""
        hint = "it is damaged, or of another version of anatomy"
        raise _fault(path, f"in its {what}: {one_line(faults[0])}{more}; {hint}")
    if parsed.model.head_width is None and parsed.model.d_model % parsed.model.n_head:
        # build_model would say so, after having tried all divisors
        raise _fault(path, f"in its {what}: model.n_head does not divide model.d_model")
    return parsed


def _vocabulary(folder: Path, record: Mapping[str, Any]) -> Vocabulary:
    file = folder / VOCABULARY_FILE
    vocabulary, data = Vocabulary.load(file), record.get("data")
    if not vocabulary:
        raise _fault(file, "holds no characters")
    num_chars = data.get("vocab_size") if isinstance(data, dict) else None
    if isinstance(num_chars, int) and num_chars != len(vocabulary):
        raise _fault(file, f"holds {len(vocabulary):,} characters, the run's text had {num_chars:,}")
    return vocabulary


def _weights_file(folder: Path, record: Mapping[str, Any], weights: Weights) -> Path:
    _check_weights(weights)
    file = folder / WEIGHT_FILES[weights]
    if lexists(file):
        return file
    other: Weights = "last" if weights == "best" else "best"
    is_other = exists(folder / WEIGHT_FILES[other])
    hint = (
        f'; its {other} weights are there: type --weights {other}, or weights="{other}" in Python' if is_other else ""
    )
    raise _fault(folder, f"the run has no {weights} weights ({file.name}): {WITHOUT_WEIGHTS[record['status']]}{hint}")


def _check_weights(weights: str) -> None:
    if weights not in get_args(Weights):
        raise UserError(f"weights={weights!r}: can be {' or '.join(get_args(Weights))}")


def _compare_sizes(file: Path, composition: Composition, num_symbols: int) -> None:
    """Hold what the record says of sizes against the header of the weights, before anything of these sizes is made."""
    shapes = read_shapes(file)
    embed = shapes.get("embed.weight", ())
    if len(embed) != 2:
        raise _fault(file, "holds no matrix 'embed.weight', so no weights of a model")
    num_layers = len({name.split(".")[1] for name in shapes if name.startswith("blocks.")})
    sizes = composition.model
    compared = {
        "the vocabulary": (embed[0], num_symbols if sizes.vocab_size is None else sizes.vocab_size),
        "model.d_model": (embed[1], sizes.d_model),
        "model.n_layer": (num_layers, sizes.n_layer),
    }
    if sizes.head_width is not None:
        (num_queries, *_) = shapes.get("blocks.0.attn.q_proj.weight", (0,))
        compared["model.n_head times model.head_width"] = (num_queries, sizes.n_head * sizes.head_width)
    faults = [
        f"{what} is {here:,}, in its record {there:,}" for what, (here, there) in compared.items() if here != there
    ]
    if faults:
        raise _fault(file, f"weights of another model: {'; '.join(faults)}")


def _fault(path: Path, what: str) -> UserError:
    return UserError(f"{str(path)!r}: {what}")


# ---------------------------------------------------------------------------------------------- not a run


def no_run(folder: Path) -> str:
    """One line for a path that leads to no run: what is there, and what to type instead."""
    where = repr(str(folder))
    if isfile(folder) and folder.suffix == ".gguf":
        return f"{where}: is a published model; type: anatomy-convert {where} DST"
    if isfile(folder):
        run = folder.parent if exists(folder.parent / RECORD_FILE) else "outputs/runs/NAME"
        return f"{where}: is a file; type the folder of a run, such as {str(run)!r}"
    if not isdir(folder):
        return f"{where}: there is no such folder; type the folder of a run, such as outputs/runs/NAME"
    if exists(folder / STUDY_FILE):
        runs = Layout(folder.parent.parent).runs
        return f"{where}: is a study, not a run; type one of its runs, {_example(runs, _runs_of_study(folder))}"
    runs = Layout(folder).runs
    if isdir(runs):
        return f"{where}: holds the runs of many studies; type one of them, {_example(runs, _folders(runs))}"
    if exists(folder / CONFIG_FILE):
        return f"{where}: is a published model; type: anatomy-convert {where} DST"
    if any(exists(folder / name / RECORD_FILE) for name in _folders(folder)):
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
