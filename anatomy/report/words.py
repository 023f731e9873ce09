"""Text made fit to be shown: what others wrote, and numbers with a sign."""

import re
import unicodedata

MINUS = "−"


def with_minus(text: str) -> str:
    """The text with a minus where a hyphen stands for a number's sign."""
    return re.sub(r"(?<![\w.])-(?=\d)", MINUS, text)


def visible(text: str) -> str:
    """The text as one line that acts on nothing: control characters, line ends, marks of writing direction and halves
    of characters as escapes. What joins characters stays, so 👩‍👩‍👧 remains one picture."""
    if text.isprintable():
        return text
    return "".join(char.encode("unicode_escape").decode() if _acts(char) else char for char in text)


def _acts(char: str) -> bool:
    kind = "" if char.isprintable() else unicodedata.category(char)
    turns = kind == "Cf" and unicodedata.bidirectional(char) != "BN"  # boundary neutral: joiners, which turn nothing
    return turns or kind in ("Cc", "Cs", "Zl", "Zp")
