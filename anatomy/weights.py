"""Weights out of a safetensors file, held against the model that they are for before anything is taken from them."""

from pathlib import Path

import safetensors
from torch import Tensor

from anatomy.errors import UserError
from anatomy.model import Transformer


def read_weights(file: Path, model: Transformer) -> dict[str, Tensor]:
    """Every tensor of a model, by name, out of a file that holds these and no others.

    Raises: UserError, one line, if the file is absent, damaged or no safetensors file, and if it lacks a tensor, holds
            one too many, or one of another shape or dtype.
    """
    try:
        with safetensors.safe_open(file, framework="pt") as opened:
            return {name: opened.get_tensor(name) for name in opened.keys()}
    except (OSError, safetensors.SafetensorError) as error:
        raise UserError(f"{str(file)!r}: cannot read the weights ({error})") from None
