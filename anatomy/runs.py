"""The pool of runs and the manifests of studies: what lies under outputs, and who may write there.

    outputs/runs/<run>/                one folder a run, owned through an operating-system lock
    outputs/studies/<study>/study.json the manifest: what a study asks, and which runs answer it
    outputs/corpora/<sha256>/          what belongs to a text (see rungs.py)

Nothing here imports torch: the report reads the pool where PyTorch is not installed.
"""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, get_args

from filelock import FileLock, Timeout

from anatomy.axes import AXES, LATER_AXES
from anatomy.files import RECORD_FILE, STUDY_FILE, write_json

SCHEMA = 1
Status = Literal["running", "done", "failed", "diverged", "interrupted"]
FINISHED: tuple[Status, ...] = ("done", "diverged")  # a diverged run is a result; it is not run again

# Keys of a resolved config that name a run without changing what it computes; what `match` solves counts, not the word.
LABELS = ("base", "scale", "study", "output_dir", "force", "dry_run", "match", "diagnostics", "predict")

DIAGNOSTICS_FILE, POSITIONS_FILE = "diagnostics.json", "position_losses.npy"  # beside a run's record

ADHOC = "adhoc"  # the study of runs asked for one by one
PROMISES = ("question", "metric", "margin", "looks", "tune", "exam", "factors", "measures")
"""Of a spec: what a study says before it starts."""


class Busy(Exception):
    """Another process holds the run's folder."""


@dataclass(frozen=True)
class Layout:
    """Where things lie under an outputs folder."""

    outputs: Path

    @property
    def runs(self) -> Path:
        return self.outputs / "runs"

    @property
    def studies(self) -> Path:
        return self.outputs / "studies"

    def run(self, name: str) -> Path:
        return self.runs / name

    def study(self, name: str) -> Path:
        return self.studies / name


# ---------------------------------------------------------------------------------------------- identity


def run_name(config: Mapping[str, Any], derived: Mapping[str, int], corpus_sha256: str) -> str:
    """A run's folder name: its parts, sizes, seed and a hash of all that changes its result.

    `config` is the resolved config, `derived` the record's. Sizes left null hash as what they came to, and a text as
    its content, so the same run asked for by other words gets the same name.
    """
    sizes = config["model"]
    parts = "-".join(part for axis in AXES if (part := part_name(config, axis)) != LATER_AXES.get(axis))
    digest = hashlib.sha256(canonical_json(identity(config, derived, corpus_sha256)).encode()).hexdigest()
    return f"{parts}_{sizes['d_model']}x{sizes['n_layer']}_ctx{sizes['ctx_len']}_seed{config['seed']}_{digest[:10]}"


def part_name(config: Mapping[str, Any], axis: str) -> str:
    """The part that a resolved config puts on an axis: a value, or the name inside the part's own section.

    A config from before an axis existed puts on it what all models had then.
    """
    part = config[axis] if axis in config else LATER_AXES[axis]
    return str(part["name"] if isinstance(part, Mapping) else part)


def identity(config: Mapping[str, Any], derived: Mapping[str, Any], corpus_sha256: str | None) -> dict[str, Any]:
    """What of a resolved config decides its run's result: not labels; sizes as they came out, the text as content.

    What came later than the first runs is left out where it is as it always was, so that these keep their names.
    """
    result = {key: value for key, value in config.items() if key not in LABELS}
    for axis, part in LATER_AXES.items():
        if part_name(config, axis) == part:
            result.pop(axis, None)
    sizes = {**config["model"], "vocab_size": derived["vocab_size"]}
    head_width = sizes.pop("head_width", None)
    if head_width is not None and head_width * sizes["n_head"] != sizes["d_model"]:
        sizes["head_width"] = head_width
    result["model"] = sizes
    result["ffn"] = {**config["ffn"], "hidden": derived["ffn_hidden"]}
    if "n_kv_head" in config["attn"]:
        result["attn"] = {**config["attn"], "n_kv_head": derived["n_kv_head"]}
    if "size" in config.get("window", {}):
        result["window"] = {**config["window"], "size": derived.get("window")}
    split = {key: value for key, value in config["corpus"].items() if key not in ("name", "path")}
    result["corpus"] = {**split, "sha256": corpus_sha256}
    return result


def canonical_json(content: Any) -> str:
    """The one JSON text of some content, for hashing. Raises ValueError on NaN or infinity."""
    return json.dumps(content, sort_keys=True, ensure_ascii=False, allow_nan=False)


# ---------------------------------------------------------------------------------------------- run folders


@contextmanager
def owned(folder: Path) -> Iterator[None]:
    """Own a run's folder for a while, made if it is not there. Raises Busy where another process owns it.

    The operating system frees the lock when its holder ends in whatever way, `kill -9` included.
    """
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with FileLock(folder / ".lock", timeout=1):  # a second, for a report may be probing it
            yield
    except Timeout:
        raise Busy(folder.name) from None


def is_owned(folder: Path) -> bool:
    """Whether a process is at work in the folder. Where nothing can be written (a copy to read), nobody is."""
    if not (folder / ".lock").exists():
        return False
    try:
        with FileLock(folder / ".lock", timeout=0):
            return False
    except Timeout:
        return True
    except OSError:
        return False


def read_record(folder: Path) -> dict[str, Any] | None:
    """A run's record, None where there is none yet. `running` without an owner reads as `interrupted`.

    Raises ValueError on a damaged record.
    """
    record = read_json(folder / RECORD_FILE, "record")
    if record is None:
        return None
    if (status := record.get("status")) not in get_args(Status):
        raise ValueError(f"{folder / RECORD_FILE}: status {status!r} is none of {', '.join(get_args(Status))}")
    if status == "running" and not is_owned(folder):
        record["status"] = "interrupted"
    return record


def read_json(path: Path, kind: str) -> dict[str, Any] | None:
    """A JSON object of this schema, None where there is no file. Raises ValueError on anything else."""
    try:
        if path.exists() and not path.is_file():  # a pipe would wait for ever
            raise ValueError("not a file")
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(content, dict) or content.get("schema") != SCHEMA:
        raise ValueError(f"{path}: not a {kind} of schema {SCHEMA}")
    return content


def finite(value: float | None) -> float | None:
    """The value as strict JSON can hold it: null for what is not finite."""
    return value if value is not None and math.isfinite(value) else None


# ---------------------------------------------------------------------------------------------- studies


@dataclass(frozen=True)
class Entry:
    """One arm and seed of a study, as asked for. `run` is null where the request itself was refused (`error`).

    prediction   the axis that alone is swapped -> the difference to the base, in nats, that was said before the run
    """

    base: str
    swap: str
    overrides: Sequence[str]
    seed: int
    prediction: Mapping[str, float] | None
    run: str | None
    error: str | None


def arm_words(base: str, swap: str, overrides: Sequence[str]) -> str:
    """An arm as one would type it: its base, its swap, and what else was asked but for the seed and the study."""
    words = [f"base={base}"]
    if swap != "none":
        words.append(f"swap=[{swap}]" if "," in swap else f"swap={swap}")
    rest = (word for word in overrides if word.lstrip("+").partition("=")[0] not in ("base", "swap", "seed", "study"))
    rest = (word for word in rest if not word.lstrip("+").startswith("study."))
    return " ".join([*words, *sorted(rest)])


def record_entries(folder: Path, spec: Mapping[str, Any], entries: Sequence[Entry]) -> None:
    """Add entries to a study's manifest, one an arm and seed: asking again replaces what was asked before.

    The spec is kept, with its hash and date, as it stood when the study first started. What a later command changes in
    it, or in the run that a known request leads to, is kept as an amendment: pre-registration shows what moved.
    """
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    with FileLock(folder / ".lock"):
        manifest = read_manifest(folder) or {
            "schema": SCHEMA,
            "study": folder.name,
            "spec": dict(spec),
            "spec_sha256": spec_sha256(spec),
            "started": now,
            "entries": [],
        }
        known = {_request(entry): entry for entry in manifest["entries"]}
        asked = {_request(entry): entry for entry in map(asdict, entries)}
        manifest["amendments"] = manifest.get("amendments", [])  # manifests from before there were any lack the key
        if folder.name != ADHOC:  # which collects single requests and promises nothing
            changes = [*_spec_changes(manifest, spec), *_run_changes(known, asked), *_second_thoughts(known, asked)]
            manifest["amendments"] += [{"at": now, "what": what} for what in changes]
        added = {request: known[request].get("added") if request in known else now for request in asked}
        known |= {request: {**entry, "added": added[request]} for request, entry in asked.items()}
        _keep_predictions(known.values(), [*manifest["entries"], *asked.values()])
        write_json(folder / STUDY_FILE, {**manifest, "entries": list(known.values())})


def _keep_predictions(entries: Iterable[dict[str, Any]], said: Iterable[Mapping[str, Any]]) -> None:
    """Give all seeds of an arm what was last said of it: who asks for an arm again need not say so again."""
    predictions = {_arm(entry): entry["prediction"] for entry in said if entry.get("prediction") is not None}
    for entry in entries:
        entry["prediction"] = predictions.get(_arm(entry))


def _arm(entry: Mapping[str, Any]) -> str:
    return arm_words(entry["base"], entry["swap"], entry["overrides"])


def spec_sha256(spec: Mapping[str, Any]) -> str:
    """What a study's spec is known by: who changes it afterwards changes this."""
    return hashlib.sha256(canonical_json(spec).encode()).hexdigest()


def _spec_changes(manifest: Mapping[str, Any], spec: Mapping[str, Any]) -> Iterator[str]:
    """What a spec says otherwise than the one kept, unless the last amendment of that key says so already."""
    for key in PROMISES:
        old, new = manifest["spec"].get(key) or None, spec.get(key) or None
        what = f"{key}: {canonical_json(old)} -> {canonical_json(new)}"
        said = [amendment["what"] for amendment in manifest["amendments"] if amendment["what"].startswith(f"{key}: ")]
        if old != new and said[-1:] != [what]:
            yield what


def _run_changes(known: Mapping[Any, Mapping[str, Any]], asked: Mapping[Any, Mapping[str, Any]]) -> Iterator[str]:
    """The requests that now lead to another run than before: a default, the text or the code of a part has changed."""
    for request, entry in asked.items():
        old, new = known.get(request, entry)["run"], entry["run"]
        if old is not None and old != new:
            yield f"{_arm(entry)} seed={entry['seed']}: {old} -> {new or 'refused'}"


def _second_thoughts(known: Mapping[Any, Mapping[str, Any]], asked: Mapping[Any, Mapping[str, Any]]) -> Iterator[str]:
    """The arms that something else is predicted for than before."""
    old = {_arm(entry): entry["prediction"] for entry in known.values() if entry.get("prediction") is not None}
    new = {_arm(entry): entry["prediction"] for entry in asked.values() if entry["prediction"] is not None}
    for words, prediction in new.items():
        if words in old and old[words] != prediction:
            yield f"{words}: predicted {canonical_json(old[words])} -> {canonical_json(prediction)}"


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """A study's manifest, None where there is none. Raises ValueError on a damaged one."""
    return read_json(folder / STUDY_FILE, "manifest")


def _request(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    return (entry["base"], entry["swap"], tuple(entry["overrides"]), entry["seed"])
