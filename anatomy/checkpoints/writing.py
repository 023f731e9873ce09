"""Writing a checkpoint: a folder that appears as a whole or not at all, and tensors one after the other.

The format: https://github.com/huggingface/safetensors#format
"""

import json
import math
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch

from anatomy.checkpoints.sources import StoredTensor
from anatomy.errors import UserError

SIZES: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}  # bytes a value, of what is written
ALIGNMENT = 8  # of the first tensor's first byte


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """Give a hidden folder to fill, which takes its name when all went well; otherwise nothing stays.

    Raises: UserError where there is something already, or where nothing can be written.
    """
    where = repr(str(folder))
    try:
        place = Path(os.path.realpath(folder))  # a link to an empty folder leads there, and stays
        if _is_taken(place) or (os.path.islink(folder) and not os.path.exists(place)):
            raise UserError(f"{where}: is there already, and not an empty folder; give the name of a new one")
        if place == Path.cwd():
            raise UserError(f"{where}: is the folder that you are in, which cannot be replaced; give another name")
        home = next(parent for parent in place.parents if os.path.isdir(parent))
        filled = Path(tempfile.mkdtemp(prefix=f".{place.name[:60]}.", dir=home))
    except OSError as error:
        raise UserError(f"{where}: cannot be written ({error.strerror})") from None
    except ValueError as error:
        raise UserError(f"{where}: cannot be written ({error})") from None
    try:
        yield filled
        os.chmod(filled, 0o755)
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(filled, place)
        except OSError as error:
            raise UserError(f"{where}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(filled, ignore_errors=True)


def _is_taken(place: Path) -> bool:
    """Whether something is there. Raises OSError where nothing can be: for a name too long, or behind a file."""
    try:
        os.lstat(place)
    except FileNotFoundError:
        return False
    return not os.path.isdir(place) or bool(os.listdir(place))


def write_safetensors(file: Path, tensors: Mapping[str, StoredTensor]) -> None:
    """Write tensors, each read when its turn comes: memory for one is enough, where the library wants all at once.

    The header says what transformers looks for (`format`), and the wider numbers come first, so that all are aligned.
    """
    names = sorted(tensors, key=lambda name: -SIZES[tensors[name].dtype])
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, (shape, dtype, _) = end, tensors[name]
        end += math.prod(shape) * SIZES[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    told = json.dumps(header).encode()
    told += b" " * (-len(told) % ALIGNMENT)
    with file.open("wb") as opened:
        opened.write(struct.pack("<Q", len(told)) + told)
        for name in names:
            opened.write(tensors[name].read().contiguous().view(torch.uint8).numpy().data)
