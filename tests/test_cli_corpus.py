"""anatomy-corpus as a user types it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from anatomy import __version__


def corpus(*words: str, code: int = 0, env: dict[str, str] | None = None) -> str:
    command = [sys.executable, "-c", "from anatomy.cli.corpus import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout + done.stderr


def test_list_names_every_text_and_how_to_get_it() -> None:
    rows = {line.split()[0]: line for line in corpus("list").splitlines()}
    sizes = {"kjv": "4,137,451", "sanguo": "599,947", "statutes": "122,517", "statutes_all": "3,038,727"}
    for name, num_chars in {**sizes, "pylib": "34,558,682", "files": "corpus.path=PATH"}.items():
        assert num_chars in rows[name]


def test_a_text_not_fetched_yet_is_listed_with_what_to_type(tmp_path: Path) -> None:
    text = corpus("list", env={**os.environ, "ANATOMY_CACHE": str(tmp_path)})
    assert "anatomy-corpus fetch statutes" in text
    assert len({len(line) for line in text.splitlines()}) == 1  # every row whole, none cut or wrapped


def test_a_damaged_text_is_listed_as_such(tmp_path: Path) -> None:
    (tmp_path / "statutes.txt").write_text("damaged")
    env = {**os.environ, "ANATOMY_CACHE": str(tmp_path)}
    assert "statutes.txt' is damaged; type: anatomy-corpus fetch statutes" in corpus("list", env=env)
    assert "is damaged" in corpus("show", "statutes", code=2, env=env)


def test_show_tells_sizes_and_splits() -> None:
    rows = dict(line.split(None, 1) for line in corpus("show", "kjv").splitlines())
    assert rows["characters"].split()[0] == "4,137,451" and rows["vocabulary"].split()[0] == "65"
    assert rows["train"].split()[0] == "3,310,059" and rows["split"].split()[0] == "blocks"
    assert rows["validation"].split()[0] == rows["test"].split()[0] == "413,696"
    assert rows["entropy"].startswith("4.357 bits") and rows["xz"].startswith("2.1")


def test_show_takes_the_split_asked_for() -> None:
    rows = dict(line.split(None, 1) for line in corpus("show", "kjv", "--split", "tail").splitlines())
    assert rows["split"].split()[0] == "tail" and rows["train"].split()[0] == "3,309,960"
    assert rows["validation"].split()[0] == "413,746" and rows["test"].split()[0] == "413,745"


def test_entropy_is_the_one_computed_by_hand(tmp_path: Path) -> None:
    (tmp_path / "four.txt").write_text("aabc" * 100)  # 1/2 a, 1/4 b, 1/4 c: 1.5 bits
    assert "1.500 bits per character" in corpus("show", "files", "--path", str(tmp_path / "four.txt"))
    (tmp_path / "one.txt").write_text("a")
    text = corpus("show", "files", "--path", str(tmp_path / "one.txt"))
    assert " 0.000 bits per character" in text and "nothing to compress" in text


def test_what_comes_with_anatomy_needs_no_fetching() -> None:
    assert "comes with anatomy" in corpus("fetch", "kjv")


def test_control_characters_are_escaped_when_shown(tmp_path: Path) -> None:
    (tmp_path / "odd.txt").write_text("\x1b[2J\x00\x07\u202e[bold]:smile:" + "ab" * 300)
    text = corpus("show", "files", "--path", str(tmp_path / "odd.txt"))
    assert all(char.isprintable() or char == "\n" for char in text)
    assert r"'\x1b[2J\x00\x07\u202e[bold]:smile:ab" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "list, show NAME or fetch NAME"),
        (["shwo"], "shwo"),
        (["show"], "NAME"),
        (["show", "kvj"], "Did you mean kjv?"),
        (["show", "two\nlines\x1b"], r"'two\nlines\x1b'"),
        (["show", "files"], "--path PATH"),
        (["show", "kjv", "--path", "own.txt"], "takes no path"),
        (["show", "files", "--path", "no\nsuch"], "no such file"),
        (["fetch", "nothing"], "kjv"),
        (["fetch", "files"], "own text"),
        (["show", "kjv", "--split", "head"], "'head' is not one of 'blocks', 'tail'"),
    ],
)
def test_wrong_input_is_one_line_and_exits_2(words: list[str], message: str) -> None:
    text = corpus(*words, code=2)
    assert message in text and len(text.splitlines()) == 1


def test_help_and_version_answer() -> None:
    assert "fetch" in corpus("--help") and __version__ in corpus("--version")
