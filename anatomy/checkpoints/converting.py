"""Checkpoints in and out: a published model becomes a folder of ours, a model of ours one that transformers opens."""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from os.path import isdir, isfile, lexists
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anatomy.checkpoints.exporting import write_published
from anatomy.checkpoints.importing import PublishedModel, read_source, write_model
from anatomy.checkpoints.parity import Parity, compare, is_checkable, open_folder, open_theirs, unreached
from anatomy.checkpoints.sources import is_source, safetensors_of
from anatomy.checkpoints.tokenizers_of import (
    CHARS_CONFIG,
    NoTokenizer,
    read_tokenizer,
    tokenizer_of_chars,
    tokenizer_of_folder,
    tokenizer_of_gguf,
)
from anatomy.checkpoints.writing import new_folder
from anatomy.config import Composition
from anatomy.corpus import Vocabulary
from anatomy.errors import UserError
from anatomy.files import (
    CONFIG_FILE,
    MODEL_FILE,
    RECORD_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    WEIGHTS_FILE,
    write_json,
)
from anatomy.loading import load
from anatomy.model import Transformer

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WINDOW_NOTE = "a GGUF file of LLaMA's kind tells of no sliding window: a Mistral that has one reads everything here"
QWEN2_NOTE = (
    "for qwen2 AutoTokenizer takes Qwen's own tokenizer, whatever lies there; open this one of characters by "
    "transformers.PreTrainedTokenizerFast.from_pretrained"
)


@dataclass(frozen=True)
class Converted:
    """What became of a model.

    is_import   whether it came in; otherwise it went out
    family      its model_type in transformers
    parts       axis -> part
    dtypes      what its tensors are stored in
    tokenizer   what its tokens are, or why there is none (has_tokenizer)
    parity      None where nothing was compared
    unchecked   what was not compared; empty where all was
    note        what is to know of the files; empty where nothing
    """

    is_import: bool
    family: str
    parts: Mapping[str, str]
    num_params: int
    dtypes: list[str]
    tokenizer: str
    has_tokenizer: bool
    parity: Parity | None
    unchecked: str
    note: str = ""


class NotTheSame(Exception):
    """The two models give other logits, so what was written is not the model; it is not kept."""

    def __init__(self, parity: Parity) -> None:
        super().__init__(f"the logits differ by more than {parity.tolerance:.1e}")
        self.parity = parity


def convert(source: Path, folder: Path, *, verify: bool = True) -> Converted:
    """Convert what lies at `source` into `folder`, which is not there yet. Which kind it is decides the direction.

    The result is compared with transformers' own model, where transformers is installed.

    Raises: UserError, one line, for what cannot be read, has no counterpart, or cannot be written; NotTheSame.
    """
    if lexists(source / RECORD_FILE) or lexists(source / MODEL_FILE):
        return _export(source, folder, verify)
    if isdir(source) and not is_source(source):
        raise UserError(
            f"{str(source)!r}: holds neither a published model ({CONFIG_FILE}) nor one of ours ({RECORD_FILE} of a "
            f"run, {MODEL_FILE} of an imported one)"
        )
    return _import(read_source(source), folder, verify)


def _import(published: PublishedModel, folder: Path, verify: bool) -> Converted:
    with new_folder(folder) as filled:
        content = write_model(published, filled)
        tokenizer = write_tokenizer(published, filled)
        has_tokenizer = isfile(filled / TOKENIZER_FILE)
        parity, unchecked = _checked(
            verify, lambda: load(filled).model, lambda: open_theirs(published.source), published.composition
        )
        if parity is not None:
            write_json(filled / MODEL_FILE, content | {"parity": asdict(parity)})
    return Converted(
        True,
        published.family,
        published.composition.parts,
        content["num_params"],
        published.dtypes,
        tokenizer,
        has_tokenizer,
        parity,
        unchecked,
        WINDOW_NOTE if published.source.format == "gguf" and published.family == "llama" else "",
    )


def write_tokenizer(published: PublishedModel, folder: Path) -> str:
    """Put the tokenizer beside the model; what it is, or why there is none."""
    try:
        tokenizer = tokenizer_of(published)
    except NoTokenizer as reason:
        return f"none ({reason})"
    tokenizer.save(str(folder / TOKENIZER_FILE))
    return f"{tokenizer.get_vocab_size():,} tokens"


def tokenizer_of(published: PublishedModel) -> "Tokenizer":
    """The tokenizer that a model came with. Raises NoTokenizer, with the reason."""
    source = published.source
    if source.format == "gguf":
        return tokenizer_of_gguf(source.metadata)
    return tokenizer_of_folder(source.path, published.family)


def _export(source: Path, folder: Path, verify: bool) -> Converted:
    opened = load(source)
    if "trap" in opened.record:
        raise UserError(f"{str(source)!r}: was loaded wrongly on purpose (--trap), so it is no model to pass on")
    composition, vocabulary, num_symbols = opened.composition, opened.vocabulary, opened.model.num_symbols
    num_params = sum(opened.model.num_params_by_axis().values())
    tokens = {"bos_token_id": opened.record.get("start_id"), "eos_token_id": opened.record.get("end_ids") or None}
    del opened  # it is opened again for the comparison, and not held beside the model of transformers
    tensors = safetensors_of(source / WEIGHTS_FILE)
    with new_folder(folder) as filled:
        config = write_published(composition, num_symbols, tensors, filled, tokens)
        if isinstance(vocabulary, Vocabulary):
            tokenizer_of_chars(vocabulary.chars).save(str(filled / TOKENIZER_FILE))
        elif vocabulary is not None:
            read_tokenizer(source / TOKENIZER_FILE).save(str(filled / TOKENIZER_FILE))
        if vocabulary is not None:
            write_json(filled / TOKENIZER_CONFIG_FILE, dict(CHARS_CONFIG))
        parity, unchecked = _checked(
            verify, lambda: load(source).model, lambda: open_folder(filled, repr(str(folder))), composition
        )
    return Converted(
        False,
        config["model_type"],
        composition.parts,
        num_params,
        sorted({tensor.dtype for tensor in tensors.values()}),
        "none" if vocabulary is None else f"{len(vocabulary):,} {vocabulary.unit}s",
        vocabulary is not None,
        parity,
        unchecked,
        QWEN2_NOTE if config["model_type"] == "qwen2" and isinstance(vocabulary, Vocabulary) else "",
    )


def _checked(
    verify: bool, ours: Callable[[], Transformer], theirs: Callable[[], Any], composition: Composition
) -> tuple[Parity | None, str]:
    """The parity of two models, or None, and what was not compared. Raises NotTheSame."""
    if not verify:
        return None, "not compared with transformers, as asked"
    if not is_checkable():
        return None, "not compared with transformers, which is not installed; type: python -m pip install transformers"
    parity = compare(ours, theirs, composition)
    if not parity.holds:
        raise NotTheSame(parity)
    too_short_for = unreached(composition, parity.positions)
    return parity, f"the text did not reach {' and '.join(too_short_for)}" if too_short_for else ""
