"""anatomy-explain as a user types it."""

import io
import json
import subprocess
import sys
from collections import Counter

import pytest
from rich.console import Console

from anatomy import __version__
from anatomy.about import about, offered
from anatomy.axes import SWAPPED_AXES, part_of
from anatomy.cli import explain


def run(*words: str, code: int = 0) -> str:
    command = [sys.executable, "-c", "from anatomy.cli.explain import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_one_table_sets_the_five_parts_beside_the_faults_they_mend() -> None:
    rows = run("--parts").partition("\n\n")[0].splitlines()
    headings = ("axis", "2017 part", "its fault", "LLaMA part", "what it does", "where it pays")
    starts = [rows[0].index(heading) for heading in headings]
    for axis, row in zip(SWAPPED_AXES, rows[1:], strict=True):
        new = about(axis, part_of("llama", axis))
        cells = [row[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        parts = part_of("vanilla", axis), part_of("llama", axis)
        assert cells == [axis, parts[0], new.fault, parts[1], new.does, new.pays]


def test_claims_and_the_other_parts_follow_and_nothing_is_cut_when_piped() -> None:
    _, claims, others = run("--parts").split("\n\n")
    for axis in SWAPPED_AXES:
        for name in offered(axis):
            said = about(axis, name)
            for claim in said.claims.values():
                assert [f"{axis}={name}", claim.text, claim.source] in [_cells(line) for line in claims.splitlines()]
            is_other = name not in (part_of("vanilla", axis), part_of("llama", axis))
            assert ([f"{axis}={name}", said.what, said.source] in map(_cells, others.splitlines())) == is_other


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.mark.parametrize("columns", [40, 60, 80, 120])
def test_a_narrow_terminal_wraps_and_loses_nothing(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(width: int) -> str:
        out = io.StringIO()
        monkeypatch.setattr(explain, "console", lambda: Console(file=out, width=width, color_system=None, markup=False))
        explain.show(explain.all_parts())
        return out.getvalue()

    assert all(len(line) <= columns for line in shown(columns).splitlines())
    assert Counter("".join(shown(columns).split())) == Counter("".join(shown(10_000).split()))


def test_json_is_the_same_as_data() -> None:
    data = json.loads(run("--parts", "--json"))
    assert [(part["axis"], part["part"]) for part in data] == [(a, name) for a in SWAPPED_AXES for name in offered(a)]
    for part in data:
        said = about(part["axis"], part["part"])
        assert (part["what"], part["source"], part["fault"]) == (said.what, said.source, said.fault)
        assert part["claims"] == {key: {"text": c.text, "source": c.source} for key, c in said.claims.items()}
    bases = {
        base: {part["axis"]: part["part"] for part in data if part["base"] == base} for base in ("vanilla", "llama")
    }
    assert bases == {base: {axis: part_of(base, axis) for axis in SWAPPED_AXES} for base in bases}


def test_broken_parts_are_not_shown() -> None:
    assert "broken" not in run("--parts").lower() + run("--parts", "--json").lower()


@pytest.mark.parametrize(
    ("words", "message"), [([], "type: anatomy-explain --parts"), (["--json"], "--parts"), (["--part"], "--part")]
)
def test_wrong_input_is_one_line_and_exits_2(words: list[str], message: str) -> None:
    text = run(*words, code=2)
    assert message in text and len(text.splitlines()) == 1


def test_help_and_version_answer() -> None:
    assert "--parts" in run("--help") and __version__ in run("--version")


def test_explaining_needs_neither_torch_nor_hydra() -> None:
    script = "import sys\nfrom anatomy.cli.explain import command\ncommand.main(['--parts'], standalone_mode=False)\n"
    script += "print(sorted({'torch', 'hydra'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
