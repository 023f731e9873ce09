"""Text to ids and back: the one interface that characters and words keep, and words themselves.

A run of ours knows characters (`corpus.Vocabulary`); an imported model brings a tokenizer, whose tokens are words,
parts of words, and bytes (`Tokens`). Whoever samples or evaluates asks for a `Codec` and need not know which it is.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from anatomy.corpus import no_character, unknown_characters
from anatomy.errors import UserError, one_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer

HALF = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one


class Speller(Protocol):
    """Turns ids that come one by one into text."""

    def add(self, new_id: int) -> str:
        """The text that the next id completes: several characters, or none as long as one of them is not whole."""
        ...

    def rest(self) -> str:
        """At the end: what was held back, as it stands."""
        ...


class Codec(Protocol):
    """Text to ids and back.

    unit       what an id stands for
    start_ids  what a model reads before a text that begins with nothing
    len()      how many ids there are
    """

    unit: ClassVar[str]

    def __len__(self) -> int: ...

    @property
    def start_ids(self) -> list[int]: ...

    def encode(self, text: str) -> NDArray[np.int32]:
        """Turn a text into ids. Raises UserError naming the first unknown characters and where."""
        ...

    def unknown(self, text: str) -> list[str]:
        """The characters of a text that no id stands for, each once, in the order of the text."""
        ...

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Turn ids back into text. Raises ValueError for an id outside the vocabulary."""
        ...

    def speller(self, before: Sequence[int]) -> Speller:
        """What turns the ids that come behind others into text, one by one."""
        ...


class Tokens:
    """The tokens of a model that came with a tokenizer.

    tokenizer  what it marks a text with, such as a token for its beginning, its own post-processor decides
    num_ids    the rows of the model's vocabulary; some may stand for no token, and are written as nothing
    start_id   what the model reads before an empty prompt, where the tokenizer marks no beginning

    Special tokens are tokens like others: they are written as they are spelled, and no text ends at one by itself.
    """

    unit: ClassVar[str] = "token"

    def __init__(self, tokenizer: "Tokenizer", num_ids: int, start_id: int | None = None) -> None:
        self.tokenizer, self.num_ids, self._start_id = tokenizer, num_ids, start_id

    def __len__(self) -> int:
        return self.num_ids

    @property
    def start_ids(self) -> list[int]:
        """The model's own token for it; without one a line end, or else the first token."""
        if self._start_id is not None:
            return [self._start_id]
        return [0] if self.unknown("\n") else (self.encode("\n")[-1:].tolist() or [0])

    def encode(self, text: str) -> NDArray[np.int32]:
        try:
            ids = np.array(self._ids(text), dtype=np.int32)
        except UnicodeEncodeError as error:
            raise no_character(ord(text[error.start]), error.start) from None
        except Exception as error:  # the library's own have no common kind
            if unknown := self.unknown(text):
                raise unknown_characters(text, unknown, len(self)) from None
            raise UserError(f"the tokenizer cannot read the text ({one_line(str(error))})") from None
        if (beyond := ids[ids >= len(self)]).size:
            token = self.tokenizer.id_to_token(int(beyond[0]))
            raise UserError(
                f"the tokenizer knows more tokens than the model, which has {len(self):,}: {one_line(repr(token), 60)} "
                f"in the text is number {beyond[0]:,}"
            )
        return ids

    def unknown(self, text: str) -> list[str]:
        return [char for char in dict.fromkeys(text) if not self._is_known(char)]

    def _is_known(self, char: str) -> bool:
        try:
            self._ids(char)
        except Exception:
            return False
        return True

    def _ids(self, text: str) -> list[int]:
        text.encode("utf-8")  # the library has no exception of its own for what cannot be
        return self.tokenizer.encode_batch_fast([text])[0].ids

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        index = np.asarray(ids, dtype=np.int64)
        if index.size and not (index.min() >= 0 and index.max() < len(self)):
            raise ValueError(f"ids must lie between 0 and {len(self) - 1}, not {index.min()} to {index.max()}")
        return self._text(index.tolist())

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def speller(self, before: Sequence[int]) -> "TokenSpeller":
        return TokenSpeller(self._text, before)


class TokenSpeller:
    """Text out of tokens that come one by one. As long as it ends in half a character, it waits for the other half.

    A token's text depends on what stands before it: at a beginning some decoders drop a blank, and bytes make a
    character together. So what was written last is decoded again with what is new.
    """

    def __init__(self, text_of: Callable[[list[int]], str], before: Sequence[int]) -> None:
        self._text_of = text_of
        self._written, self._new = list(before), list[int]()
        self._num_written = len(text_of(self._written))

    def add(self, new_id: int) -> str:
        self._new.append(new_id)
        text = self._text_of(self._written + self._new)
        if text.endswith(HALF):
            return ""
        new, self._written, self._new = text[self._num_written :], self._new, []
        self._num_written = len(self._text_of(self._written))
        return new

    def rest(self) -> str:
        return self._text_of(self._written + self._new)[self._num_written :] if self._new else ""
