"""anatomy-eval as a user types it, on tiny runs over made-up texts."""

import io
import json
import math
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from made_models import NUM_TOKENS, byte_level, imported
from rich.console import Console
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, processors

from anatomy import runner
from anatomy.cli import eval as cli
from anatomy.compose import read_command
from anatomy.config import parse_config
from anatomy.corpus import load_corpus
from anatomy.evaluation import NUM_FINAL_WINDOWS, mean_nats
from anatomy.loading import load
from anatomy.rungs import ngram_losses, xz_nats_per_char
from anatomy.runs import read_record
from anatomy.scoring import Windows, target_losses
from anatomy.tokens import Tokens

CTX_LEN = 16
SMALL = ("model.d_model=24", "model.n_layer=1", f"model.ctx_len={CTX_LEN}", "train.batch_size=8", "train.eval_every=20")
KEYS = {"loss_nats", "bits_per_char", "perplexity", "num_targets", "by_length", "rungs"}


def trained(outputs: Path, text: Path, *words: str) -> Path:
    given = [*SMALL, "corpus=files", f"corpus.path='{text}'", f"output_dir='{outputs}'", *words]
    (request,) = read_command(given, multirun=False).requests
    config, faults = parse_config(request.resolved)
    assert config is not None, faults
    job = runner.prepare(config, request.resolved)
    assert runner.run(job, words)["status"] == "done"
    return job.folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Path:
    """A run with learned positions, trained at a rate that over-shoots: its best weights are not its last."""
    words = ("train.steps=40", "train.lr=0.2", "train.schedule=constant", "train.warmup_steps=0", "train.eval_every=5")
    return trained(tmp_path_factory.mktemp("learned"), text_file, *words, "train.dropout=0.3", "base=gpt2")


@pytest.fixture(scope="module")
def alternating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("abab")
    (folder / "abab.txt").write_text("aé" * 1500, encoding="utf-8")
    return trained(folder, folder / "abab.txt", "base=llama", "train.steps=60", "train.lr=0.02")


@pytest.fixture(scope="module")
def untrained_chinese(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No step trained, 37 characters of three bytes each."""
    folder = tmp_path_factory.mktemp("chinese")
    picked = np.random.default_rng(2).integers(0x4E00, 0x4E00 + 37, size=3000)
    (folder / "made-up.txt").write_text("".join(map(chr, picked)), encoding="utf-8")
    return trained(folder, folder / "made-up.txt", "base=llama", "train.steps=0")


class Shell:
    """The command line inside this process: importing torch anew for each line would take seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *words: object, code: int = 0) -> tuple[str, str]:
        self.monkeypatch.setattr(sys, "argv", ["anatomy-eval", *map(str, words)])
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = self.capsys.readouterr()
        assert left.value.code == code, out + err
        return out, err

    def json(self, *words: object) -> dict[str, Any]:
        out, err = self(*words, "--json")
        assert err == ""
        return strict(out)

    def refused(self, *words: object) -> str:
        out, err = self(*words, code=2)
        assert out == "" and err.count("\n") == 1, err
        return err


def strict(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


def assert_units_agree(found: dict[str, Any]) -> None:
    assert found["bits_per_char"] == pytest.approx(found["loss_nats"] / math.log(2))
    assert found["perplexity"] == pytest.approx(math.exp(found["loss_nats"]))
    assert found["bits_per_byte"] == pytest.approx(found["bits_per_char"] * found["chars_per_byte"])


# ------------------------------------------------------------------------------------------------ what is found


def test_by_subprocess_the_answer_is_strict_json_and_nothing_is_written(learned: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in learned.parent.parent.rglob("*")}
    command = [sys.executable, "-m", "anatomy.cli.eval", str(learned), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    found, record = strict(done.stdout), read_record(learned)
    assert record is not None and found.keys() >= KEYS
    assert [found[key] for key in ("length", "stride", "weights", "run")] == [CTX_LEN, CTX_LEN, "last", learned.name]
    assert found["text"] == {"name": "files", "part": "test", "sha256": record["data"]["sha256"]}
    assert found["num_chars"] == record["data"]["num_test_chars"] == found["num_targets"] + 1
    assert found["by_length"] == {str(CTX_LEN): found["loss_nats"]} and found["notes"] == []
    assert list(found["rungs"]) == ["1", "2", "3", "4", "5", "6", "xz"]
    assert found["recorded"] == {key: record[key] for key in ("test_loss_nats", "num_test_targets")}
    assert found["loss_nats"] == pytest.approx(record["test_loss_nats"], abs=0.02)
    assert_units_agree(found)
    assert {path: path.stat().st_mtime_ns for path in learned.parent.parent.rglob("*")} == before


@pytest.mark.parametrize("weights", ["last", "best"])
def test_the_windows_of_the_record_give_the_losses_of_the_record(learned: Path, weights: Any) -> None:
    loaded, record = load(learned, weights=weights), read_record(learned)
    assert record is not None and record["test_loss_nats"] != record["test_loss_nats_at_best"]
    corpus = cli.text_of_run(loaded)
    starts = corpus.windows("test", CTX_LEN, NUM_FINAL_WINDOWS)
    all_of_it = np.full(len(starts), CTX_LEN)
    losses = target_losses(loaded.model, corpus, Windows(starts, all_of_it, all_of_it), dtype="fp32")
    assert mean_nats(losses) == record[cli.RECORDED[weights]] and losses.size == record["num_test_targets"]


def test_the_best_weights_are_held_against_their_own_record(learned: Path, shell: Shell) -> None:
    record, last, best = read_record(learned), shell.json(learned), shell.json(learned, "--weights", "best")
    assert record is not None and best["recorded"]["test_loss_nats"] == record["test_loss_nats_at_best"]
    assert best["loss_nats"] == pytest.approx(record["test_loss_nats_at_best"], abs=0.02)
    assert best["loss_nats"] != last["loss_nats"] and best["rungs"] == last["rungs"]


def test_a_text_that_alternates_costs_a_trained_model_nothing(alternating: Path, shell: Shell) -> None:
    found = shell.json(alternating)
    assert found["loss_nats"] < 0.02 and found["num_targets"] == 299
    assert found["rungs"]["1"] == pytest.approx(math.log(2), abs=1e-3) and found["rungs"]["2"] < 0.02
    assert found["chars_per_byte"] == 299 / (150 * 2 + 149)  # the first character, an a, is no target


def test_an_untrained_model_guesses_among_the_characters(untrained_chinese: Path, shell: Shell) -> None:
    found = shell.json(untrained_chinese)
    assert found["loss_nats"] == pytest.approx(math.log(37), abs=0.05)
    assert found["num_targets"] == 299


def test_bits_per_byte_are_a_third_where_characters_have_three_bytes(untrained_chinese: Path, shell: Shell) -> None:
    found = shell.json(untrained_chinese)
    assert_units_agree(found)
    assert found["bits_per_byte"] == pytest.approx(found["bits_per_char"] / 3)


def test_units_of_a_known_loss() -> None:
    assert cli.in_units(2.0, 1 / 3) == pytest.approx(
        {"loss_nats": 2.0, "bits_per_char": 2.8854, "bits_per_byte": 0.9618, "perplexity": 7.3891}, abs=1e-4
    )
    assert cli.in_units(1000.0, 1.0)["perplexity"] is None


@pytest.mark.parametrize("length", [8, CTX_LEN])
def test_tables_have_the_knowledge_of_a_model_at_the_first_length_without_overlap(
    learned: Path, text_file: Path, shell: Shell, length: int
) -> None:
    corpus = load_corpus("files", path=str(text_file))
    ((first, stop),) = corpus.test
    expected = []
    for start in range(first, stop - 1, length):
        own_length = min(length, stop - 1 - start)
        losses = ngram_losses(corpus.ids, corpus.train, np.array([start]), own_length, len(corpus.vocabulary))
        expected.append(losses[:, 0])
    rungs = shell.json(learned, "--length", length, "--length", 3)["rungs"]
    assert rungs.pop("xz") == xz_nats_per_char(corpus.text("test"))
    np.testing.assert_allclose(list(rungs.values()), np.concatenate(expected, axis=1).mean(axis=1))


@pytest.mark.parametrize("stride", [CTX_LEN, 5, 1])
def test_every_stride_counts_every_target(learned: Path, shell: Shell, stride: int) -> None:
    found, plain = shell.json(learned, "--stride", stride), shell.json(learned)
    assert found["num_targets"] == plain["num_targets"] and found["stride"] == stride
    # Tables are given the model's context, so a smaller stride helps those that look back.
    assert all(found["rungs"][n] == pytest.approx(plain["rungs"][n]) for n in ("1", "xz"))
    assert (found["rungs"]["6"] == plain["rungs"]["6"]) == (stride == CTX_LEN)
    assert found["mean_context_by_length"]["16"] >= plain["mean_context_by_length"]["16"]
    assert (found["loss_nats"] == plain["loss_nats"]) == (stride == CTX_LEN)


def test_the_batch_size_changes_no_loss(learned: Path, shell: Shell) -> None:
    losses = [shell.json(learned, "--batch-size", size)["loss_nats"] for size in (1, 3, 64, 10**9)]
    assert losses == pytest.approx([losses[0]] * 4, abs=1e-6)


def test_a_run_trained_with_dropout_is_evaluated_without(learned: Path, shell: Shell) -> None:
    assert load(learned).config.train.dropout == 0.3
    assert shell.json(learned) == shell.json(learned)


def test_a_length_past_the_learned_positions_is_null_and_says_why(learned: Path, shell: Shell) -> None:
    found = shell.json(learned, "--length", 8, "--length", 16, "--length", 32, "--length", 16)
    assert list(found["by_length"]) == ["8", "16", "32"] and found["by_length"]["32"] is None
    assert found["loss_nats"] == found["by_length"]["8"] != found["by_length"]["16"]
    assert found["notes"] == ["length 32: the model's table of learned positions ends at 16"]
    out, _ = shell(learned, "--length", 16, "--length", 32)
    assert ["32", "32", "-", "-", "-", "-", "-"] in [line.split() for line in out.splitlines()]
    assert "note: length 32: the model's table" in out


def test_where_the_first_length_cannot_be_read_what_is_its_is_null(learned: Path, shell: Shell) -> None:
    found = shell.json(learned, "--length", 32, "--length", 16)
    assert [found[key] for key in ("loss_nats", "bits_per_char", "perplexity", "rung")] == [None] * 4
    assert found["by_length"]["16"] > 0 and found["num_targets"] > 0
    assert any("asked for first" in note for note in found["notes"])
    shell(learned, "--length", 32, "--length", 16)


def test_positions_without_end_read_longer_windows_than_in_training(alternating: Path, shell: Shell) -> None:
    found = shell.json(alternating, "--length", 16, "--length", 40, "--length", 10**9)
    assert all(loss is not None for loss in found["by_length"].values())
    assert found["mean_context_by_length"]["1000000000"] == 150


# ------------------------------------------------------------------------------------------------ other texts


def test_the_test_part_as_a_file_gives_the_same_numbers(
    learned: Path, text_file: Path, tmp_path: Path, shell: Shell
) -> None:
    (tmp_path / "same.txt").write_text(load_corpus("files", path=str(text_file)).text("test"), encoding="utf-8")
    own, same = shell.json(learned), shell.json(learned, "--text", tmp_path / "same.txt")
    for key in ("loss_nats", "perplexity", "bits_per_byte", "num_targets", "by_length", "rungs", "rung"):
        assert own[key] == same[key], key
    assert same["recorded"] is None and same["text"]["part"] == "whole"


def test_a_text_is_read_as_in_training(learned: Path, tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "clean.txt").write_bytes(b"the query\nof a key\n")
    (tmp_path / "dos.txt").write_bytes(b"\xef\xbb\xbfthe query\r\nof a key\r\n")
    clean, dos = (shell.json(learned, "--text", tmp_path / name) for name in ("clean.txt", "dos.txt"))
    assert clean["loss_nats"] == dos["loss_nats"] and clean["text"]["sha256"] == dos["text"]["sha256"]
    assert clean["num_targets"] == 18 and clean["notes"] == []
    assert [note.split(":")[0] for note in dos["notes"]] == [
        "leading byte-order marks removed",
        "line ends \\r\\n turned into \\n",
    ]


@pytest.mark.parametrize("fate", ["gone", "changed"])
def test_without_the_runs_text_another_can_be_read_and_has_no_tables(tmp_path: Path, fate: str, shell: Shell) -> None:
    text = tmp_path / "text.txt"
    text.write_text("abcdefg" * 300)
    (tmp_path / "other.txt").write_text("abcdefgabc")
    folder = trained(tmp_path, text, "train.steps=0")
    if fate == "gone":
        text.unlink()
    else:
        text.write_text("abcdefg" * 299 + "gfedcba")
    runner._load.cache_clear()  # a text is read once a process, and a user's command is a process of its own
    said = shell.refused(folder)
    assert str(text) in said and "--text PATH" in said
    found = shell.json(folder, "--text", tmp_path / "other.txt")
    assert found["num_targets"] == 9 and found["loss_nats"] > 0
    assert {value for key, value in found["rungs"].items() if key != "xz"} == {None} and found["rungs"]["xz"] > 0
    (note,) = found["notes"]
    assert note.startswith("no n-gram tables") and str(text) in note


def test_the_vocabulary_of_another_text_is_refused(tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "text.txt").write_text("abcdefg" * 300)
    folder = trained(tmp_path, tmp_path / "text.txt", "train.steps=0")
    (folder / "vocab.json").write_text('{"schema": 1, "chars": "bcdefgh"}')
    assert "vocab.json" in shell.refused(folder)


# ------------------------------------------------------------------------------------------------ careless input


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--length", "0"), "'--length': 0"),
        (("--length", "-1"), "'--length': -1"),
        (("--length", "32"), "ends at 16; type: --length 16"),
        (("--length", "16", "--length", "8", "--stride", "9"), "--stride 9"),
        (("--stride", "0"), "'--stride': 0"),
        (("--batch-size", "0"), "'--batch-size': 0"),
        (("--threads", "1000000000"), "'--threads'"),
        (("--weights", "first"), "'last', 'best'"),
        (("--text", ""), "--text needs"),
        (("--text", "missing.txt"), "--text='missing.txt': no such file"),
        (("--text", "."), "--text '.': is a folder"),
        (("--text", "empty.txt"), "it is empty"),
        (("--text", "one.txt"), "--text 'one.txt': a lone character"),
        (("--text", "binary.txt"), "byte 0xff"),
        (("--text", "unknown.txt"), "'\\xe9' (U+00E9) at index 1, '猫' (U+732B) at index 2"),
        (("--text", "long.txt", "--length", "1000000000"), "it can be 16,384 at most"),
        (("another",), "unexpected extra argument"),
    ],
)
def test_a_mistake_is_said_in_one_line(
    learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shell: Shell, words: tuple[str, ...], said: str
) -> None:
    contents = {"empty": b"", "one": b"a", "binary": b"a\xff\0", "unknown": "aé猫".encode(), "long": b"a" * 16_386}
    for name, content in contents.items():
        (tmp_path / f"{name}.txt").write_bytes(content)
    monkeypatch.chdir(tmp_path)
    assert said.replace("\\xe9", "é") in shell.refused(learned, *words)


@pytest.mark.parametrize(("words", "said"), [((), "Missing argument 'RUN'"), (("nowhere",), "'nowhere'")])
def test_a_run_that_is_not_there_is_said_in_one_line(shell: Shell, words: tuple[str, ...], said: str) -> None:
    assert said in shell.refused(*words)


@pytest.mark.parametrize("damage", ["low", math.nan, [1], 10**400])
def test_a_damaged_loss_in_a_record_is_left_out(alternating: Path, tmp_path: Path, shell: Shell, damage: Any) -> None:
    copy = Path(shutil.copytree(alternating, tmp_path / "copy"))
    record = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps(record | {"test_loss_nats": damage}))
    found = shell.json(copy)["recorded"]
    assert found == {"test_loss_nats": None, "num_test_targets": record["num_test_targets"]}
    assert "the record says" not in shell(copy)[0]


def test_weights_that_are_no_numbers_give_no_loss_and_say_so(alternating: Path, tmp_path: Path, shell: Shell) -> None:
    copy = Path(shutil.copytree(alternating, tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    save_file(tensors | {"embed.weight": tensors["embed.weight"] * math.nan}, copy / "model.safetensors")
    found = strict(shell(copy, "--json", code=1)[0])
    assert found["loss_nats"] is None and found["rung"] is None and found["rungs"]["6"] > 0
    assert "not a finite number" in found["notes"][0]
    assert "no model" in shell(copy, code=1)[0]


def test_a_run_that_is_not_done_is_evaluated_and_its_status_told(learned: Path, tmp_path: Path, shell: Shell) -> None:
    copy = Path(shutil.copytree(learned, tmp_path / "copy"))
    record = json.loads((copy / "result.json").read_text(encoding="utf-8"))
    (copy / "result.json").write_text(json.dumps(record | {"status": "diverged"}), encoding="utf-8")
    out, err = shell(copy, "--json")
    assert (
        strict(out)["status"] == "diverged" and err == f"note: '{copy}': the run is not done, its status is diverged\n"
    )
    assert shell.json(learned)["status"] == "done"


def test_a_perplexity_beyond_all_measure_keeps_the_table_narrow(learned: Path, tmp_path: Path, shell: Shell) -> None:
    (tmp_path / "two.txt").write_text(load(learned).vocabulary.chars[:2], encoding="utf-8")
    out, _ = shell(learned, "--text", tmp_path / "two.txt")
    (xz,) = (line for line in out.splitlines() if line.startswith("xz"))
    assert float(xz.split()[-1]) > 1e12 and len(xz) < 80


# ------------------------------------------------------------------------------------------------ what is shown


def test_the_tables_hold_every_number_and_nothing_is_cut_when_piped(learned: Path, shell: Shell) -> None:
    found, (out, _) = shell.json(learned, "--length", 16, "--length", 8), shell(learned, "--length", 16, "--length", 8)
    lines = [line.split() for line in out.splitlines()]
    for length, nats in found["by_length"].items():
        context = f"{found['mean_context_by_length'][length]:.1f}"
        bits = nats / math.log(2)
        units = [f"{nats:.4f}", f"{bits:.4f}", f"{bits:.4f}", f"{math.exp(nats):.3f}"]
        assert [length, length, context, *units] in lines
    for n in range(1, 7):
        assert [f"{n}-gram", "table", f"{found['rungs'][str(n)]:.4f}"] in [line[:3] for line in lines]
    assert f"the record says {found['recorded']['test_loss_nats']:.4f} nats" in out and "…" not in out
    assert f"at length 16 the model stands {cli.place(found['rung'])}" in out


@pytest.mark.parametrize("columns", [30, 50, 80])
def test_a_narrow_terminal_wraps_and_loses_nothing(
    learned: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    found, out = shell.json(learned), io.StringIO()
    monkeypatch.setattr(cli, "console", lambda: Console(file=out, width=columns, color_system=None, markup=False))
    cli.show(found)
    assert all(len(line) <= columns for line in out.getvalue().splitlines()) and "…" not in out.getvalue()


@pytest.mark.parametrize(
    ("rung", "said"),
    [
        (0.0, "no better than a guess"),
        (0.4, "between a guess among the characters and the 1-gram table"),
        (1.0, "between the best table of up to 1 character and that of up to 2"),
        (3.42, "between the best table of up to 3 characters and that of up to 4"),
        (6.0, "below all tables"),
    ],
)
def test_the_models_place_among_the_tables_in_words(rung: float, said: str) -> None:
    assert said in cli.place(rung)


def test_help_and_version_import_nothing_heavy() -> None:
    for word in ("--help", "--version"):
        code = f"import sys; sys.argv = ['anatomy-eval', '{word}']\nfrom anatomy.cli.eval import main\n"
        code += "try: main()\nfinally: print(sorted({'torch', 'numpy', 'rich.table'} & set(sys.modules)))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 0 and done.stdout.endswith("[]\n"), done.stdout + done.stderr


# ------------------------------------------------------------------------------------------------ imported models

WORDS = "the norm of a key, 中文 and é 🙂\n" * 9


@pytest.fixture
def words_file(tmp_path: Path) -> Path:
    (tmp_path / "words.txt").write_text(WORDS, encoding="utf-8")
    return tmp_path / "words.txt"


@pytest.mark.parametrize("marks_beginning", [False, True])
def test_an_imported_model_is_scored_by_token_and_its_bits_are_by_character(
    tmp_path: Path, words_file: Path, shell: Shell, marks_beginning: bool
) -> None:
    tokenizer = byte_level(marks_beginning=marks_beginning)
    model = imported(tmp_path / "model", tokenizer=tokenizer)
    ids = torch.from_numpy(Tokens(tokenizer, NUM_TOKENS).encode(WORDS)).long()
    nats = []
    for start in range(0, len(ids) - 1, 11):  # each window anew, and nothing before it
        window = ids[start : start + 12]
        logits = model(window[None, :-1])[0]
        nats.append(torch.nn.functional.cross_entropy(logits, window[1:], reduction="sum").item())
    found = shell.json(tmp_path / "model", "--text", words_file)
    assert found.keys() >= KEYS and (found["unit"], found["status"], found["recorded"]) == ("token", None, None)
    assert found["num_targets"] == len(ids) - 1 and found["num_chars"] == len(WORDS)
    assert found["loss_nats"] == pytest.approx(sum(nats) / found["num_targets"], rel=1e-6)
    num_chars = len(WORDS) - (0 if marks_beginning else len("the"))
    assert tokenizer.decode(ids[:1].tolist(), skip_special_tokens=False) == ("<|end|>" if marks_beginning else "the")
    assert found["bits_per_char"] == pytest.approx(sum(nats) / math.log(2) / num_chars, rel=1e-6)
    num_bytes = len(WORDS.encode()) - (len(WORDS) - num_chars)
    assert found["bits_per_byte"] == pytest.approx(sum(nats) / math.log(2) / num_bytes, rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(found["loss_nats"]))
    assert found["chars_per_target"] == num_chars / found["num_targets"]


def letters(*, unk_token: str | None = None) -> Tokenizer:
    """Some characters, one token each, and no bytes."""
    vocabulary = {char: index for index, char in enumerate("<ab é")}
    return Tokenizer(models.BPE(vocabulary, [], unk_token=unk_token))


def test_characters_are_counted_in_the_text_and_not_in_what_the_tokenizer_makes_of_it(
    tmp_path: Path, shell: Shell
) -> None:
    tokenizer, text = letters(), "ae\u0301 B" * 9
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()])
    tokenizer.post_processor = processors.TemplateProcessing(single="< $A", special_tokens=[("<", 0)])
    imported(tmp_path / "model", tokenizer=tokenizer)
    (tmp_path / "text.txt").write_text(text, encoding="utf-8")
    found = shell.json(tmp_path / "model", "--text", tmp_path / "text.txt")
    assert found["num_targets"] == 4 * 9 and found["num_chars"] == len(text) == 5 * 9
    bits = found["loss_nats"] / math.log(2) * found["num_targets"]
    assert found["bits_per_char"] == pytest.approx(bits / len(text))
    assert found["bits_per_byte"] == pytest.approx(bits / len(text.encode()))


@pytest.mark.parametrize("unk_token", [None, "<"])
def test_a_text_that_the_tokenizer_has_no_tokens_for_is_refused(
    tmp_path: Path, shell: Shell, unk_token: str | None
) -> None:
    imported(tmp_path / "model", tokenizer=letters(unk_token=unk_token))
    (tmp_path / "text.txt").write_text("ab axb" * 9, encoding="utf-8")
    said = shell.refused(tmp_path / "model", "--text", tmp_path / "text.txt")
    assert "lacks: 'x' (U+0078) at index 4" in said and "text.txt" in said


def test_beside_an_imported_model_stands_no_table_but_xz_in_the_same_units(
    tmp_path: Path, words_file: Path, shell: Shell
) -> None:
    imported(tmp_path / "model", tokenizer=byte_level())
    found = shell.json(tmp_path / "model", "--text", words_file)
    assert found["rung"] is None and {found["rungs"][str(n)] for n in range(1, 7)} == {None}
    assert found["rungs"]["xz"] == pytest.approx(xz_nats_per_char(WORDS) * found["chars_per_target"])
    (note,) = found["notes"]
    assert note.startswith("no n-gram tables") and note.endswith("an imported model has no text of its own")
    out, _ = shell(tmp_path / "model", "--text", words_file)
    head, *_ = (line.split() for line in out.splitlines() if "perplexity" in line)
    assert head[-4:] == ["nats/token", "bits/char", "bits/byte", "perplexity"]
    assert f"{found['num_targets']:,} tokens predicted" in out and "-gram table " not in out


def test_an_imported_model_needs_a_text_and_a_tokenizer(tmp_path: Path, words_file: Path, shell: Shell) -> None:
    imported(tmp_path / "model", tokenizer=byte_level())
    said = shell.refused(tmp_path / "model")
    assert "an imported model has no text of its own" in said and said.endswith("type: --text PATH\n")
    imported(tmp_path / "mute")
    assert "came without a tokenizer" in shell.refused(tmp_path / "mute", "--text", words_file)
    (tmp_path / "one.txt").write_text("the")
    assert "a lone token leaves nothing" in shell.refused(tmp_path / "model", "--text", tmp_path / "one.txt")


def test_a_long_context_is_read_in_windows_of_1024_tokens_and_that_is_stated(
    tmp_path: Path, words_file: Path, shell: Shell
) -> None:
    imported(tmp_path / "model", "model.ctx_len=8192", tokenizer=byte_level())
    found = shell.json(tmp_path / "model", "--text", words_file)
    assert (found["length"], found["stride"], list(found["by_length"])) == (1024, 1024, ["1024"])


@pytest.mark.parametrize("length", [1, 64])
def test_few_logits_are_in_memory_at_once_and_the_loss_is_the_same(
    tmp_path: Path, words_file: Path, shell: Shell, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    imported(tmp_path / "model", tokenizer=byte_level())
    words = (tmp_path / "model", "--text", words_file, "--length", length)
    whole = shell.json(*words)["loss_nats"]
    made: list[int] = []
    linear = torch.nn.functional.linear

    def watched(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        y = linear(x, weight, bias)
        made.append(y.numel() if len(weight) == NUM_TOKENS else 0)
        return y

    for module in ("model", "evaluation"):
        monkeypatch.setattr(f"anatomy.{module}.MAX_LOGITS", 10 * NUM_TOKENS)
    monkeypatch.setattr(torch.nn.functional, "linear", watched)
    assert shell.json(*words)["loss_nats"] == pytest.approx(whole, rel=1e-6)
    assert 0 < max(made) <= 10 * NUM_TOKENS
