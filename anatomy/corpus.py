"""A text made ready for models: vocabulary, split, windows to evaluate on, and the order of the training batches.

What keeps runs comparable lives here: the split is a rule on positions, so a text's hash and the split's settings fix
every part; evaluation windows follow from the split; and training batches come from a generator that nothing else
advances, their order recorded as one hash.

Shapes:  B windows, T their length.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from anatomy.errors import UserError
from anatomy.files import write_json
from anatomy.texts import load_text

Part = Literal["train", "val", "test"]
Segment = tuple[int, int]
"""A stretch of text: its first position, and the first one after it."""

BLOCK_CHARS = 4096
CYCLE = 10
"""Blocks are dealt in rounds of ten: the ninth to validation, the tenth to the test, the others to training."""
VAL_TURN, TEST_TURN = 8, 9
DEFAULT_FRACTION = 1 / CYCLE

NUM_CODE_POINTS = 0x110000
CHUNK_CHARS = 1 << 20
"""Texts are encoded piece by piece, so that 100 MB of text need no gigabyte beside them."""
MAX_NAMED = 9
"""So many unknown characters an error names: a text in another script may hold thousands."""


@dataclass(frozen=True)
class Vocabulary:
    """The characters a model knows; a character's index is its id. It keeps the interface of tokens.Codec.

    A character is a Unicode code point, taken as it is (no normalisation), and they are sorted by code point, so that
    the same text gives the same ids in every process.

    Raises: ValueError if `chars` is not sorted or names a character twice.
    """

    chars: str
    unit: ClassVar[str] = "character"

    def __post_init__(self) -> None:
        if not all(left < right for left, right in pairwise(self.chars)):
            raise ValueError("a vocabulary's characters must be distinct and sorted by code point")

    @classmethod
    def of(cls, text: str) -> "Vocabulary":
        """Collect the distinct characters of a text."""
        seen = np.zeros(NUM_CODE_POINTS, dtype=bool)
        for start in range(0, len(text), CHUNK_CHARS):
            seen[_code_points(text, start)] = True
        return cls("".join(map(chr, np.flatnonzero(seen))))

    def __len__(self) -> int:
        return len(self.chars)

    @cached_property
    def _codes(self) -> NDArray[np.uint32]:
        return _code_points(self.chars, 0, len(self.chars))

    @cached_property
    def _id_of_code(self) -> NDArray[np.int32]:
        # One entry a code point up to the largest known one, and a last entry that stands for all beyond.
        table = np.full(int(self._codes.max(initial=0)) + 2, -1, dtype=np.int32)
        table[self._codes] = np.arange(len(self), dtype=np.int32)
        return table

    def encode(self, text: str) -> NDArray[np.int32]:
        """Turn a text into ids, one a character. Raises UserError naming the first unknown characters and where."""
        ids = np.empty(len(text), dtype=np.int32)
        for start in range(0, len(text), CHUNK_CHARS):
            codes = _code_points(text, start)
            ids[start : start + len(codes)] = self._id_of_code[np.minimum(codes, len(self._id_of_code) - 1)]
        if (ids < 0).any():
            raise unknown_characters(text, self.unknown(text), len(self))
        return ids

    def unknown(self, text: str) -> list[str]:
        """The characters of a text that are not known, each once, in the order of the text."""
        return [char for char in dict.fromkeys(text) if char not in self.chars]

    def behind_first(self, text: str) -> str:
        """What of a text all its ids but the first stand for."""
        return text[1:]

    def decode(self, ids: Sequence[int] | NDArray[np.integer]) -> str:
        """Turn ids back into text. Raises ValueError for an id outside the vocabulary."""
        index = np.asarray(ids, dtype=np.int64)
        if index.size and not (index.min() >= 0 and index.max() < len(self)):
            raise ValueError(f"ids must lie between 0 and {len(self) - 1}, not {index.min()} to {index.max()}")
        return self._codes[index].astype("<u4").tobytes().decode("utf-32-le")

    @property
    def start_ids(self) -> list[int]:
        """What a model reads before a text that begins with nothing: a line end, or else the first character."""
        return [max(0, self.chars.find("\n"))]

    def speller(self, before: Sequence[int]) -> "CharSpeller":
        """What turns ids that come one by one into text."""
        return CharSpeller(self.chars)

    def save(self, path: Path) -> None:
        """Write the characters as JSON, atomically."""
        write_json(path, {"schema": 1, "chars": self.chars})

    @classmethod
    def load(cls, path: Path) -> "Vocabulary":
        """Read what `save` wrote. Raises UserError if the file is absent or damaged."""
        try:
            if path.exists() and not path.is_file():  # a pipe would wait for ever
                raise ValueError("not a file")
            chars = json.loads(path.read_text(encoding="utf-8"))["chars"]
            chars.encode("utf-8")
            return cls(chars)
        except OSError as error:
            raise UserError(f"{str(path)!r}: cannot read the vocabulary ({error.strerror})") from error
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            raise UserError(f"{str(path)!r}: no vocabulary, or a damaged one; take the file of a sound run") from None


@dataclass(frozen=True)
class CharSpeller:
    """Text out of ids that come one by one: a character each, whole at once."""

    chars: str

    def add(self, new_id: int) -> str:
        return self.chars[new_id]

    def rest(self) -> str:
        return ""


def unknown_characters(text: str, unknown: Sequence[str], num_known: int) -> UserError:
    """What refuses a text for the characters in it that a vocabulary lacks: the first of them, and where."""
    named = [f"{char!r} (U+{ord(char):04X}) at index {text.index(char)}" for char in unknown[:MAX_NAMED]]
    if len(unknown) > MAX_NAMED:
        named.append(f"and {len(unknown) - MAX_NAMED:,} more")
    return UserError(f"characters that the vocabulary of {num_known:,} lacks: {', '.join(named)}; leave them out")


def no_character(code: int, index: int) -> UserError:
    """What refuses a text with half of a surrogate pair in it, as which Python also keeps bytes that are not UTF-8."""
    return UserError(f"the text has U+{code:04X} at index {index}, half a character or a byte not UTF-8")


def _code_points(text: str, start: int, num_chars: int = CHUNK_CHARS) -> NDArray[np.uint32]:
    try:
        raw = text[start : start + num_chars].encode("utf-32-le")
    except UnicodeEncodeError as error:
        raise no_character(ord(error.object[error.start]), start + error.start) from None
    return np.frombuffer(raw, dtype="<u4").astype(np.uint32, copy=False)


@dataclass(frozen=True)
class Split:
    """Which stretches of a text serve for what. `rule` is the one in effect: `blocks` or `tail`."""

    rule: str
    train: tuple[Segment, ...]
    val: tuple[Segment, ...]
    test: tuple[Segment, ...]


def split_chars(num_chars: int, rule: str, val_fraction: float, test_fraction: float) -> Split:
    """Divide a text of `num_chars` characters into contiguous stretches for training, validation and test.

    blocks  the text is cut into blocks of 4,096 characters; of every ten, the ninth is validation and the tenth test;
            an odd block at the end trains. A text of fewer than ten whole blocks is split by `tail` instead.
    tail    the end of the text: floor(num_chars * (1 - val_fraction - test_fraction)) characters train, the last
            floor(num_chars * test_fraction) are the test, those between validation. Without a test, validation
            serves as test.

    The fractions are taken as the decimal numbers they are written as, so no floating-point error moves a border.

    Raises: UserError for an unknown rule, fractions out of range, or fractions that `blocks` would not heed.
    """
    if rule not in ("blocks", "tail"):
        raise UserError(f"corpus.split={rule!r}: no such split; it is blocks or tail")
    if not 0 < val_fraction < 1:
        raise UserError(f"corpus.val_fraction={val_fraction}: must lie between 0 and 1; type: corpus.val_fraction=0.1")
    if not 0 <= test_fraction < 1:
        raise UserError(
            f"corpus.test_fraction={test_fraction}: must be 0 (validation serves as test) or lie between 0 and 1"
        )
    val_share, test_share = Fraction(str(val_fraction)), Fraction(str(test_fraction))
    if val_share + test_share >= 1:
        raise UserError(
            f"corpus.val_fraction={val_fraction} corpus.test_fraction={test_fraction}: nothing is left to train on; "
            f"together they must stay below 1"
        )
    if rule == "blocks" and num_chars >= CYCLE * BLOCK_CHARS:
        if (val_fraction, test_fraction) != (DEFAULT_FRACTION, DEFAULT_FRACTION):
            raise UserError(
                f"corpus.split=blocks: validation and test get a tenth each, so corpus.val_fraction={val_fraction} "
                f"and corpus.test_fraction={test_fraction} would not be heeded; type: corpus.split=tail"
            )
        return _deal_blocks(num_chars)
    num_train = int(num_chars * (1 - val_share - test_share))
    test_start = num_chars - int(num_chars * test_share)
    val = ((num_train, test_start),)
    return Split("tail", ((0, num_train),), val, ((test_start, num_chars),) if test_share else val)


def _deal_blocks(num_chars: int) -> Split:
    dealt: dict[str, list[Segment]] = {"train": [], "val": [], "test": []}
    for index in range(-(-num_chars // BLOCK_CHARS)):
        start, stop = index * BLOCK_CHARS, (index + 1) * BLOCK_CHARS
        turn = index % CYCLE if stop <= num_chars else None
        segments = dealt["val" if turn == VAL_TURN else "test" if turn == TEST_TURN else "train"]
        if segments and segments[-1][1] == start:
            start, _ = segments.pop()
        segments.append((start, min(stop, num_chars)))
    return Split("blocks", tuple(dealt["train"]), tuple(dealt["val"]), tuple(dealt["test"]))


@dataclass(frozen=True, eq=False)
class Corpus:
    """A text as ids, split into parts.

    sha256      of the text in UTF-8
    vocabulary  over the whole text, so that no part holds an unknown character
    ids         int32 (num_chars,), the whole text
    split       the rule in effect, `blocks` or `tail`
    train, val, test  contiguous stretches of `ids`; adjacent blocks are merged
    test_is_val the test part is the validation part
    notes       short sentences on what was done to the text
    """

    name: str
    sha256: str
    vocabulary: Vocabulary
    ids: NDArray[np.int32]
    split: str
    train: tuple[Segment, ...]
    val: tuple[Segment, ...]
    test: tuple[Segment, ...]
    notes: tuple[str, ...] = ()

    @property
    def test_is_val(self) -> bool:
        return self.test == self.val

    @property
    def num_chars(self) -> int:
        return len(self.ids)

    @property
    def num_train_chars(self) -> int:
        return _num_chars(self.train)

    @property
    def num_val_chars(self) -> int:
        return _num_chars(self.val)

    @property
    def num_test_chars(self) -> int:
        return _num_chars(self.test)

    def segments(self, part: Part) -> tuple[Segment, ...]:
        return {"train": self.train, "val": self.val, "test": self.test}[part]

    def text(self, part: Part) -> str:
        """The characters of a part, its segments joined by nothing."""
        return "".join(self.vocabulary.decode(self.ids[start:stop]) for start, stop in self.segments(part))

    def windows(self, part: Part, length: int, limit: int | None = None) -> NDArray[np.int64]:
        """The starts of the windows on which a part is evaluated, int64 (B,), ascending.

        A window at s reads ids[s : s + length + 1]: `length` inputs and, one further on, `length` targets. Windows
        follow each other without overlap from the start of each segment and never cross its end, so every target counts
        at most once. Of more than `limit` windows, number floor(i * available / limit) is kept for each i below
        `limit`: evenly spread, the same in every run.

        Raises: UserError if no segment of the part holds a whole window.
        """
        if length < 1 or (limit is not None and limit < 1):
            raise UserError(f"windows of {length} targets, at most {limit}: both must be at least 1")
        starts = np.concatenate(
            [np.arange(start, stop - length, length, dtype=np.int64) for start, stop in self.segments(part)]
        )
        if not len(starts):
            raise _too_short(part, self.segments(part), length)
        if limit is not None and limit < len(starts):
            starts = starts[np.arange(limit) * len(starts) // limit]
        return starts

    def batch_at(self, starts: NDArray[np.int64], length: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Gather the windows at `starts` (B,). Returns inputs and targets, int64 (B, T) each, T = length."""
        return windows_at(self.ids, starts, length)


def windows_at(
    ids: NDArray[np.integer], starts: NDArray[np.int64], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The windows of a text that begin at `starts` (B,): inputs and targets, int64 (B, T) each, T = length."""
    index_BT = starts[:, None] + np.arange(length)
    return ids[index_BT].astype(np.int64), ids[index_BT + 1].astype(np.int64)


def load_corpus(
    name: str,
    *,
    path: str | None = None,
    split: str = "blocks",
    val_fraction: float = DEFAULT_FRACTION,
    test_fraction: float = DEFAULT_FRACTION,
) -> Corpus:
    """Load a text by name (see `anatomy.texts.load_text`), number its characters and split it (see `split_chars`)."""
    text = load_text(name, path)
    parts = split_chars(len(text.text), split, val_fraction, test_fraction)
    vocabulary = Vocabulary.of(text.text)
    ids = vocabulary.encode(text.text)
    notes = list(text.notes)
    if parts.rule != split:
        notes.append(f"fewer than ten blocks of {BLOCK_CHARS:,} characters: split=tail")
    if parts.test == parts.val:
        notes.append("no test part: validation serves as test")
    trained = np.zeros(len(vocabulary), dtype=bool)
    for start, stop in parts.train:
        trained[ids[start:stop]] = True
    if not trained.all():
        notes.append(f"{np.sum(~trained):,} of {len(vocabulary):,} characters never occur in the training part")
    return Corpus(name, text.sha256, vocabulary, ids, parts.rule, parts.train, parts.val, parts.test, tuple(notes))


class BatchOrder:
    """The training windows, micro-batch by micro-batch, and a hash of all drawn so far.

    Starts are uniform, with replacement, over every position of the training part from which `ctx_len` inputs and
    their targets fit into one segment. They come from a PCG64 generator of their own that (seed, salt) alone decide;
    no part, evaluation or dropout can advance it. The hash is a chain with one link a draw,
    h <- sha256(h + starts as little-endian int64), which begins empty and so can be kept in a checkpoint.

    Raises: UserError if no segment holds a whole window, or seed or salt is negative.
    """

    def __init__(self, segments: tuple[Segment, ...], ctx_len: int, *, seed: int, salt: int = 0) -> None:
        if seed < 0 or salt < 0:
            raise UserError(f"seed={seed} order_salt={salt}: both must be whole numbers from 0")
        room = np.array([max(0, stop - start - ctx_len) for start, stop in segments], dtype=np.int64)
        if not room.sum():
            raise _too_short("train", segments, ctx_len)
        self._first_rank = np.cumsum(room) - room
        self._first_start = np.array([start for start, _ in segments], dtype=np.int64)
        self._num_starts = int(room.sum())
        self._generator = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(salt,)))
        self._chain = b""

    def draw(self, num: int) -> NDArray[np.int64]:
        """Draw one micro-batch of `num` window starts, int64 (B,), and add it to the chain."""
        # The raw stream is what numpy keeps the same from version to version. The remainder favours small ranks by
        # less than num_starts / 2^64, which no sample will ever show.
        rank = (self._generator.random_raw(num) % np.uint64(self._num_starts)).astype(np.int64)
        segment = np.searchsorted(self._first_rank, rank, side="right") - 1
        starts = self._first_start[segment] + rank - self._first_rank[segment]
        self._chain = hashlib.sha256(self._chain + starts.astype("<i8").tobytes()).digest()
        return starts

    @property
    def sha256(self) -> str:
        """The chain's last link in hexadecimal; empty before the first draw."""
        return self._chain.hex()

    def state(self) -> dict[str, str]:
        """All that is needed to go on from here, in plain strings."""
        return {"generator": json.dumps(self._generator.state), "sha256": self.sha256}

    def restore(self, state: dict[str, str]) -> None:
        """Go on from where `state` was taken."""
        self._generator.state = json.loads(state["generator"])
        self._chain = bytes.fromhex(state["sha256"])


def _num_chars(segments: tuple[Segment, ...]) -> int:
    return sum(stop - start for start, stop in segments)


def _too_short(part: Part, segments: tuple[Segment, ...], length: int) -> UserError:
    longest = max(stop - start for start, stop in segments)
    fits = f"type: model.ctx_len={longest - 1} (the longest that fits), or take" if longest > 1 else "take"
    return UserError(
        f"the {part} part has {_num_chars(segments):,} characters, {longest:,} at a stretch: a context of {length} "
        f"needs {length + 1}; {fits} a longer text"
    )
