"""Scoring whole texts: which windows are read, and what each target costs, against slow and obvious loops."""

import numpy as np
import pytest
import torch
from conftest import NUM_SYMBOLS, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy import scoring
from anatomy.corpus import Corpus, Segment, Vocabulary
from anatomy.evaluation import window_losses
from anatomy.model import Transformer
from anatomy.rungs import MAX_N, NgramTables, ngram_losses
from anatomy.scoring import Windows, ngram_nats, plan_windows, target_losses

LENGTH, STRIDE = 7, 3
STRETCHES = ((2, 31), (40, 45), (50, 51), (60, 75))  # several windows, a short one, a lone character, a cut last window


def made_up_corpus(test: tuple[Segment, ...] = STRETCHES, num_chars: int = 80) -> Corpus:
    ids = np.random.default_rng(5).integers(NUM_SYMBOLS, size=num_chars).astype(np.int32)
    vocabulary = Vocabulary("".join(map(chr, range(97, 97 + NUM_SYMBOLS))))
    return Corpus("made up", "", vocabulary, ids, "tail", ((0, num_chars),), (), test)


def counted(windows: Windows) -> list[tuple[int, int]]:
    """Each target that counts: its position, and how many characters stand before it in its window."""
    found = []
    for start, length, num in zip(windows.starts, windows.lengths, windows.num_counted, strict=True):
        found += [(int(start + context), int(context)) for context in range(length - num + 1, length + 1)]
    return found


def slowly_counted(segments: tuple[Segment, ...], length: int, stride: int) -> list[tuple[int, int]]:
    """The rule as it is stated: a target counts in the first window that covers it."""
    found = []
    for first, stop in segments:
        for target in range(first + 1, stop):
            window = next(start for start in range(first, stop, stride) if target <= start + length)
            found.append((target, target - window))
    return found


lengths_and_strides = st.integers(1, 23).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length)))
sizes = st.lists(st.integers(0, 40), min_size=1, max_size=4)


def stretches(sizes: list[int]) -> tuple[Segment, ...]:
    starts = np.cumsum([0, *(size + 3 for size in sizes)]).tolist()
    return tuple((start, start + size) for start, size in zip(starts, sizes, strict=False))


@given(sizes, lengths_and_strides)
def test_every_target_counts_once_in_the_first_window_that_covers_it(sizes: list[int], how: tuple[int, int]) -> None:
    segments = stretches(sizes)
    windows = plan_windows(segments, *how)
    assert counted(windows) == slowly_counted(segments, *how)
    assert windows.num_targets == sum(max(0, size - 1) for size in sizes)
    assert (windows.lengths <= how[0]).all() and (windows.num_counted >= 1).all()
    ends = [stop for first, stop in segments for _ in range(first, stop)]  # no window reads past its stretch
    stop_of = dict(zip([at for first, stop in segments for at in range(first, stop)], ends, strict=True))
    assert all(stop_of[at] > at + n for at, n in zip(windows.starts.tolist(), windows.lengths.tolist(), strict=True))


@given(st.integers(2, 120), lengths_and_strides)
def test_a_target_sees_all_before_it_or_at_least_length_less_stride_and_one(size: int, how: tuple[int, int]) -> None:
    length, stride = how
    for target, context in counted(plan_windows(((0, size),), length, stride)):
        assert context == target if target <= length else length - stride + 1 <= context <= length


@given(st.integers(2, 120), st.integers(1, 6), st.integers(1, 6), st.integers(0, 9))
def test_a_smaller_stride_that_divides_the_larger_shortens_no_context(
    size: int, stride: int, times: int, more: int
) -> None:
    length = stride * times + more
    small, large = (counted(plan_windows(((0, size),), length, s)) for s in (stride, stride * times))
    assert all(left[0] == right[0] and left[1] >= right[1] for left, right in zip(small, large, strict=True))


@pytest.mark.parametrize("stride", [64, 32, 1])
def test_a_thousand_characters_have_999_targets_at_any_stride(stride: int) -> None:
    windows = plan_windows(((0, 1000),), 64, stride)
    assert windows.num_targets == 999
    assert [target for target, _ in counted(windows)] == list(range(1, 1000))
    assert min(context for target, context in counted(windows) if target > 64) == 65 - stride


@given(st.integers(2, 60), lengths_and_strides)
def test_mean_context_is_the_mean_over_targets(size: int, how: tuple[int, int]) -> None:
    windows = plan_windows(((0, size), (70, 79)), *how)
    assert windows.mean_context == pytest.approx(np.mean([context for _, context in counted(windows)]))


def test_lengths_beyond_all_bounds_are_one_window() -> None:
    windows = plan_windows(((3, 20),), 10**30, 10**29)
    assert (windows.starts.tolist(), windows.lengths.tolist(), windows.num_counted.tolist()) == ([3], [16], [16])


@pytest.mark.parametrize(("length", "stride"), [(0, 0), (5, 0), (5, 6), (0, 1)])
def test_a_stride_outside_the_window_is_refused(length: int, stride: int) -> None:
    with pytest.raises(ValueError, match="1 <= stride <= length"):
        plan_windows(((0, 20),), length, stride)


# ------------------------------------------------------------------------------------------------ a model


def slow_losses(model: Transformer, corpus: Corpus, length: int, stride: int) -> list[float]:
    """One target at a time: the model reads what stands before it in its window, and the last logits decide."""
    found = []
    with torch.no_grad():
        for target, context in slowly_counted(corpus.test, length, stride):
            before = torch.from_numpy(corpus.ids[target - context : target].astype(np.int64))
            log_probabilities = model(before[None])[0, -1].log_softmax(-1)
            found.append(-float(log_probabilities[corpus.ids[target]]))
    return found


@pytest.mark.parametrize("base", ["vanilla", "gpt2", "llama"])
@pytest.mark.parametrize("stride", [LENGTH, STRIDE, 1])
def test_losses_equal_one_target_at_a_time(base: str, stride: int) -> None:
    model, corpus = tiny_model(f"base={base}").eval(), made_up_corpus()
    windows = plan_windows(corpus.test, LENGTH, stride)
    losses = target_losses(model, corpus, windows, dtype="fp32")
    assert losses.dtype == np.float32 and losses.shape == (28 + 4 + 14,)
    np.testing.assert_allclose(losses, slow_losses(model, corpus, LENGTH, stride), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("stride", [LENGTH, STRIDE])
def test_the_batch_size_changes_no_loss(stride: int) -> None:
    model, corpus = tiny_model("base=llama"), made_up_corpus()
    windows = plan_windows(corpus.test, LENGTH, stride)
    alone, *others = (target_losses(model, corpus, windows, dtype="fp32", num_at_once=n) for n in (1, 3, 64, None))
    for losses in others:
        np.testing.assert_allclose(losses, alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("asked", "read"), [(1, 1), (2, 2), (10**9, 3), (None, None)])
def test_windows_read_together_hold_a_limited_number_of_tokens(
    asked: int | None, read: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []

    def watched(*arguments: object, num_at_once: int | None, **settings: object) -> np.ndarray:
        seen.append(num_at_once)
        return window_losses(*arguments, num_at_once=num_at_once, **settings)  # type: ignore[arg-type]

    monkeypatch.setattr(scoring, "window_losses", watched)
    monkeypatch.setattr(scoring, "MAX_TOKENS_AT_ONCE", 3 * LENGTH + 1)
    corpus = made_up_corpus(((0, 8),))
    target_losses(tiny_model(), corpus, plan_windows(corpus.test, LENGTH, 1), dtype="fp32", num_at_once=asked)
    assert seen == [read]


def test_dropout_is_off_and_no_random_number_drawn() -> None:
    plain, dropped = tiny_model("base=llama"), tiny_model("base=llama", "train.dropout=0.3").train()
    corpus = made_up_corpus()
    windows = plan_windows(corpus.test, LENGTH, STRIDE)
    before = torch.get_rng_state()
    losses = [target_losses(model, corpus, windows, dtype="fp32") for model in (plain, dropped, dropped)]
    assert (losses[0] == losses[1]).all() and (losses[1] == losses[2]).all()
    assert torch.equal(torch.get_rng_state(), before) and dropped.training


def test_losses_are_taken_under_the_dtype_of_the_run() -> None:
    model, corpus = tiny_model("base=llama").eval(), made_up_corpus(((0, 8),))
    windows = plan_windows(corpus.test, LENGTH, LENGTH)
    ids = torch.from_numpy(corpus.ids[:8].astype(np.int64))
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        log_probabilities = model(ids[None, :-1])[0].float().log_softmax(-1)
    expected = -log_probabilities[torch.arange(LENGTH), ids[1:]].numpy()
    np.testing.assert_allclose(target_losses(model, corpus, windows, dtype="bf16"), expected, rtol=1e-6)
    assert (target_losses(model, corpus, windows, dtype="fp32") != expected).any()


# ------------------------------------------------------------------------------------------------ n-gram tables


@given(sizes, lengths_and_strides)
@settings(max_examples=30, deadline=None)
def test_tables_score_the_same_targets_with_the_same_knowledge(sizes: list[int], how: tuple[int, int]) -> None:
    corpus = made_up_corpus(stretches([7, *sizes]), num_chars=250)
    ids = corpus.ids % 5
    corpus = Corpus("made up", "", corpus.vocabulary, ids, "tail", ((0, 90), (100, 160)), (), corpus.test)
    expected = [  # each target as the last of a window of its own
        ngram_losses(ids, corpus.train, np.array([target - context]), context, NUM_SYMBOLS)[:, 0, -1]
        for target, context in slowly_counted(corpus.test, *how)
    ]
    nats = ngram_nats(NgramTables(ids, corpus.train, NUM_SYMBOLS), ids, plan_windows(corpus.test, *how))
    assert list(nats) == [str(n) for n in range(1, MAX_N + 1)]
    np.testing.assert_allclose(list(nats.values()), np.mean(expected, axis=0))


def test_tables_score_long_texts_piece_by_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = made_up_corpus()
    tables, windows = NgramTables(corpus.ids, corpus.train, NUM_SYMBOLS), plan_windows(corpus.test, LENGTH, STRIDE)
    at_once = ngram_nats(tables, corpus.ids, windows)
    monkeypatch.setattr(scoring, "NGRAMS_AT_ONCE", 1)
    assert ngram_nats(tables, corpus.ids, windows) == pytest.approx(at_once)
