"""The one exception that stands for a user's mistake, and how words of others get into its message."""

from collections.abc import Sequence

MAX_CHARS = 300
MAX_NAMED = 4


class UserError(Exception):
    """The input was wrong. Each line of the message says where, what, what is allowed, what to type.

    Every command prints it without a traceback and exits with status 2.
    """


def one_line(text: str, max_chars: int = MAX_CHARS) -> str:
    """What somebody's file says, fit for a message: control characters escaped, so that they act on no terminal, and
    cut where it is long."""
    shown = "".join(char if char.isprintable() else repr(char)[1:-1] for char in text[: max_chars + 1])
    return shown if len(shown) <= max_chars else f"{shown[: max_chars - 1]}…"


def first_of(things: Sequence[str], most: int = MAX_NAMED) -> str:
    """The first few, and how many more there are."""
    more = len(things) - most
    return ", ".join(things[:most]) + (f" and {more:,} more" if more > 0 else "")
