"""anatomy-train as a user types it: by subprocess, on a small made-up text."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from anatomy import __version__
from anatomy.axes import AXES
from anatomy.runs import owned

SMALL = ["model.d_model=24", "model.n_layer=1", "model.ctx_len=16", "train.batch_size=3", "train.steps=8"]
SMALL += ["train.eval_every=4", "corpus=files"]


def train(*words: str, cwd: Path | None = None, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "anatomy.cli.train", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    return done


def records(outputs: Path) -> list[dict]:
    return [json.loads(path.read_text()) for path in sorted(outputs.glob("runs/*/result.json"))]


def manifest(outputs: Path, study: str = "adhoc") -> dict:
    return json.loads((outputs / "studies" / study / "study.json").read_text())


def test_help_names_every_part_and_version_is_the_packages() -> None:
    text = train("--help").stdout
    assert all(word in text for word in ("layer_nobias", "sinusoidal", "mqa", "swiglu", "study=", "train.lr"))
    assert {f"{axis}=" for axis in AXES} <= set(text.splitlines())
    assert any(line.startswith("match: null # params, flops: ") for line in text.splitlines())
    assert __version__ in train("--version").stdout


def test_hydra_answers_its_own_questions_and_trains_nothing(tmp_path: Path) -> None:
    assert "class: RMSNorm" in train("--cfg", "job", "norm=rms", cwd=tmp_path).stdout
    assert not list(tmp_path.iterdir())


def test_one_run_from_another_folder_with_relative_paths(tmp_path: Path, text_file: Path) -> None:
    (tmp_path / "my text.txt").write_bytes(text_file.read_bytes())
    words = [*SMALL, "norm=rms", "pos=rope", "corpus.path='my text.txt'", "output_dir=out"]
    text = train(*words, cwd=tmp_path).stdout
    assert "step      8" in text and "bits per character" in text
    (record,) = records(tmp_path / "out")
    assert (record["status"], record["parts"]["norm"], record["parts"]["pos"]) == ("done", "rms", "rope")
    assert record["overrides"] == [word for word in words if not word.startswith("output_dir")]
    (entry,) = manifest(tmp_path / "out")["entries"]
    assert (entry["base"], entry["swap"], entry["seed"], entry["run"]) == ("vanilla", "none", 0, record["run"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my text.txt", "out"]
    assert "done before" in train(*words, cwd=tmp_path).stdout


@pytest.mark.parametrize(
    "words", [["norm=rsm"], ["model.n_head=7"], ["corpus.path=missing.txt"], ["-m", "train.lr=abc,1"]]
)
def test_wrong_input_exits_2_and_writes_nothing(tmp_path: Path, words: list[str]) -> None:
    done = train(*SMALL, *words, cwd=tmp_path, code=2)
    assert done.stdout == "" and done.stderr.strip()
    assert not list(tmp_path.iterdir())


def test_a_sweep_plans_skips_what_is_done_and_sums_up(tmp_path: Path, text_file: Path) -> None:
    words = [*SMALL, f"corpus.path='{text_file}'", "output_dir=out", "-m", "ffn=gelu,swiglu", "seed=0,1"]
    plan = train(*words, "dry_run=true", cwd=tmp_path).stdout
    assert plan.startswith("adhoc: 4 runs: 4 to do, about") and not list(tmp_path.iterdir())
    text = train(*words, cwd=tmp_path).stdout
    assert "[4/4] done" in text and "adhoc: 4 done" in text
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/runs/*/result.json")}
    assert len(stamps) == 4
    again = train(*words[:-1], "seed=0,1,2", cwd=tmp_path).stdout
    assert "6 runs: 4 done, 2 to do" in again
    assert all(path.stat().st_mtime_ns == stamp for path, stamp in stamps.items())
    orders = {(r["seed"], r["data"]["batch_order_sha256"]) for r in records(tmp_path / "out")}
    assert len(orders) == 3
    assert len(manifest(tmp_path / "out")["entries"]) == 6


def test_a_sweep_goes_on_past_diverged_and_refused_runs_and_exits_1(tmp_path: Path, text_file: Path) -> None:
    words = [*SMALL, f"corpus.path='{text_file}'", "output_dir=out", "train.warmup_steps=0", "-m"]
    text = train(*words, "train.lr=1e-3,1e3", "model.n_head=2,5", cwd=tmp_path, code=1).stdout
    assert "2 refused" in text and "1 done" in text and "1 diverged" in text
    assert sorted(record["status"] for record in records(tmp_path / "out")) == ["diverged", "done"]
    refused = [entry for entry in manifest(tmp_path / "out")["entries"] if entry["run"] is None]
    assert len(refused) == 2 and all("does not divide" in entry["error"] for entry in refused)


def test_a_study_sweeps_without_m_and_shares_its_runs_with_other_studies(tmp_path: Path, text_file: Path) -> None:
    words = [*SMALL, f"corpus.path='{text_file}'", "output_dir=out", "seed=0"]
    train("study=walk", *words, "swap=none,norm", cwd=tmp_path)
    assert "2 runs: 2 done" in train("study=swaps", *words, "base=vanilla", "swap=none,norm", cwd=tmp_path).stdout
    spec = manifest(tmp_path / "out", "walk")["spec"]
    assert spec["name"] == "walk" and spec["seeds"] == [0, 1, 2] and spec["question"]


def test_a_study_that_is_null_is_a_plain_run(tmp_path: Path, text_file: Path) -> None:
    train("study=null", *SMALL, f"corpus.path='{text_file}'", "output_dir=out", "train.steps=0", cwd=tmp_path)
    assert len(manifest(tmp_path / "out")["entries"]) == 1


def test_no_style_codes_where_no_color_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in train("-m", "seed=0,1", "dry_run=true", cwd=tmp_path).stdout
    code = "from anatomy.cli.common import console; console().print('x', style='bold red')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "x\n"


def test_time_matched_runs_are_launched_with_the_steps_of_the_plan(tmp_path: Path, text_file: Path) -> None:
    words = [*SMALL, f"corpus.path='{text_file}'", "output_dir=out", "train.steps=20", "-m", "match=null,time"]
    words += ["swap=none,ffn"]
    assert not list(tmp_path.iterdir()) and train(*words, "dry_run=true", cwd=tmp_path).stdout
    assert not list(tmp_path.iterdir())
    train(*words, cwd=tmp_path)
    (times,) = json.loads((tmp_path / "out" / "step_times.json").read_text())["times"].values()
    steps = round(20 * times["base_step_ms"] / times["step_ms"])
    by_run = {record["run"]: record for record in records(tmp_path / "out")}
    raw, swapped, base, matched = (by_run[entry["run"]] for entry in manifest(tmp_path / "out")["entries"])
    assert base == raw and swapped["steps"] == 20
    assert (matched["steps"], matched["config"]["train"]["steps"]) == (steps, steps)
    assert "4 runs: 4 done" in train(*words, cwd=tmp_path).stdout


def test_a_tuned_study_runs_both_stages_in_one_command_and_goes_on(tmp_path: Path, text_file: Path) -> None:
    words = ["study=swaps_tuned", *SMALL, f"corpus.path='{text_file}'", "output_dir=out", "base=vanilla", "swap=none"]
    words += ["seed=0", "train.steps=4", "train.warmup_steps=0"]
    plan = train(*words, "dry_run=true", cwd=tmp_path).stdout
    assert plan.startswith("swaps_tuned, rates: 10 runs: 10 to do") and "then at most 2 runs" in plan
    assert not list(tmp_path.iterdir())
    text = train(*words, cwd=tmp_path).stdout
    assert "swaps_tuned, rates: 10 done" in text and "swaps_tuned, test: 2 done" in text
    tuning = [record for record in records(tmp_path / "out") if record["seed"] != 0]
    means: dict[float, float] = {}
    for record in tuning:
        rate = record["config"]["train"]["lr"]
        means[rate] = means.get(rate, 0) + record["val_loss_nats"] / 2
    tested = {record["config"]["train"]["lr"] for record in records(tmp_path / "out") if record["seed"] == 0}
    assert tested == {4e-3, min(means, key=means.__getitem__)}
    assert "swaps_tuned, test: 2 runs: 2 done" in train(*words, cwd=tmp_path).stdout


def test_a_lone_diverged_run_is_a_result(tmp_path: Path, text_file: Path) -> None:
    words = [*SMALL, f"corpus.path='{text_file}'", "train.lr=1000", "train.warmup_steps=0"]
    assert "diverged" in train(*words, cwd=tmp_path).stdout


def test_a_busy_folder_is_left_alone(tmp_path: Path, text_file: Path) -> None:
    words = [*SMALL, f"corpus.path='{text_file}'", "output_dir=out"]
    train(*words, cwd=tmp_path)
    (folder,) = tmp_path.glob("out/runs/*")
    with owned(folder):
        assert "busy" in train(*words, "force=true", cwd=tmp_path, code=1).stderr


def test_an_interrupted_run_says_so_and_goes_on_later(tmp_path: Path, text_file: Path) -> None:
    words = [*SMALL, f"corpus.path='{text_file}'", "output_dir=out", "train.steps=4000", "train.eval_every=20"]
    process = subprocess.Popen(
        [sys.executable, "-m", "anatomy.cli.train", *words],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    curve = tmp_path / "out"
    for _ in range(600):
        if any(path.read_text().count("\n") > 2 for path in curve.glob("runs/*/metrics.jsonl")):
            break
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in errors
    (record,) = records(tmp_path / "out")
    assert record["status"] == "interrupted" and 0 < record["steps"] < 4000


def test_a_part_of_the_users_own_folder_composes_and_a_built_in_name_is_told(tmp_path: Path, text_file: Path) -> None:
    (tmp_path / "mine" / "norm").mkdir(parents=True)
    (tmp_path / "mine" / "norm" / "coarse.yaml").write_text("# Mine.\nname: coarse\nclass: RMSNorm\neps: 0.1\n")
    (tmp_path / "mine" / "norm" / "rms.yaml").write_text("name: rms\nclass: RMSNorm\neps: 0.2\n")
    words = [*SMALL, f"corpus.path='{text_file}'", "output_dir=out", "--config-dir", "mine"]
    done = train(*words, "-m", "norm=coarse,layer", cwd=tmp_path)
    assert "norm/rms.yaml has the name of a built-in file" in done.stderr
    assert {record["parts"]["norm"] for record in records(tmp_path / "out")} == {"coarse", "layer"}
