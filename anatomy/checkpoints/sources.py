"""A published model as it lies on disk: its config, and its tensors by name, none of which is read before it is asked.

Nothing in a file is executed, no path in a file leads out of its folder, and what a file says of itself (names, shapes,
dtypes) is known from its header, so that a wrong or hostile one costs no memory.
"""

import pickletools
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from os.path import isdir, isfile, lexists  # these never raise: what one may not look at is not there
from pathlib import Path
from typing import Any, Literal, NamedTuple

import safetensors
import torch
from torch import Tensor

from anatomy.checkpoints.fields import read_json
from anatomy.checkpoints.names import HUGGING_FACE, Naming
from anatomy.errors import UserError, first_of, one_line
from anatomy.files import CONFIG_FILE, PICKLE_FILE, WEIGHTS_FILE, is_plain_name

Format = Literal["safetensors", "pytorch", "gguf"]

INDEX_SUFFIX = ".index.json"
ADAPTER_FILE = "adapter_config.json"  # transformers adds the adapter that it describes to the model
MAX_PICKLE_BYTES = 2**24  # of the part of a PyTorch file that is not the tensors' content
DTYPES: Mapping[torch.dtype, str] = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""What weights are stored in, in the words of safetensors."""


class StoredTensor(NamedTuple):
    """A tensor in a file: what its header says of it, and how it is read.

    dtype  in the words of safetensors
    read   gives what may be a view of the file: to be copied before it is kept
    """

    shape: tuple[int, ...]
    dtype: str
    read: Callable[[], Tensor]


def itself(tensor: Tensor) -> Tensor:
    """What reading a tensor is that is held already."""
    return tensor


@dataclass(frozen=True, eq=False)
class Source:
    """A model as it lies on disk.

    files     the names of those that hold tensors
    config    what config.json says; of a GGUF file the same in the words of config.json
    naming    what the tensors are called
    metadata  of a GGUF file all that it says of itself, its tokenizer included
    """

    path: Path
    format: Format
    files: tuple[str, ...]
    config: Mapping[str, Any]
    naming: Naming
    tensors: Mapping[str, StoredTensor] = field(repr=False)
    metadata: Mapping[str, Any] = field(repr=False, default_factory=dict)

    @property
    def where(self) -> str:
        """The path as messages have it."""
        return repr(str(self.path))


def is_source(path: Path) -> bool:
    """Whether something looks like a published model: a GGUF file, or a folder with a config.json."""
    return _is_gguf(path) or lexists(path / CONFIG_FILE)


def _is_gguf(path: Path) -> bool:
    return path.suffix.lower() == ".gguf" and not isdir(path)


def open_source(path: Path) -> Source:
    """Open a Hugging Face folder or a GGUF file.

    Raises: UserError, one line, where there is none, or where its files are absent, damaged or do not fit together.
    """
    if _is_gguf(path):
        from anatomy.checkpoints.gguf_file import open_gguf

        return open_gguf(path)
    where = repr(str(path))
    if isfile(path):
        raise UserError(f"{where}: is a file; give the folder of a model (with its {CONFIG_FILE}), or a .gguf file")
    if not isdir(path):
        raise UserError(f"{where}: there is no such folder; give the folder of a model, or a .gguf file")
    if not lexists(path / CONFIG_FILE):
        raise UserError(f"{where}: holds no {CONFIG_FILE}, so no model; give the folder of one, or a .gguf file")
    if lexists(path / ADAPTER_FILE):
        raise UserError(f"{where}: holds an adapter ({ADAPTER_FILE}), which the model would lack; merge it first")
    config = read_json(plain_file(path / CONFIG_FILE))
    naming = HUGGING_FACE.get(str(config.get("model_type")), HUGGING_FACE["llama"])  # read_fields refuses other types
    file_format, tensors, files = _folder_tensors(path)
    if naming.base and not any(name.startswith(f"{naming.base}.") for name in tensors):
        naming = naming.without_base()
    return Source(path, file_format, files, config, naming, tensors)


def plain_file(file: Path) -> Path:
    """The file, if it is one. Raises UserError: a pipe would be waited for."""
    if not isfile(file):
        raise UserError(f"{str(file)!r}: {'is no plain file' if lexists(file) else 'there is no such file'}")
    return file


Tensors = Mapping[str, StoredTensor]


def _folder_tensors(folder: Path) -> tuple[Format, Tensors, tuple[str, ...]]:
    """The tensors of a folder, whichever way it holds them; safetensors first, as transformers takes them."""
    readers: Mapping[str, tuple[Format, Callable[[Path], Tensors]]] = {
        WEIGHTS_FILE: ("safetensors", safetensors_of),
        PICKLE_FILE: ("pytorch", _pickled),
    }
    for name, (file_format, read) in readers.items():
        if lexists(folder / name):
            return file_format, read(folder / name), (name,)
        if lexists(index := folder / f"{name}{INDEX_SUFFIX}"):
            tensors, shards = _sharded(index, read)
            return file_format, tensors, shards
    raise UserError(
        f"{str(folder)!r}: holds no weights; they are read from {WEIGHTS_FILE}, {PICKLE_FILE}, or their shards"
    )


def _sharded(index: Path, read: Callable[[Path], Tensors]) -> tuple[Tensors, tuple[str, ...]]:
    """The tensors of all shards of an index, which must say of each where it is, and say it right."""
    where, home_of = repr(str(index)), read_json(plain_file(index)).get("weight_map")
    if not isinstance(home_of, dict) or not home_of or not all(isinstance(home, str) for home in home_of.values()):
        raise UserError(f"{where}: has no weight_map from the names of tensors to those of files")
    shards = tuple(sorted(set(home_of.values())))
    if paths := [shard for shard in shards if not is_plain_name(shard)]:
        raise UserError(f"{where}: '{one_line(paths[0], 60)}' is no plain name of a file beside it")
    if absent := [shard for shard in shards if not lexists(index.parent / shard)]:
        raise UserError(f"{where}: its shards are not all there: {first_of(absent)}")
    tensors: dict[str, StoredTensor] = {}
    for shard in shards:
        for name, tensor in read(index.parent / shard).items():
            shown = one_line(name, 60)
            if name in tensors:
                raise UserError(f"{where}: '{shown}' is in two shards, '{shard}' and another")
            if home_of.get(name) != shard:
                raise UserError(f"{where}: '{shown}' is in '{shard}', of which the index knows nothing")
            tensors[name] = tensor
    if lacking := [f"'{home_of[name]}' lacks '{one_line(name, 60)}'" for name in home_of if name not in tensors]:
        raise UserError(f"{where}: {first_of(lacking)}")
    return tensors, shards


# ------------------------------------------------------------------------------------------------ kinds of files


def safetensors_of(file: Path) -> Tensors:
    """The tensors of a safetensors file. Raises UserError for a file that is absent, damaged or none."""
    where = repr(str(plain_file(file)))
    try:
        opened: Any = safetensors.safe_open(file, framework="pt")
        names = opened.keys()
        headers = {name: opened.get_slice(name) for name in names}
        return {
            name: StoredTensor(tuple(header.get_shape()), header.get_dtype(), partial(_from_safetensors, file, name))
            for name, header in headers.items()
        }
    except OSError as error:
        raise UserError(f"{where}: cannot be read ({one_line(error.strerror or str(error))})") from None
    except safetensors.SafetensorError as error:
        raise UserError(f"{where}: no safetensors file, or a damaged one ({one_line(str(error))})") from None


def _from_safetensors(file: Path, name: str) -> Tensor:
    """A view of one tensor. The file is mapped anew: what was read of a map stays in memory as long as the map."""
    with safetensors.safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


STORAGES = ("Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte", "Bool")
TENSOR_GLOBALS = frozenset(
    (
        "collections OrderedDict",
        "torch._utils _rebuild_tensor_v2",
        "torch._utils _rebuild_parameter",
        *(f"torch {kind}Storage" for kind in STORAGES),
    )
)
"""All that a pickle of tensors names. The weights-only reader knows more, with which a file could take much memory."""
HIDDEN_GLOBALS = ("STACK_GLOBAL", "INST", "EXT1", "EXT2", "EXT4")  # other ways to name things, which torch never takes


def _pickled(file: Path) -> Tensors:
    """The tensors of a file written by torch.save: a dict of tensors and nothing else, by its weights-only reader."""
    where = repr(str(plain_file(file)))
    _check_archive(file, where)
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:  # what a damaged or hostile pickle raises has no end
        reason = one_line(str(error).partition("\n")[0], 200)
        raise UserError(f"{where}: no file of tensors written by torch.save, or a damaged one ({reason})") from None
    if not isinstance(content, dict):
        raise UserError(f"{where}: holds no dict of tensors by name")
    tensors = {}
    for name, tensor in content.items():
        shown = one_line(str(name) if isinstance(name, str) else type(name).__name__, 60)
        if not isinstance(name, str) or not isinstance(tensor, Tensor):
            raise UserError(f"{where}: '{shown}' is no tensor with a name; a file of tensors alone can be read")
        if tensor.numel() * tensor.itemsize > tensor.untyped_storage().nbytes():
            raise UserError(f"{where}: '{shown}' is larger than what the file holds of it")
        dtype = DTYPES.get(tensor.dtype, str(tensor.dtype).removeprefix("torch."))
        tensors[name] = StoredTensor(tuple(tensor.shape), dtype, partial(itself, tensor.detach()))
    return tensors


def _check_archive(file: Path, where: str) -> None:
    """Refuse a PyTorch file that could grow when it is unpacked (torch.save compresses nothing), or whose pickle names
    anything but what tensors are made of. It is read as a list of codes here, which does nothing.

    Raises: UserError.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            pickles = [member for member in members if member.filename.endswith("data.pkl")]
            are_stored = all(member.compress_type == zipfile.ZIP_STORED for member in members)
            if not are_stored or sum(member.file_size for member in pickles) > MAX_PICKLE_BYTES:
                raise ValueError("its members are compressed, or too large")
            codes = [code for member in pickles for code in pickletools.genops(archive.read(member))]
    except (OSError, zipfile.BadZipFile, NotImplementedError, ValueError) as error:
        hint = "a file in the old format is opened with torch.load and written again with torch.save"
        raise UserError(f"{where}: no archive as torch.save writes it ({one_line(str(error), 100)}); {hint}") from None
    named = [str(argument) for code, argument, _ in codes if code.name == "GLOBAL"]
    named += [code.name for code, *_ in codes if code.name in HIDDEN_GLOBALS]
    if others := [name for name in named if name not in TENSOR_GLOBALS]:
        shown = one_line(others[0].replace(" ", "."), 60)
        raise UserError(f"{where}: holds something else than tensors ({shown}), which could run code; nothing was run")
