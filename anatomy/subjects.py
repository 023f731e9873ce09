"""What a reader may ask about: a published model by name, a config.json, a run, an imported model, or overrides."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os.path import exists, isdir, isfile  # these never raise: what one may not look at is not there
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from anatomy.about import top_comment
from anatomy.axes import BASES
from anatomy.build import part_faults
from anatomy.checkpoints.config_json import config_json_of
from anatomy.checkpoints.field_table import FAMILIES, MAX_SIZES
from anatomy.checkpoints.fields import ReadField, read_fields, read_json
from anatomy.config import Composition, did_you_mean, parse_composition, parse_config
from anatomy.errors import UserError, one_line
from anatomy.files import CONF

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
    elif group in published():
        yield _published(group)
    else:
        yield _of_path(group)


# ------------------------------------------------------------------------------------------------ the kinds


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
    try:
        read = read_fields(config_json_of(composition, num_symbols=num_symbols))
    except UserError as error:
        reason = str(error)
        return Subject(name, what, source, composition, num_symbols, None, reason, (), knows_init=True)
    return Subject(name, what, source, composition, num_symbols, read.family, "", read.fields, knows_init=True)


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
    folder = path.parent if path.name in ("result.json", "model.json") and isfile(path) else path
    if word and isdir(folder):
        if isfile(folder / "result.json"):
            return _run(word, folder)
        if isfile(folder / "model.json"):
            return _imported(word, folder)
        if isfile(folder / "config.json"):
            return _config_file(word, folder / "config.json")
        raise UserError(
            f"{word!r}: is a folder without config.json, result.json or model.json; type the folder of a run or of a "
            f"model"
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


def _run(name: str, folder: Path) -> Subject:
    from anatomy.runs import read_record

    where = repr(str(folder / "result.json"))
    try:
        record = read_record(folder) or {}
    except ValueError as error:
        raise UserError(one_line(str(error))) from None
    resolved, data = record.get("config"), record.get("data")
    if not isinstance(resolved, dict) or not isinstance(data, dict):
        raise UserError(f"{where}: is no record of a run")
    config, faults = parse_config(resolved)
    faults += part_faults(resolved)
    num_symbols = data.get("vocab_size")
    if not isinstance(num_symbols, int) or num_symbols < 1:
        raise UserError(f"{where}: data.vocab_size={num_symbols!r} is no number of characters")
    if config is None or faults:
        raise UserError(f"{where}: in its config: {one_line(faults[0])}; it is damaged, or of another version")
    what = f"a run, {one_line(str(record.get('status')), 20)}, on {one_line(str(data.get('corpus')), 40)}"
    return _ours(name, what, str(folder), config, num_symbols)


def _imported(name: str, folder: Path) -> Subject:
    file = folder / "model.json"
    content = read_json(file)
    plain, family = content.get("composition"), content.get("family")
    if not isinstance(plain, dict) or family not in FAMILIES:
        raise UserError(f"{str(file)!r}: is no record of an imported model (no composition of a known family)")
    composition, faults = parse_composition(plain)
    faults += part_faults(plain)
    if composition is None or faults:
        raise UserError(
            f"{str(file)!r}: in its composition: {one_line(faults[0])}; it is damaged, or of another version"
        )
    if (rows := composition.model.vocab_size) is None:
        raise UserError(f"{str(file)!r}: in its composition: model.vocab_size is null")
    what = f"an imported model, {family}"
    if "trap" in content:
        what += f", loaded wrongly on purpose by the trap {one_line(str(content['trap']), 60)}"
    subject = _ours(name, what, str(folder), composition, rows)
    return Subject(**{**vars(subject), "knows_init": False})
