"""GGUF files: the same model comes out that went in, and a hostile one costs no more than its bytes."""

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from published_models import logits_of, published, random_ids
from test_checkpoints_importing import fault

from anatomy.checkpoints import gguf_file, names
from anatomy.checkpoints.converting import NotTheSame, convert
from anatomy.checkpoints.importing import read_source
from anatomy.loading import load

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "model.layers.": "blk.",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
Change = Callable[[gguf.GGUFWriter], object]


def adjacent(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Rows as llama.cpp wants them: channel i of a head and channel i + K/2 side by side."""
    heads = rows.reshape(num_heads, 2, -1, *rows.shape[1:])
    return np.stack((heads[:, 0], heads[:, 1]), axis=2).reshape(rows.shape)


def write_gguf(
    file: Path,
    model: Any,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    change: Change = lambda writer: None,
) -> Path:
    """A file as llama.cpp's converter writes it; matrices in `kind`."""
    config, family = model.config, model.config.model_type
    writer = gguf.GGUFWriter(file, "llama" if family == "mistral" else family)
    head_width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(head_width)
    if head_width * config.num_attention_heads != config.hidden_size:
        writer.add_key_length(head_width)
        writer.add_value_length(head_width)
    writer.add_bos_token_id(1)
    change(writer)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        rows = tensor.numpy()
        if family in ("llama", "mistral") and (".q_proj." in name or ".k_proj." in name):
            rows = adjacent(rows, len(rows) // head_width)
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if rows.ndim == 2 and kind is not gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, gguf.quants.quantize(rows, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, rows)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize(
    "kind", ["llama", "llama-tied", "llama-biases", "mistral-no-window", "qwen2-window-off", "qwen3"]
)
def test_a_gguf_file_gives_the_logits_of_the_model_that_was_put_into_it(tmp_path: Path, kind: str) -> None:
    theirs = published(kind)
    file, ids = write_gguf(tmp_path / "tiny.gguf", theirs), random_ids()
    parity = convert(file, tmp_path / "ours").parity
    assert parity is not None and parity.positions >= 64
    assert max(parity.max_logit_difference, parity.max_cached_logit_difference) < 1e-4
    opened = load(tmp_path / "ours")
    with torch.no_grad():
        assert (opened.model(ids) - logits_of(theirs, ids)).abs().max() < 1e-4
    assert opened.composition.norm["eps"] == 1e-3 and opened.record["start_id"] == 1
    assert opened.record["source"] == {"format": "gguf", "files": ["tiny.gguf"]}


@pytest.mark.parametrize("kind", ["mistral-no-window", "qwen3"])
def test_that_a_file_of_llamas_kind_tells_of_no_window_is_said(tmp_path: Path, kind: str) -> None:
    note = convert(write_gguf(tmp_path / "tiny.gguf", published(kind)), tmp_path / "ours", verify=False).note
    assert ("tells of no sliding window" in note) is (kind != "qwen3")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1", "Q4_0", "Q5_1", "BF16", "F16"])
def test_quantised_matrices_are_read_as_transformers_reads_them(tmp_path: Path, kind: str) -> None:
    theirs = published("llama-tied", hidden_size=96, intermediate_size=64)
    file = write_gguf(tmp_path / "tiny.gguf", theirs, gguf.GGMLQuantizationType[kind])
    converted = convert(file, tmp_path / "ours")
    assert converted.parity is not None and converted.parity.max_logit_difference < 1e-3
    assert converted.dtypes == ["F32"]
    ids = random_ids()
    with torch.no_grad():
        lost = (load(tmp_path / "ours").model(ids) - logits_of(theirs, ids)).abs().max()
    assert 0 < lost < 40


def test_rows_left_in_the_order_of_neighbours_are_another_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", published("llama"))
    monkeypatch.setitem(names.GGUF, "llama", replace(names.GGUF["llama"], adjacent=frozenset()))  # type: ignore[arg-type]
    with pytest.raises(NotTheSame) as error:
        convert(file, tmp_path / "ours")
    assert error.value.parity.max_logit_difference > 0.1


def test_what_transformers_reads_otherwise_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_gguf(tmp_path / "tiny.gguf", published("llama"))
    real = gguf_file._config
    monkeypatch.setattr(gguf_file, "_config", lambda *given: real(*given) | {"rope_theta": 501.0})
    with pytest.raises(Exception, match="transformers reads rope_theta otherwise"):
        convert(file, tmp_path / "ours")


# ------------------------------------------------------------------------------------------------ refused by name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda w: w.add_uint32("llama.expert_count", 8), "llama.expert_count=8: not supported"),
        (
            lambda w: w.add_string("llama.rope.scaling.type", "linear"),
            "llama.rope.scaling.type='linear': not supported",
        ),
        (lambda w: w.add_float32("llama.rope.scaling.factor", 4.0), "llama.rope.scaling.factor=4.0: not supported"),
        (lambda w: w.add_uint32("llama.attention.sliding_window", 7), "llama.attention.sliding_window=7: not"),
        (lambda w: w.add_uint32("llama.newest.invention", 7), "llama.newest.invention=7: not supported"),
        (lambda w: w.add_string("general.type", "adapter"), "general.type='adapter': only models"),
        (lambda w: w.add_uint16("split.count", 2), "split.count: a file of several"),
        (lambda w: w.add_tensor("rope_freqs.weight", np.ones(5, np.float32)), "rope_freqs.weight: the stretched RoPE"),
        (lambda w: w.add_tensor("blk.0.attn_q.scale", np.ones(5, np.float32)), "left over: 'blk.0.attn_q.scale'"),
        (lambda w: w.add_vocab_size(68), "of another shape: 'token_embd.weight' (67, 48), not (68, 48)"),
    ],
)
def test_what_is_not_built_is_refused_by_its_name(tmp_path: Path, change: Change, said: str) -> None:
    assert said in fault(write_gguf(tmp_path / "tiny.gguf", published("llama"), change=change))


@pytest.mark.parametrize("name", ["llama.rope.scaling.type", "llama.expert_count"])
def test_what_leaves_the_model_as_it_is_is_read(tmp_path: Path, name: str) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_string(name, "none") if name.endswith("type") else writer.add_uint32(name, 0)

    plain, changed = (
        read_source(write_gguf(tmp_path / file, published("llama"), change=how)).composition
        for file, how in (("plain.gguf", lambda _: None), ("changed.gguf", change))
    )
    assert changed == plain


@pytest.mark.parametrize("architecture", ["falcon", "gemma", "llama4", "Llama"])
def test_other_architectures_are_refused_by_name(tmp_path: Path, architecture: str) -> None:
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    said = fault(tmp_path / "other.gguf")
    assert f"general.architecture='{architecture}' is not supported; it can be llama, qwen2, qwen3" in said


def test_partly_turned_heads_are_refused(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.kv_data[0]["llama.rope.dimension_count"] = gguf.gguf_writer.GGUFValue(4, gguf.GGUFValueType.UINT32)

    said = fault(write_gguf(tmp_path / "tiny.gguf", published("llama"), change=change))
    assert "llama.attention.key_length=10, llama.attention.value_length=10, llama.rope.dimension_count=4" in said


def test_missing_facts_and_tensors_are_named_as_the_file_names_them(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        del writer.kv_data[0]["llama.block_count"]

    assert "llama.block_count: missing" in fault(write_gguf(tmp_path / "a.gguf", published("llama"), change=change))
    model = published("llama")
    model.model.layers[1].mlp.up_proj = None
    assert "missing: 'blk.1.ffn_up.weight'" in fault(write_gguf(tmp_path / "b.gguf", model))


# ------------------------------------------------------------------------------------------------ hostile


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    file = tmp_path_factory.mktemp("sound") / "tiny.gguf"

    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_token_list(["a", "b"])
        writer.add_token_scores([0.5, 1.5])

    return write_gguf(file, published("llama", num_hidden_layers=1), change=change).read_bytes()


def text(content: bytes) -> bytes:
    return struct.pack("<Q", len(content)) + content


def field(name: bytes, kind: int, value: bytes) -> bytes:
    return text(name) + struct.pack("<I", kind) + value


def header(num_tensors: int, num_fields: int, version: int = 3) -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, num_tensors, num_fields)


def array(of: int, count: int) -> bytes:
    return struct.pack("<IQ", of, count)


HOSTILE = {
    "empty": b"",
    "magic alone": b"GGUF",
    "another kind": b"GGML" + b"\0" * 100,
    "version 1": header(0, 0, 1),
    "big-endian": b"GGUF" + struct.pack(">IQQ", 3, 0, 0),
    "fields without end": header(0, 2**63),
    "tensors without end": header(2**63, 0),
    "a name without end": header(0, 1) + struct.pack("<Q", 2**63) + b"abc",
    "bytes without end": header(0, 1) + field(b"a", 9, array(0, 2**62)),
    "texts without end": header(0, 1) + field(b"a", 9, array(8, 2**62)) + text(b"") * 1000,
    "an array of arrays": header(0, 1) + field(b"a", 9, array(9, 2) + array(9, 1) * 2),
    "a type that is none": header(0, 1) + field(b"a", 77, b"\0" * 8),
    "a field twice": header(0, 2) + field(b"a", 0, b"\1") * 2,
    "a name that is no text": header(0, 1) + field(b"\xff\xfe", 0, b"\1"),
    "no architecture": header(0, 1) + field(b"a", 0, b"\1"),
    "an architecture that is a number": header(0, 1) + field(b"general.architecture", 0, b"\1"),
    "an alignment of nothing": header(0, 1) + field(b"general.alignment", 4, struct.pack("<I", 0)),
    "an alignment too wide": header(0, 1) + field(b"general.alignment", 4, struct.pack("<I", 2**31)),
    "many dimensions": header(1, 0) + text(b"t") + struct.pack("<I", 2**31) + b"\0" * 64,
    "no dimension": header(1, 0) + text(b"t") + struct.pack("<IIQ", 0, 0, 0),
    "a huge shape": header(1, 0) + text(b"t") + struct.pack("<IQQQQIQ", 4, *[2**62] * 4, 0, 0),
    "an offset far away": header(1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 1, 0, 2**63),
    "a block that is none": header(1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 1, 999, 0),
    "half a block": header(1, 0) + text(b"t") + struct.pack("<IQIQ", 1, 33, 8, 0) + b"\0" * 99,
    "one place for many": header(9, 0)
    + b"".join(text(b"t%d" % index) + struct.pack("<IQIQ", 1, 64, 0, 0) for index in range(9))
    + b"\0" * 300,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_header_is_refused_at_once(tmp_path: Path, what: str) -> None:
    (tmp_path / "hostile.gguf").write_bytes(HOSTILE[what])
    told = "is not supported; it can be" if "architecture" in what else "no GGUF file, or a damaged one"
    assert told in fault(tmp_path / "hostile.gguf")


def test_a_long_header_is_not_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_file, "MAX_HEADER_BYTES", 1000)
    (tmp_path / "long.gguf").write_bytes(header(0, 1) + field(b"a", 9, array(8, 1000)) + text(b"") * 1000)
    assert "its header is longer than 1,000 bytes" in fault(tmp_path / "long.gguf")


def test_a_file_that_is_cut_anywhere_is_refused(tmp_path: Path, raw: bytes) -> None:
    file = tmp_path / "cut.gguf"
    for length in [*range(0, 1500, 13), *range(1500, len(raw), 4001), len(raw) - 40]:
        file.write_bytes(raw[:length])
        assert str(file) in fault(file)


def test_bytes_that_were_turned_make_another_model_or_a_line(tmp_path: Path, raw: bytes) -> None:
    """Never anything else: no other exception, no endless reading."""
    from anatomy.errors import UserError

    pick, file, refused = np.random.default_rng(0), tmp_path / "turned.gguf", 0
    for _ in range(300):
        turned = bytearray(raw)
        for place in pick.integers(0, 1600, size=pick.integers(1, 4)):
            turned[place] = pick.integers(256)
        file.write_bytes(turned)
        try:
            read_source(file)
        except UserError as error:
            refused += 1
            assert str(error).isprintable()
    assert refused > 150


def test_a_kind_of_block_that_cannot_be_unpacked_is_named(tmp_path: Path, raw: bytes) -> None:
    kind = struct.pack("<IQI", 1, 48, int(gguf.GGMLQuantizationType.F32))
    other = struct.pack("<IQI", 1, 48, int(gguf.GGMLQuantizationType.I32))
    (tmp_path / "tiny.gguf").write_bytes(raw.replace(kind, other, 1))
    with pytest.raises(Exception, match="tensors of the kind I32 cannot be read"):
        convert(tmp_path / "tiny.gguf", tmp_path / "ours")
    assert [path.name for path in tmp_path.iterdir()] == ["tiny.gguf"]
