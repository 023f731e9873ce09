"""One run's folder: what lies in it, what reads it, and that a cut run ends as if it had never been cut."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from anatomy.compose import read_command
from anatomy.config import parse_config
from anatomy.corpus import Vocabulary
from anatomy.runner import Job, prepare, run
from anatomy.runs import Busy, is_owned, owned, read_record

KEYS = [
    *("schema", "status", "error", "run", "parts", "seed"),
    *("config", "derived", "overrides", "init_digests", "data", "num_params"),
    *("num_params_by_axis", "flops_per_token", "kv_bytes_per_token", "steps", "tokens", "train_loss_nats"),
    *(
        "val_loss_nats",
        "best_val_loss_nats",
        "best_step",
        "test_loss_nats",
        "test_loss_nats_at_best",
        "test_bits_per_char",
    ),
    *("num_test_targets", "test_loss_nats_at_length", "max_grad_norm", "clipped_fraction", "wall_s", "train_s"),
    *("tokens_per_s", "peak_rss_mib", "sample", "env"),
]
TIMES = ("wall_s", "train_s", "tokens_per_s", "peak_rss_mib")
SMALL = ("model.d_model=24", "model.n_layer=2", "model.ctx_len=16", "train.batch_size=3", "train.steps=12")
SMALL += ("train.eval_every=4", "train.warmup_steps=2")


def job(outputs: Path, text: Path, *words: str) -> Job:
    given = [*SMALL, "corpus=files", f"corpus.path='{text}'", f"output_dir='{outputs}'", *words]
    (request,) = read_command(given, multirun=False).requests
    config, faults = parse_config(request.resolved)
    assert config is not None, faults
    return prepare(config, request.resolved)


def strict_json(path: Path) -> dict:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{path}: {constant} is not JSON")

    return json.loads(path.read_text(encoding="utf-8"), parse_constant=refuse)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Job:
    made = job(tmp_path_factory.mktemp("outputs"), text_file, "eval.lengths=[8,16,32]", "norm=rms")
    run(made, ["norm=rms"])
    return made


def test_the_record_holds_every_key_in_strict_json(finished: Job) -> None:
    record = strict_json(finished.folder / "result.json")
    assert list(record) == KEYS
    assert (record["status"], record["error"], record["steps"], record["tokens"]) == ("done", None, 12, 12 * 3 * 16)
    assert record["parts"]["norm"] == "rms" and record["overrides"] == ["norm=rms"]
    assert sum(record["num_params_by_axis"].values()) == record["num_params"]
    assert record["data"]["epochs"] == pytest.approx(12 * 3 * 16 / record["data"]["num_train_chars"])
    assert record["test_bits_per_char"] == pytest.approx(record["test_loss_nats"] / math.log(2))
    assert record["env"]["threads"] == 1 and record["env"]["device"] == "cpu"


def test_losses_kept_by_window_are_those_of_the_record(finished: Job) -> None:
    record = strict_json(finished.folder / "result.json")
    for name, key in (("test_losses.npy", "test_loss_nats"), ("test_losses_best.npy", "test_loss_nats_at_best")):
        losses = np.load(finished.folder / name)
        assert losses.dtype == np.float32 and losses.size == record["num_test_targets"] and losses.shape[1] == 16
        assert losses.mean(dtype=np.float64) == pytest.approx(record[key], abs=1e-12)


def test_the_curve_begins_before_the_first_step_and_has_a_row_an_evaluation(finished: Job) -> None:
    rows = [json.loads(line) for line in (finished.folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [0, 4, 8, 12]
    assert list(rows[0]) == ["step", "tokens", "train_loss_nats", "val_loss_nats", "lr", "grad_norm", "time_s"]
    assert rows[0]["train_loss_nats"] is rows[0]["lr"] is None
    best = min(rows, key=lambda row: row["val_loss_nats"])
    assert read_record(finished.folder)["best_step"] == best["step"]


def test_the_kept_weights_give_the_recorded_loss(finished: Job) -> None:
    from anatomy.evaluation import NUM_FINAL_WINDOWS, mean_nats, window_losses

    record = strict_json(finished.folder / "result.json")
    model = finished.model.to_empty(device="cpu")
    for name, key in (("model.safetensors", "test_loss_nats"), ("best.safetensors", "test_loss_nats_at_best")):
        model.load_state_dict(load_file(finished.folder / name))
        starts = finished.corpus.windows("test", 16, NUM_FINAL_WINDOWS)
        assert mean_nats(window_losses(model, finished.corpus, starts, 16, dtype="fp32")) == record[key]


def test_a_length_past_the_learned_table_is_null_in_the_record(finished: Job) -> None:
    at_length = strict_json(finished.folder / "result.json")["test_loss_nats_at_length"]
    assert at_length["32"] is None and at_length["8"] > 0 and at_length["16"] > 0


@pytest.mark.parametrize(("pos", "length"), [("learned", 16), ("rope", 32)])
def test_the_loss_by_position_is_that_of_the_longest_windows_the_model_can_read(
    tmp_path: Path, text_file: Path, pos: str, length: int
) -> None:
    made = job(tmp_path, text_file, "eval.lengths=[32,8,16]", f"pos={pos}")
    run(made, [])
    by_position = np.load(made.folder / "position_losses.npy")
    assert by_position.dtype == np.float32 and by_position.shape == (length,)

    model, ids = made.model.to_empty(device="cpu").eval(), made.corpus.ids
    model.load_state_dict(load_file(made.folder / "model.safetensors"))
    num_targets = strict_json(made.folder / "result.json")["num_test_targets"]
    ends = made.corpus.windows("test", 32, max(1, num_targets // 32)) + 32
    sums = [0.0] * length
    for end in ends:
        window = torch.from_numpy(ids[end - length : end + 1].astype(np.int64))
        with torch.no_grad():
            log_probabilities = model(window[None, :-1])[0].log_softmax(-1)
        for position in range(length):
            sums[position] -= float(log_probabilities[position, window[position + 1]])
    np.testing.assert_allclose(by_position, np.array(sums) / len(ends), rtol=0, atol=2e-5)


def test_without_lengths_or_where_no_length_exists_there_is_no_loss_by_position(
    tmp_path: Path, text_file: Path
) -> None:
    for words in ([], ["eval.lengths=[17,32]"]):
        made = job(tmp_path, text_file, *words)
        assert run(made, [])["status"] == "done"
        assert not (made.folder / "position_losses.npy").exists()


def test_vocabulary_and_sample_are_kept(finished: Job) -> None:
    vocabulary = Vocabulary.load(finished.folder / "vocab.json")
    sample = strict_json(finished.folder / "result.json")["sample"]
    start = finished.corpus.val[0][0]
    assert sample.startswith(vocabulary.decode(finished.corpus.ids[start : start + 16]))
    assert len(sample) == 216 and set(sample) <= set(vocabulary.chars)


def test_nothing_is_left_of_the_state_when_done(finished: Job) -> None:
    names = {path.name for path in finished.folder.iterdir()}
    expected = {"result.json", "metrics.jsonl", "config.yaml", "model.safetensors", "best.safetensors", "vocab.json"}
    arrays = {"test_losses.npy", "test_losses_best.npy", "position_losses.npy"}
    assert names == expected | arrays | {"run.log", ".lock"}


def test_a_finished_run_is_recognised_by_other_words_and_not_run_again(finished: Job, text_file: Path) -> None:
    outputs = finished.layout.outputs
    again = job(outputs, text_file, "eval.lengths=[8,16,32]", "swap=norm", "ffn.hidden=96")
    before = (again.folder / "result.json").stat().st_mtime_ns
    assert again.name == finished.name
    assert run(again, [])["status"] == "done"
    assert (again.folder / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize(
    "word", ["seed=1", "init_salt=1", "order_salt=1", "train.lr=1e-3", "pos.theta=7", "train.threads=2"]
)
def test_what_changes_a_result_changes_the_folder(tmp_path: Path, text_file: Path, word: str) -> None:
    assert job(tmp_path, text_file, "pos=rope").name != job(tmp_path, text_file, "pos=rope", word).name


@pytest.mark.parametrize(
    "word",
    ["scale=quick", "force=true", "dry_run=true", "attn.n_kv_head=2", "diagnostics=[copying]", "predict.attn=-0.1"],
)
def test_what_does_not_change_a_result_keeps_the_folder(tmp_path: Path, text_file: Path, word: str) -> None:
    assert job(tmp_path, text_file, "attn=gqa").name == job(tmp_path, text_file, "attn=gqa", word).name


@pytest.mark.parametrize(
    ("whole", "decimal"),
    [
        ("pos.theta=10000", "pos.theta=10000.0"),
        ("norm.eps=1", "norm.eps=1.0"),
        ("train.grad_clip=1", "train.grad_clip=1.0"),
        ("train.betas=[0,0.95]", "train.betas=[0.0,0.95]"),
        ("corpus.test_fraction=0", "corpus.test_fraction=0.0"),
    ],
)
def test_a_whole_number_is_the_decimal_number_that_it_is(
    tmp_path: Path, text_file: Path, whole: str, decimal: str
) -> None:
    first, second = (job(tmp_path, text_file, "pos=rope", word) for word in (whole, decimal))
    assert first.name == second.name and first.resolved == second.resolved


def test_the_same_text_elsewhere_is_the_same_run(tmp_path: Path, text_file: Path) -> None:
    copy = tmp_path / "copy.txt"
    copy.write_bytes(text_file.read_bytes())
    assert job(tmp_path, text_file).name == job(tmp_path, copy).name


def test_force_runs_again_and_gives_the_same_numbers(tmp_path: Path, text_file: Path) -> None:
    first = run(job(tmp_path, text_file), [])
    made = job(tmp_path, text_file, "force=true")
    before = (made.folder / "result.json").stat().st_mtime_ns
    second = run(made, [])
    assert (made.folder / "result.json").stat().st_mtime_ns > before
    assert {k: v for k, v in first.items() if k not in (*TIMES, "config")} == {
        k: v for k, v in second.items() if k not in (*TIMES, "config")
    }


def test_a_diverged_run_is_a_result_and_is_not_run_again(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file, "train.lr=1000", "train.warmup_steps=0")
    assert run(made, [])["status"] == "diverged"
    record = strict_json(made.folder / "result.json")
    assert record["status"] == "diverged" and "step" in record["error"]
    assert record["test_loss_nats"] is None and record["data"]["batch_order_sha256"]
    before = (made.folder / "result.json").stat().st_mtime_ns
    assert run(made, [])["status"] == "diverged"
    assert (made.folder / "result.json").stat().st_mtime_ns == before


def test_a_failure_is_recorded_with_its_traceback_and_tried_again(tmp_path: Path, text_file: Path) -> None:
    class Broken:
        def stepped(self, training: object) -> None:
            raise RuntimeError("made to fail")

        def evaluated(self, row: dict) -> None:
            pass

    made = job(tmp_path, text_file)
    assert run(made, [], Broken())["status"] == "failed"
    assert strict_json(made.folder / "result.json")["error"] == "RuntimeError: made to fail"
    assert "Traceback" in (made.folder / "run.log").read_text()
    assert run(made, [])["status"] == "done"


def test_a_record_that_says_running_without_an_owner_was_interrupted(tmp_path: Path, text_file: Path) -> None:
    class Stop:
        def stepped(self, training: object) -> None:
            raise KeyboardInterrupt

        def evaluated(self, row: dict) -> None:
            pass

    made = job(tmp_path, text_file)
    with pytest.raises(KeyboardInterrupt):
        run(made, [], Stop())
    assert read_record(made.folder)["status"] == "interrupted"
    record = strict_json(made.folder / "result.json") | {"status": "running"}
    (made.folder / "result.json").write_text(json.dumps(record))
    assert read_record(made.folder)["status"] == "interrupted"
    with owned(made.folder):
        assert is_owned(made.folder)
        assert read_record(made.folder)["status"] == "running"


def test_two_owners_cannot_share_a_folder(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file)
    with owned(made.folder), pytest.raises(Busy):
        run(made, [])
    assert not (made.folder / "result.json").exists()


def test_a_damaged_record_is_run_again(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file)
    run(made, [])
    (made.folder / "result.json").write_text('{"schema": 1, "sta')
    assert run(made, [])["status"] == "done"


def test_a_text_with_one_character_has_loss_zero(tmp_path: Path) -> None:
    text = tmp_path / "a.txt"
    text.write_text("a" * 1000)
    record = run(job(tmp_path, text), [])
    assert (record["status"], record["test_loss_nats"], record["val_loss_nats"]) == ("done", 0.0, 0.0)


def test_random_text_cannot_be_learned_past_its_entropy(tmp_path: Path) -> None:
    text = tmp_path / "random.txt"
    letters = np.random.default_rng(0).integers(97, 97 + 16, size=6000).astype(np.uint8).tobytes().decode()
    text.write_text(letters)
    record = run(
        job(tmp_path, text, "train.steps=150", "train.batch_size=16", "train.eval_every=50", "train.lr=1e-2"), []
    )
    assert record["best_val_loss_nats"] > math.log(16) - 0.03
    assert record["train_loss_nats"] < record["val_loss_nats"]


def test_alternating_text_is_learned_to_almost_nothing(tmp_path: Path) -> None:
    text = tmp_path / "ab.txt"
    text.write_text("ab" * 2000)
    record = run(job(tmp_path, text, "train.steps=60", "train.lr=1e-2", "train.eval_every=30"), [])
    assert record["test_loss_nats"] < 0.05


# ------------------------------------------------------------------------------------------------ kill -9


RESUMED = ("train.grad_accum_steps=2", "train.dropout=0.1", "train.steps=120", "train.eval_every=5")


def _command(outputs: Path, text: Path) -> list[str]:
    words = [*SMALL, *RESUMED, "corpus=files", f"corpus.path='{text}'", f"output_dir='{outputs}'"]
    return [sys.executable, "-m", "anatomy.cli.train", *words]


def _result(folder: Path) -> tuple[dict, list[dict], dict[str, torch.Tensor]]:
    record = strict_json(folder / "result.json")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for content in (record, record["config"], *rows):
        for key in (*TIMES, "time_s", "output_dir"):
            content.pop(key, None)
    return record, rows, load_file(folder / "model.safetensors") | load_file(folder / "best.safetensors")


def test_a_run_killed_again_and_again_ends_bit_identical(tmp_path: Path, text_file: Path) -> None:
    straight = job(tmp_path / "straight", text_file, *RESUMED)
    run(straight, [])
    cut = job(tmp_path / "cut", text_file, *RESUMED)
    num_kills = 0
    for at_step in (0, 5, 20, 35, 50):
        process = subprocess.Popen(_command(tmp_path / "cut", text_file), stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("step") and int(line.split()[1]) >= at_step:
                time.sleep(0.02 * num_kills)
                break
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        num_kills += process.returncode == -signal.SIGKILL
    assert num_kills >= 3
    assert read_record(cut.folder)["status"] == "interrupted"
    done = subprocess.run(_command(tmp_path / "cut", text_file), capture_output=True, text=True, check=True)
    first_step = next(line for line in done.stdout.splitlines() if line.startswith("step"))
    assert int(first_step.split()[1]) > 0
    (record, rows, tensors), (other_record, other_rows, other_tensors) = _result(straight.folder), _result(cut.folder)
    assert rows == other_rows
    assert {k: v for k, v in record.items() if k != "overrides"} == {
        k: v for k, v in other_record.items() if k != "overrides"
    }
    torch.testing.assert_close(tensors, other_tensors, rtol=0, atol=0)
