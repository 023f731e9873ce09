"""A GGUF file, llama.cpp's kind: what it says of itself in the words of a config.json, and its tensors as float32.

The header is read here, every length in it held against what the file has, and 32 MiB of it at most: a hostile one
costs no more than its bytes as Python's objects, some 25 times as many. What the kinds of blocks are, and how their few
bits become numbers, the `gguf` package knows.

The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anatomy.checkpoints.names import GGUF
from anatomy.checkpoints.sources import Source, StoredTensor, plain_file
from anatomy.errors import UserError, first_of, one_line

MAX_HEADER_BYTES = 2**25  # several times what the largest vocabularies take
MAX_DIMENSIONS = 4  # the format's own
MAX_ALIGNMENT = 2**16
VERSIONS = (2, 3)

SCALARS: Mapping[int, str] = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FLOAT32, STRING, ARRAY = 6, 8, 9  # the number of a value's type in the file; the others' are above

FIELDS: Mapping[str, str] = {  # what follows the architecture's name -> the field of a config.json
    "block_count": "num_hidden_layers",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.head_count_kv": "num_key_value_heads",
    "rope.freq_base": "rope_theta",
    "vocab_size": "vocab_size",
}
OPTIONAL: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {  # what absence means
    "attention.head_count_kv": lambda said: said["attention.head_count"],
    "rope.freq_base": lambda said: 10000.0,
    "vocab_size": lambda said: None,
}
HEAD_WIDTHS = ("attention.key_length", "attention.value_length", "rope.dimension_count")  # one and the same here
HARMLESS: Mapping[str, Any] = {  # what leaves the model as it is; another value does not
    "rope.scaling.type": "none",
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "use_parallel_residual": False,
}
BIASES: Mapping[str, str] = {"attn_q.bias": "attention_bias", "ffn_up.bias": "mlp_bias"}  # what one tensor tells of


def open_gguf(file: Path) -> Source:
    """Open a GGUF file of LLaMA's, Qwen2's or Qwen3's architecture (Mistral's are LLaMA's).

    Raises: UserError, one line, for a file that is absent, damaged, or of another kind of model.
    """
    where = repr(str(plain_file(file)))
    try:
        import gguf
    except ImportError:
        raise UserError(
            f"{where}: GGUF files are read with the package gguf; type: python -m pip install gguf"
        ) from None
    try:
        with file.open("rb") as opened:
            data = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        metadata, tensors = _header(data, gguf)
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({one_line(error.strerror or str(error))})") from None
    except (ValueError, struct.error) as error:
        raise UserError(f"{where}: no GGUF file, or a damaged one ({one_line(str(error), 200)})") from None
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or architecture not in GGUF:
        shown = one_line(repr(architecture), 60)
        raise UserError(f"{where}: general.architecture={shown} is not supported; it can be {', '.join(GGUF)}")
    config = _config(architecture, metadata, tensors, where)
    return Source(file, "gguf", (file.name,), config, GGUF[architecture], tensors, metadata)


# ------------------------------------------------------------------------------------------------ the header


class _Cursor:
    """Reads a header from its beginning. Raises ValueError or struct.error past its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.at, self.end = data, 0, min(len(data), MAX_HEADER_BYTES)

    def numbers(self, kind: str, count: int = 1) -> tuple[Any, ...]:
        size = struct.calcsize(kind) * count
        if size > self.end - self.at:
            raise ValueError(f"at byte {self.at:,} it ends, or its header is longer than {MAX_HEADER_BYTES:,} bytes")
        found = struct.unpack_from(f"<{count}{kind}", self.data, self.at)
        self.at += size
        return found

    def number(self, kind: str) -> Any:
        return self.numbers(kind)[0]

    def text(self) -> str:
        (size,) = self.numbers("Q")
        self.numbers("x", size)  # moves on, or refuses
        return self.data[self.at - size : self.at].decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == STRING:
            return self.text()
        if kind == ARRAY:
            of, count = self.number("I"), self.number("Q")
            if of == STRING:
                return [self.text() for _ in range(count)]
            return list(self.numbers(self._scalar(of), count))
        number = self.number(self._scalar(kind))
        return _shortest(number) if kind == FLOAT32 else number

    def _scalar(self, kind: int) -> str:
        if kind not in SCALARS:
            raise ValueError(f"at byte {self.at:,} stands a value of the unknown type {kind}")
        return SCALARS[kind]


def _shortest(number: float) -> float:
    """The number that somebody wrote before it was rounded to float32: 1e-05, not 9.999999747378752e-06."""
    return float(str(np.float32(number)))


def _header(data: mmap.mmap, gguf: Any) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    """What a file says of itself, and of its tensors. Raises ValueError or struct.error for a damaged one."""
    cursor = _Cursor(data)
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF")
    cursor.numbers("I")
    if (version := cursor.number("I")) not in VERSIONS:
        raise ValueError(f"version {version}; {' and '.join(map(str, VERSIONS))}, little-endian, can be read")
    num_tensors, num_fields = cursor.numbers("Q", 2)
    metadata: dict[str, Any] = {}
    for _ in range(num_fields):
        name = cursor.text()
        if name in metadata:
            raise ValueError(f"it says {name!r} twice")
        metadata[name] = cursor.value(cursor.number("I"))
    infos = [_info(cursor, gguf) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or not 0 < alignment <= MAX_ALIGNMENT:
        raise ValueError(f"general.alignment={alignment!r}")
    start, room = -(-cursor.at // alignment) * alignment, len(data)
    tensors: dict[str, StoredTensor] = {}
    num_bytes_in_all = 0
    for name, shape, kind, offset in infos:
        num_values, size = gguf.GGML_QUANT_SIZES[kind]
        num_bytes = math.prod(shape) // num_values * size
        num_bytes_in_all += num_bytes
        if shape[-1] % num_values or start + offset + num_bytes > room or num_bytes_in_all > room:
            raise ValueError(f"{name!r}, {kind.name}, of shape {shape}: it has no room for it")
        if name in tensors:
            raise ValueError(f"it holds {name!r} twice")
        read = partial(_read, data, start + offset, num_bytes, shape, kind, gguf)
        tensors[name] = StoredTensor(shape, "F32", read)
    return metadata, tensors


def _info(cursor: _Cursor, gguf: Any) -> tuple[str, tuple[int, ...], Any, int]:
    """A tensor's name, its shape (the file has it backwards), its kind, and where it lies behind the header."""
    name = cursor.text()
    if not 0 < (num_dimensions := cursor.number("I")) <= MAX_DIMENSIONS:
        raise ValueError(f"{name!r} has {num_dimensions} dimensions")
    shape = cursor.numbers("Q", num_dimensions)[::-1]
    return name, shape, gguf.GGMLQuantizationType(cursor.number("I")), cursor.number("Q")


def _read(data: mmap.mmap, start: int, num_bytes: int, shape: tuple[int, ...], kind: Any, gguf: Any) -> Tensor:
    """A tensor's numbers. Raises UserError for a kind of block that the package cannot unpack."""
    rows = np.frombuffer(data, np.uint8, num_bytes, start).reshape(*shape[:-1], -1)
    try:
        numbers = gguf.quants.dequantize(rows, kind)
    except NotImplementedError:
        raise UserError(f"tensors of the kind {kind.name} cannot be read; take another file of the model") from None
    return torch.from_numpy(np.array(numbers, dtype=np.float32).reshape(shape))


# ------------------------------------------------------------------------------------------------ as a config.json


def _config(
    architecture: str, metadata: Mapping[str, Any], tensors: Mapping[str, StoredTensor], where: str
) -> dict[str, Any]:
    """What the metadata say of the model, in the words of a config.json. Raises UserError for what cannot be built."""
    prefix = f"{architecture}."
    said = {name.removeprefix(prefix): value for name, value in metadata.items() if name.startswith(prefix)}
    faults = [f"{prefix}{name}: missing" for name in FIELDS if name not in said and name not in OPTIONAL]
    for name, value in said.items():
        if name not in FIELDS and name not in HEAD_WIDTHS and value != HARMLESS.get(name, ...):
            faults.append(f"{prefix}{one_line(name, 60)}={one_line(repr(value), 60)}: not supported")
    if metadata.get("general.type", "model") != "model":
        faults.append(f"general.type={one_line(repr(metadata['general.type']), 60)}: only models can be read")
    if metadata.get("split.count", 1) not in (0, 1):
        faults.append("split.count: a file of several; join them with llama.cpp's gguf-split")
    if "rope_freqs.weight" in tensors:
        faults.append("rope_freqs.weight: the stretched RoPE of Llama 3.1 is read from Hugging Face folders only")
    if faults:
        raise UserError(f"{where} ({architecture}): {first_of(faults, 12)}")
    config = {"model_type": architecture, "tie_word_embeddings": "output.weight" not in tensors}
    for name, field in FIELDS.items():
        config[field] = said[name] if name in said else OPTIONAL[name](said)
    if config["vocab_size"] is None:
        embedding = tensors.get("token_embd.weight")
        config["vocab_size"] = embedding.shape[0] if embedding and embedding.shape else None
    widths = {name: said[name] for name in HEAD_WIDTHS if name in said}
    if len(set(map(repr, widths.values()))) > 1:
        told = ", ".join(f"{prefix}{name}={one_line(repr(width), 20)}" for name, width in widths.items())
        raise UserError(f"{where} ({architecture}): {told}: not supported, all channels of a head are turned")
    width, n_head = config["hidden_size"], config["num_attention_heads"]
    evenly = width // n_head if type(width) is int and type(n_head) is int and n_head > 0 else None
    config["head_dim"] = next(iter(widths.values()), evenly)
    for token in ("bos_token_id", "eos_token_id"):
        config[token] = metadata.get(f"tokenizer.ggml.{token}")
    for tensor, field in BIASES.items():
        if architecture != "qwen2" and f"blk.0.{tensor}" in tensors:
            config[field] = True
    return config
