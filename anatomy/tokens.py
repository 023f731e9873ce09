"""Text to ids and back: the one interface that characters and words keep, and words themselves.

A run of ours knows characters (`corpus.Vocabulary`); an imported model brings a tokenizer, whose tokens are words,
parts of words, and bytes (`Tokens`). Whoever samples or evaluates asks for a `Codec` and need not know which it is.
"""

import json
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from anatomy.corpus import no_character, unknown_characters
from anatomy.errors import UserError, one_line

if TYPE_CHECKING:
    from tokenizers import Encoding, Tokenizer

HALF = "\ufffd"  # what a decoder writes for bytes that are no character, or not yet one
MAX_CHAR_BYTES = 4  # of a character in UTF-8, each of which may be a token


class Speller(Protocol):
    """Turns ids that come one by one into text."""

    def add(self, new_id: int) -> str:
        """The text that the next id completes: several characters, or none as long as one of them may become whole."""
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

    def behind_first(self, text: str) -> str:
        """What of a text all its ids but the first stand for, in the characters of the text itself."""
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

    A text is read whole, whatever length the tokenizer was saved to cut texts at. What its normaliser or pre-tokenizer
    changes or takes away by design, such as capitals, accents or the blanks between words, it may; but a character that
    its model drops, or has only the unknown token for, is an unknown character.

    Special tokens are tokens like others: they are written as they are spelled, and no text ends at one by itself.
    """

    unit: ClassVar[str] = "token"

    def __init__(self, tokenizer: "Tokenizer", num_ids: int, start_id: int | None = None) -> None:
        self.tokenizer, self.num_ids, self._start_id = tokenizer, num_ids, start_id
        tokenizer.no_truncation()
        tokenizer.no_padding()

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
            encoding = self._unmarked(text)
            ids = np.array(self._marked(encoding).ids, dtype=np.int32)
        except UnicodeEncodeError as error:
            raise no_character(ord(text[error.start]), error.start) from None
        except Exception as error:  # the library's own have no common kind
            if unknown := self.unknown(text):
                raise unknown_characters(text, unknown, len(self)) from None
            raise UserError(f"the tokenizer cannot read the text ({one_line(str(error))})") from None
        if unknown := self._unknown_in(text, encoding):
            raise unknown_characters(text, unknown, len(self))
        if (beyond := ids[ids >= len(self)]).size:
            token = self.tokenizer.id_to_token(int(beyond[0]))
            raise UserError(
                f"the tokenizer knows more tokens than the model, which has {len(self):,}: {one_line(repr(token), 60)} "
                f"in the text is number {beyond[0]:,}"
            )
        return ids

    def unknown(self, text: str) -> list[str]:
        try:
            encoding = self._unmarked(text)
        except Exception:  # whatever the fault, it lies with some of the characters
            return [text] if len(text) == 1 else [char for char in dict.fromkeys(text) if self.unknown(char)]
        return self._unknown_in(text, encoding)

    def behind_first(self, text: str) -> str:
        """The whole text where the first id is a mark of its beginning, for such marks stand for no character.

        A character that several tokens share counts for the last of them. One that no token spans, for the normaliser
        or pre-tokenizer took it away, counts for the token before it.
        """
        encoding = self._unmarked(text)
        if any(self._marked(encoding).special_tokens_mask[:1]):
            return text
        return text[encoding.offsets[1][0] :] if len(encoding) > 1 else ""

    def _unmarked(self, text: str) -> "Encoding":
        """A text as tokens, with the stretch of the text that each stands for.

        The post-processor comes later: besides adding marks, some take the blanks off the stretches.
        """
        text.encode("utf-8")  # the library has no exception of its own for what cannot be
        marks, self.tokenizer.post_processor = self.tokenizer.post_processor, None
        try:
            return self.tokenizer.encode(text)
        finally:
            self.tokenizer.post_processor = marks

    def _marked(self, encoding: "Encoding") -> "Encoding":
        marks = self.tokenizer.post_processor
        return encoding if marks is None else marks.process(encoding)

    def _unknown_in(self, text: str, encoding: "Encoding") -> list[str]:
        spans, ids = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2), np.array(encoding.ids, dtype=np.int64)
        is_unread = ids == self._unknown_id
        for place in np.flatnonzero(is_unread).tolist():  # the text itself may spell the unknown token
            start, stop = spans[place]
            is_unread[place] = text[start:stop].strip() != self.tokenizer.id_to_token(self._unknown_id)
        is_unknown = _covered(spans[is_unread], len(text))
        unknown = [text[at] for at in np.flatnonzero(is_unknown)]
        if self._may_drop:
            is_whole = np.isin(ids, list(self.tokenizer.get_added_tokens_decoder()))  # such never reach the model
            cuts = [0, *spans[is_whole].ravel().tolist(), len(text)]
            unknown += self._dropped([text[start:stop] for start, stop in zip(cuts[::2], cuts[1::2], strict=True)])
        return list(dict.fromkeys(unknown))

    @cached_property
    def _unknown_id(self) -> int:
        """The id for whatever has no other; -1 where there is none."""
        model = self.tokenizer.model
        if hasattr(model, "unk_token"):
            found = None if model.unk_token is None else self.tokenizer.token_to_id(model.unk_token)
        else:  # the library tells it of Unigram only in writing
            found = json.loads(self.tokenizer.to_str())["model"].get("unk_id")
        return -1 if found is None else found

    @property
    def _may_drop(self) -> bool:
        """The library's BPE passes over what it has neither a token nor an unknown token for; its others never do."""
        return type(self.tokenizer.model).__name__ == "BPE" and self._unknown_id < 0

    def _dropped(self, stretches: Sequence[str]) -> list[str]:
        """The characters of stretches of text that the model passes over as the normaliser writes them."""
        written = dict.fromkeys("".join(map(self._normalised, stretches)))
        lost = [char for char in written if self._is_dropped(char)]
        if not lost:
            return []
        chars = dict.fromkeys("".join(stretches))
        found = [char for char in chars if any(each in (char, *self._normalised(char)) for each in lost)]
        # The normaliser made one of several: those of which nothing is left, or who knows which.
        return found or [char for char in chars if char not in written] or list(chars)

    def _normalised(self, text: str) -> str:
        normalizer = self.tokenizer.normalizer
        return text if normalizer is None else normalizer.normalize_str(text)

    def _is_dropped(self, char: str) -> bool:
        cutter, model = self.tokenizer.pre_tokenizer, self.tokenizer.model
        pieces = [char] if cutter is None else [piece for piece, _ in cutter.pre_tokenize_str(char)]
        return sum(len(token.value) for piece in pieces for token in model.tokenize(piece)) < sum(map(len, pieces))

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        index = np.asarray(ids, dtype=np.int64)
        if index.size and not (index.min() >= 0 and index.max() < len(self)):
            raise ValueError(f"ids must lie between 0 and {len(self) - 1}, not {index.min()} to {index.max()}")
        return self._text(index.tolist())

    def _text(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)

    def speller(self, before: Sequence[int]) -> "TokenSpeller":
        return TokenSpeller(self._text, before)


def _covered(spans: NDArray[np.int64], length: int) -> NDArray[np.bool_]:
    """Which of `length` places lie in one of the spans (N, 2)."""
    changes = np.bincount(spans[:, 0], minlength=length + 1) - np.bincount(spans[:, 1], minlength=length + 1)
    return np.cumsum(changes)[:length] > 0


class TokenSpeller:
    """Text out of tokens that come one by one. As long as it ends in half a character, it waits for the other half,
    but for no more tokens than a character can have.

    A token's text depends on what stands before it: at a beginning some decoders drop a blank, and bytes make a
    character together. So what was written last is decoded again with what is new.
    """

    def __init__(self, text_of: Callable[[list[int]], str], before: Sequence[int]) -> None:
        self._text_of = text_of
        self._last, self._new = list(before), list[int]()
        self._num_written = len(text_of(self._last))  # characters, of the text of the last tokens

    def add(self, new_id: int) -> str:
        self._new.append(new_id)
        text = self._text_of(self._last + self._new)
        if text.endswith(HALF) and len(self._new) < MAX_CHAR_BYTES:
            return ""
        again = self._text_of(self._new)
        num_open = int(text.endswith(HALF) and again.endswith(HALF))  # whatever stands before is for good
        written = text[self._num_written : len(text) - num_open]
        self._last, self._new, self._num_written = self._new, [], len(again) - num_open
        return written

    def rest(self) -> str:
        return self._text_of(self._last + self._new)[self._num_written :]
