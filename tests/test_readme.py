"""The README's commands work as they stand; its numbers that are stated elsewhere agree with them."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import options

from anatomy.about import claims_on
from anatomy.axes import SWAPPED_AXES
from anatomy.compose import read_command
from anatomy.config import parse_config

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", README, flags=re.DOTALL)
COMMANDS = [line.split("#")[0].strip() for block in BLOCKS for line in block.splitlines() if line.strip()]
SMALL = ["model.d_model=24", "model.n_layer=1", "model.ctx_len=16", "train.steps=4", "train.batch_size=2"]


def run(*words: str, cwd: Path) -> str:
    module = f"from anatomy.cli.{words[0].removeprefix('anatomy-')} import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", module, *words[1:]], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def commands(name: str) -> list[list[str]]:
    return [shlex.split(command) for command in COMMANDS if command.startswith(name)]


def test_the_two_commands_are_targets_of_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [command.split()[1] for command in COMMANDS if command.startswith("make ")]
    assert {"report", "test"} <= set(targets)
    assert all(re.search(rf"^{target}:.*## ", makefile, flags=re.MULTILINE) for target in targets)


@pytest.mark.parametrize("words", commands("anatomy-train"), ids=" ".join)
def test_every_training_command_runs(words: list[str], tmp_path: Path, text_file: Path) -> None:
    small = [] if "-h" in words or "--help" in words else [*SMALL, "corpus=files", f"corpus.path='{text_file}'"]
    if any(word.startswith("study=") for word in words):
        small += ["dry_run=true"]
    assert run(*words, *small, cwd=tmp_path)


def test_the_report_command_runs_after_a_sweep(tmp_path: Path, text_file: Path) -> None:
    run("anatomy-train", "-m", "ffn=gelu,swiglu", *SMALL, "corpus=files", f"corpus.path='{text_file}'", cwd=tmp_path)
    for words in commands("anatomy-report"):
        target = [word for word in words[1:] if not word.startswith("outputs")]
        assert "ffn=swiglu" in run(words[0], *target, cwd=tmp_path)


def test_runs_speak_and_are_evaluated_and_opened_as_the_readme_says(tmp_path: Path, text_file: Path) -> None:
    run("anatomy-train", "-m", "base=vanilla,llama", *SMALL, "corpus=files", f"corpus.path='{text_file}'", cwd=tmp_path)
    for name in ("anatomy-sample", "anatomy-eval"):
        (command,) = [command for command in COMMANDS if command.startswith(f"{name} outputs")]
        known = command.replace("In the beginning", "")  # which the made-up text lacks the letters of
        expanded = subprocess.run(
            ["bash", "-c", f"printf '%s\\0' {known}"], cwd=tmp_path, capture_output=True, text=True, check=True
        )
        out = run(*expanded.stdout.split("\0")[:-1], cwd=tmp_path)
        assert out.count("== ") == 2 if name == "anatomy-sample" else "3-gram table" in out
    (code,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    folder = next((tmp_path / "outputs" / "runs").glob("rms-*"))
    opened = code.replace("RUN", folder.name) + "print(sum(tensor.numel() for tensor in model.parameters()))"
    done = subprocess.run([sys.executable, "-c", opened], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) == json.loads((folder / "result.json").read_text(encoding="utf-8"))["num_params"]


def test_the_models_side_by_side_are_those_that_the_first_explaining_command_shows(tmp_path: Path) -> None:
    table, walk, blocks = (words for words in commands("anatomy-explain") if "--parts" not in words)
    shown = {tuple(re.split(r"\s{2,}", line.strip())[-3:]) for line in run(*table, cwd=tmp_path).splitlines()}
    told = re.search(r"^\| \| mini-LLaMA .*?\n\n", README, re.DOTALL | re.MULTILINE)
    assert told
    rows = [tuple(re.split(r" *\| *", line)[2:5]) for line in told[0].splitlines()[2:] if line]
    assert len(rows) == 15 and set(rows) <= shown
    assert "self_attn.q_proj" in run(*walk, cwd=tmp_path)
    assert "67.13 M" in run(*blocks, cwd=tmp_path)


def test_a_run_goes_to_transformers_as_the_readme_says(tmp_path: Path, text_file: Path) -> None:
    run("anatomy-train", "base=llama", *SMALL, "corpus=files", f"corpus.path='{text_file}'", cwd=tmp_path)
    (words,) = (words for words in commands("anatomy-convert") if words[1].startswith("outputs"))
    (folder,) = tmp_path.glob(words[1])
    assert "the same model" in run(words[0], str(folder), *words[2:], cwd=tmp_path)
    assert (tmp_path / words[2] / "config.json").exists()


def test_the_readmes_speeds_are_those_of_the_page_on_decoding() -> None:
    page = (ROOT / "docs" / "decoding.md").read_text(encoding="utf-8")
    (one, ratio, many, ratio_of_many) = re.search(
        r"writes ([\d,]+) characters a second on one thread, ([\d.]+) times .*?\n([\d,]+) \(([\d.]+) times\)",
        README,
        re.DOTALL,
    ).groups()
    assert f"| 1 | 128 | {one} |" in page and f"| {ratio} (" in page
    assert f"| 32 | 128 | {many} |" in page and f"| {ratio_of_many} (" in page


def test_corpus_and_check_commands_run(tmp_path: Path) -> None:
    for words in commands("anatomy-corpus"):
        if words[1] != "fetch":
            assert run(*words, cwd=tmp_path)
    assert "0 wrong" in run("anatomy-check", cwd=tmp_path)


STUDIES = re.findall(r"^\| \[?`(\w+)`\S* \| (\d+) \|", README, flags=re.MULTILINE)


@pytest.mark.parametrize(("name", "num_runs"), STUDIES)
def test_a_study_holds_as_many_runs_as_the_readme_says(name: str, num_runs: str) -> None:
    requests = read_command([f"study={name}"], multirun=False).requests
    (config, *_), faults = zip(*(parse_config(request.resolved) for request in requests), strict=True)
    assert not any(faults) and config is not None and config.study is not None
    if tune := config.study.tune:
        num_arms = len({tuple(word for word in request.overrides if "seed=" not in word) for request in requests})
        assert num_arms * len(tune.lr) * len(tune.seeds) + 2 * len(requests) == int(num_runs)
    else:
        assert len(requests) == int(num_runs)


def test_every_study_stands_in_the_readme() -> None:
    assert {name for name, _ in STUDIES} == set(options("study"))


def test_the_readmes_tables_and_picture_are_the_example_reports() -> None:
    report = (ROOT / "docs" / "example" / "report.md").read_text(encoding="utf-8")
    rows = [
        line for line in README.splitlines() if line.startswith("| ") and " nats" not in line and "verdict" not in line
    ]
    verdicts = [line for line in rows if re.search(r"\| (better|worse|inconclusive|equivalent)", line)]
    assert len(verdicts) == 12 and all(line in report for line in verdicts)
    assert all((ROOT / path).exists() for path in re.findall(r"\]\((docs/[^)]+)\)", README))


def test_every_claim_and_its_verdict_are_those_of_the_parts_and_of_the_example_report() -> None:
    report = (ROOT / "docs" / "example" / "exams" / "report.md").read_text(encoding="utf-8")
    told = re.findall(r"^\| `(\w+=\w+)` \| ([^|]+) \| [^|]+ \| ([^|]+) \|$", README, flags=re.MULTILINE)
    claims = [(f"{axis}={one['part']}", one["text"]) for axis in SWAPPED_AXES for one in claims_on(axis, 0.01)]
    assert [(part, text) for part, text, _ in told] == claims
    for part, text, verdict in told:
        assert f"**{verdict}**, {part.partition('=')[2]}: {text}" in report


def test_every_lab_has_a_page_with_its_command_and_every_page_its_lab() -> None:
    labs = {name for name in options("study") if name.startswith("lab_")}
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "labs").glob("lab_*.md")}
    assert set(pages) == labs
    for name, page in pages.items():
        assert f"anatomy-train study={name}" in page
        assert all(f"**{part}.**" in page for part in ("Question", "Command", "What you should see", "Why"))


def test_make_exams_runs_every_exam() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (listed,) = re.findall(r"^EXAMS := (.*)$", makefile, flags=re.MULTILINE)
    assert sorted(listed.split()) == sorted(name for name in options("study") if name.startswith("exam_"))


def test_ci_calls_the_readmes_test_command() -> None:
    assert "exec make test" in (ROOT / ".ci" / "run").read_text() and "make test" in COMMANDS


def test_the_pinned_set_is_inside_the_ranges() -> None:
    import tomllib

    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for word in (*project["dependencies"], *extras["test"], *extras["lint"]):
        requirement = Requirement(word)
        assert requirement.specifier.contains(pinned[canonicalize_name(requirement.name)]), word
