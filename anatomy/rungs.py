"""Reference points for a text: what n-gram tables and xz make of it, in nats per character.

A model's loss says little until one knows whether a table of trigrams would do as well. So every text gets its rungs:
tables of n = 1 to 6 characters, fitted on the training part and scored on the very windows, and with the very
knowledge, of the models; and xz on the test part.

Shapes:  W windows, T targets a window, V vocabulary.
"""

import io
import json
import logging
import lzma
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from filelock import FileLock
from numpy.typing import NDArray

from anatomy.corpus import Corpus, Segment
from anatomy.files import is_plain_name, read_array, write_atomic, write_json

MAX_N = 6
XZ_PRESET = 9 | lzma.PRESET_EXTREME
SCHEMA = 1
INDEX_FILE = "rungs.json"

log = logging.getLogger("anatomy")


class RungEntry(TypedDict):
    """The rungs of one text under one split and context length: an entry of `rungs.json`.

    losses names the file beside it: float32 (MAX_N, num_windows, ctx_len), each table's loss on each target.
    nats_per_char has the keys "1" to "6" (means of those losses) and "xz".
    """

    split: str
    val_fraction: float
    test_fraction: float
    ctx_len: int
    num_windows: int
    losses: str
    nats_per_char: dict[str, float]


@dataclass(frozen=True)
class _Table:
    """What was counted for one n. A context h, n - 1 characters, is known by its rank among those seen.

    pairs          the pairs hc that were seen, as rank of h * V + c, ascending; a pair's rank is its place
    count          how often each pair was seen
    context_count  by the rank of h: how often h was seen with a successor
    context_kinds  by the rank of h: how many distinct successors it had
    """

    pairs: NDArray[np.int64]
    count: NDArray[np.int64]
    context_count: NDArray[np.float64]
    context_kinds: NDArray[np.int64]


class NgramTables:
    """Interpolated Witten-Bell tables of n = 1 to 6 characters, fitted on stretches of a text.

    P_n(c | h) = (count(hc) + T(h) P_{n-1}(c | h')) / (count(h) + T(h)),   P_0 = 1 / V

    h is the n-1 characters before c, h' the same without its first; count(h) is how often h was seen with a successor,
    T(h) how many distinct ones it had. Where h was never seen, P_n = P_{n-1}.

    Shapes:   ids (num_chars,).
    Numerics: float64.
    Knobs:    segments, the stretches of ids to fit on; no n-gram crosses their borders.
    Source:   Witten & Bell 1991, doi:10.1109/18.87000 (method C); interpolated form as in Chen & Goodman 1998.
    """

    def __init__(self, ids: NDArray[np.int32], segments: tuple[Segment, ...], vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self._tables: list[_Table] = []
        fitted = np.concatenate([ids[start:stop] for start, stop in segments])
        # How many characters a position has before it inside its segment, as far as it matters.
        num_before = np.concatenate(
            [np.minimum(np.arange(stop - start), MAX_N).astype(np.int8) for start, stop in segments]
        )
        # V ** 6 is beyond int64 for a large vocabulary. So a context is known by its rank among those seen, found order
        # by order: hc has its place among the sorted pairs (rank of h, c). The empty context is the only one of its
        # length.
        context = np.zeros(fitted.shape, dtype=np.int64)
        num_contexts = 1
        for n in range(1, MAX_N + 1):
            whole = num_before >= n - 1
            pairs, rank, count = np.unique(
                context[whole] * vocab_size + fitted[whole], return_inverse=True, return_counts=True
            )
            context_of_pair = pairs // vocab_size
            context_count = np.bincount(context_of_pair, count, num_contexts).astype(np.float64, copy=False)
            context_kinds = np.bincount(context_of_pair, minlength=num_contexts)
            self._tables.append(_Table(pairs, count, context_count, context_kinds))
            # A pair found here is the next order's context, one position on.
            context[1:][whole[:-1]] = rank[: np.count_nonzero(whole[:-1])]
            num_contexts = max(1, len(pairs))  # rank 0 can be looked up even where no segment is n long

    def losses_nats(self, scored_WT: NDArray[np.int32]) -> NDArray[np.float64]:
        """What each table loses on each character of W windows but their first.

        As for a model, a target sees only its own window: the one at position t has t + 1 characters before it, and a
        table that asks for more falls back.

        Shapes:   scored_WT (W, T + 1), ids -> nats (MAX_N, W, T), table n at index n - 1.
        """
        num_windows, num_chars = scored_WT.shape
        context_WT = np.zeros(scored_WT.shape, dtype=np.int64)
        known_WT = np.ones(scored_WT.shape, dtype=bool)  # the context lies inside the window and has a rank
        probability_WT = np.full(scored_WT.shape, 1 / self.vocab_size)
        losses = np.empty((MAX_N, num_windows, num_chars - 1))
        for n, table in enumerate(self._tables, start=1):
            pair_WT = context_WT * self.vocab_size + scored_WT
            rank_WT = np.searchsorted(table.pairs, pair_WT)
            seen_WT = known_WT & (np.append(table.pairs, -1)[rank_WT] == pair_WT)
            # A context may be known and yet without a successor: at the end of a segment.
            backed_WT = known_WT & (table.context_kinds[context_WT] > 0)
            pair_count = np.where(seen_WT, np.append(table.count, 0)[rank_WT], 0)[backed_WT]
            kinds = table.context_kinds[context_WT][backed_WT]
            total = table.context_count[context_WT][backed_WT] + kinds
            probability_WT[backed_WT] = (pair_count + kinds * probability_WT[backed_WT]) / total
            losses[n - 1] = -np.log(probability_WT[:, 1:]) + 0.0  # + 0.0 turns the -0.0 of a certain target into 0.0

            context_WT[:, 1:] = np.where(seen_WT, rank_WT, 0)[:, :-1]
            known_WT[:, 1:] = seen_WT[:, :-1]
            known_WT[:, 0] = False
        return losses


def ngram_losses(
    ids: NDArray[np.int32], segments: tuple[Segment, ...], starts: NDArray[np.int64], length: int, vocab_size: int
) -> NDArray[np.float64]:
    """Fit tables on some stretches of a text and score windows of it: (MAX_N, W, length), see `NgramTables`."""
    return NgramTables(ids, segments, vocab_size).losses_nats(ids[starts[:, None] + np.arange(length + 1)])


def xz_nats_per_char(text: str) -> float:
    """What xz, at its strongest preset and knowing nothing beforehand, needs for a text, header and all."""
    return len(lzma.compress(text.encode("utf-8"), preset=XZ_PRESET)) * 8 * math.log(2) / len(text)


def ensure_rungs(
    corpus: Corpus, *, outputs: Path, val_fraction: float, test_fraction: float, ctx_len: int, num_windows_limit: int
) -> dict[str, float]:
    """Return the rungs of a corpus in nats per character, keys "1" to "6" and "xz"; compute and keep them if missing.

    They are kept by text, split and context length under outputs/corpora/<sha256>/. Several processes may ask at once:
    one computes, the others wait. An index or a file of losses that is damaged is computed again, and the log says so.

    Raises: UserError if the test part holds no whole window.
    """
    starts = corpus.windows("test", ctx_len, num_windows_limit)
    entry: RungEntry = {
        "split": corpus.split,
        "val_fraction": val_fraction,
        "test_fraction": test_fraction,
        "ctx_len": ctx_len,
        "num_windows": len(starts),
        "losses": "",
        "nats_per_char": {},
    }
    folder = _folder(outputs, corpus.sha256)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / ".rungs.lock"):
        entries = read_rungs(outputs, corpus.sha256)
        kept = next((index for index, other in enumerate(entries) if _same_question(other, entry)), len(entries))
        if kept < len(entries):
            if read_rung_losses(outputs, corpus.sha256, entries[kept]) is not None:
                return entries[kept]["nats_per_char"]
            log.warning("%s: absent or damaged, computed again", folder / entries[kept]["losses"])
        start_s = time.perf_counter()
        losses = ngram_losses(corpus.ids, corpus.train, starts, ctx_len, len(corpus.vocabulary))
        entry["nats_per_char"] = {str(n): float(losses[n - 1].mean()) for n in range(1, MAX_N + 1)}
        entry["nats_per_char"]["xz"] = xz_nats_per_char(corpus.text("test"))
        entry["losses"] = "rung_losses.npy" if kept == 0 else f"rung_losses-{kept + 1}.npy"
        buffer = io.BytesIO()
        np.save(buffer, losses.astype(np.float32))
        # The losses first: an index never names a file that is not there yet.
        write_atomic(folder / entry["losses"], buffer.getvalue())
        index = {"schema": SCHEMA, "corpus": corpus.name, "sha256": corpus.sha256}
        write_json(folder / INDEX_FILE, {**index, "entries": [*entries[:kept], entry, *entries[kept + 1 :]]})
        log.info("rungs of %s at context %d in %.1f s", corpus.name, ctx_len, time.perf_counter() - start_s)
    return entry["nats_per_char"]


def read_rungs(outputs: Path, sha256: str) -> list[RungEntry]:
    """Read which rungs are kept for a text. None yet, or a damaged index (the log says so), is an empty list."""
    file = _folder(outputs, sha256) / INDEX_FILE
    try:
        index = json.loads(file.read_text(encoding="utf-8"))
        entries: list[RungEntry] = index["entries"]
        if index["schema"] != SCHEMA or not all(_is_entry(entry) for entry in entries):
            raise ValueError("not what this version writes")
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        log.warning("%s: damaged, its rungs do not count (%s)", file, error)
        return []
    return entries


def read_rung_losses(outputs: Path, sha256: str, entry: RungEntry) -> NDArray[np.float32] | None:
    """Each table's loss on each test target, (MAX_N, num_windows, ctx_len); None where there is no sound file."""
    losses = read_array(_folder(outputs, sha256) / entry["losses"])
    return losses if losses is not None and losses.shape == (MAX_N, entry["num_windows"], entry["ctx_len"]) else None


def _folder(outputs: Path, sha256: str) -> Path:
    return outputs / "corpora" / sha256


def _same_question(left: RungEntry, right: RungEntry) -> bool:
    answers = ("losses", "nats_per_char")
    return {**left, **dict.fromkeys(answers)} == {**right, **dict.fromkeys(answers)}


def _is_entry(entry: Any) -> bool:
    nats = entry["nats_per_char"]
    return (
        set(entry) == set(RungEntry.__annotations__)
        and isinstance(entry["losses"], str)
        and is_plain_name(entry["losses"])
        and set(nats) == {*map(str, range(1, MAX_N + 1)), "xz"}
        and all(isinstance(value, float) and math.isfinite(value) for value in nats.values())
    )
