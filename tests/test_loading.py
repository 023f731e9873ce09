"""Opening a run: what was trained comes out; what is no run, or no longer a sound one, is said in a line."""

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from made_models import END, NUM_TOKENS, byte_level, imported
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from test_runner import job

import anatomy
from anatomy import weights
from anatomy.errors import UserError, one_line
from anatomy.evaluation import NUM_FINAL_WINDOWS, mean_nats, window_losses
from anatomy.loading import LoadedModel, LoadedRun, load
from anatomy.runner import Job, run
from anatomy.runs import owned
from anatomy.sample import sample
from anatomy.sampling import Knobs
from anatomy.tokens import Tokens

HUGE = 10**9
BAD_IDS = ({"a": [1]}, "x", 5, None, [307], [-1], [10**12], [True], [[1]])  # of a vocabulary of 307
WORDS = ("base=llama", "train.steps=4", "train.eval_every=2", "train.dropout=0.2")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, text_file: Path) -> Job:
    made = job(tmp_path_factory.mktemp("outputs"), text_file, *WORDS)
    assert run(made, [])["status"] == "done"
    tensors = load_file(made.folder / "best.safetensors")  # made to differ from the last ones
    save_file({name: tensor + 1.0 for name, tensor in tensors.items()}, made.folder / "best.safetensors")
    return made


@pytest.fixture
def folder(trained: Job, tmp_path: Path) -> Path:
    """A copy of the run, to be damaged."""
    return Path(shutil.copytree(trained.folder, tmp_path / "outputs" / "runs" / "a_run"))


def fault(folder: Path, **asked: Any) -> str:
    """The one line that refuses a folder: nothing in it may act on a terminal."""
    with pytest.raises(UserError) as error:
        load(folder, **asked)
    message = str(error.value)
    assert message.isprintable(), repr(message)
    return message


def test_a_folder_without_a_name_is_not_the_one_that_we_are_in() -> None:
    with pytest.raises(UserError, match="the folder's name is empty"):
        load("")


@pytest.mark.parametrize("name", ["result.json", "vocab.json"])
def test_a_pipe_is_refused_and_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert name in fault(folder)


def edit(file: Path, change: Callable[[dict], object]) -> None:
    content = json.loads(file.read_text(encoding="utf-8"))
    change(content)
    file.write_text(json.dumps(content), encoding="utf-8")


# ------------------------------------------------------------------------------------------------ a sound run


def test_a_loaded_run_has_the_loss_of_its_record(trained: Job) -> None:
    model, vocabulary = anatomy.load(trained.folder)
    assert vocabulary == trained.corpus.vocabulary
    starts = trained.corpus.windows("test", 16, NUM_FINAL_WINDOWS)
    losses = window_losses(model, trained.corpus, starts, 16, dtype="fp32")
    opened = load(str(trained.folder))
    assert mean_nats(losses) == opened.record["test_loss_nats"]
    assert (opened.folder, opened.config) == (trained.folder, trained.config)


def test_best_weights_are_loaded_where_they_are_asked_for(trained: Job) -> None:
    for which, name in (("last", "model.safetensors"), ("best", "best.safetensors")):
        found = load(trained.folder, weights=which).model.state_dict()
        torch.testing.assert_close(found, load_file(trained.folder / name), rtol=0, atol=0)


def test_the_model_neither_drops_nor_learns(trained: Job) -> None:
    model, _ = load(trained.folder, device=torch.device("cpu"))
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert all(parameter.device.type == "cpu" for parameter in model.parameters())
    ids = torch.zeros(1, 5, dtype=torch.long)
    assert torch.equal(model(ids), model(ids))


def test_neither_a_second_load_nor_the_file_disturbs_a_loaded_model(folder: Path) -> None:
    first, second = load(folder).model, load(folder).model
    before = {name: tensor.clone() for name, tensor in first.state_dict().items()}
    for parameter in second.parameters():
        parameter.zero_()
    file = folder / "model.safetensors"
    with file.open("r+b") as opened:  # in place: what is mapped would see it
        opened.write(b"\xff" * file.stat().st_size)
    torch.testing.assert_close(first.state_dict(), before, rtol=0, atol=0)


def test_a_run_whose_width_was_matched_is_opened(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file, "base=llama", "attn=mha", "match=params", "train.steps=1")
    run(made, [])
    assert load(made.folder).model.blocks[0].ffn.hidden == made.model.blocks[0].ffn.hidden != 64


def test_a_padded_vocabulary_is_opened(tmp_path: Path, text_file: Path) -> None:
    made = job(tmp_path, text_file, "model.vocab_size=64", "train.steps=1")
    run(made, [])
    model, vocabulary = load(made.folder)
    assert model.embed.num_embeddings == 64 and model.num_symbols == len(vocabulary) < 64


def test_an_opened_run_samples_with_what_it_is_told(trained: Job) -> None:
    opened = load(trained.folder)
    model, vocabulary = opened
    given = {"num_tokens": 20, "num_samples": 2, "seed": 3, "use_cache": False, "stop": ("e", " ")}
    found = opened.sample("the ", temperature=0.9, top_k=9, top_p=0.8, min_p=0.01, window=7, **given)
    expected = sample(model, vocabulary, "the ", window=7, knobs=Knobs(0.9, 9, 0.8, 0.01), **given)
    assert [one.text for one in found] == [one.text for one in expected]
    assert all(one.num_tokens < 20 and one.kv_cache_bytes == 0 for one in found)
    assert [one.text for one in opened.sample(num_tokens=30)] == [
        one.text for one in sample(model, vocabulary, window=16, num_tokens=30)
    ]


def test_the_package_is_light_until_something_is_opened() -> None:
    code = (
        "import sys, anatomy; assert {'load', 'LoadedRun'} <= set(dir(anatomy)); assert not hasattr(anatomy, 'lode');"
        "assert 'torch' not in sys.modules; from anatomy import load; assert load.__module__ == 'anatomy.loading'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert (anatomy.load, anatomy.LoadedRun) == (load, LoadedRun)


# ------------------------------------------------------------------------------------------------ not a run


def test_what_is_no_run_is_told_apart(folder: Path) -> None:
    outputs, runs, study = folder.parents[1], folder.parent, folder.parents[1] / "studies" / "mine"
    study.mkdir(parents=True)
    assert fault(runs / "x\x1b[2J") == (
        f"'{runs}/x\\x1b[2J': there is no such folder; type the folder of a run, such as outputs/runs/NAME"
    )
    assert fault(outputs.parent / "a\0b").endswith("embedded null byte")
    assert fault(study).endswith("holds no run (no result.json); type the folder of a run, such as outputs/runs/NAME")
    assert fault(folder / "vocab.json").endswith(f"is a file; type the folder of a run, such as '{folder}'")
    assert fault(outputs).endswith(f"holds the runs of many studies; type one of them, such as '{folder}'")
    assert fault(runs).endswith(f"is the folder of all runs; type one of them, such as '{folder}'")


@pytest.mark.parametrize(
    ("manifest", "named"),
    [
        (
            {"schema": 1, "entries": [{"run": "gone"}, {"run": None}, 3, {"run": "../runs/a_run"}, {"run": "a_run"}]},
            "a_run",
        ),
        ({"schema": 1, "entries": [{"run": "../runs/a_run"}]}, "NAME"),
        ({"schema": 1, "entries": {"run": 1}}, "NAME"),
        ([], "NAME"),
    ],
)
def test_of_a_study_one_of_its_runs_is_named(folder: Path, manifest: Any, named: str) -> None:
    study = folder.parents[1] / "studies" / "mine"
    study.mkdir(parents=True)
    (study / "study.json").write_text(json.dumps(manifest))
    assert fault(study) == (
        f"'{study}': is a study, not a run; type one of its runs, such as '{folder.parent / named}'"
    )


def test_arguments_out_of_range_are_refused(trained: Job) -> None:
    assert fault(trained.folder, weights="first") == "weights='first': can be last or best"
    assert fault(trained.folder, device="gpu").startswith("device='gpu': no device that PyTorch can use here")


# ------------------------------------------------------------------------------------------------ no weights


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("interrupted", "it was interrupted"),
        ("failed", "it failed"),
        ("diverged", "it diverged"),
        ("done", "it is done, so somebody removed them; force=true trains it anew"),
    ],
)
def test_a_run_without_last_weights_says_why_and_that_best_ones_are_there(folder: Path, status: str, said: str) -> None:
    edit(folder / "result.json", lambda record: record.update(status=status))
    (folder / "model.safetensors").unlink()
    message = fault(folder)
    assert message.startswith(f"'{folder}': the run has no last weights (model.safetensors): {said}")
    assert message.endswith('; its best weights are there: type --weights best, or weights="best" in Python')
    assert load(folder, weights="best").record["status"] == status
    (folder / "best.safetensors").unlink()
    assert "its best weights" not in fault(folder)
    assert f"no best weights (best.safetensors): {said}" in fault(folder, weights="best")


def test_a_run_that_is_at_work_is_told_from_one_that_was_cut(folder: Path) -> None:
    edit(folder / "result.json", lambda record: record.update(status="running"))
    (folder / "model.safetensors").unlink()
    assert "it was interrupted" in fault(folder)
    with owned(folder):
        assert "it is still running" in fault(folder)


# ------------------------------------------------------------------------------------------------ damaged weights


class Payload:
    """Unpickled, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.path),)


def packed(header: Any, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if size is None else size) + text + data


def entry(start: int, stop: int, shape: Any = (1,), dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


DAMAGED: dict[str, Callable[[bytes], bytes]] = {
    "zero bytes": lambda sound: b"",
    "cut inside the size": lambda sound: sound[:5],
    "cut inside the header": lambda sound: sound[:100],
    "cut inside the data": lambda sound: sound[:-1],
    "a byte too many": lambda sound: sound + b"x",
    "an absurd header": lambda sound: packed({}, size=2**63),
    "a header of garbage": lambda sound: packed(b"\xff" * 64),
    "a header of nested lists": lambda sound: packed(b"[" * 100_000),
    "a header of nested objects": lambda sound: packed(b'{"a":' * 100_000),
    "no tensors": lambda sound: packed({}),
    "overlapping tensors": lambda sound: packed({"x": entry(0, 4), "y": entry(2, 6)}, bytes(6)),
    "a tensor beyond the end": lambda sound: packed({"x": entry(0, 4 * HUGE, [HUGE])}, bytes(8)),
    "a shape past all numbers": lambda sound: packed({"x": entry(0, 4, [2**40, 2**40])}, bytes(4)),
    "a negative shape": lambda sound: packed({"x": entry(0, 4, [-1])}, bytes(4)),
    "a name that acts on a terminal": lambda sound: packed({"x\x1b[2J\u202e": entry(2, 6)}, bytes(6)),
    "a dtype that acts on a terminal": lambda sound: packed({"x": entry(0, 4, dtype="\x1b[2J")}, bytes(4)),
    "an empty embedding": lambda sound: packed({"embed.weight": entry(0, 0, [0, 2**62])}),
    "an embedding of one dimension": lambda sound: packed({"embed.weight": entry(0, 4)}, bytes(4)),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_damaged_weights_are_refused_by_name(folder: Path, damage: str) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(DAMAGED[damage](file.read_bytes()))
    assert fault(folder).startswith(f"'{file}': ")


@pytest.mark.parametrize("write", [pickle.dump, torch.save])
def test_a_pickle_in_disguise_is_refused_and_does_not_run(folder: Path, write: Callable[..., None]) -> None:
    ran = folder / "ran"
    with (folder / "model.safetensors").open("wb") as file:
        write({"embed.weight": Payload(ran)}, file)
    assert "no safetensors file, or a damaged one" in fault(folder)
    assert not ran.exists()


def rewrite(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> str:
    """Save the weights otherwise, and return what `load` says of them, behind the file's name."""
    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    return fault(folder).removeprefix(f"'{file}': not the weights of its model: ")


def test_tensors_that_do_not_fit_are_named(folder: Path) -> None:
    name = "blocks.0.attn.q_proj.weight"
    assert rewrite(folder, lambda tensors: tensors.pop(name)) == f"it lacks '{name}'"
    added = {name: torch.zeros(24, 24), "blocks.0.x\x1b": torch.zeros(1)}
    assert rewrite(folder, lambda tensors: tensors.update(added)) == r"the model has no 'blocks.0.x\x1b'"
    both = rewrite(folder, lambda tensors: tensors.update({"blocks.0.x\x1b": tensors.pop(name)}))
    assert both == rf"it lacks '{name}'; the model has no 'blocks.0.x\x1b'"


def test_shapes_and_dtypes_that_do_not_fit_are_named(folder: Path) -> None:
    name, other = "blocks.1.attn.q_proj.weight", "final_norm.gain"
    found = rewrite(folder, lambda tensors: tensors.update({name: torch.zeros(24, 23), other: torch.ones(24).half()}))
    assert found == f"of another shape: '{name}' (24, 23), not (24, 24); not F32: '{other}' F16"


def test_only_a_handful_of_tensors_is_named(folder: Path) -> None:
    def hollow(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if name.startswith("blocks.") and "norm" not in name]:
            del tensors[name]
        tensors["blocks.0." + "x" * 500] = torch.zeros(1)

    found = rewrite(folder, hollow)
    assert found.startswith("it lacks 'blocks.0.attn.q_proj.weight', ") and " and 10 more; " in found
    assert found.count("'") == 2 * 5 and len(found) < 400


def test_no_tensor_is_read_before_all_shapes_are_compared(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    class Watched:
        def __init__(self, *given: Any, **named: Any) -> None:
            self.opened = safe_open(*given, **named)

        def __enter__(self) -> "Watched":
            self.file = self.opened.__enter__()
            return self

        def __exit__(self, *reason: Any) -> None:
            self.opened.__exit__(*reason)

        def keys(self) -> list[str]:
            return self.file.keys()

        def get_slice(self, name: str) -> Any:
            return self.file.get_slice(name)

        def get_tensor(self, name: str) -> torch.Tensor:
            read.append(name)
            return self.file.get_tensor(name)

    safe_open = weights.safetensors.safe_open
    monkeypatch.setattr(weights.safetensors, "safe_open", Watched)
    load(folder)
    assert len(read) == len(load_file(folder / "model.safetensors"))
    read.clear()
    rewrite(folder, lambda tensors: tensors.update({"output.weight": torch.zeros(2, 24)}))
    assert read == []


def test_weights_that_are_no_plain_file_are_refused(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.rename(folder / "elsewhere")
    file.symlink_to(folder / "elsewhere")
    assert load(folder).folder == folder  # a link to a sound file is as good as the file
    (folder / "elsewhere").unlink()
    assert fault(folder) == f"'{file}': there is no such file"
    file.unlink()
    file.symlink_to(file)
    assert fault(folder).startswith(f"'{file}': ")
    file.unlink()
    file.mkdir()
    assert fault(folder) == f"'{file}': is no plain file"
    file.rmdir()
    os.mkfifo(file)  # nobody writes, so who opens it waits for ever
    assert fault(folder) == f"'{file}': is no plain file"


def test_files_that_may_not_be_read_are_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(name: str) -> None:
        def guarded(path: Path, *mode: Any, **named: Any) -> Any:
            if path.name == name:
                raise PermissionError(13, "Permission denied", str(path))
            return as_ever(path, *mode, **named)

        monkeypatch.setattr(Path, "open", guarded)

    as_ever = Path.open  # root may read all, so permissions alone would not do
    forbid("model.safetensors")
    assert fault(folder) == f"'{folder}/model.safetensors': cannot be read (Permission denied)"
    forbid("result.json")
    assert fault(folder) == f"{folder}/result.json: [Errno 13] Permission denied: '{folder}/result.json'"


# ------------------------------------------------------------------------------------------------ damaged records


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"{", b"[]", b"3", b"\xff", b"[" * 100_000, b'{"schema": 1}', b'{"schema": 2, "status": "done"}'),
        *(b'{"schema": 1, "status": "\\u001b[2J"}', b'{"schema": 1, "status": ["done"]}'),
    ],
)
def test_a_damaged_record_is_refused(folder: Path, text: bytes) -> None:
    (folder / "result.json").write_bytes(text)
    assert fault(folder).startswith(f"{folder}/result.json: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.pop("config"), "holds no config"),
        (lambda record: record.update(config=[1]), "holds no config"),
        (lambda record: record["config"].pop("eval"), "in its config: eval: missing"),
        (lambda record: record["config"].update(init="\x1b[2J"), "in its config: init: '\\x1b[2J' is no"),
        (lambda record: record["config"].update({"\x1b[2J": 1}), "in its config: \\x1b[2J: no such setting"),
        (
            lambda record: record["config"]["norm"].update({"class": "MultiHead"}),
            "in its config: norm.class=MultiHead: not a",
        ),
        (
            lambda record: record["config"]["norm"].update({"class": ["RMSNorm"]}),
            "in its config: norm: needs the section",
        ),
        (lambda record: record["config"]["norm"].update(eps="\x1b"), "in its config: norm.eps="),
        (lambda record: record["config"]["attn"].update(n_kv_head=3), "attn=gqa: attn.n_kv_head=3 does not divide"),
        (lambda record: record["config"]["model"].update(n_head=5), "in its config: model.n_head does not divide"),
        (lambda record: record["config"]["model"].update(n_head=2**31 - 1), "in its config: model.n_head does not"),
        (
            lambda record: record["config"]["model"].update(n_head="x" * 9999),
            "in its config: model",
        ),
        (lambda record: record["config"]["model"].update(vocab_size=5), None),
        (
            lambda record: record["config"].update({"a": 1, "b": 2, "c": 3}),
            "in its config: a: no such setting. and 2 more",
        ),
    ],
)
def test_a_config_that_cannot_be_is_refused_in_a_line(
    folder: Path, change: Callable[[dict], object], said: str | None
) -> None:
    edit(folder / "result.json", change)
    message = fault(folder)
    assert len(message) < 600
    if said is not None:
        assert message.startswith(f"'{folder}/result.json': {said}")


@pytest.mark.parametrize("key", ["n_layer", "d_model", "vocab_size"])
@pytest.mark.parametrize("size", [1, 2**31 - 1])
def test_sizes_that_the_weights_do_not_have_are_refused_before_a_model_is_made(
    folder: Path, key: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    edit(folder / "result.json", lambda record: record["config"]["model"].update({key: size, "n_head": 1}))
    monkeypatch.setattr("anatomy.loading.build_model", lambda *_: pytest.fail("a model was made"))
    what = "the vocabulary" if key == "vocab_size" else f"model.{key}"
    message = fault(folder)
    assert f"weights of another model: {what} is " in message and f"in its record {size:,}" in message


@pytest.mark.parametrize(
    "change",
    [
        lambda config: config["ffn"].update(hidden=2**31 - 1),
        lambda config: config["ffn"].update(multiple_of=2**31 - 1),
        lambda config: config.update(
            pos={"name": "learned", "class": "Learned"}, model=config["model"] | {"ctx_len": HUGE}
        ),
    ],
)
def test_other_absurd_sizes_cost_nothing_before_they_are_refused(
    folder: Path, change: Callable[[dict], object]
) -> None:
    edit(folder / "result.json", lambda record: change(record["config"]))
    assert "not the weights of its model: " in fault(folder)


# ------------------------------------------------------------------------------------------------ damaged vocabularies


@pytest.mark.parametrize(
    "text", [b"", b"[]", b'{"chars": "ba"}', b'{"chars": 3}', b"[" * 100_000, b'{"chars": "\\ud800"}']
)
def test_a_damaged_vocabulary_is_refused(folder: Path, text: bytes) -> None:
    (folder / "vocab.json").write_bytes(text)
    assert fault(folder).startswith(f"'{folder}/vocab.json': no vocabulary, or a damaged one")


def test_a_vocabulary_of_another_size_is_refused(folder: Path) -> None:
    file, size = folder / "vocab.json", len(load(folder).vocabulary)
    edit(file, lambda content: content.update(chars=content["chars"][:-1]))
    assert fault(folder) == f"'{file}': holds {size - 1} characters, the run's text had {size}"
    edit(folder / "result.json", lambda record: record.pop("data"))
    assert fault(folder).endswith(f"weights of another model: the vocabulary is {size}, in its record {size - 1}")
    edit(file, lambda content: content.update(chars=""))
    assert fault(folder) == f"'{file}': holds no characters"
    file.unlink()
    assert fault(folder) == f"'{file}': cannot read the vocabulary (No such file or directory)"


def test_others_words_are_cut_and_act_on_no_terminal() -> None:
    assert one_line("a\x1b[2J\nb\u202e\ud800é") == r"a\x1b[2J\nb\u202e\ud800é"
    assert one_line("x" * 400, 10) == "x" * 9 + "…" and one_line("x" * 10, 10) == "x" * 10


# ------------------------------------------------------------------------------------------------ imported models


def test_an_imported_model_is_opened_and_speaks_its_tokens(tmp_path: Path) -> None:
    expected = imported(tmp_path / "model", tokenizer=byte_level(), start_id=5)
    opened = load(tmp_path / "model")
    model, vocabulary = opened
    assert type(opened) is LoadedModel and isinstance(vocabulary, Tokens) and len(vocabulary) == NUM_TOKENS
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)
    assert not any(module.training for module in model.modules())
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert (opened.context, opened.eval_len, opened.status, vocabulary.start_ids) == (11, 11, None, [5])
    assert opened.labels == opened.composition.parts and opened.record["family"] == "llama"
    (made,) = opened.sample("the key", num_tokens=9, stop=(END,))
    assert made.text.startswith("the key") and made.continuation
    ids = torch.from_numpy(vocabulary.encode("the key"))[None].long()
    torch.testing.assert_close(model(ids), expected(ids), rtol=0, atol=0)


def test_whatever_a_file_keeps_the_model_is_float32(tmp_path: Path) -> None:
    dtypes = (torch.float32, torch.bfloat16, torch.float16)
    expected = imported(tmp_path / "model", dtypes=dtypes)
    model, vocabulary = load(tmp_path / "model")
    assert vocabulary is None
    assert {str(tensor.dtype) for tensor in load_file(tmp_path / "model" / "model.safetensors").values()} == {
        str(dtype) for dtype in dtypes
    }
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    torch.testing.assert_close(model.state_dict(), expected.state_dict(), rtol=0, atol=0)


def test_a_run_keeps_float32_alone_and_an_imported_model_no_other_numbers(folder: Path, tmp_path: Path) -> None:
    name = "final_norm.gain"
    imported(tmp_path / "model")
    for where, said in ((folder, "not F32: "), (tmp_path / "model", "not F32 or F16 or BF16: ")):
        file = where / "model.safetensors"
        tensors = load_file(file)
        save_file(tensors | {name: tensors[name].double()}, file)
        assert fault(where).endswith(f"{said}'{name}' F64")


@pytest.mark.parametrize("head_width", [None, 10])
def test_heads_may_have_a_width_of_their_own(tmp_path: Path, head_width: int | None) -> None:
    words = () if head_width is None else (f"model.head_width={head_width}",)
    imported(tmp_path / "model", *words)
    assert load(tmp_path / "model").model.blocks[0].attn.head_width == (head_width or 6)


def test_a_model_without_a_tokenizer_computes_and_says_that_it_cannot_speak(tmp_path: Path) -> None:
    imported(tmp_path / "model")
    opened = load(tmp_path / "model")
    assert opened.model(torch.zeros(1, 3, dtype=torch.long)).shape == (1, 3, NUM_TOKENS)
    with pytest.raises(UserError, match=r"^'.*model': came without a tokenizer \(no tokenizer.json\)"):
        opened.sample("the")


def test_of_a_long_context_an_evaluation_takes_a_part(tmp_path: Path) -> None:
    imported(tmp_path / "model", "model.ctx_len=8192")
    opened = load(tmp_path / "model")
    assert (opened.context, opened.eval_len) == (8192, 1024)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda content: content.clear(), "not a model of schema 1"),
        (lambda content: content.update(schema=2), "not a model of schema 1"),
        (lambda content: content.pop("composition"), "holds no composition"),
        (lambda content: content["composition"].pop("ffn"), "in its composition: ffn: missing"),
        (lambda content: content["composition"]["pos"].update(theta="x\x1b"), "pos.theta"),
        (lambda content: content["composition"]["pos"].update({"class": "os.system"}), "not a class of this axis"),
        (lambda content: content["composition"]["model"].update(vocab_size=None), "model.vocab_size is null"),
        (lambda content: content["composition"]["model"].update(n_head=7), "n_head does not divide model.d_model"),
        (lambda content: content["composition"]["model"].update(n_layer=HUGE), "model.n_layer is 3, in its record"),
        (lambda content: content["composition"]["model"].update(vocab_size=HUGE), "the vocabulary is 307"),
        (lambda content: content["composition"]["model"].update(head_width=1, n_head=HUGE), "times model.head_width"),
        (lambda content: content["composition"]["ffn"].update(hidden=HUGE), "of another shape"),
        (lambda content: content["composition"]["attn"].update(n_kv_head=4), "of another shape"),
        (lambda content: content.update(start_id=307), "start_id: must be null or one of the model's 307 tokens"),
        (lambda content: content.update(start_id=[1]), "start_id: must be null"),
        (lambda content: content.update(start_id=True), "start_id: must be null"),
        *((lambda content, ids=ids: content.update(end_ids=ids), "end_ids: must be a list") for ids in BAD_IDS),
        (lambda content: content.update(family=["x"]), "family: can be llama"),
        (lambda content: content.pop("family"), "family: can be llama"),
        (
            lambda content: content["composition"]["norm"].update(name="layer"),
            "norm=layer of class RMSNorm is no built",
        ),
        (lambda content: content["composition"]["norm"].update(name="../norm/rms"), "of class RMSNorm is no built"),
        (lambda content: content["composition"]["norm"].update(name="x\x1b"), "norm=x\\x1b of class RMSNorm is no"),
    ],
)
@pytest.mark.parametrize("has_tokenizer", [True, False])
def test_a_damaged_model_json_is_refused_in_a_line(
    tmp_path: Path, has_tokenizer: bool, change: Callable[[dict], object], said: str
) -> None:
    imported(tmp_path / "model", tokenizer=byte_level() if has_tokenizer else None)
    edit(tmp_path / "model" / "model.json", change)
    assert said in fault(tmp_path / "model")


@pytest.mark.parametrize("name", ["model.json", "model.safetensors", "tokenizer.json"])
def test_a_pipe_in_a_models_folder_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    imported(tmp_path / "model", tokenizer=byte_level())
    (tmp_path / "model" / name).unlink()
    os.mkfifo(tmp_path / "model" / name)
    assert name in fault(tmp_path / "model")


def test_a_damaged_tokenizer_is_named(tmp_path: Path) -> None:
    imported(tmp_path / "model", tokenizer=byte_level())
    (tmp_path / "model" / "tokenizer.json").write_text('{"model": "\x1b"}')
    assert fault(tmp_path / "model").startswith(f"'{tmp_path}/model/tokenizer.json': no tokenizer, or a damaged one")


def test_an_imported_model_has_one_set_of_weights(tmp_path: Path) -> None:
    imported(tmp_path / "model")
    assert fault(tmp_path / "model", weights="best").endswith("an imported model has one set; leave weights out")
    assert fault(tmp_path / "model", weights="first") == "weights='first': can be last or best"


def test_what_is_not_imported_yet_says_how_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "some.gguf").write_bytes(b"GGUF")
    for path in (tmp_path, tmp_path / "some.gguf"):
        assert fault(path) == f"'{path}': is a published model; type: anatomy-convert '{path}' DST"


def test_of_the_file_only_a_tensor_is_mapped_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    imported(tmp_path / "model")
    opened: list[str] = []

    @contextmanager
    def watched(file: Path, **settings: Any) -> Iterator[Any]:
        with safe_open(file, **settings) as sound:
            opened.append("open")
            yield sound
        opened.append("closed")

    monkeypatch.setattr(weights.safetensors, "safe_open", watched)
    model, _ = load(tmp_path / "model")
    assert opened == ["open", "closed"] * (2 + len(model.state_dict()))
