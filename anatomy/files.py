"""Files: what they are called, where the configs lie, and writing them so that a crash leaves the old one or the new
one, never half."""

import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

_HERE = Path(__file__).resolve().parent
CONF = next(folder for folder in (_HERE / "conf", _HERE.parent / "conf") if (folder / "config.yaml").is_file())
"""The folder of configs: inside the package in a wheel, beside it in a checkout."""

RECORD_FILE, VOCABULARY_FILE, STUDY_FILE = "result.json", "vocab.json", "study.json"  # of a run, and of a study
MODEL_FILE = "model.json"  # of an imported model
CONFIG_FILE = "config.json"  # of a published model
WEIGHTS_FILE, BEST_WEIGHTS_FILE, PICKLE_FILE = "model.safetensors", "best.safetensors", "pytorch_model.bin"
TOKENIZER_FILE, TOKENIZER_CONFIG_FILE = "tokenizer.json", "tokenizer_config.json"


def write_atomic(path: Path, data: bytes) -> None:
    """Replace `path` by `data` in one step: a temporary file in the same folder, flushed to disk, then renamed."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write strict JSON atomically. Raises ValueError on NaN or infinity: a value that does not exist is null."""
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    write_atomic(path, (text + "\n").encode("utf-8"))


def read_array(path: Path) -> "np.ndarray | None":
    """An array out of a `.npy` file, mapped and not read before it is used; None where there is no sound one."""
    import numpy as np  # not every command needs it

    try:
        return np.asarray(np.lib.format.open_memmap(path, mode="r"))
    except Exception:  # what numpy raises on a damaged file has no end
        return None


def is_plain_name(name: str) -> bool:
    """Whether a name out of somebody's file names something inside a folder, and nowhere else."""
    return name not in ("", ".", "..") and "/" not in name and "\\" not in name and "\0" not in name
