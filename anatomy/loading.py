"""Open a run that was trained: its model, with the weights it kept, and its characters.

Nothing in a run's folder is trusted: records and vocabularies are JSON, weights are safetensors, and what does not fit
what the record describes is refused by name. No file is ever executed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from anatomy.build import build_model
from anatomy.config import Config, parse_config
from anatomy.corpus import Vocabulary
from anatomy.errors import UserError
from anatomy.model import Transformer
from anatomy.runs import read_record
from anatomy.weights import read_weights

Weights = Literal["last", "best"]
WEIGHT_FILES = {"last": "model.safetensors", "best": "best.safetensors"}


@dataclass(frozen=True)
class LoadedRun:
    """A run, opened. `model, vocabulary = load(...)` takes the two that one mostly wants.

    folder      where it lies
    record      its result.json
    config      its config, checked
    model       in evaluation mode: no dropout
    vocabulary  its characters; the index of a character is its id
    """

    folder: Path
    record: dict[str, Any]
    config: Config
    model: Transformer
    vocabulary: Vocabulary

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.vocabulary))


def load(folder: str | Path, *, weights: Weights = "last", device: str | torch.device = "cpu") -> LoadedRun:
    """Open the run in a folder, with its last or its best weights.

    Raises: UserError, one line, where the folder holds no run, or its files are absent, damaged or of another model.
    """
    folder = Path(folder)
    try:
        record = read_record(folder)
    except ValueError as error:
        raise UserError(str(error)) from None
    if record is None:
        raise UserError(f"{str(folder)!r}: holds no run (no result.json); runs lie under outputs/runs")
    config, faults = parse_config(record["config"])
    if config is None:
        raise UserError("\n".join(faults))
    vocabulary = Vocabulary.load(folder / "vocab.json")
    model = build_model(config, len(vocabulary))
    tensors = read_weights(folder / WEIGHT_FILES[weights], model)
    model.load_state_dict(tensors, assign=True)
    return LoadedRun(folder, record, config, model.to(device).eval().requires_grad_(False), vocabulary)
