"""A published config.json as a composition of ours; config_json.py goes the other way.

What a file says is checked against the table of all fields (field_table.py). A field that is unknown, or that changes
the model and has a value we cannot build, is refused by name, never ignored.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anatomy.axes import AXES
from anatomy.build import part_section
from anatomy.checkpoints.field_table import (
    COMMON,
    FAMILIES,
    FFN_OF,
    KNOB_OF,
    NOT_BUILT,
    REQUIRED,
    ROPE_KINDS,
    WHOLE_SHARE,
    Family,
    Field,
    RopeKind,
)
from anatomy.config import Composition, did_you_mean, parse_composition
from anatomy.errors import UserError, one_line

MAX_FILE_BYTES = 4 * 2**20
MAX_FAULTS = 12  # told in one line; of more, how many
MAX_VALUE_CHARS = 60

__all__ = ["FAMILIES", "PublishedConfig", "ReadField", "composition_of", "read_fields", "read_json"]


@dataclass(frozen=True)
class ReadField:
    """A field as a file has it, or as transformers takes it where the file does not say.

    name   dotted below rope_scaling and rope_parameters
    given  whether the file has it
    """

    name: str
    value: Any
    given: bool
    field: Field


@dataclass(frozen=True)
class PublishedConfig:
    """A config.json that was understood in full."""

    family: str
    composition: Composition
    fields: tuple[ReadField, ...]


def read_json(path: Path) -> dict[str, Any]:
    """The object in a config.json. Raises UserError, one line, for everything else that a file can be."""
    where = repr(str(path))
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise UserError(f"{where}: cannot be read: {error.strerror}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise UserError(f"{where}: is larger than {MAX_FILE_BYTES // 2**20} MiB, so no config.json of a model")
    try:
        content = json.loads(
            raw.decode("utf-8"), parse_constant=_refuse_constant, parse_float=_finite, object_pairs_hook=_once
        )
    except (ValueError, RecursionError) as error:
        reason = "it is nested too deep" if isinstance(error, RecursionError) else one_line(str(error), 100)
        raise UserError(f"{where}: is no strict JSON: {reason}") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: is JSON, but no object with the fields of a config.json")
    return content


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose names are told once: of two, one would be ignored."""
    content = dict(pairs)
    if len(content) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in content if names.count(name) > 1)
        raise ValueError(f"{one_line(twice, MAX_VALUE_CHARS)} is given twice in one object")
    return content


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is no number")


def _finite(digits: str) -> float:
    number = float(digits)
    if number in (float("inf"), float("-inf")):
        raise ValueError(f"{digits[:20]} is too large for a number")
    return number


def composition_of(config: Mapping[str, Any], *, where: str = "config.json") -> Composition:
    """The composition that the content of a config.json describes. Raises UserError as read_fields does."""
    return read_fields(config, where=where).composition


def read_fields(config: Mapping[str, Any], *, where: str = "config.json") -> PublishedConfig:
    """Understand the content of a config.json in full.

    Raises: UserError, one line that names every field and value that is unknown or cannot be built.
    """
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        allowed = ", ".join(FAMILIES)
        meant = did_you_mean(model_type, FAMILIES) if isinstance(model_type, str) else ""
        said = f"model_type={_shown(model_type)} is not supported" if "model_type" in config else "has no model_type"
        raise UserError(f"{where}: {said}; it can be {allowed}.{meant}")
    family = FAMILIES[model_type]
    faults = list(_field_faults(family, config))
    rope = _Rope({}, "rope_parameters", ROPE_KINDS["default"], [])
    if "rope_theta" in family.fields:
        rope = _read_rope(family, config)
        faults += rope.faults
    values = {name: config.get(name, field.default) for name, field in family.fields.items()}
    if not faults:
        faults = list(_joint_faults(family, values))
    if faults:
        more = f"; and {len(faults) - MAX_FAULTS} more" if len(faults) > MAX_FAULTS else ""
        raise UserError(f"{where} ({model_type}): {'; '.join(faults[:MAX_FAULTS])}{more}")
    plain = _gpt2(values) if model_type == "gpt2" else _gated(model_type, values, rope)
    composition, faults = parse_composition(plain)
    if composition is None:
        raise UserError(f"{where} ({model_type}): {'; '.join(faults)}")
    return PublishedConfig(model_type, composition, tuple(sorted(_read(family, config, rope), key=_place)))


# ------------------------------------------------------------------------------------------------ what is wrong


def _shown(value: Any) -> str:
    return one_line(json.dumps(value, ensure_ascii=False, default=repr), MAX_VALUE_CHARS)


def _field_faults(family: Family, config: Mapping[str, Any]) -> Iterator[str]:
    """Unknown fields, and values that a field cannot have."""
    for name, value in config.items():
        shown = one_line(str(name), MAX_VALUE_CHARS)
        if (field := family.fields.get(name)) is not None:
            yield from _value_fault(name, value, field)
        elif name in family.other_names:
            yield f"{shown}: no field of this family. Did you mean {family.other_names[name]}?"
        else:
            yield f"{shown}: no field that is known here.{did_you_mean(shown, family.fields)}"
    architectures = config.get("architectures")
    if architectures is not None and not (
        isinstance(architectures, list) and all(map(family.is_architecture, architectures))
    ):
        yield f"architectures={_shown(architectures)}: not supported; it can be [{family.title}]"


def _value_fault(name: str, value: Any, field: Field) -> Iterator[str]:
    if not field.allowed.holds(value):
        yield f"{name}={_shown(value)}: not supported; it can be {field.allowed.words} ({field.meaning})"


def _joint_faults(family: Family, values: Mapping[str, Any]) -> Iterator[str]:
    """Fields that do not go together, each of which could be."""
    if "n_embd" in values:
        if values["n_embd"] % values["n_head"]:
            yield f"n_head={values['n_head']} does not divide n_embd={values['n_embd']}"
        if values["n_ctx"] not in (None, values["n_positions"]):
            yield f"n_ctx={values['n_ctx']} is not n_positions={values['n_positions']}"
        return
    width, n_head = values["hidden_size"], values["num_attention_heads"]
    if values["head_dim"] is None and width % n_head:
        yield f"num_attention_heads={n_head} does not divide hidden_size={width}, and head_dim is not given"
    elif (values["head_dim"] or width // n_head) % 2:
        yield f"head_dim={values['head_dim'] or width // n_head}: RoPE turns pairs of channels; it must be even"
    n_kv_head = values["num_key_value_heads"]
    if n_kv_head is not None and n_head % n_kv_head:
        yield f"num_key_value_heads={n_kv_head} does not divide num_attention_heads={n_head}"
    if values["max_sequence_length"] not in (None, values["max_position_embeddings"]):
        yield (
            f"max_sequence_length={values['max_sequence_length']} is not "
            f"max_position_embeddings={values['max_position_embeddings']}"
        )
    yield from _layer_type_faults(values)


def _layer_type_faults(values: Mapping[str, Any]) -> Iterator[str]:
    types, n_layer = values["layer_types"], values["num_hidden_layers"]
    if types is None:
        return
    if not isinstance(types, list) or not all(each in ("full_attention", "sliding_attention") for each in types):
        yield f"layer_types={_shown(types)}: not supported; each can be full_attention or sliding_attention"
    elif len(types) != n_layer:
        yield f"layer_types names {len(types)} layers, num_hidden_layers={n_layer}"
    elif types != sorted(types):
        yield f"layer_types={_shown(types)}: not supported; it can be full below a layer and sliding from it on"
    elif (size := _window_size(values)) is None and "sliding_attention" in types:
        yield "layer_types has layers with sliding_attention, but no window is given or in use"
    elif size is not None and "use_sliding_window" not in values and "full_attention" in types:
        yield "layer_types has layers with full_attention, but sliding_window is for all layers of this family"


# ------------------------------------------------------------------------------------------------ RoPE


@dataclass(frozen=True)
class _Rope:
    """What a file says of RoPE, gathered. `home` is the field that holds the settings."""

    values: Mapping[str, Any]
    home: str
    kind: RopeKind
    faults: list[str]
    given: frozenset[str] = frozenset()


def _read_rope(family: Family, config: Mapping[str, Any]) -> _Rope:
    """RoPE's base and settings: `rope_theta` and `rope_scaling` of older files, or `rope_parameters` of newer ones."""
    homes = [name for name in ("rope_scaling", "rope_parameters") if config.get(name) is not None]
    home = homes[0] if homes else "rope_parameters"
    said = config[home] if homes else {}
    if len(homes) > 1 and config["rope_scaling"] != config["rope_parameters"]:
        return _Rope({}, home, ROPE_KINDS["default"], ["rope_scaling and rope_parameters: are both given, and differ"])
    if not isinstance(said, Mapping):
        fault = f"{home}={_shown(said)}: not supported; it can be null or an object such as {{'rope_type': 'llama3'}}"
        return _Rope({}, home, ROPE_KINDS["default"], [fault])
    name = said.get("rope_type", said.get("type", "default"))
    if said.get("type", name) != name:
        fault = f"{home}.type={_shown(said['type'])} is not {home}.rope_type={_shown(name)}"
        return _Rope({}, home, ROPE_KINDS["default"], [fault])
    if not isinstance(name, str) or name not in ROPE_KINDS:
        meant = did_you_mean(name, ROPE_KINDS) if isinstance(name, str) else ""
        word = "rope_type" if "rope_type" in said else "type"
        fault = f"{home}.{word}={_shown(name)}: not supported; it can be {', '.join(ROPE_KINDS)}.{meant}"
        return _Rope({}, home, ROPE_KINDS["default"], [fault])
    kind, theta = ROPE_KINDS[name], family.fields["rope_theta"]
    settings = {
        **kind.settings,
        "rope_theta": theta,
        "partial_rotary_factor": Field("pos", "the share of a head that RoPE turns", WHOLE_SHARE),
    }
    faults: list[str] = []
    for key, value in said.items():
        if key in settings:
            faults += _value_fault(f"{home}.{key}", value, settings[key])
        elif key not in ("rope_type", "type"):
            shown = one_line(str(key), MAX_VALUE_CHARS)
            faults.append(f"{home}.{shown}: no setting of rope_type={name}.{did_you_mean(shown, settings)}")
    values = {key: field.default if said.get(key) is None else said[key] for key, field in settings.items()}
    faults += [f"{home}.{key}: missing" for key, field in kind.settings.items() if values[key] is REQUIRED]
    thetas = [place["rope_theta"] for place in (said, config) if place.get("rope_theta") is not None]
    if len(thetas) > 1 and thetas[0] != thetas[1]:
        faults.append(f"rope_theta={_shown(thetas[1])} is not {home}.rope_theta={_shown(thetas[0])}")
    values["rope_theta"] = thetas[0] if thetas else theta.default
    if name == "llama3" and not faults and values["high_freq_factor"] <= values["low_freq_factor"]:
        faults.append(f"{home}.high_freq_factor={values['high_freq_factor']} must be above low_freq_factor")
    if name == "yarn" and not faults and values["beta_fast"] <= values["beta_slow"]:
        faults.append(f"{home}.beta_fast={values['beta_fast']} must be above beta_slow")
    return _Rope(values, home, kind, faults, frozenset(said))


# ------------------------------------------------------------------------------------------------ as a composition


def _shared(norm: dict[str, Any], bias: str, *, is_tied: bool) -> dict[str, Any]:
    """What the families have in common. How they were started is not told, so `init` is a word without meaning."""
    return {
        "norm": norm,
        "placement": part_section("placement", "pre"),
        "bias": bias,
        "tying": "tied" if is_tied else "untied",
        "init": "normal",
    }


def _gpt2(values: Mapping[str, Any]) -> dict[str, Any]:
    hidden = 4 * values["n_embd"] if values["n_inner"] is None else values["n_inner"]
    return {
        **_shared(
            part_section("norm", "layer", {"eps": float(values["layer_norm_epsilon"])}),
            "all",
            is_tied=values["tie_word_embeddings"],
        ),
        "pos": part_section("pos", "learned"),
        "attn": part_section("attn", "mha"),
        "ffn": part_section("ffn", FFN_OF[values["activation_function"]], {"hidden": hidden}),
        "qk_norm": part_section("qk_norm", "none"),
        "window": part_section("window", "none"),
        "model": {
            "d_model": values["n_embd"],
            "n_layer": values["n_layer"],
            "n_head": values["n_head"],
            "ctx_len": values["n_positions"],
            "vocab_size": values["vocab_size"],
            "head_width": None,
        },
    }


def _gated(model_type: str, values: Mapping[str, Any], rope: _Rope) -> dict[str, Any]:
    width, n_head, eps = values["hidden_size"], values["num_attention_heads"], float(values["rms_norm_eps"])
    head_width = values["head_dim"]
    biases = {(False, False): "none", (True, False): "attn", (False, True): "ffn", (True, True): "all"}
    bias = "qkv" if model_type == "qwen2" else biases[values["attention_bias"], values["mlp_bias"]]
    return {
        **_shared(part_section("norm", "rms", {"eps": eps}), bias, is_tied=values["tie_word_embeddings"]),
        "pos": _rope_section(values, rope),
        "attn": _attn_section(n_head, values["num_key_value_heads"]),
        "ffn": part_section("ffn", "swiglu", {"hidden": values["intermediate_size"]}),
        "qk_norm": part_section("qk_norm", "rms", {"eps": eps})
        if model_type == "qwen3"
        else part_section("qk_norm", "none"),
        "window": _window_section(values),
        "model": {
            "d_model": width,
            "n_layer": values["num_hidden_layers"],
            "n_head": n_head,
            "ctx_len": values["max_position_embeddings"],
            "vocab_size": values["vocab_size"],
            "head_width": None if head_width is not None and head_width * n_head == width else head_width,
        },
    }


def _rope_section(values: Mapping[str, Any], rope: _Rope) -> dict[str, Any]:
    known = rope.values or {"rope_theta": values["rope_theta"]}
    original = known.get("original_max_position_embeddings") or values["max_position_embeddings"]
    said = {**known, "original_max_position_embeddings": original}
    knobs = {}
    for name in ("rope_theta", *rope.kind.settings):
        if name not in NOT_BUILT:
            value = said[name]
            knobs[KNOB_OF.get(name, name)] = (
                float(value) if isinstance(value, int) and "original" not in name else value
            )
    return part_section("pos", rope.kind.part, knobs)


def _attn_section(n_head: int, n_kv_head: int | None) -> dict[str, Any]:
    if n_kv_head is None or n_kv_head == n_head:
        return part_section("attn", "mha")
    return part_section("attn", "mqa") if n_kv_head == 1 else part_section("attn", "gqa", {"n_kv_head": n_kv_head})


def _window_size(values: Mapping[str, Any]) -> int | None:
    """How many keys a token of a windowed layer sees, itself included: what transformers counts too."""
    size: int | None = values.get("sliding_window") if values.get("use_sliding_window", True) else None
    return size


def _window_section(values: Mapping[str, Any]) -> dict[str, Any]:
    size, first, types = _window_size(values), values.get("max_window_layers", 0), values["layer_types"]
    if types is not None and "max_window_layers" in values:
        first = types.count("full_attention")
    if size is None or first >= values["num_hidden_layers"]:
        return part_section("window", "none")
    return part_section("window", "sliding", {"size": size, "first_layer": first})


# ------------------------------------------------------------------------------------------------ for a table of fields


def _read(family: Family, config: Mapping[str, Any], rope: _Rope) -> Iterator[ReadField]:
    """Every field the file has, and the absent ones that could have made another model."""
    settings = {**family.fields, **rope.kind.settings}
    for name, field in family.fields.items():
        if name in ("rope_scaling", "rope_parameters") and config.get(name):
            for key in config[name] if name == rope.home else ():
                yield ReadField(f"{name}.{key}", config[name][key], True, settings.get(key, field))
        elif name in config:
            yield ReadField(name, config[name], True, field)
        elif name not in COMMON and name not in rope.given and _could_matter(field):
            yield ReadField(name, field.default, False, field)


def _place(read: ReadField) -> int:
    """What the model is comes first, what the file says of itself last."""
    return GROUPS.index(read.field.group)


GROUPS = ("sizes", "vocabulary", *(axis for axis in AXES if axis != "init"), "training", "use", "files")


def _could_matter(field: Field) -> bool:
    return field.default is not None and field.allowed.is_choice and field.group not in NOT_OF_THE_MODEL


NOT_OF_THE_MODEL = ("files", "use", "training")
