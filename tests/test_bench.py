"""The benchmark measures the right products; nothing here is timed."""

import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest
import torch
import transformers
from conftest import TINY, compose, tiny_model
from torch.utils.flop_counter import FlopCounterMode

from anatomy import generation_speed
from anatomy.bench import product_shapes, time_steps
from anatomy.cli.bench import main
from anatomy.generation import Generation
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


def test_generation_is_told_in_tokens_per_second_and_held_against_transformers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ours take 2 ms, transformers 10, ours without a cache 20."""
    monkeypatch.setattr(generation_speed, "take_turns", lambda tasks, rounds: [[2.0], [10.0], [20.0]][: len(tasks)])
    monkeypatch.setattr(sys, "argv", ["anatomy-bench", "generate", "--scale", "quick", "--rounds", "1"])
    with pytest.raises(SystemExit) as ended:
        main()
    heads, *rows, _ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert not ended.value.code and heads[:2] == ["texts", "tokens"]
    bytes_a_token = 2 * 3 * 2 * 12 * 4  # keys and values, layers, heads, head width, float32
    caches = [f"{bytes_a_token * num:,}" for num in (8 + 127, 32 * (8 + 127), 8 + 999)]
    assert rows == [
        ["1", "128", "anatomy", "64,000", "5.00", caches[0], caches[0]],
        ["1", "128", "transformers", "12,800", "1.00"],
        ["1", "128", "anatomy,", "no", "cache", "6,400", "0.50"],
        ["32", "128", "anatomy", "2,048,000", "5.00", caches[1], caches[1]],
        ["32", "128", "transformers", "409,600", "1.00"],
        ["1", "1,000", "anatomy", "500,000", "5.00", caches[2], caches[2]],
        ["1", "1,000", "transformers", "100,000", "1.00"],
    ]


def test_what_is_timed_writes_the_same_text_whoever_writes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[list[list[int]]] = []

    def run_once(tasks: Sequence[Task], rounds: int) -> list[list[float]]:
        for task in tasks:
            task()
        return [[1.0]] * len(tasks)

    def keep(method: Callable[..., Any]) -> Callable[..., Any]:
        def kept(*args: Any, **kwargs: Any) -> Any:
            written = method(*args, **kwargs)
            texts.append(written.tolist())
            return written

        return kept

    monkeypatch.setattr(generation_speed, "take_turns", run_once)
    monkeypatch.setattr(transformers.LlamaForCausalLM, "generate", keep(transformers.LlamaForCausalLM.generate))
    monkeypatch.setattr(generation_speed, "Generation", Noted)
    Noted.made.clear()
    config = compose(*TINY, "base=llama")
    generation_speed.generation_speed(config, 29, rounds=1, cases=(generation_speed.Case(2, 5),))
    cached, uncached, counted = (each.texts for each in Noted.made)
    assert cached == uncached == texts[0] and len(cached[0]) == 8 + 5 and counted[0] == cached[0][:9]


class Noted(Generation):
    """A generation that is remembered."""

    made: ClassVar[list[Generation]] = []

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.made.append(self)


def made_up_times(tasks: Sequence[Task], seconds: float) -> list[list[float]]:
    return [[2.0] * 9 for _ in tasks]
