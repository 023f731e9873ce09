"""What a reader may ask about: a published model by name, a config.json, a run, an imported model, or overrides."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os.path import exists, isdir, isfile, lexists  # these never raise: what one may not look at is not there
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from anatomy.about import top_comment
from anatomy.axes import BASES
from anatomy.build import part_faults
from anatomy.checkpoints.config_json import config_json_of
from anatomy.checkpoints.field_table import MAX_SIZES
from anatomy.checkpoints.fields import ReadField, read_fields, read_json
from anatomy.config import Composition, Config, did_you_mean, parse_config
from anatomy.errors import UserError, one_line
from anatomy.files import CONF, CONFIG_FILE, MODEL_FILE, RECORD_FILE

MAX_SUBJECTS = 12
PUBLISHED = CONF / "published"


@dataclass(frozen=True)
class Subject:
    """One thing to explain.

    name         as it was asked for
    what         one line about it; empty where nobody wrote one
    source       where its facts come from
    composition  what it is made of
    num_symbols  rows of its vocabulary that stand for a symbol
    family       the model_type of transformers that has these parts; None where there is none, `no_family` says why
    fields       its config.json, the one it has or the one it would have
    knows_init   whether it is known how its weights began; of a published model it is not
    """

    name: str
    what: str
    source: str
    composition: Composition
    num_symbols: int
    family: str | None
    no_family: str
    fields: tuple[ReadField, ...]
    knows_init: bool


def published() -> list[str]:
    """The models known by name."""
    return sorted(file.stem for file in PUBLISHED.glob("*.yaml"))


def subjects_of(words: Sequence[str]) -> list[Subject]:
    """What the words of a command line name, in their order.

    A word with '=' is an override; consecutive ones make one composition, and a second `base=` begins the next. A
    quoted word with blanks is a composition by itself. Several values of one override are several compositions.

    Raises: UserError for everything that none of these is, or that cannot be built.
    """
    subjects = [subject for group in _groups(words) for subject in _subjects(group)]
    if len(subjects) > MAX_SUBJECTS:
        raise UserError(f"{len(subjects)} models at once: explain at most {MAX_SUBJECTS} side by side")
    return subjects


def _groups(words: Sequence[str]) -> Iterator[str | list[str]]:
    """Each name or path as it is; overrides gathered into lists."""
    gathered: list[str] = []
    for word in words:
        is_override = "=" in word and not exists(word)
        is_whole = is_override and len(word.split()) > 1
        begins = word.lstrip("+").startswith("base=") and any(w.lstrip("+").startswith("base=") for w in gathered)
        if gathered and (not is_override or is_whole or begins):
            yield gathered
            gathered = []
        if is_whole:
            yield _split(word)
        elif is_override:
            gathered.append(word)
        else:
            yield word
    if gathered:
        yield gathered


def _split(word: str) -> list[str]:
    try:
        return shlex.split(word)
    except ValueError as error:
        raise UserError(f"{one_line(word)}: cannot be taken apart into overrides: {error}") from None


def _subjects(group: str | list[str]) -> Iterator[Subject]:
    if isinstance(group, list):
        yield from _composed(group)
    elif group not in published():
        yield _of_path(group)
    elif not lexists(group):
        yield _published(group)
    else:  # as in anatomy-convert, what lies here goes before a built-in name
        yield _instead_of_published(group)


# ------------------------------------------------------------------------------------------------ the kinds


def _instead_of_published(name: str) -> Subject:
    note = f"what lies here as {name!r}; where nothing does, the name is that of a published model"
    try:
        subject = _of_path(name)
    except UserError as error:
        raise UserError(f"{error}; this is {note}") from None
    return replace(subject, what=f"{subject.what}; {note}" if subject.what else note)


def _published(name: str) -> Subject:
    file = PUBLISHED / f"{name}.yaml"
    content = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(file)))
    source = f"{content['about']['hub']}; {content['about']['source']}"
    return _of_config_json(name, content["config"], what=top_comment(file), source=source)


def _of_config_json(name: str, config: dict[str, Any], *, what: str, source: str) -> Subject:
    read = read_fields(config, where=repr(source) if name == source else name)
    rows = read.composition.model.vocab_size
    assert rows is not None
    return Subject(name, what, source, read.composition, rows, read.family, "", read.fields, knows_init=False)


def _composed(words: list[str]) -> Iterator[Subject]:
    """The compositions that overrides come to. The text is read only where the vocabulary is its own."""
    if study := [word for word in words if word.startswith("study=")]:
        raise UserError(f"{one_line(study[0])}: a study has many models; type the overrides of one of them")
    from anatomy.compose import read_command  # Hydra, which names and paths do not need

    for request in read_command(words, multirun=True).requests:
        config, faults = parse_config(request.resolved)
        faults += part_faults(request.resolved)
        if fault := request.swap_fault():
            faults.append(fault)
        if config is None or faults:
            raise UserError("\n".join(faults))
        if (num_symbols := config.model.vocab_size) is None:
            from anatomy.runner import corpus_of

            num_symbols = len(corpus_of(config).vocabulary)
        yield _ours(" ".join(request.overrides), "", "", config, num_symbols)


def _ours(name: str, what: str, source: str, composition: Composition, num_symbols: int) -> Subject:
    """A composition of ours, and the config.json that it would have."""
    _refuse_sizes(name, composition)
    subject = Subject(name, what, source, composition, num_symbols, None, "", (), knows_init=True)
    try:
        read = read_fields(config_json_of(composition, num_symbols=num_symbols))
    except UserError as error:
        return replace(subject, no_family=str(error))
    return replace(subject, family=read.family, fields=read.fields)


def _refuse_sizes(name: str, composition: Composition) -> None:
    """Sizes that a config may have but that nobody can count in a second."""
    sizes = composition.model.model_dump()
    too_large = [f"model.{key}={sizes[key]}" for key, most in MAX_SIZES.items() if (sizes[key] or 0) > most]
    if too_large:
        key = too_large[0].partition("=")[0].removeprefix("model.")
        raise UserError(
            f"{one_line(name)}: {too_large[0]} is more than can be explained; it can be up to {MAX_SIZES[key]:,}"
        )


# ------------------------------------------------------------------------------------------------ paths


def _of_path(word: str) -> Subject:
    path = Path(word)
    folder = path.parent if path.name in (RECORD_FILE, MODEL_FILE) and isfile(path) else path
    if word and isdir(folder):
        if isfile(folder / RECORD_FILE) or isfile(folder / MODEL_FILE):
            return _opened(word, folder)
        if isfile(folder / CONFIG_FILE):
            return _config_file(word, folder / CONFIG_FILE)
        raise UserError(
            f"{word!r}: is a folder without {CONFIG_FILE}, {RECORD_FILE} or {MODEL_FILE}; type the folder of a run or "
            f"of a model"
        )
    if isfile(path):
        return _config_file(word, path)
    raise UserError(_nothing(word))


def _nothing(word: str) -> str:
    names = published()
    near = did_you_mean(word, [*names, *BASES])
    if near.removeprefix(" Did you mean ").removesuffix("?") in BASES:
        near = near.replace("mean ", "mean base=")
    known, shown = ", ".join(names), one_line(repr(word), 120)
    return f"{shown}: is no model known by name, no file or folder, no override.{near} Known: {known}"


def _config_file(name: str, file: Path) -> Subject:
    return _of_config_json(name, read_json(file), what="", source=str(file))


def _opened(name: str, folder: Path) -> Subject:
    """A run, or an imported model."""
    from anatomy.loading import read_folder

    record, composition = read_folder(folder)
    if isinstance(composition, Config):
        data = record.get("data")
        data = data if isinstance(data, dict) else {}
        rows = data.get("vocab_size")
        if type(rows) is not int or rows < 1:
            where = repr(str(folder / RECORD_FILE))
            raise UserError(f"{where}: data.vocab_size={one_line(repr(rows), 60)} is no number of characters")
        what = f"a run, {record['status']}, on {one_line(str(data.get('corpus')), 40)}"
        return _ours(name, what, str(folder), composition, rows)
    what = f"an imported model, {record['family']}"
    if "trap" in record:
        what += f", loaded wrongly on purpose by the trap {one_line(str(record['trap']), 60)}"
    assert composition.model.vocab_size is not None
    return replace(_ours(name, what, str(folder), composition, composition.model.vocab_size), knows_init=False)
