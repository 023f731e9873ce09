"""Tokenizers of others' models, out of their files, and one that transformers opens for the characters of a run.

All are `tokenizers.Tokenizer`, the kind that a tokenizer.json holds. Files are data: nothing in them is executed.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from os.path import exists, isfile  # these never raise, however long a name
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from anatomy.errors import UserError, one_line
from anatomy.files import TOKENIZER_FILE

VOCAB_FILE, MERGES_FILE, SENTENCEPIECE_FILE = "vocab.json", "merges.txt", "tokenizer.model"  # of GPT-2, and of others
MAX_FILE_BYTES = 256 * 2**20  # the largest in use have some 35 MB
END_OF_TEXT = "<|endoftext|>"  # GPT-2's one special token

CHARS_CONFIG: Mapping[str, Any] = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "clean_up_tokenization_spaces": False,
}
"""The tokenizer_config.json beside the tokenizer.json of `tokenizer_of_chars`: transformers then changes no text."""


class NoTokenizer(Exception):
    """There is none to be had here; the message says why, in words that follow `without a tokenizer:`."""


# ------------------------------------------------------------------------------------------------ of a folder


def tokenizer_of_folder(folder: Path, model_type: str) -> Tokenizer:
    """The tokenizer in a Hugging Face folder: its tokenizer.json, or GPT-2's vocab.json and merges.txt.

    Raises: NoTokenizer where there are no such files; UserError, one line, where one is damaged.
    """
    if exists(folder / TOKENIZER_FILE):
        return read_tokenizer(folder / TOKENIZER_FILE)
    if exists(folder / VOCAB_FILE) and exists(folder / MERGES_FILE):
        if model_type != "gpt2":
            raise NoTokenizer(
                f"there is no {TOKENIZER_FILE}, and of a {model_type} model {VOCAB_FILE} and {MERGES_FILE} do not say "
                f"enough; transformers makes one: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
            )
        return _gpt2_tokenizer(folder / VOCAB_FILE, folder / MERGES_FILE)
    if exists(folder / SENTENCEPIECE_FILE):
        raise NoTokenizer(
            f"there is no {TOKENIZER_FILE}, only SentencePiece's {SENTENCEPIECE_FILE}; "
            f"transformers makes one of it: AutoTokenizer.from_pretrained(folder).save_pretrained(folder)"
        )
    raise NoTokenizer(f"the folder holds no {TOKENIZER_FILE}")


def read_tokenizer(file: Path) -> Tokenizer:
    """The tokenizer in a tokenizer.json. Raises UserError, one line, if the file is absent or damaged."""
    raw = _read(file)
    with _damage_told(file):
        tokenizer = Tokenizer.from_buffer(raw)
        with suppress(Exception):  # it need not know this character; but some damage shows at the first text alone
            tokenizer.encode("a")
        return tokenizer


def _gpt2_tokenizer(vocab: Path, merges: Path) -> Tokenizer:
    for file in (vocab, merges):
        _read(file)
    with _damage_told(vocab):
        model = models.BPE.from_file(str(vocab), str(merges))
    tokenizer = _byte_level(model, PRE_TOKENIZERS["gpt-2"])
    if tokenizer.token_to_id(END_OF_TEXT) is not None:
        tokenizer.add_special_tokens([AddedToken(END_OF_TEXT, normalized=False, special=True)])
    return tokenizer


def _read(file: Path) -> bytes:
    where = repr(str(file))
    try:
        if not isfile(file):  # a pipe would be waited for
            raise UserError(f"{where}: {'is no plain file' if exists(file) else 'there is no such file'}")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise UserError(f"{where}: is larger than {MAX_FILE_BYTES // 2**20} MiB, so no file of a tokenizer")
        return file.read_bytes()
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({error.strerror})") from None


@contextmanager
def _damage_told(file: Path) -> Iterator[None]:
    """What the library says of a file, in one line. Some faults it has panic: those are no Exception of Python's, and
    are written to the descriptor of standard error, past Python, which is why it leads nowhere meanwhile."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise UserError(f"{str(file)!r}: no tokenizer, or a damaged one ({one_line(str(error), 120)})") from None
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


# ------------------------------------------------------------------------------------------------ of a GGUF


@dataclass(frozen=True)
class PreTokenizer:
    """How a byte-level BPE cuts a text before it merges: pattern by pattern, each inside the pieces of the one before.

    What no pattern matches is a piece too.

    takes_whole  a piece that is a token as it stands is not built up by merges
    adds_bos     whether the beginning of a text is marked where the file does not say
    composes     characters that are written as several are made one first (Unicode's NFC)
    """

    patterns: tuple[str, ...]
    takes_whole: bool = False
    adds_bos: bool = False
    composes: bool = False


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_WORDS = (  # of LLaMA 3 and Qwen 2, which differ in how many digits stay together
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = PreTokenizer((_WORDS % "{1,3}",), takes_whole=True, adds_bos=True)

PRE_TOKENIZERS: Mapping[str, PreTokenizer] = {
    "gpt-2": PreTokenizer((_GPT2,)),
    "smollm": PreTokenizer((r"\p{N}", _GPT2)),
    "llama-bpe": _LLAMA3,
    "llama3": _LLAMA3,
    "llama-v3": _LLAMA3,
    "qwen2": PreTokenizer((_WORDS % "",), composes=True),
    # llama.cpp's own, for files that do not say how their text is cut.
    "default": PreTokenizer((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
}
"""By the word in `tokenizer.ggml.pre`. Source: llama.cpp's vocabulary loader; smollm, llama-bpe and qwen2 are those of
the models' own tokenizer.json."""

UNKNOWN, CONTROL, USER_DEFINED = 2, 3, 4  # values of tokenizer.ggml.token_type
BYTE_LEVEL = "gpt2"  # the value of tokenizer.ggml.model that stands for byte-level BPE


def tokenizer_of_gguf(fields: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that a GGUF's metadata describes; `fields` are plain values by their names there.

    Tokens of control and those that users defined stay whole wherever they occur in a text. The beginning of a text is
    marked if the file, or else its kind of pre-tokenizer, says so.

    Raises: NoTokenizer for another kind than byte-level BPE with one of PRE_TOKENIZERS; UserError for damaged fields.
    """
    kind, pre = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind is None:
        raise NoTokenizer("the file describes none (tokenizer.ggml.model is absent)")
    if kind != BYTE_LEVEL:
        raise NoTokenizer(f"tokenizer.ggml.model={_shown(kind)}: only {BYTE_LEVEL}, byte-level BPE, is understood")
    if not isinstance(pre, str) or pre not in PRE_TOKENIZERS:
        raise NoTokenizer(f"tokenizer.ggml.pre={_shown(pre)}: only {', '.join(PRE_TOKENIZERS)} are understood")
    tokens, merges = (_strings(fields, f"tokenizer.ggml.{name}") for name in ("tokens", "merges"))
    vocab = {token: index for index, token in enumerate(tokens)}
    if len(vocab) < len(tokens):
        raise NoTokenizer(f"{len(tokens) - len(vocab):,} of its tokens are spelled as others are")
    kinds = fields.get("tokenizer.ggml.token_type", [])
    if not isinstance(kinds, list):
        raise UserError("tokenizer.ggml.token_type: must be a list of numbers")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    how = PRE_TOKENIZERS[pre]
    try:
        model = models.BPE(vocab, pairs, ignore_merges=how.takes_whole)
    except Exception as error:  # the library's own have no common kind
        raise UserError(f"tokenizer.ggml.merges: damaged ({one_line(str(error), 120)})") from None
    tokenizer = _byte_level(model, how)
    for is_special, of_kind in ((True, (UNKNOWN, CONTROL)), (False, (USER_DEFINED,))):
        whole = [
            AddedToken(token, normalized=False, special=is_special)
            for token, kind in zip(tokens, kinds, strict=False)
            if kind in of_kind and token
        ]
        tokenizer.add_special_tokens(whole) if is_special else tokenizer.add_tokens(whole)
    _mark_ends(tokenizer, tokens, fields, adds_bos=how.adds_bos)
    return tokenizer


def _byte_level(model: models.BPE, how: PreTokenizer) -> Tokenizer:
    tokenizer = Tokenizer(model)
    if how.composes:
        tokenizer.normalizer = normalizers.NFC()
    cuts = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in how.patterns]
    spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*cuts, spelling])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _mark_ends(tokenizer: Tokenizer, tokens: Sequence[str], fields: Mapping[str, Any], *, adds_bos: bool) -> None:
    """Have the beginning and the end of a text marked, each where the file wants it and names the token for it."""
    marks = {}
    for name, adds in (("bos", adds_bos), ("eos", False)):
        token_id = fields.get(f"tokenizer.ggml.{name}_token_id")
        if not fields.get(f"tokenizer.ggml.add_{name}_token", adds) or token_id is None:
            continue
        if not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
            raise UserError(f"tokenizer.ggml.{name}_token_id={_shown(token_id)}: there are {len(tokens):,} tokens")
        marks[name] = {"id": name, "ids": [token_id], "tokens": [tokens[token_id]]}
    if marks:
        single = [*(["bos"] if "bos" in marks else []), "$A", *(["eos"] if "eos" in marks else [])]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=list(marks.values()))


def _strings(fields: Mapping[str, Any], name: str) -> list[str]:
    found = fields.get(name)
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise UserError(f"{name}: must be a list of strings")
    return found


def _shown(value: Any) -> str:
    return one_line(repr(value), 60)


# ------------------------------------------------------------------------------------------------ of characters


def tokenizer_of_chars(chars: str) -> Tokenizer:
    """One token a character, the index its id; CHARS_CONFIG is the tokenizer_config.json that belongs to it.

    Text comes back exactly, whatever it holds; a character that is not among them is an error, never dropped.
    """
    tokenizer = Tokenizer(models.WordLevel({char: index for index, char in enumerate(chars)}, unk_token=""))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer
