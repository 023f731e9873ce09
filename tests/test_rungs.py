"""The n-gram rungs against a slow and obvious implementation."""

import json
import math
import subprocess
import sys
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.corpus import Corpus, Vocabulary, load_corpus, split_chars
from anatomy.errors import UserError
from anatomy.rungs import MAX_N, ensure_rungs, ngram_losses, read_rungs, xz_nats_per_char


def slow_probability(counts: dict, history: tuple[int, ...], char: int, vocab_size: int) -> float:
    """Witten-Bell by recursion: the longest history first."""
    lower = slow_probability(counts, history[1:], char, vocab_size) if history else 1 / vocab_size
    seen = counts.get(history, {})
    if not seen:
        return lower
    return (seen.get(char, 0) + len(seen) * lower) / (sum(seen.values()) + len(seen))


def slow_counts(ids: list[int], segments: list[tuple[int, int]], n: int) -> dict:
    counts: dict = defaultdict(lambda: defaultdict(int))
    for start, stop in segments:
        for at in range(start, stop):
            for length in range(min(n - 1, at - start) + 1):
                counts[tuple(ids[at - length : at])][ids[at]] += 1
    return counts


@given(st.lists(st.integers(0, 4), min_size=24, max_size=60), st.integers(2, 9))
@settings(max_examples=40, deadline=None)
def test_rungs_equal_a_slow_table(ids: list[int], length: int) -> None:
    segments = ((0, 9), (12, 18))
    starts = np.array([0, len(ids) - length - 1])
    losses = ngram_losses(np.array(ids, dtype=np.int32), segments, starts, length, vocab_size=5)
    counts = slow_counts(ids, list(segments), MAX_N)
    for n in range(1, MAX_N + 1):
        for w, start in enumerate(starts):
            for t in range(length):
                history = ids[start + max(0, t + 1 - (n - 1)) : start + t + 1] if n > 1 else []
                expected = -math.log(slow_probability(counts, tuple(history), ids[start + t + 1], 5))
                assert losses[n - 1, w, t] == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.integers(0, 4), max_size=70), st.lists(st.integers(0, 4), min_size=1, max_size=7))
def test_probabilities_sum_to_one_after_any_history(fitted: list[int], history: list[int]) -> None:
    windows = [[*history, char] for char in range(5)]  # one window for each character that may follow
    ids = np.array([*fitted, *(char for window in windows for char in window)], dtype=np.int32)
    starts = len(fitted) + np.arange(5) * len(windows[0])
    losses = ngram_losses(ids, ((0, len(fitted)),), starts, len(history), vocab_size=5)
    np.testing.assert_allclose(np.exp(-losses[:, :, -1]).sum(1), 1)


@given(st.integers(0, 3), st.integers(0, 4))
def test_tables_longer_than_any_training_segment_fall_back(first: int, second: int) -> None:
    ids = np.array([0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1], dtype=np.int32)
    segments = ((0, first), (4, 4 + second))
    losses = ngram_losses(ids, segments, np.array([3]), 7, vocab_size=3)
    longest = max(first, second)
    for n in range(longest, MAX_N):
        np.testing.assert_array_equal(losses[n], losses[max(0, longest - 1)])
    if longest == 0:
        np.testing.assert_allclose(losses, math.log(3))


def test_a_vocabulary_whose_sixth_power_is_beyond_64_bits_has_exact_tables() -> None:
    ids = (np.arange(900, dtype=np.int32) * 7919) % 4001
    ids[450:] = ids[:450]
    segments = ((0, 300), (300, 700))
    losses = ngram_losses(ids, segments, np.array([455]), 30, vocab_size=4001)
    counts = slow_counts(ids.tolist(), list(segments), MAX_N)
    for t in (0, 3, 29):
        history = tuple(ids[455 + max(0, t - 4) : 455 + t + 1].tolist())
        expected = -math.log(slow_probability(counts, history, int(ids[455 + t + 1]), 4001))
        assert losses[MAX_N - 1, 0, t] == pytest.approx(expected, abs=1e-9)


def test_the_rungs_of_kjv_are_the_published_ones() -> None:
    kjv = load_corpus("kjv")
    nats = ngram_losses(kjv.ids, kjv.train, kjv.windows("test", 4095), 4095, len(kjv.vocabulary)).mean((1, 2))
    np.testing.assert_allclose(nats, [3.02, 2.26, 1.74, 1.35, 1.16, 1.08], atol=0.006)


def corpus_of(text: str) -> Corpus:
    vocabulary = Vocabulary.of(text)
    split = split_chars(len(text), "blocks", 0.1, 0.1)
    ids = vocabulary.encode(text)
    return Corpus("made up", "0" * 64, vocabulary, ids, split.rule, split.train, split.val, split.test)


def made_up_text(num_chars: int = 2000) -> str:
    return "".join(chr(97 + i) for i in np.random.default_rng(1).integers(7, size=num_chars))


def ensure(corpus: Corpus, outputs: Path, ctx_len: int = 16) -> dict[str, float]:
    return ensure_rungs(
        corpus, outputs=outputs, val_fraction=0.1, test_fraction=0.1, ctx_len=ctx_len, num_windows_limit=1600
    )


def test_rungs_are_computed_once_a_context_length_and_kept(tmp_path: Path) -> None:
    corpus = corpus_of(made_up_text())
    first = ensure(corpus, tmp_path)
    folder = tmp_path / "corpora" / corpus.sha256
    stamp = (folder / "rungs.json").stat().st_mtime_ns
    assert ensure(corpus, tmp_path) == first and (folder / "rungs.json").stat().st_mtime_ns == stamp
    ensure(corpus, tmp_path, ctx_len=9)
    entries = read_rungs(tmp_path, corpus.sha256)
    assert [(entry["ctx_len"], entry["losses"]) for entry in entries] == [
        (16, "rung_losses.npy"),
        (9, "rung_losses-2.npy"),
    ]
    losses = np.load(folder / "rung_losses.npy")
    assert losses.shape == (6, entries[0]["num_windows"], 16) and losses.dtype == np.float32
    assert first["xz"] == xz_nats_per_char(corpus.text("test"))
    assert losses[2].mean(dtype=np.float64) == pytest.approx(first["3"], abs=1e-6)


@pytest.mark.parametrize("damage", ["rungs.json", "rung_losses.npy"])
def test_what_is_damaged_is_computed_again_and_said(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    corpus = corpus_of(made_up_text())
    first = ensure(corpus, tmp_path)
    (tmp_path / "corpora" / corpus.sha256 / damage).write_text("{")
    assert ensure(corpus, tmp_path) == first
    assert json.loads((tmp_path / "corpora" / corpus.sha256 / "rungs.json").read_text())["schema"] == 1
    assert "damaged" in caplog.text


@pytest.mark.parametrize(
    "index", ["", "{", "[]", "null", '{"schema": 2, "entries": []}', '{"schema": 1, "entries": [3]}']
)
def test_a_damaged_index_reads_as_no_rungs_and_is_said(
    tmp_path: Path, index: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "corpora" / "some").mkdir(parents=True)
    (tmp_path / "corpora" / "some" / "rungs.json").write_text(index)
    assert read_rungs(tmp_path, "some") == [] and "damaged" in caplog.text


def test_rungs_asked_for_at_once_are_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def counting(*arguments: Any) -> Any:
        computed.append(1)
        return ngram_losses(*arguments)

    monkeypatch.setattr("anatomy.rungs.ngram_losses", counting)
    corpus = corpus_of(made_up_text())
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda _: ensure(corpus, tmp_path), range(5)))
    assert len(computed) == 1 and all(nats == found[0] for nats in found)


def test_two_processes_that_ask_at_once_compute_once(tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text(made_up_text(30_011))
    code = (
        "import logging, sys; from pathlib import Path; from anatomy.corpus import load_corpus;"
        "from anatomy.rungs import ensure_rungs; logging.basicConfig(level='INFO');"
        "print(ensure_rungs(load_corpus('files', path=sys.argv[1]), outputs=Path(sys.argv[2]), val_fraction=0.1,"
        " test_fraction=0.1, ctx_len=16, num_windows_limit=1600))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "own.txt"), str(tmp_path / "outputs")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    (first, first_log), (second, second_log) = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0, 0], first_log + second_log
    assert first == second and (first_log + second_log).count("rungs of files at context 16") == 1


def test_a_test_part_too_short_for_a_window_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="test part"):
        ensure(corpus_of(made_up_text(150)), tmp_path, ctx_len=16)
    assert list(tmp_path.iterdir()) == []


def test_one_character_costs_nothing_and_random_ones_their_entropy(tmp_path: Path) -> None:
    assert ensure(corpus_of("a" * 500), tmp_path / "a")["6"] == 0
    assert ensure(corpus_of(made_up_text(60_000)), tmp_path / "b")["1"] == pytest.approx(math.log(7), abs=0.01)


def test_no_rungs_yet_is_an_empty_list(tmp_path: Path) -> None:
    assert read_rungs(tmp_path, "nothing") == []
