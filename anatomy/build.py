"""From a config to a model: find each part's class, check its knobs, hand it its sizes, put the blocks together.

A part's class lives in the module of its axis and nowhere else. Its positional arguments are sizes that the skeleton
hands in by name, its keyword-only arguments are the knobs of its YAML.
"""

import copy
import inspect
import math
import typing
from collections.abc import Callable, Mapping
from functools import cache
from types import ModuleType
from typing import Any

import torch
from omegaconf import OmegaConf
from pydantic import TypeAdapter
from torch import nn

from anatomy.about import is_broken, without_about
from anatomy.axes import AXES, BASES, BIASED, LATER_AXES, PART_AXES
from anatomy.config import Composition, Config, did_you_mean, value_fault
from anatomy.errors import UserError
from anatomy.files import CONF
from anatomy.model import Transformer
from anatomy.parts import attn, ffn, norm, placement, pos, qk_norm, window

HOMES: Mapping[str, ModuleType] = {
    "norm": norm,
    "placement": placement,
    "pos": pos,
    "attn": attn,
    "ffn": ffn,
    "qk_norm": qk_norm,
    "window": window,
}


def part_classes(axis: str) -> dict[str, type[nn.Module]]:
    """The public classes in an axis's own module, by name: all that may sit on it."""
    home = HOMES[axis]
    return {
        name: member
        for name, member in vars(home).items()
        if isinstance(member, type)
        and issubclass(member, nn.Module)
        and member.__module__ == home.__name__
        and not name.startswith("_")
    }


def knobs_of(part: type[nn.Module]) -> dict[str, inspect.Parameter]:
    """A part's knobs: the keyword-only arguments of its class."""
    parameters = inspect.signature(part).parameters
    return {name: p for name, p in parameters.items() if p.kind is inspect.Parameter.KEYWORD_ONLY}


def part_faults(resolved: Mapping[str, Any]) -> list[str]:
    """What is wrong with the parts of a resolved config: classes that are not there, knobs that their part does not
    take, lacks, or cannot use. A line each."""
    sections = {axis: resolved.get(axis) for axis in PART_AXES if axis in resolved or axis not in LATER_AXES}
    return [fault for axis, section in sections.items() for fault in _part_faults(axis, section)]


def _part_faults(axis: str, section: Any) -> list[str]:
    classes = part_classes(axis)
    if not isinstance(section, Mapping) or not all(isinstance(section.get(key), str) for key in ("name", "class")):
        return [f"{axis}: needs the section of a part, with its name and class; type {axis}=NAME"]
    if section.get("class") not in classes:
        offered = ", ".join(name for name in classes if not is_broken(name))
        return [f"{axis}.class={section.get('class')}: not a class of this axis; it can be {offered}"]
    where, given = f"{axis}={section['name']}", _knobs(section)
    part = classes[section["class"]]
    allowed, hints = knobs_of(part), typing.get_type_hints(part.__init__, include_extras=True)
    takes = ", ".join(allowed) or "none"
    faults = []
    for name, value in given.items():
        if name not in allowed:
            meant = did_you_mean(name, allowed).replace("mean ", f"mean {axis}.")
            faults.append(f"{where}: no knob '{name}'; it takes {takes}.{meant}")
        elif fault := value_fault(hints[name], f"{axis}.{name}", value):
            faults.append(fault)
    return faults + [
        f"{where}: {axis}.{name} is missing; it cannot be removed" for name in allowed.keys() - given.keys()
    ]


def with_floats(resolved: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """A resolved config with a float wherever the schema or a part's class has one, so that 1 and 1.0 are one setting.

    `config` is the same config, checked; so are its parts.
    """
    typed: dict[str, Any] = _floats_of(resolved, config.model_dump(mode="json"))
    for axis in PART_AXES:
        part = part_classes(axis)[resolved[axis]["class"]]
        hints = typing.get_type_hints(part.__init__, include_extras=True)
        knobs = {name: TypeAdapter(hints[name]).validate_python(knob) for name, knob in _knobs(resolved[axis]).items()}
        typed[axis] = resolved[axis] | knobs
    return typed


def _floats_of(value: Any, typed: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(typed, Mapping):
        return {key: _floats_of(each, typed.get(key)) for key, each in value.items()}
    if isinstance(value, list) and isinstance(typed, list):
        return [_floats_of(*pair) for pair in zip(value, typed, strict=True)]
    return typed if type(value) is int and type(typed) is float else value


def _knobs(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in ("name", "class")}


def build_model(config: Composition, num_symbols: int, *, device: str | torch.device = "meta") -> Transformer:
    """The model that a composition, or a run's config, describes, for so many symbols; its tensors are not started.

    Raises UserError with every fault of the composition, a line each.
    """
    if isinstance(config, Config) and config.match in MATCHED:
        config = with_hidden(config, matched_hidden(config, num_symbols))
    sizes, faults = config.model, []
    vocab_size = num_symbols if sizes.vocab_size is None else sizes.vocab_size
    if vocab_size < num_symbols:
        faults.append(
            f"model.vocab_size={vocab_size}: the text has {num_symbols} distinct characters; take null or more"
        )
    if sizes.head_width is None and sizes.d_model % sizes.n_head:
        faults.append(
            f"model.n_head={sizes.n_head} does not divide model.d_model={sizes.d_model}; take another, or give "
            f"model.head_width"
        )
    biased, head_width = BIASED[config.bias], sizes.head_width or max(1, sizes.d_model // sizes.n_head)
    given = {
        "width": sizes.d_model,
        "ctx_len": sizes.ctx_len,
        "head_width": head_width,
        "bias": "up_proj" in biased,
        "sizes": attn.AttentionSizes(
            sizes.d_model, sizes.n_head, head_width, qkv_bias="q_proj" in biased, o_bias="o_proj" in biased
        ),
    }

    def make(axis: str, layer: int = 0) -> nn.Module:
        section = getattr(config, axis)
        part = part_classes(axis)[section["class"]]
        own: dict[str, Any] = {"layer": layer}
        if axis == "attn":
            own |= {"qk_norm": make("qk_norm", layer), "window": make("window", layer)}
        available = given | own
        wanted = inspect.signature(part).parameters.keys() & available.keys()
        return part(**{name: available[name] for name in wanted}, **_knobs(section))

    with torch.device("meta"):
        for axis in ("norm", "pos", "qk_norm", "window", "attn", "ffn"):
            try:
                make(axis)
            except ValueError as error:
                faults.append(f"{axis}={config.parts[axis]}: {error}")
        first_layer = config.window.get("first_layer", 0)
        if first_layer >= sizes.n_layer:
            faults.append(
                f"window.first_layer={first_layer}: none of {sizes.n_layer} layers would have a window; take less, or "
                f"window=none"
            )
        if faults:
            raise UserError("\n".join(dict.fromkeys(faults)))
        block: Any = part_classes("placement")[config.placement["class"]]
        model = Transformer(
            vocab_size=vocab_size,
            num_symbols=num_symbols,
            width=sizes.d_model,
            pos=make("pos"),
            blocks=[
                block(make("attn", layer), make("ffn"), make("norm"), make("norm"), _dropout(config))
                for layer in range(sizes.n_layer)
            ],
            final_norm=make("norm") if block.has_final_norm else None,
            tied=config.tying == "tied",
            dropout=_dropout(config),
        )
    if kept := sorted({name.split(".")[-1] for name, _ in model.named_buffers()}):
        raise UserError(
            f"parts keep buffers ({', '.join(kept)}): a run's files hold parameters alone; compute what follows from "
            f"sizes and knobs in forward"
        )
    return model if device == "meta" else model.to_empty(device=device)


def _dropout(config: Composition) -> nn.Module:
    return nn.Dropout(config.dropout) if config.dropout else nn.Identity()


def derived(model: Transformer) -> dict[str, int]:
    """What null sizes came to, as the record keeps it; of the last block, where blocks are not alike."""
    block = model.blocks[-1]  # a window may begin behind the first ones
    sizes = {
        "ffn_hidden": block.ffn.hidden,
        "n_kv_head": block.attn.n_kv_head,
        "head_width": block.attn.head_width,
        "vocab_size": model.embed.num_embeddings,
    }
    window = block.attn.window.size
    return sizes if window is None else {**sizes, "window": window}


# ---------------------------------------------------------------------------------------------- parts and widths put in


def with_parts(config: Config, parts: Mapping[str, str]) -> Config:
    """The config with built-in parts put on some axes (axis -> name), their knobs as their YAML files have them."""
    return config.model_copy(update={axis: part_section(axis, name) for axis, name in parts.items()})


def part_section(axis: str, name: str, knobs: Mapping[str, Any] | None = None) -> Any:
    """What a config holds of a built-in part: its YAML's name, class and knobs, some of them with other values."""
    section = copy.deepcopy(_section(axis, name))
    return {**section, **knobs} if knobs else section


def build_base(config: Config, num_symbols: int) -> tuple[Config, Transformer]:
    """What `match` holds a model against: its base's own parts and knobs at the same sizes.

    Raises UserError if there can be no such model.
    """
    base = with_parts(config, BASES[config.base]).model_copy(update={"match": None})
    try:
        return base, build_model(base, num_symbols)
    except UserError as error:
        reason = str(error).replace("\n", "; ")
        raise UserError(f"match={config.match}: there is no base {config.base} of these sizes ({reason})") from None


@cache
def _section(axis: str, name: str) -> Any:
    section = OmegaConf.to_container(OmegaConf.load(CONF / axis / f"{name}.yaml"))
    return without_about({axis: section})[axis] if axis in PART_AXES else name


def with_hidden(config: Config, hidden: int) -> Config:
    """The config with the FFN's width written out, and so with nothing left to match."""
    return config.model_copy(update={"ffn": {**config.ffn, "hidden": hidden}, "match": None})


def _block_params(model: Transformer, ctx_len: int) -> int:
    by_axis = model.num_params_by_axis()
    return by_axis["norm"] + by_axis["attn"] + by_axis["ffn"]


MATCHED: Mapping[str, Callable[[Transformer, int], int]] = {  # what `match` can hold equal, of a model and its context
    "params": _block_params,
    "flops": Transformer.flops_per_token,
}


def matched_hidden(config: Config, num_symbols: int) -> int:
    """The FFN's width, one for all blocks, that brings a model nearest to its base in what `match` names.

    Both counts are linear in the width, so two models give the line; of two widths equally near it is the smaller.
    `multiple_of` rounds default widths, not this.

    Raises UserError if the width is given as well, if the FFN has none, if there is no base of these sizes, and if no
    width above 0 comes nearest.
    """
    where = f"match={config.match}"
    if "hidden" not in config.ffn:
        raise UserError(f"{where}: solves ffn.hidden, which ffn={config.ffn['name']} does not take; type match=null")
    if config.ffn["hidden"] is not None:
        given = f"ffn.hidden={config.ffn['hidden']}"
        raise UserError(f"{where}: solves ffn.hidden, so {given} cannot be given as well; type one of the two")

    def count(model: Transformer) -> int:
        return MATCHED[str(config.match)](model, config.model.ctx_len)

    target = count(build_base(config, num_symbols)[1])
    at_one, at_two = (count(build_model(with_hidden(config, hidden), num_symbols)) for hidden in (1, 2))
    slope = at_two - at_one
    below = math.floor((target - at_one) / slope) + 1
    hidden = min((below, below + 1), key=lambda width: abs(at_one + (width - 1) * slope - target))
    if hidden < 1:
        raise UserError(
            f"{where}: without its FFN the model comes to {at_one - slope:,}, base {config.base} to {target:,}, so no "
            f"width of the FFN fits; type match=null, or smaller parts"
        )
    return hidden


assert tuple(HOMES) == PART_AXES == AXES[: len(HOMES)], "an axis has no home for its parts"
