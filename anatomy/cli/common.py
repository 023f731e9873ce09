"""What all command lines share: exit codes, one-line errors, a console that is never cut when piped."""

import errno
import io
import os
import re
import sys
import unicodedata
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import click
from rich.console import Console

from anatomy.errors import UserError, one_line

DONE, FAILED, WRONG_INPUT, INTERRUPTED = 0, 1, 2, 130


def console(*, stderr: bool = False) -> Console:
    """A console that prints text as it is: no markup, no emoji codes; as wide as its content when piped."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else 10_000
    plain = bool(os.environ.get("NO_COLOR"))  # rich drops colours for it, but keeps bold under FORCE_COLOR
    return Console(
        stderr=stderr,
        width=width,
        markup=False,
        emoji=False,
        highlight=False,
        color_system=None if plain else "auto",
        force_terminal=stream.isatty() if plain else None,
    )


def steady_output() -> None:
    """Where the output's encoding lacks a character (an ASCII terminal), print its escape instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def refuse(error: UserError) -> NoReturn:
    """Print a user's mistake on standard error and exit with 2."""
    print(error, file=sys.stderr)
    sys.exit(WRONG_INPUT)


def run_click(command: click.Command) -> NoReturn:
    """Run a click command: a UserError becomes its message and exit 2, an interrupt exit 130."""
    steady_output()
    try:
        sys.exit(command.main(standalone_mode=False) or DONE)
    except click.UsageError as error:
        refuse(UserError(f"{error.ctx.command_path if error.ctx else 'anatomy'}: {error.format_message()}"))
    except UserError as error:
        refuse(error)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(INTERRUPTED)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left in its buffer has no room either
        print(f"cannot write: {error.strerror}", file=sys.stderr)
        sys.exit(FAILED)


@contextmanager
def naming_options() -> Iterator[None]:
    """Let a UserError that names settings as Python has them, `top_p=2: ...`, name options, `--top-p 2: ...`."""
    try:
        yield
    except UserError as error:
        raise UserError(re.sub(r"^(\w+)=", _as_option, str(error), flags=re.MULTILINE)) from None


def _as_option(setting: re.Match[str]) -> str:
    return f"--{setting[1].replace('_', '-')} "


def note_status(folder: Path, status: str | None) -> None:
    """Say on standard error that a run is not done, where it is not: what it has are weights from on the way."""
    if status not in ("done", None):
        click.echo(f"note: {str(folder)!r}: the run is not done, its status is {status}", err=True)


def note_trap(folder: Path, record: Mapping[str, Any]) -> None:
    """Say on standard error that a model was loaded wrongly on purpose, where its record says so."""
    if "trap" in record:
        told = one_line(str(record["trap"]), 60)
        click.echo(f"note: {str(folder)!r}: loaded wrongly on purpose, by the trap {told}", err=True)


def printable(text: str) -> str:
    """The text with control characters escaped, line ends and tabs excepted: shown, it cannot act on a terminal.

    Spaces of any width and the joiners inside emoji and scripts are no control characters.
    """
    return "".join(char if _is_harmless(char) else repr(char)[1:-1] for char in text)


def _is_harmless(char: str) -> bool:
    return char.isprintable() or char in "\n\t\u200c\u200d" or unicodedata.category(char) == "Zs"
