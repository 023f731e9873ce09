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
    where, is_there = repr(str(folder)), os.path.lexists(folder)
    if is_there and not (os.path.isdir(folder) and not os.listdir(folder)):
        raise UserError(f"{where}: is there already, and not an empty folder; give the name of a new one")
    home = next(parent for parent in folder.absolute().parents if parent.is_dir())
    try:
        filled = Path(tempfile.mkdtemp(prefix=f".{folder.name[:60]}.", dir=home))
    except (OSError, ValueError) as error:
        raise UserError(f"{where}: cannot be written ({error})") from None
    try:
        yield filled
        os.chmod(filled, 0o755)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            os.replace(filled, folder)
        except OSError as error:
            raise UserError(f"{where}: cannot be written ({error.strerror})") from None
    finally:
        shutil.rmtree(filled, ignore_errors=True)


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
