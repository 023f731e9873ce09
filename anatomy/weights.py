"""Weights out of a safetensors file, held against the model that they are for before anything is taken from them.

A file's header says what it holds: names, dtypes and shapes are compared there, so a file that does not fit costs no
memory. Nothing in a file is executed.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import torch
from torch import Tensor

from anatomy.errors import UserError, first_of, one_line
from anatomy.files import BEST_WEIGHTS_FILE, WEIGHTS_FILE
from anatomy.model import Transformer

WEIGHT_FILES = {"last": WEIGHTS_FILE, "best": BEST_WEIGHTS_FILE}  # in a run's folder
OURS, THEIRS = ("F32",), ("F32", "F16", "BF16")  # dtypes of a run's and of an imported model's tensors, as files say
MAX_NAME_CHARS = 60  # of a tensor that an error names


def read_weights(file: Path, model: Transformer, dtypes: Sequence[str] = OURS) -> dict[str, Tensor]:
    """Every tensor of a model, by name, out of a file that holds these and no others: made float32, on the CPU.

    They are copies: what a mapped file gives would change, or end the process, with the file. It is mapped anew for
    each tensor, for what was read of it would stay in memory beside the copies.

    Raises: UserError, one line, if the file is absent, damaged or no safetensors file, and if it lacks a tensor, holds
            one too many, or one of another shape or dtype.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    with _opened(file) as opened:
        if faults := _faults(_slices(opened), wanted, dtypes):
            raise UserError(f"{str(file)!r}: not the weights of its model: {'; '.join(faults)}")
    tensors = {}
    for name in wanted:
        with _opened(file) as opened:
            tensors[name] = opened.get_tensor(name).to(torch.float32, copy=True)
    return tensors


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a file, by name, out of its header alone. Raises UserError as `read_weights`."""
    with _opened(file) as opened:
        return {name: tuple(tensor.get_shape()) for name, tensor in _slices(opened).items()}


@contextmanager
def _opened(file: Path) -> Iterator[Any]:
    where = repr(str(file))
    try:
        if not file.is_file():  # a pipe would be waited for
            raise UserError(f"{where}: {'is no plain file' if file.exists() else 'there is no such file'}")
        file.open("rb").close()  # safetensors would say of a file that may not be read that it is not there
        with safetensors.safe_open(file, framework="pt") as opened:
            yield opened
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({one_line(error.strerror or str(error))})") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{where}: no safetensors file, or a damaged one ({one_line(str(error))})") from None


def _slices(opened: Any) -> dict[str, Any]:
    """What a file says of each of its tensors; nothing of their content is read."""
    names = opened.keys()
    return {name: opened.get_slice(name) for name in names}


def _faults(held: Mapping[str, Any], wanted: Mapping[str, tuple[int, ...]], dtypes_allowed: Sequence[str]) -> list[str]:
    """What is wrong with the tensors that a file holds, each kind of fault with the first of its names."""
    faults = []
    if missing := [_quoted(name) for name in wanted if name not in held]:
        faults.append(f"it lacks {first_of(missing)}")
    if surplus := [_quoted(name) for name in held if name not in wanted]:
        faults.append(f"the model has no {first_of(surplus)}")
    known = {name: held[name] for name in wanted if name in held}
    shapes = {name: tuple(tensor.get_shape()) for name, tensor in known.items()}
    if misshapen := [name for name, shape in shapes.items() if shape != wanted[name]]:
        differ = [
            f"{_quoted(name)} {one_line(str(shapes[name]), MAX_NAME_CHARS)}, not {wanted[name]}" for name in misshapen
        ]
        faults.append(f"of another shape: {first_of(differ)}")
    dtypes = {name: tensor.get_dtype() for name, tensor in known.items()}
    if others := [f"{_quoted(name)} {dtype}" for name, dtype in dtypes.items() if dtype not in dtypes_allowed]:
        faults.append(f"not {' or '.join(dtypes_allowed)}: {first_of(others)}")
    return faults


def _quoted(name: str) -> str:
    return f"'{one_line(name, MAX_NAME_CHARS)}'"
