"""Files of others are data: hostile and damaged ones do nothing but produce one line."""

import json
import os
import pickle
import struct
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from published_models import saved
from safetensors.torch import load_file, save_file
from test_checkpoints_importing import fault

from anatomy.checkpoints.converting import convert
from anatomy.checkpoints.sources import open_source
from anatomy.checkpoints.writing import new_folder
from anatomy.errors import UserError


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("sound") / "model", "llama")[0]


@pytest.fixture
def folder(sound: Path, tmp_path: Path) -> Path:
    """A copy of a sound one, to be damaged."""
    copied = tmp_path / "model"
    copied.mkdir()
    for name in ("config.json", "model.safetensors"):
        (copied / name).write_bytes((sound / name).read_bytes())
    return copied


def test_nothing_is_read_but_headers_until_it_is_asked_for(folder: Path) -> None:
    source = open_source(folder)
    tensor = source.tensors["model.embed_tokens.weight"]
    assert (tensor.shape, tensor.dtype, source.format, source.files) == (
        (67, 48),
        "F32",
        "safetensors",
        ("model.safetensors",),
    )
    assert torch.equal(tensor.read(), load_file(folder / "model.safetensors")["model.embed_tokens.weight"])


# ------------------------------------------------------------------------------------------------ not a model


def test_what_is_no_model_is_told_apart(folder: Path, tmp_path: Path) -> None:
    assert "there is no such folder" in fault(tmp_path / "x\x1b[2J")
    assert "there is no such folder" in fault(tmp_path / "a\0b")
    assert "is a file; give the folder of a model" in fault(folder / "config.json")
    assert "holds no config.json" in fault(tmp_path)
    (folder / "model.safetensors").unlink()
    assert fault(folder).endswith(
        "holds no weights; they are read from model.safetensors, pytorch_model.bin, or their shards"
    )


@pytest.mark.parametrize(
    "content",
    [
        b'{"model_type": "llama", "hidden_size": NaN}',
        b'{"model_type": "llama", "rms_norm_eps": 1e999}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"hidden_size": ' + b"9" * 10_000 + b"}",
        b'{"model_type": "\xff"}',
        b"[]",
        b"",
        b" " * (2**22 + 1),
        b'{"model_type": "mixtral"}',
        b'{"model_type": ["llama"]}',
        b'{"model_type": {"llama": 1}}',
    ],
)
def test_a_config_that_is_none_is_refused_in_a_line(folder: Path, content: bytes) -> None:
    (folder / "config.json").write_bytes(content)
    assert str(folder / "config.json") in fault(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_a_pipe_or_a_folder_is_refused_and_not_waited_for(folder: Path, name: str) -> None:
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert fault(folder).endswith("is no plain file")
    (folder / name).unlink()
    (folder / name).mkdir()
    assert fault(folder).endswith("is no plain file")
    (folder / name).rmdir()
    (folder / name).symlink_to("nowhere")
    assert fault(folder).endswith("is no plain file")


def test_code_that_a_folder_brings_is_never_run(folder: Path, tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    (folder / "modeling.py").write_text(f"open({str(mark)!r}, 'w')")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}))
    assert "auto_map" in fault(folder)
    assert not mark.exists()


# ------------------------------------------------------------------------------------------------ safetensors


@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw[: len(raw) // 2],
        lambda raw: raw[:5],
        lambda raw: b"",
        lambda raw: struct.pack("<Q", 2**63) + raw[8:],
        lambda raw: raw[:8] + b"x" + raw[9:],
        lambda raw: raw + b"\0",
        lambda raw: raw.replace(b"[67,48]", b"[67,49]", 1),
        lambda raw: raw.replace(b'"F32"', b'"F99"', 1),
    ],
)
def test_a_damaged_safetensors_file_is_refused(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    file = folder / "model.safetensors"
    raw = file.read_bytes()
    assert damage(raw) != raw
    file.write_bytes(damage(raw))
    assert "no safetensors file, or a damaged one" in fault(folder)


# ------------------------------------------------------------------------------------------------ shards


@pytest.fixture
def sharded(folder: Path) -> Path:
    """The same model in two files, `one` and `two`."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    homes = {name: f"{('one', 'two')[index % 2]}.safetensors" for index, name in enumerate(tensors)}
    for home in set(homes.values()):
        save_file({name: tensor for name, tensor in tensors.items() if homes[name] == home}, folder / home)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))
    return folder


def index_of(folder: Path) -> dict[str, str]:
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def write_index(folder: Path, homes: Any) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": homes}))


def test_the_sharded_model_is_sound(sharded: Path) -> None:
    assert open_source(sharded).files == ("one.safetensors", "two.safetensors")


@pytest.mark.parametrize("name", ["../one.safetensors", "/etc/passwd", "..", ".", "", "a/b", "a\\b", "a\0b"])
def test_no_name_of_a_shard_leads_out_of_the_folder(sharded: Path, name: str) -> None:
    (sharded.parent / "one.safetensors").write_bytes((sharded / "one.safetensors").read_bytes())
    homes = index_of(sharded)
    write_index(sharded, {key: name if home.startswith("one") else home for key, home in homes.items()})
    assert "is no plain name of a file beside it" in fault(sharded)


def test_shards_and_their_index_must_say_the_same(sharded: Path) -> None:
    homes = index_of(sharded)
    first, second = list(homes)[:2]
    write_index(sharded, homes | {"model.extra": "one.safetensors"})
    assert fault(sharded).endswith("'one.safetensors' lacks 'model.extra'")
    write_index(sharded, {name: home for name, home in homes.items() if name != first})
    assert fault(sharded).endswith(f"'{first}' is in 'one.safetensors', of which the index knows nothing")
    write_index(sharded, homes | {first: "two.safetensors"})
    assert f"'{first}' is in 'one.safetensors', of which" in fault(sharded)
    write_index(sharded, homes | {second: "three.safetensors"})
    assert fault(sharded).endswith("its shards are not all there: three.safetensors")
    write_index(sharded, homes)
    tensors = load_file(sharded / "two.safetensors")
    save_file(tensors | {first: torch.ones(1)}, sharded / "two.safetensors")
    assert f"'{first}' is in two shards" in fault(sharded)


@pytest.mark.parametrize("homes", [None, [], {}, {"a": 1}, {"a": ["one.safetensors"]}, "one.safetensors"])
def test_an_index_without_a_map_is_refused(sharded: Path, homes: Any) -> None:
    write_index(sharded, homes)
    assert "has no weight_map" in fault(sharded)


# ------------------------------------------------------------------------------------------------ files of PyTorch


class Payload:
    """What runs a command where it is unpickled without care."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


class Room:
    """Ten gigabytes of nothing."""

    def __reduce__(self) -> Any:
        return bytearray, (10**10,)


class Sizes:
    """Nothing of a tensor, but allowed beside them."""

    def __reduce__(self) -> Any:
        return torch.Size, ([3] * 5,)


class Stretched:
    """A tensor larger than its storage, which would grow."""

    def __reduce__(self) -> Any:
        four = torch.zeros(4)
        storage = torch.storage.TypedStorage(wrap_storage=four.untyped_storage(), dtype=four.dtype, _internal=True)
        return torch._utils._rebuild_tensor_v2, (storage, 0, (10**6, 10**4), (10**4, 1), False, OrderedDict())


@pytest.fixture
def pickled(folder: Path) -> Callable[[Any], str]:
    """Puts something into a file of PyTorch, in place of the weights, and gives the line that refuses it."""

    def put(content: Any, **how: Any) -> str:
        (folder / "model.safetensors").unlink(missing_ok=True)
        torch.save(content, folder / "pytorch_model.bin", **how)
        return fault(folder)

    return put


def test_a_payload_in_a_pickle_is_not_run(folder: Path, tmp_path: Path, pickled: Callable[[Any], str]) -> None:
    mark = tmp_path / "ran"
    assert "could run code; nothing was run" in pickled({"model.norm.weight": Payload(mark)})
    assert not mark.exists()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Payload(mark)))
    assert "no archive as torch.save writes it" in fault(folder)
    assert not mark.exists()


def test_only_tensors_by_name_are_read_from_a_file_of_pytorch(pickled: Callable[..., str]) -> None:
    assert "'model' is no tensor with a name" in pickled({"model": {"model.norm.weight": torch.ones(3)}})
    assert "'step' is no tensor with a name" in pickled({"step": 3})
    assert "'int' is no tensor with a name" in pickled({3: torch.ones(3)})
    assert "holds no dict of tensors" in pickled([torch.ones(3)])
    assert "(torch._utils._rebuild_sparse_tensor), which could" in pickled({"x": torch.ones(3, 3).to_sparse()})
    assert "left over" in pickled({"x": torch.nn.Parameter(torch.ones(3))})
    assert "torch.load and written again" in pickled({"x": torch.ones(3)}, _use_new_zipfile_serialization=False)


@pytest.mark.parametrize("make", [Room, Sizes, Stretched])
def test_what_the_weights_only_reader_would_make_room_for_is_refused(make: type, pickled: Callable[[Any], str]) -> None:
    assert "no file of tensors" in (said := pickled({"x": make()})) or "holds something else than tensors" in said


def test_a_tensor_that_claims_more_than_the_file_holds_is_refused(pickled: Callable[[Any], str]) -> None:
    assert "larger than what the file holds" in pickled({"x": torch.ones(1).expand(2**20, 2**20)})


def test_a_file_of_pytorch_that_would_grow_is_refused(folder: Path, pickled: Callable[[Any], str]) -> None:
    pickled({"x": torch.zeros(3)})
    file = folder / "pytorch_model.bin"
    with zipfile.ZipFile(file) as archive:
        members = {member.filename: archive.read(member) for member in archive.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    assert "its members are compressed" in fault(folder)
    file.write_bytes(file.read_bytes()[:-40])
    assert "no archive as torch.save writes it" in fault(folder)


def test_safetensors_go_before_a_pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"never read")
    assert open_source(folder).format == "safetensors"


# ------------------------------------------------------------------------------------------------ what is written


def test_what_is_there_already_is_not_touched(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    (there / "thesis.txt").write_text("mine")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "link").symlink_to("nowhere")
    for name in ("there", "file", "link"):
        with pytest.raises(UserError, match="is there already, and not an empty folder"):
            convert(folder, tmp_path / name, verify=False)
    assert (there / "thesis.txt").read_text() == (tmp_path / "file").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "model", "there"]


def test_an_empty_folder_is_filled_and_missing_ones_are_made(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    for name in ("empty", "a/b/c"):
        convert(folder, tmp_path / name, verify=False)
        assert sorted(path.name for path in (tmp_path / name).iterdir()) == ["model.json", "model.safetensors"]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, UserError, OSError])
def test_a_failure_leaves_nothing(tmp_path: Path, failure: type[BaseException]) -> None:
    with pytest.raises(failure), new_folder(tmp_path / "a" / "b") as filled:
        (filled / "half").write_text("half")
        raise failure("on the way")
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_an_empty_folder_leads_there(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    with new_folder(tmp_path / "link") as filled:
        (filled / "made").write_text("made")
    assert (tmp_path / "link").is_symlink() and (tmp_path / "empty" / "made").read_text() == "made"


def test_where_nothing_can_be_written_is_said_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    places = {
        Path("."): "is the folder that you are in",
        tmp_path / "here": "is the folder that you are in",
        tmp_path / "file" / "x" / "y": "cannot be written (Not a directory)",
        tmp_path / ("a" * 300): "cannot be written (File name too long)",
    }
    for place, said in places.items():
        with pytest.raises(UserError) as error, new_folder(place):
            pytest.fail("made something")
        assert said in str(error.value) and str(error.value).startswith(repr(str(place)))

    def no_room(*_: object, **__: object) -> str:
        raise PermissionError(13, "Permission denied", str(tmp_path / ".hidden.abc"))

    monkeypatch.setattr("tempfile.mkdtemp", no_room)
    with (
        pytest.raises(UserError, match=r"new': cannot be written \(Permission denied\)$"),
        new_folder(tmp_path / "new"),
    ):
        pytest.fail("made something")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "here"]


def test_an_adapter_beside_the_weights_is_not_passed_over(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{}")
    assert "holds an adapter (adapter_config.json), which the model would lack" in fault(folder)


def test_a_folder_may_be_called_as_a_file_is(folder: Path) -> None:
    named = folder.rename(folder.with_name("tiny.gguf"))
    assert open_source(named).format == "safetensors"
