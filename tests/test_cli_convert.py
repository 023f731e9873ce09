"""anatomy-convert as a user types it."""

import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from published_models import saved
from test_checkpoints_importing import rewrite
from test_checkpoints_sources import Payload
from test_runner import job

from anatomy import __version__
from anatomy.checkpoints.tokenizers_of import tokenizer_of_chars
from anatomy.cli.convert import main
from anatomy.runner import run

COMMAND = [sys.executable, "-m", "anatomy.cli.convert"]


class Done:
    """What a command wrote and how it ended."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err


@pytest.fixture
def convert(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Done]:
    """The command in this process, which spares each call the seconds of importing torch."""

    def call(*words: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["anatomy-convert", *map(str, words)])
        capsys.readouterr()  # what transformers wrote of saving a model
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return Done(int(ended.value.code or 0), out, err)

    return call


def test_a_published_model_comes_in_and_speaks_of_itself(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder, theirs = saved(tmp_path / "theirs", "qwen3-window")
    done = convert(folder, tmp_path / "ours")
    head, parts, numbers, parity, onward = done.out.splitlines()[-5:]
    assert done.code == 0 and head == f"{folder} -> {tmp_path / 'ours'}"
    assert parts == (
        "qwen3: norm=rms placement=pre pos=rope attn=gqa ffn=swiglu qk_norm=rms window=sliding bias=attn tying=untied"
    )
    num_params = sum(parameter.numel() for parameter in theirs.parameters())
    assert numbers.startswith(f"{num_params:,} parameters, stored in F32; tokenizer: none (")
    assert parity.startswith("compared with transformers over 64 positions") and parity.endswith(": the same model")
    assert onward == f"without a tokenizer it reads no text; go on with: anatomy-explain {tmp_path / 'ours'}"


def test_a_model_with_its_tokenizer_goes_on_to_speak(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder, theirs = saved(tmp_path / "their model", "llama")
    tokenizer_of_chars("".join(map(chr, range(33, 33 + theirs.config.vocab_size)))).save(str(folder / "tokenizer.json"))
    *_, onward = convert(folder, tmp_path / "our model", "--no-verify").out.splitlines()
    typed = shlex.quote(str(tmp_path / "our model"))
    assert onward.startswith(f"go on with: anatomy-sample {typed} --prompt TEXT, anatomy-eval {typed} --text FILE")


def test_a_run_goes_out(tmp_path: Path, text_file: Path, convert: Callable[..., Done]) -> None:
    made = job(tmp_path / "outputs", text_file, "base=llama", "train.steps=1")
    run(made, [])
    done = convert(made.folder, tmp_path / "theirs")
    assert done.code == 0 and f"tokenizer: {len(made.corpus.vocabulary)} characters" in done.out
    assert f"from_pretrained('{tmp_path / 'theirs'}')" in done.out
    assert sorted(path.name for path in (tmp_path / "theirs").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


def test_what_is_not_the_same_model_is_not_kept_and_fails(tmp_path: Path, convert: Callable[..., Done]) -> None:
    folder, _ = saved(tmp_path / "theirs", "llama")
    rewrite(folder, lambda tensors: tensors["lm_head.weight"].fill_(float("inf")))
    done = convert(folder, tmp_path / "ours")
    assert done.code == 1 and done.out.count("\n") <= 1
    assert "logits are no finite numbers, and tell nothing, so" in done.err and not (tmp_path / "ours").exists()
    done = convert(folder, tmp_path / "ours", "--no-verify")
    assert done.code == 0 and "not compared with transformers, as asked" in done.out
    assert (tmp_path / "ours").exists()


def test_mistakes_are_a_line_and_leave_nothing(tmp_path: Path, convert: Callable[..., Done]) -> None:
    def line(*words: object) -> str:
        done = convert(*words)
        assert done.code == 2 and not done.out and done.err.count("\n") == 1, done.err
        return done.err

    folder, _ = saved(tmp_path / "theirs", "llama")
    there = sorted(tmp_path.rglob("*"))
    assert "there is no such folder" in line(tmp_path / "nowhere", tmp_path / "ours")
    assert "holds neither a published model (config.json) nor one of ours" in line(tmp_path, tmp_path / "ours")
    assert "is there already" in line(folder, tmp_path)
    assert "one of them is empty" in line(folder, "")
    assert "no model that is known by name; there is smollm2-135m" in line("--fetch", folder, tmp_path / "ours")
    assert "Missing argument" in line(folder)
    torch.save({"x": Payload(tmp_path / "ran")}, folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    assert "nothing was run" in line(folder, tmp_path / "ours")
    left = {*there, folder / "pytorch_model.bin"} - {folder / "model.safetensors"}
    assert sorted(tmp_path.rglob("*")) == sorted(left)


def test_a_model_known_by_name_is_not_fetched_unasked(
    tmp_path: Path, convert: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANATOMY_CACHE", str(tmp_path / "cache"))
    done = convert("smollm2-135m", tmp_path / "ours")
    assert done.code == 2 and "--fetch smollm2-135m" in done.err and list(tmp_path.iterdir()) == []


def test_what_lies_there_goes_before_a_model_known_by_name_unless_that_is_fetched(
    tmp_path: Path, convert: Callable[..., Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved(tmp_path / "smollm2-135m", "qwen3")
    saved(tmp_path / "packaged", "llama")
    monkeypatch.setattr("anatomy.checkpoints.packaged.fetch_model", lambda name: tmp_path / "packaged")
    assert "\nqwen3: " in convert("smollm2-135m", "ours", "--no-verify").out
    assert "\nllama: " in convert("--fetch", "smollm2-135m", "fetched", "--no-verify").out


def test_names_that_no_folder_can_have_are_a_line(tmp_path: Path, convert: Callable[..., Done]) -> None:
    done = convert("a" * 5000, tmp_path / "ours")
    assert done.code == 2 and "there is no such folder" in done.err and "Traceback" not in done.err


def test_a_window_that_the_comparison_did_not_reach_is_told(tmp_path: Path, convert: Callable[..., Done]) -> None:
    saved(tmp_path / "theirs", "mistral", sliding_window=600, max_position_embeddings=1024)
    done = convert(tmp_path / "theirs", tmp_path / "ours")
    assert ": the same model; the text did not reach the end of its window of 600 positions\n" in done.out


def test_help_and_version_need_no_torch() -> None:
    code = "import sys; from anatomy.cli.convert import main; sys.argv[1:] = ['--version']\ntry: main()\nfinally: "
    done = subprocess.run(
        [sys.executable, "-c", code + "assert not {'torch', 'transformers'} & set(sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert __version__ in done.stdout
    assert "SRC DST" in subprocess.run([*COMMAND, "--help"], capture_output=True, text=True, check=True).stdout
