"""The benchmark measures the right products; nothing here is timed."""

import subprocess
import sys
from collections.abc import Sequence

import pytest
import torch
from conftest import TINY, compose, tiny_model
from torch.utils.flop_counter import FlopCounterMode

from anatomy.bench import product_shapes, time_steps
from anatomy.cli.bench import main
from anatomy.stopwatch import Task


def test_the_products_are_those_of_one_forward_pass() -> None:
    model = tiny_model("base=llama")
    ids = torch.zeros(5, 11, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    linear = sum(
        2 * rows * inner * columns for batch, rows, inner, columns in product_shapes(model, 5, 11) if batch == 1
    )
    assert linear == counter.get_flop_counts()["Global"][torch.ops.aten.mm]
    attention = sum(2 * b * r * i * c for b, r, i, c in product_shapes(model, 5, 11) if b > 1)
    assert attention == 3 * 2 * (2 * 5 * 4 * 11 * 6 * 11)


def test_every_config_is_timed_in_turn() -> None:
    configs = {base: compose(*TINY, f"base={base}", "train.batch_size=2") for base in ("vanilla", "llama")}
    times = time_steps(configs, num_symbols=7, rounds=2)
    assert set(times) == {"vanilla", "llama"}
    assert all(measured.step_ms > 0 and measured.step_over_products > 0 for measured in times.values())


def test_the_command_prints_a_row_a_base() -> None:
    code = "from anatomy.cli.bench import main; main()"
    words = ["train", "--scale", "quick", "--vocab-size", "65", "--rounds", "1", "model.n_layer=1"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True)
    assert "vanilla" in done.stdout and "llama / vanilla" in done.stdout


@pytest.mark.parametrize("name", ["norm", "decode"])
def test_tables_of_measures_are_whole_when_piped(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("anatomy.norm_calls.take_turns_for", made_up_times)
    monkeypatch.setattr("anatomy.decode_steps.take_turns_for", made_up_times)
    monkeypatch.setattr(sys, "argv", ["anatomy-bench", name, "--threads", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    *table, footer = capsys.readouterr().out.splitlines()
    assert not ended.value.code and len({len(line) for line in table}) == 1
    assert len(table) == 1 + {"norm": 3 * 3 * 3, "decode": 5 * 3 + 5 * 4}[name]
    assert all("[1.00, 1.00]" in line for line in table[1:]) and "9 rounds" in footer


def made_up_times(tasks: Sequence[Task], seconds: float) -> list[list[float]]:
    return [[2.0] * 9 for _ in tasks]
