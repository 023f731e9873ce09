"""A model of ours as `transformers` has it: its config.json, its tensors under their names, or the model itself."""

from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anatomy.checkpoints.config_json import config_json_of
from anatomy.checkpoints.names import HUGGING_FACE, Place
from anatomy.checkpoints.sources import DTYPES, StoredTensor, itself
from anatomy.checkpoints.writing import write_safetensors
from anatomy.config import Composition
from anatomy.files import CONFIG_FILE, WEIGHTS_FILE, write_json
from anatomy.model import Transformer

TORCH_NAMES: Mapping[str, str] = {name: str(dtype).removeprefix("torch.") for dtype, name in DTYPES.items()}
VOCABULARY = ("embed.weight", "output.weight")  # a row a token


def write_published(
    composition: Composition,
    num_symbols: int,
    tensors: Mapping[str, StoredTensor],
    folder: Path,
    tokens: Mapping[str, Any],
) -> dict[str, Any]:
    """Fill a folder with a model as transformers opens it, and return the content of its config.json.

    tensors  those of the model, under our names; rows of the vocabulary that stand for no symbol are left out
    tokens   the fields of the config that name tokens

    Raises: UserError, one line, with the reasons why transformers has no such model; nothing is written then.
    """
    config = {**config_json_of(composition, num_symbols=num_symbols), **tokens}
    widest = max({tensor.dtype for tensor in tensors.values()}, key=["F16", "BF16", "F32"].index)
    config["dtype"] = TORCH_NAMES[widest]
    write_json(folder / CONFIG_FILE, config)
    write_safetensors(folder / WEIGHTS_FILE, published_tensors(config["model_type"], num_symbols, tensors))
    return config


def published_tensors(family: str, num_symbols: int, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The same tensors under the family's names and in its layout, none of them read yet."""
    gathered: dict[str, list[tuple[Place, StoredTensor]]] = defaultdict(list)
    for name, tensor in tensors.items():
        place = HUGGING_FACE[family].place(name)
        gathered[place.name].append((place, _of_symbols(tensor, num_symbols) if name in VOCABULARY else tensor))
    published = {}
    for name, parts in gathered.items():
        parts.sort(key=lambda part: part[0].third or 0)
        place, first = parts[0]
        read = partial(_theirs, place.is_transposed, [tensor for _, tensor in parts])
        published[name] = StoredTensor(place.shape(first.shape), first.dtype, read)
    return published


def _of_symbols(tensor: StoredTensor, num_symbols: int) -> StoredTensor:
    rows = StoredTensor((num_symbols, *tensor.shape[1:]), tensor.dtype, lambda: tensor.read()[:num_symbols])
    return tensor if rows.shape == tensor.shape else rows


def _theirs(is_transposed: bool, parts: list[StoredTensor]) -> Tensor:
    rows = torch.cat([part.read() for part in parts]) if len(parts) > 1 else parts[0].read()
    return rows.t() if is_transposed else rows


def as_transformers(model: Transformer, composition: Composition) -> Any:
    """A model of transformers with copies of the weights of one of ours.

    Raises: ImportError where transformers is not installed; UserError where it has no such model.
    """
    from transformers import AutoConfig, AutoModelForCausalLM

    config = config_json_of(composition, num_symbols=model.num_symbols)
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config))
    tensors = {
        name: StoredTensor(tuple(tensor.shape), DTYPES[tensor.dtype], partial(itself, tensor))
        for name, tensor in model.state_dict().items()
    }
    published = published_tensors(config["model_type"], model.num_symbols, tensors)
    lacking, surplus = theirs.load_state_dict({name: tensor.read() for name, tensor in published.items()}, strict=False)
    tied = HUGGING_FACE[config["model_type"]].place("output.weight").name if model.output is None else None
    assert not surplus and set(lacking) <= {tied}, f"{lacking} {surplus}"
    return theirs.eval()
