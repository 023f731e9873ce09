"""What goes out is opened by transformers and computes the same; what came in goes out again byte for byte."""

import json
import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from conftest import NUM_SYMBOLS, TINY, compose
from published_models import KINDS, logits_of, published, random_ids, saved
from safetensors.torch import load_file, save_file
from test_checkpoints_importing import configure, rewrite
from test_runner import job

from anatomy.build import build_model
from anatomy.checkpoints.converting import NotTheSame, convert
from anatomy.checkpoints.exporting import as_transformers, published_tensors
from anatomy.checkpoints.sources import StoredTensor
from anatomy.errors import UserError
from anatomy.loading import load
from anatomy.model import initialise
from anatomy.runner import Job, run

GPT2, LLAMA = ("base=gpt2",), ("base=llama", "model.n_head=6", "attn.n_kv_head=2")
RUNS = {
    "gpt2": GPT2,
    "gpt2-relu": (*GPT2, "ffn=relu", "tying=untied"),
    "gpt2-padded": (*GPT2, "model.vocab_size=64"),
    "llama": LLAMA,
    "llama-tied-padded": (*LLAMA, "tying=tied", "model.vocab_size=64", "pos.theta=500", "norm.eps=1e-3"),
    "llama-matched": ("base=llama", "attn=mqa", "match=params"),
    "llama-biased-yarn": (*LLAMA, "bias=all", "pos=rope_yarn", "pos.original_len=8", "model.head_width=6"),
    "llama-dropout": (*LLAMA, "train.dropout=0.3"),
    "mistral": ("base=mistral",),
    "qwen2": ("base=qwen2",),
    "qwen2-window": ("base=qwen2", "window=sliding", "window.size=5", "window.first_layer=1"),
    "qwen3": ("base=qwen3", "model.head_width=10"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Callable[..., Job]:
    """A tiny run of some words, trained once. A few long steps move every weight away from where it began."""

    @cache
    def train(*words: str) -> Job:
        outputs = tmp_path_factory.mktemp("outputs")
        made = job(outputs, text_file, "train.steps=3", "train.eval_every=3", "train.lr=0.05", *words)
        assert run(made, [])["status"] == "done"
        return made

    return train


def bytes_of(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[Any, ...]]:
    return {
        name: (tensor.dtype, tensor.shape, tensor.contiguous().view(torch.uint8).numpy().tobytes())
        for name, tensor in tensors.items()
    }


def header_of(file: Path) -> dict[str, Any]:
    raw = file.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    return json.loads(raw[8 : 8 + length])


# ------------------------------------------------------------------------------------------------ runs


@pytest.mark.parametrize("name", RUNS)
def test_a_run_of_ours_is_opened_by_transformers_and_gives_the_same_logits(
    name: str, tmp_path: Path, trained: Callable[..., Job]
) -> None:
    made = trained(*RUNS[name])
    converted = convert(made.folder, tmp_path / "theirs")
    assert converted.parity is not None and converted.parity.max_cached_logit_difference < 1e-4
    assert converted.family == name.partition("-")[0] and not converted.is_import
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    assert type(theirs).__name__ == transformers.AutoConfig.from_pretrained(tmp_path / "theirs").architectures[0]
    opened = load(made.folder)
    ids = random_ids(length=opened.context, num_symbols=opened.model.num_symbols)
    with torch.no_grad():
        assert (opened.model(ids) - logits_of(theirs, ids)).abs().max() < 1e-4
    assert theirs.config.vocab_size == len(made.corpus.vocabulary) == logits_of(theirs, ids).shape[-1]


@pytest.mark.parametrize("name", ["gpt2-padded", "llama"])
def test_its_characters_go_along_as_a_tokenizer(name: str, tmp_path: Path, trained: Callable[..., Job]) -> None:
    made = trained(*RUNS[name])
    convert(made.folder, tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    text, vocabulary = "the norm of a\nkey  .", made.corpus.vocabulary
    assert tokenizer(text)["input_ids"] == vocabulary.encode(text).tolist()
    assert tokenizer.decode(vocabulary.encode(text).tolist()) == text
    assert len(tokenizer) == len(vocabulary)


def test_transformers_goes_on_with_a_text_as_we_do(tmp_path: Path, trained: Callable[..., Job]) -> None:
    made = trained(*RUNS["llama"])
    convert(made.folder, tmp_path / "theirs")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "theirs")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    given = tokenizer("the ", return_tensors="pt")
    written = theirs.generate(given["input_ids"], max_new_tokens=8, do_sample=False, pad_token_id=0)
    (ours,) = load(made.folder).sample("the ", num_tokens=8, temperature=0.0)
    assert tokenizer.decode(written[0]) == ours.text


def test_of_a_padded_vocabulary_the_surplus_stays_here(tmp_path: Path, trained: Callable[..., Job]) -> None:
    made = trained(*RUNS["gpt2-padded"])
    convert(made.folder, tmp_path / "theirs")
    num_symbols = len(made.corpus.vocabulary)
    assert num_symbols < load_file(made.folder / "model.safetensors")["embed.weight"].shape[0] == 64
    assert load_file(tmp_path / "theirs" / "model.safetensors")["transformer.wte.weight"].shape == (num_symbols, 24)
    convert(tmp_path / "theirs", tmp_path / "back")
    assert load(tmp_path / "back").model.embed.num_embeddings == num_symbols


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("base=vanilla",), "placement=post"),
        (("base=llama", "pos=nope"), "pos=nope"),
        (("base=llama", "bias=qkv", "qk_norm=rms"), "bias=qkv"),
        (("base=gpt2", "attn=gqa"), "attn=gqa"),
    ],
)
def test_what_transformers_does_not_have_is_refused_with_the_reason(
    words: tuple[str, ...], reason: str, tmp_path: Path, trained: Callable[..., Job]
) -> None:
    made = trained(*words)
    with pytest.raises(UserError, match=f"transformers has no such model: .*{reason}"):
        convert(made.folder, tmp_path / "theirs")
    assert list(tmp_path.iterdir()) == []


def test_an_export_that_is_another_model_is_not_kept(
    tmp_path: Path, trained: Callable[..., Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = trained(*RUNS["llama"])
    real = published_tensors

    def forgetful(family: str, num_symbols: int, tensors: dict[str, StoredTensor]) -> dict[str, StoredTensor]:
        swapped = {name: tensors[name.replace("gate_proj", "up_proj") if "gate" in name else name] for name in tensors}
        return real(family, num_symbols, swapped)

    monkeypatch.setattr("anatomy.checkpoints.exporting.published_tensors", forgetful)
    with pytest.raises(NotTheSame):
        convert(made.folder, tmp_path / "theirs")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["gpt2-padded", "llama", "llama-tied-padded", "qwen3"])
def test_a_model_becomes_one_of_transformers_without_a_file(name: str) -> None:
    config = compose(*TINY, *RUNS[name])
    model = build_model(config, NUM_SYMBOLS, device="cpu").eval()
    initialise(model, "torch", seed=0)
    theirs, ids = as_transformers(model, config), random_ids(length=11, num_symbols=NUM_SYMBOLS)
    with torch.no_grad():
        assert (model(ids) - logits_of(theirs, ids)).abs().max() < 1e-5
    assert theirs.get_input_embeddings().weight.data_ptr() != model.embed.weight.data_ptr()


def test_a_model_that_transformers_does_not_have_becomes_none() -> None:
    config = compose(*TINY, "base=vanilla")
    with pytest.raises(UserError, match=r"transformers has no such model: .*placement=post"):
        as_transformers(build_model(config, NUM_SYMBOLS, device="cpu"), config)


# ------------------------------------------------------------------------------------------------ and back again


HALF = [(kind, dtype) for kind in ("gpt2", "llama-biases") for dtype in (torch.bfloat16, torch.float16)]


@pytest.mark.parametrize(("kind", "dtype"), [*((kind, torch.float32) for kind in KINDS), *HALF])
def test_what_came_in_goes_out_and_comes_in_byte_for_byte(kind: str, dtype: torch.dtype, tmp_path: Path) -> None:
    published(kind).to(dtype).save_pretrained(tmp_path / "theirs")
    for source, into in (("theirs", "ours"), ("ours", "out"), ("out", "again")):
        convert(tmp_path / source, tmp_path / into, verify=False)
    first, last = (load_file(tmp_path / name / "model.safetensors") for name in ("ours", "again"))
    assert bytes_of(first) == bytes_of(last)
    assert bytes_of(load_file(tmp_path / "theirs" / "model.safetensors")) == bytes_of(
        load_file(tmp_path / "out" / "model.safetensors")
    )
    one, other = (json.loads((tmp_path / name / "model.json").read_text()) for name in ("ours", "again"))
    for content in (one, other):
        del content["source"], content["family"]  # a Mistral without its window is a LLaMA
    assert one == other


@pytest.mark.parametrize("name", ["gpt2", "llama-tied-padded", "qwen2-window"])
def test_a_run_that_went_out_comes_in_as_the_same_model(name: str, tmp_path: Path, trained: Callable[..., Job]) -> None:
    made = trained(*RUNS[name])
    convert(made.folder, tmp_path / "theirs", verify=False)
    convert(tmp_path / "theirs", tmp_path / "back", verify=False)
    ours, back = load(made.folder), load(tmp_path / "back")
    ids = random_ids(length=ours.context, num_symbols=ours.model.num_symbols)
    with torch.no_grad():
        assert torch.equal(ours.model(ids), back.model(ids))
    text = "the norm of a key\n"
    assert back.codec.encode(text).tolist() == ours.codec.encode(text).tolist()
    parts = {axis: part for axis, part in back.composition.parts.items() if axis != "init"}
    assert parts.items() <= ours.composition.parts.items()


def test_the_characters_of_a_qwen2_are_read_by_the_class_that_the_note_names(
    tmp_path: Path, trained: Callable[..., Job]
) -> None:
    made = trained(*RUNS["qwen2"])
    assert "transformers.PreTrainedTokenizerFast" in convert(made.folder, tmp_path / "out", verify=False).note
    assert convert(trained(*RUNS["llama"]).folder, tmp_path / "other", verify=False).note == ""
    opened, text = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "out"), "the norm of a key\n"
    assert opened.encode(text) == load(made.folder).codec.encode(text).tolist()
    assert opened.decode(opened.encode(text)) == text


def test_tokens_that_begin_and_end_texts_go_out_again(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    configure(folder, bos_token_id=5, eos_token_id=[7, 9, 66, 67])
    convert(folder, tmp_path / "ours", verify=False)
    convert(tmp_path / "ours", tmp_path / "out", verify=False)
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (config["bos_token_id"], config["eos_token_id"]) == (5, [7, 9, 66])


# ------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("kind", ["gpt2", "llama-tied", "llama"])
def test_files_are_what_older_readers_want(kind: str, tmp_path: Path) -> None:
    """Metadata with a format, one tensor where matrices are tied, a dtype in the config."""
    saved(tmp_path / "theirs", kind)
    convert(tmp_path / "theirs", tmp_path / "ours", verify=False)
    convert(tmp_path / "ours", tmp_path / "out", verify=False)
    header = header_of(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert header["__metadata__"] == {"format": "pt"}
    assert config["dtype"] == "float32" and config["tie_word_embeddings"] is (kind != "llama")
    assert ("lm_head.weight" in header) is (kind == "llama")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def test_a_file_of_mixed_numbers_is_aligned_and_comes_back(tmp_path: Path) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama-biases")

    def mix(tensors: dict[str, torch.Tensor]) -> None:
        for name in tensors:
            if name.endswith(".bias"):  # some have an odd number of values
                tensors[name] = tensors[name].bfloat16()
        tensors["model.norm.weight"] = tensors["model.norm.weight"].half()

    rewrite(folder, mix)
    parity = convert(folder, tmp_path / "ours").parity
    assert parity is not None and parity.max_logit_difference < 1e-4
    convert(tmp_path / "ours", tmp_path / "out")
    assert bytes_of(load_file(folder / "model.safetensors")) == bytes_of(
        load_file(tmp_path / "out" / "model.safetensors")
    )
    header = header_of(tmp_path / "ours" / "model.safetensors")
    start = 8 + struct.unpack("<Q", (tmp_path / "ours" / "model.safetensors").read_bytes()[:8])[0]
    sizes = {"F32": 4, "BF16": 2, "F16": 2}
    for name, tensor in header.items():
        if name != "__metadata__":
            assert (start + tensor["data_offsets"][0]) % sizes[tensor["dtype"]] == 0


def test_an_imported_model_whose_file_was_changed_is_refused(tmp_path: Path) -> None:
    saved(tmp_path / "theirs", "llama")
    convert(tmp_path / "theirs", tmp_path / "ours", verify=False)
    tensors = load_file(tmp_path / "ours" / "model.safetensors")
    del tensors["blocks.1.ffn.up_proj.weight"]
    save_file(tensors, tmp_path / "ours" / "model.safetensors")
    with pytest.raises(UserError, match=r"it lacks 'blocks\.1\.ffn\.up_proj\.weight'"):
        convert(tmp_path / "ours", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_transformers_cannot_open_of_ours_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved(tmp_path / "theirs", "llama")
    convert(tmp_path / "theirs", tmp_path / "ours", verify=False)

    def refuse(*_: object, **__: object) -> None:
        raise KeyError("no such class\nand more")

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", refuse)
    with pytest.raises(UserError) as error:
        convert(tmp_path / "ours", tmp_path / "out")
    assert str(error.value).startswith(f"'{tmp_path}/out': transformers cannot open it, so there is nothing to compare")
    assert str(error.value).isprintable() and sorted(path.name for path in tmp_path.iterdir()) == ["ours", "theirs"]
