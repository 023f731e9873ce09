"""anatomy-report as a user types it: views, exit codes, and names that try to break a terminal."""

import csv
import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from fake_runs import fake_record, put_rungs, put_study
from rich.cells import cell_len

from anatomy import __version__


def report(*words: object, code: int = 0, **env: str) -> str:
    command = [sys.executable, "-c", "from anatomy.cli.report import main; main()", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    names = ("a|b", "None", "007", "语料", "é\u2060", "👩‍👩‍👧", "[red]x", ":smile:", "esc\x1b[2J")
    odd = [fake_record(f"n{i}", 1.4321, parts={"norm": name}) for i, name in enumerate(names)]
    put_study(tmp_path, "s", [fake_record("a", 1.5), fake_record("b", 1.6, seed=1), *odd])
    put_rungs(tmp_path)
    return tmp_path


def test_a_piped_table_loses_nothing(outputs: Path) -> None:
    text = report(outputs)
    for word in ("1.5500", "92,832", "626,976", "576", "50,000", "norm=None", "norm=007", "[red]x", ":smile:", "3.75"):
        assert word in text
    assert "\x1b" not in text and "…" not in text


@pytest.mark.parametrize("columns", ["80", "120", "200"])
def test_rows_of_a_table_have_equal_width(outputs: Path, columns: str) -> None:
    from rich.console import Console

    from anatomy.report.table import build_report
    from anatomy.report.views import show

    out = io.StringIO()
    show(build_report(outputs), Console(file=out, width=int(columns), color_system=None, markup=False, emoji=False))
    text = out.getvalue()
    assert "626,976" in text and "50,000" in text and "-0.0679" in text
    block: list[str] = []
    for line in text.splitlines():
        block = [*block, line] if line.startswith(("row", "base", "norm=")) and " base " not in line[:12] else block
    widths = {cell_len(line) for line in block if line.startswith("norm=") and line.rstrip().endswith("done")}
    assert len(widths) <= 1 or columns == "80"


def test_csv_and_json_agree_and_keep_integers_and_text(outputs: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(report(outputs, "--format", "csv"))))
    data = json.loads(report(outputs, "--format", "json"))["studies"][0]["rows"]
    assert [row["name"] for row in rows] == [row["name"].replace("\x1b", "\\x1b") for row in data]
    assert {row["num_params"] for row in rows} == {"92832"}
    assert "norm=007" in {row["name"] for row in rows} and data[0]["num_params"] == 92832


def test_every_markdown_row_has_as_many_cells(outputs: Path) -> None:
    lines = [line for line in report(outputs, "--format", "md").splitlines() if line.startswith("|")]
    counts = {line.replace("\\|", "").count("|") for line in lines}
    assert len(lines) == 2 + 10 and len(counts) == 1


def test_files_are_written_without_escape_codes(outputs: Path, tmp_path: Path) -> None:
    report(outputs, "--out", tmp_path / "report", FORCE_COLOR="1")
    for name in ("report.md", "report.csv", "report.json"):
        content = (tmp_path / "report" / name).read_bytes()
        assert content and b"\x1b" not in content


def test_an_ascii_output_gets_escapes_and_no_traceback(outputs: Path) -> None:
    assert "\\u8bed\\u6599" in report(outputs, PYTHONIOENCODING="ascii")


def test_exit_codes(tmp_path: Path) -> None:
    assert "holds no runs" in report(tmp_path, code=1)
    assert "no such folder" in report(tmp_path / "missing", code=2)
    assert "no such option" in report("--fromat", code=2).lower()
    put_study(tmp_path, "s", [fake_record("r", parts={"norm": "rms"})])
    assert "nothing comparable" in report(tmp_path, code=1)


def test_torch_is_never_imported(outputs: Path) -> None:
    code = "import sys; sys.modules['torch'] = None\nfrom anatomy.cli.report import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code, str(outputs)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_help_and_version_answer() -> None:
    assert "--format" in report("--help") and __version__ in report("--version")


def test_no_sign_in_a_folders_name_acts_on_the_terminal(tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[2Jb"
    folder.mkdir()
    (tmp_path / "file").write_text("")
    put_study(tmp_path, "s", [fake_record("a")])
    assert "a\\x1b[2Jb': holds no runs" in report(folder, code=1)
    said = report(tmp_path, "--out", tmp_path / "file" / "\x1b[2J", code=2)
    assert "\\x1b[2J': cannot write there" in said and "\x1b" not in said
