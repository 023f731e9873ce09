"""A published model, read under our names, and written as a folder that anatomy.load opens.

First headers and the config are held against each other, so that nothing is missing, left over or of another shape;
then the tensors are read and written one by one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from anatomy.build import build_model
from anatomy.checkpoints.fields import FAMILIES, read_fields
from anatomy.checkpoints.names import Place
from anatomy.checkpoints.sources import DTYPES, Source, StoredTensor, open_source
from anatomy.checkpoints.writing import write_safetensors
from anatomy.config import Composition
from anatomy.errors import UserError, first_of, one_line
from anatomy.files import CONFIG_FILE, MODEL_FILE, WEIGHTS_FILE, write_json
from anatomy.model import Transformer

SCHEMA = 1


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """A published model, understood and not yet read.

    family       its model_type
    model        the model it is, on the meta device
    tensors      those of the model, by our names and of our shapes
    """

    source: Source
    family: str
    composition: Composition
    model: Transformer = field(repr=False)
    tensors: Mapping[str, StoredTensor] = field(repr=False)

    @property
    def dtypes(self) -> list[str]:
        """What its tensors are stored in, as far as they are read."""
        return sorted({tensor.dtype for tensor in self.tensors.values()})


def read_source(path: Path) -> PublishedModel:
    """Understand a Hugging Face folder or a GGUF file; of its tensors, none is read but two that should be one.

    Raises: UserError, one line, for what open_source and read_fields refuse, and for a tensor that is missing, left
            over, or of another shape or dtype than the config's model has.
    """
    source = open_source(path)
    told = source.where if source.format == "gguf" else repr(str(path / CONFIG_FILE))
    config = read_fields(source.config, where=told)
    composition = config.composition
    places = {name: source.naming.place(name) for name in _shapes(composition)}
    head, embed = source.naming.place("output.weight"), source.naming.place("embed.weight")
    stored = {name: tensor for name, tensor in source.tensors.items() if not source.naming.ignored.fullmatch(name)}
    both = [stored.pop(head.name), stored[embed.name]] if _has_both(composition, stored, head, embed) else None
    if composition.tying == "tied" and embed.name not in stored and head.name in stored:
        places["embed.weight"] = head  # one matrix, kept under its other name
    if faults := _faults(stored, places, _shapes(composition)):
        raise UserError(f"{source.where}: not the tensors of its config's model: {'; '.join(faults)}")
    if both and not _is_same(*both):
        raise UserError(
            f"{source.where}: '{head.name}' and '{embed.name}' should be one matrix (tie_word_embeddings is true) and "
            f"differ; if both are meant, set tie_word_embeddings to false"
        )
    model = build_model(composition, _vocab_size(composition))
    head_width = model.blocks[0].attn.head_width
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    tensors = {
        name: StoredTensor(shape, stored[places[name].name].dtype, partial(_read, stored, places[name], head_width))
        for name, shape in shapes.items()
    }
    return PublishedModel(source, config.family, composition, model, tensors)


def _read(stored: Mapping[str, StoredTensor], place: Place, head_width: int) -> Tensor:
    return place.ours(stored[place.name].read(), head_width)


def _vocab_size(composition: Composition) -> int:
    size = composition.model.vocab_size
    assert size is not None, "a published model says how large its vocabulary is"
    return size


def _shapes(composition: Composition) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor of a model, by name. One block is built, of which the others are copies in this: a
    config may claim any number of them."""
    sizes, window = composition.model.model_copy(update={"n_layer": 1}), dict(composition.window)
    if "first_layer" in window:
        window["first_layer"] = 0  # a window that this block does not reach would be refused
    one_block = composition.model_copy(update={"model": sizes, "window": window})
    model = build_model(one_block, _vocab_size(composition))
    shapes = {}
    for name, tensor in model.state_dict().items():
        for layer in range(composition.model.n_layer) if name.startswith("blocks.0.") else (0,):
            shapes[name.replace("blocks.0.", f"blocks.{layer}.")] = tuple(tensor.shape)
    return shapes


def _has_both(composition: Composition, stored: Mapping[str, StoredTensor], head: Place, embed: Place) -> bool:
    return composition.tying == "tied" and head.name in stored and embed.name in stored


def _is_same(one: StoredTensor, other: StoredTensor) -> bool:
    return one[:2] == other[:2] and bool(one.read().equal(other.read()))


def _faults(
    stored: Mapping[str, StoredTensor], places: Mapping[str, Place], shapes: Mapping[str, tuple[int, ...]]
) -> list[str]:
    """What is wrong with the tensors that files hold, each kind of fault with the first of its names."""
    wanted = {place.name: place.shape(shapes[name]) for name, place in places.items()}
    known = {name: stored[name] for name in wanted if name in stored}
    misshapen = {name: tensor.shape for name, tensor in known.items() if tensor.shape != wanted[name]}
    kinds = {
        "missing": [_shown(name) for name in wanted if name not in stored],
        "left over": [_shown(name) for name in stored if name not in wanted],
        "of another shape": [
            f"{_shown(name)} {one_line(str(shape), 60)}, not {wanted[name]}" for name, shape in misshapen.items()
        ],
        f"none of {', '.join(DTYPES.values())}": [
            f"{_shown(name)} {one_line(tensor.dtype, 20)}"
            for name, tensor in known.items()
            if tensor.dtype not in DTYPES.values()
        ],
    }
    return [f"{kind}: {first_of(names)}" for kind, names in kinds.items() if names]


def _shown(name: str) -> str:
    return f"'{one_line(name, 60)}'"


# ------------------------------------------------------------------------------------------------ written


def write_model(published: PublishedModel, folder: Path) -> dict[str, Any]:
    """Fill a folder with a model's tensors and what is known of it. Returns the content of its model.json."""
    write_safetensors(folder / WEIGHTS_FILE, published.tensors)
    source, by_axis = published.source, published.model.num_params_by_axis()
    content = {
        "schema": SCHEMA,
        "family": published.family,
        "composition": published.composition.model_dump(mode="json"),
        "num_params": sum(by_axis.values()),
        "num_params_by_axis": by_axis,
        "source": {"format": source.format, "files": list(source.files)},
        "dtypes": published.dtypes,
        "start_id": next(iter(named_tokens(published, "bos_token_id")), None),
        "end_ids": named_tokens(published, "eos_token_id"),
        "parity": None,
    }
    write_json(folder / MODEL_FILE, content)
    return content


def named_tokens(published: PublishedModel, name: str) -> list[int]:
    """The tokens that a field of the config names, by their numbers; those of the vocabulary."""
    said = published.source.config.get(name, FAMILIES[published.family].fields[name].default)
    named = said if isinstance(said, list) else [said]
    return [token for token in named if token is not None and 0 <= token < published.model.num_symbols]
