"""match=time: steps scaled by step times that were measured once; nothing here depends on how fast a machine is."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY, compose

from anatomy import steptimes
from anatomy.bench import step_ms
from anatomy.compose import read_command
from anatomy.config import Config
from anatomy.errors import UserError
from anatomy.runner import prepare
from anatomy.sweep import Plan, make_plan, write_manifest

MS = {"gelu": 20.0, "swiglu": 26.0, "relu": 0.001}  # a step, by FFN


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Replaces the stopwatch by MS, and lists the pairs of FFNs that were timed."""
    pairs: list[tuple[str, str]] = []

    def by_table(config: Config, base: Config, **_: Any) -> list[float]:
        pairs.append((config.parts["ffn"], base.parts["ffn"]))
        return [MS[config.parts["ffn"]], MS[base.parts["ffn"]]]

    monkeypatch.setattr(steptimes, "step_ms", by_table)
    return pairs


def plan(tmp_path: Path, text: Path, *words: str) -> Plan:
    given = [*TINY, "train.steps=100", "corpus=files", f"corpus.path='{text}'", f"output_dir='{tmp_path}'", *words]
    return make_plan(read_command(given, multirun=True))


def steps(made: Plan) -> list[int]:
    for planned in made.runs:
        assert planned.job and planned.job.resolved["train"]["steps"] == planned.config.train.steps
    return [planned.config.train.steps for planned in made.runs]


def test_steps_are_scaled_by_the_bases_step_time_over_the_arms(
    tmp_path: Path, text_file: Path, measured: list[tuple[str, str]]
) -> None:
    made = plan(tmp_path, text_file, "match=time,null", "ffn=gelu,swiglu", "seed=0,1")
    assert steps(made) == [100, 100, 77, 77, 100, 100, 100, 100]  # 100 x 20 / 26 = 76.9
    assert measured == [("swiglu", "gelu")]  # once for all seeds, and the base not at all
    matched, raw = made.runs[2].job, made.runs[6].job
    assert matched and raw and matched.resolved["match"] == "time" and matched.name != raw.name
    (typed,) = plan(tmp_path, text_file, "ffn=swiglu", "train.steps=77").runs
    assert typed.job and typed.job.name == matched.name


def test_a_plan_writes_nothing_and_its_manifest_keeps_what_it_measured(
    tmp_path: Path, text_file: Path, measured: list[tuple[str, str]]
) -> None:
    made = plan(tmp_path, text_file, "match=time", "ffn=swiglu")
    assert not list(tmp_path.iterdir())
    write_manifest(made)
    content = json.loads((tmp_path / "step_times.json").read_text())
    (entry,) = content["times"].values()
    assert (entry["step_ms"], entry["base_step_ms"], entry["parts"]["ffn"]) == (26.0, 20.0, "swiglu")


def test_asking_again_and_the_workers_get_the_same_steps_on_a_machine_of_another_speed(
    tmp_path: Path, text_file: Path, measured: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_manifest(plan(tmp_path, text_file, "match=time", "ffn=swiglu"))
    monkeypatch.setitem(MS, "swiglu", 1000.0)
    again = plan(tmp_path, text_file, "match=time", "ffn=swiglu", "seed=5", "train.lr=1e-3", "init_salt=1")
    assert steps(again) == [77] and len(measured) == 1
    words = [*TINY, "corpus=files", f"corpus.path='{text_file}'", f"output_dir='{tmp_path}'"]
    (request,) = read_command([*words, "train.steps=200", "match=time", "ffn=swiglu"], multirun=False).requests
    job = prepare(Config.model_validate_json(json.dumps(request.resolved)), request.resolved)
    assert job.config.train.steps == 154 and len(measured) == 1


@pytest.mark.parametrize("word", ["train.threads=2", "train.batch_size=7", "model.n_layer=2", "pos=rope"])
def test_what_decides_how_long_a_step_takes_is_measured_anew(
    word: str, tmp_path: Path, text_file: Path, measured: list[tuple[str, str]]
) -> None:
    write_manifest(plan(tmp_path, text_file, "match=time", "ffn=swiglu"))
    plan(tmp_path, text_file, "match=time", "ffn=swiglu", word)
    assert len(measured) == 2


def test_a_schedule_has_at_least_one_step_and_none_stays_none(
    tmp_path: Path, text_file: Path, measured: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MS, "swiglu", 1e6)
    assert steps(plan(tmp_path, text_file, "match=time", "ffn=swiglu,relu")) == [1, 2_000_000]
    assert steps(plan(tmp_path, text_file, "match=time", "ffn=swiglu", "train.steps=0")) == [0]


def test_a_damaged_table_is_told_and_what_to_do(tmp_path: Path, text_file: Path) -> None:
    (tmp_path / "step_times.json").write_text("{")
    with pytest.raises(UserError, match=r"step_times.json: .*remove it"):
        plan(tmp_path, text_file, "match=time")


def test_a_step_of_each_model_is_timed() -> None:
    configs = [compose(*TINY, f"base={base}", "train.batch_size=2") for base in ("vanilla", "llama")]
    times = step_ms(*configs, num_symbols=7, device=torch.device("cpu"), rounds=2)
    assert len(times) == 2 and min(times) > 0
