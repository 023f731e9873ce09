"""Vocabulary, split, windows and the order of batches: the ground on which runs are compared."""

import hashlib
import json
import os
import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anatomy.corpus import CHUNK_CHARS, MAX_NAMED, BatchOrder, Corpus, Vocabulary, load_corpus, split_chars
from anatomy.errors import UserError

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=80)


def corpus_of(num_chars: int, rule: str = "blocks", val: float = 0.1, test: float = 0.1) -> Corpus:
    split = split_chars(num_chars, rule, val, test)
    ids = np.arange(num_chars, dtype=np.int32) % 97
    vocabulary = Vocabulary("".join(map(chr, range(200, 297))))
    return Corpus("made up", "", vocabulary, ids, split.rule, split.train, split.val, split.test)


# ------------------------------------------------------------------------------------------------ vocabulary


@given(TEXT)
def test_decoding_undoes_encoding(text: str) -> None:
    vocabulary = Vocabulary.of(text)
    assert vocabulary.chars == "".join(sorted(set(text)))
    assert vocabulary.decode(vocabulary.encode(text)) == text


def test_seventy_thousand_distinct_characters_keep_their_ids() -> None:
    text = "".join(chr(code) for code in range(0x10000, 0x10000 + 70_000))
    vocabulary = Vocabulary.of(text)
    assert len(vocabulary) == 70_000 and vocabulary.decode(vocabulary.encode(text[::-1])) == text[::-1]


def test_an_unknown_character_is_named_with_its_code_point_and_index() -> None:
    with pytest.raises(UserError, match=r"'Ω' \(U\+03A9\) at index 2.*'\\n' \(U\+000A\) at index 4"):
        Vocabulary.of("ab").encode("abΩa\n")


def test_of_many_unknown_characters_the_first_are_named_and_the_rest_counted() -> None:
    with pytest.raises(UserError) as caught:
        Vocabulary.of("ab").encode("b" + "".join(map(chr, range(0x4E00, 0x4E00 + 2003))))
    message = str(caught.value)
    assert message.count("U+") == MAX_NAMED and "(U+4E00) at index 1," in message
    assert f"and {2003 - MAX_NAMED:,} more" in message


@given(TEXT)
@settings(max_examples=20)
def test_a_saved_vocabulary_is_loaded_again(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Vocabulary.of(text).save(Path(folder, "vocab.json"))
        assert Vocabulary.load(Path(folder, "vocab.json")) == Vocabulary.of(text)


@pytest.mark.parametrize("damaged", ["", "{", "[]", '{"chars": 3}', '{"chars": "ba"}', '{"chars": "\\ud800"}'])
def test_a_damaged_vocabulary_file_is_one_line(tmp_path: Path, damaged: str) -> None:
    (tmp_path / "vocab.json").write_text(damaged)
    with pytest.raises(UserError, match=r"vocab\.json"):
        Vocabulary.load(tmp_path / "vocab.json")
    with pytest.raises(UserError, match=r"none\.json"):
        Vocabulary.load(tmp_path / "none.json")


def test_half_a_character_is_refused_with_its_index() -> None:
    with pytest.raises(UserError, match=r"U\+DCFF at index 2"):
        Vocabulary.of("ab").encode("ab\udcff")
    with pytest.raises(UserError, match=f"at index {CHUNK_CHARS + 2}"):
        Vocabulary.of("ab").encode("a" * CHUNK_CHARS + "ab\udcff")


def test_a_text_encoded_in_pieces_has_no_seams() -> None:
    text = "aé👩" * (CHUNK_CHARS // 2) + "z"
    vocabulary = Vocabulary.of(text)
    assert vocabulary.chars == "azé👩"
    assert vocabulary.encode(text).tolist() == [0, 2, 3] * (CHUNK_CHARS // 2) + [1]
    with pytest.raises(UserError, match=rf"'z' \(U\+007A\) at index {len(text) - 1}"):
        Vocabulary.of("aé👩").encode(text)


def test_ids_outside_the_vocabulary_are_not_decoded() -> None:
    for ids in ([-1], [0, 2]):
        with pytest.raises(ValueError, match="between 0 and 1"):
            Vocabulary.of("ab").decode(ids)


def test_ids_do_not_depend_on_the_hash_seed() -> None:
    code = "from anatomy.corpus import Vocabulary; print(Vocabulary.of('the quick brown fox').chars)"
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


# ------------------------------------------------------------------------------------------------ split


def assert_covers_once(stretches: list[tuple[int, int]], num_chars: int) -> None:
    assert stretches[0][0] == 0 and stretches[-1][1] == num_chars
    assert all(left[1] == right[0] for left, right in pairwise(stretches))
    assert all(start <= stop for start, stop in stretches)


@given(st.integers(1, 200_000))
def test_blocks_cover_every_character_exactly_once(num_chars: int) -> None:
    split = split_chars(num_chars, "blocks", 0.1, 0.1)
    assert_covers_once(sorted((*split.train, *split.val, *split.test)), num_chars)


@given(st.integers(1, 200_000), st.integers(1, 499), st.integers(0, 500))
def test_a_tail_covers_every_character_exactly_once(num_chars: int, val_mille: int, test_mille: int) -> None:
    split = split_chars(num_chars, "tail", val_mille / 1000, test_mille / 1000)
    assert_covers_once([*split.train, *split.val, *(split.test if test_mille else ())], num_chars)
    assert split.train[0][1] == num_chars * (1000 - val_mille - test_mille) // 1000
    if not test_mille:
        assert split.test == split.val


def test_blocks_are_dealt_by_their_number_and_the_odd_end_trains() -> None:
    split = split_chars(21 * 4096 + 5, "blocks", 0.1, 0.1)
    assert split.val == ((8 * 4096, 9 * 4096), (18 * 4096, 19 * 4096))
    assert split.test == ((9 * 4096, 10 * 4096), (19 * 4096, 20 * 4096))
    assert split.train == ((0, 8 * 4096), (10 * 4096, 18 * 4096), (20 * 4096, 21 * 4096 + 5))
    assert split_chars(18 * 4096 + 5, "blocks", 0.1, 0.1).train[-1] == (10 * 4096, 18 * 4096 + 5)


@pytest.mark.parametrize(
    ("num_chars", "val", "test", "sizes"),
    [
        (122_620, 0.1, 0.0, (110_358, 12_262, 12_262)),
        (122_517, 0.1, 0.0, (110_265, 12_252, 12_252)),
        (1000, 0.1, 0.1, (800, 100, 100)),
        (1009, 0.1, 0.1, (807, 102, 100)),
        (1000, 0.3, 0.1, (600, 300, 100)),
        (10, 0.3, 0.2, (5, 3, 2)),  # in floating point 10 * (1 - 0.3 - 0.2) is below 5
    ],
)
def test_the_tail_is_validation_and_test(num_chars: int, val: float, test: float, sizes: tuple[int, ...]) -> None:
    corpus = corpus_of(num_chars, "tail", val, test)
    assert (corpus.num_train_chars, corpus.num_val_chars, corpus.num_test_chars) == sizes
    assert corpus.test_is_val == (test == 0)


def test_a_text_of_fewer_than_ten_blocks_takes_its_tail() -> None:
    assert corpus_of(10 * 4096 - 1).split == "tail" and corpus_of(10 * 4096).split == "blocks"


@pytest.mark.parametrize(
    ("rule", "val", "test"),
    [
        ("blocks", 0.2, 0.1),
        ("blocks", 0.1, 0.0),
        ("tail", 0.0, 0.1),
        ("tail", 0.6, 0.4),
        ("tail", 1.5, 0.1),
        ("tail", 0.1, float("nan")),
        ("odd", 0.1, 0.1),
        ("two\nlines", 0.1, 0.1),
    ],
)
def test_splits_that_cannot_be_are_one_line(rule: str, val: float, test: float) -> None:
    with pytest.raises(UserError) as caught:
        corpus_of(50_000, rule, val, test)
    assert len(str(caught.value).splitlines()) == 1


# ------------------------------------------------------------------------------------------------ windows


@given(st.integers(50_000, 130_000), st.integers(1, 300), st.sampled_from(["val", "test"]), st.integers(1, 90))
def test_windows_stay_inside_their_part_and_count_each_target_once(
    num_chars: int, length: int, part: str, limit: int
) -> None:
    corpus = corpus_of(num_chars)
    starts = corpus.windows(part, length, limit)  # type: ignore[arg-type]
    assert 1 <= len(starts) <= limit
    targets = (starts[:, None] + 1 + np.arange(length)).ravel()
    assert len(np.unique(targets)) == targets.size
    for start in starts:
        assert any(left <= start and start + length < right for left, right in corpus.segments(part))  # type: ignore[arg-type]


@pytest.mark.parametrize(("length", "per_block"), [(1, 4095), (63, 65), (64, 63), (65, 63), (4095, 1)])
def test_a_block_yields_every_window_that_fits_with_its_last_target(length: int, per_block: int) -> None:
    starts = corpus_of(20 * 4096).windows("val", length).tolist()
    assert starts == [block * 4096 + length * index for block in (8, 18) for index in range(per_block)]


def test_windows_beyond_the_limit_are_thinned_evenly() -> None:
    whole = corpus_of(60_000).windows("train", 50)
    thinned = corpus_of(60_000).windows("train", 50, 7)
    assert thinned.tolist() == [int(whole[i * len(whole) // 7]) for i in range(7)]
    assert corpus_of(60_000).windows("train", 50, len(whole)).tolist() == whole.tolist()


def test_no_training_window_reads_a_character_of_another_part() -> None:
    corpus = corpus_of(60_000)
    starts = BatchOrder(corpus.train, 40, seed=1).draw(5000)
    read = np.unique(starts[:, None] + np.arange(41))
    for start, stop in (*corpus.val, *corpus.test):
        assert not ((read >= start) & (read < stop)).any()


def test_a_batch_is_the_text_and_its_targets_are_one_further() -> None:
    corpus = corpus_of(5000)
    inputs, targets = corpus.batch_at(np.array([3, 100]), 7)
    np.testing.assert_array_equal(inputs[1], corpus.ids[100:107])
    np.testing.assert_array_equal(targets[1], corpus.ids[101:108])


def test_a_part_too_short_for_a_window_says_which_and_what_fits() -> None:
    with pytest.raises(UserError, match=r"the val part has 10 characters.*context of 64.*model.ctx_len=9"):
        corpus_of(100).windows("val", 64)
    with pytest.raises(UserError, match="train part"):
        BatchOrder(corpus_of(100).train, 90, seed=0)


# ------------------------------------------------------------------------------------------------ batches


def test_the_order_depends_on_seed_and_salt_alone() -> None:
    segments = corpus_of(60_000).train
    draws = {(s, t): BatchOrder(segments, 64, seed=s, salt=t).draw(50).tolist() for s in (0, 1) for t in (0, 1)}
    assert draws[0, 0] == BatchOrder(segments, 64, seed=0).draw(50).tolist()
    assert len({tuple(draw) for draw in draws.values()}) == 4


def test_two_draws_of_two_are_one_draw_of_four() -> None:
    one, two = (BatchOrder(corpus_of(60_000).train, 64, seed=3) for _ in range(2))
    assert [*two.draw(2), *two.draw(2)] == one.draw(4).tolist()
    assert one.sha256 != two.sha256


def test_the_chain_is_the_one_described() -> None:
    order = BatchOrder(corpus_of(60_000).train, 64, seed=3)
    link = b""
    for num in (5, 2, 9):
        starts = order.draw(num)
        raw = b"".join(int(start).to_bytes(8, "little", signed=True) for start in starts)
        link = hashlib.sha256(link + raw).digest()
    assert order.sha256 == link.hex()


def test_a_restored_order_goes_on_where_it_was() -> None:
    order, other = (BatchOrder(corpus_of(60_000).train, 64, seed=3) for _ in range(2))
    order.draw(7)
    other.restore(json.loads(json.dumps(order.state())))  # plain enough for any checkpoint
    for num in (5, 3):
        assert order.draw(num).tolist() == other.draw(num).tolist() and order.sha256 == other.sha256


@given(st.lists(st.integers(1, 9), min_size=2, max_size=7), st.integers(1, 8), st.integers(0, 99))
def test_a_drawn_window_lies_in_one_segment(sizes: list[int], ctx_len: int, seed: int) -> None:
    stops = np.cumsum(sizes).tolist()
    segments = tuple((stop - size, stop) for size, stop in zip(sizes, stops, strict=True))[::2]
    if max(stop - start for start, stop in segments) <= ctx_len:
        with pytest.raises(UserError, match="train part"):
            BatchOrder(segments, ctx_len, seed=seed)
        return
    for first in BatchOrder(segments, ctx_len, seed=seed).draw(31).tolist():
        assert any(start <= first and first + ctx_len < stop for start, stop in segments)


def test_every_start_that_fits_can_be_drawn() -> None:
    order = BatchOrder(((0, 5), (10, 14), (20, 22)), 2, seed=0)
    assert set(order.draw(500).tolist()) == {0, 1, 2, 10, 11}


def test_drawing_does_not_touch_numpys_global_generator_and_heeds_no_other() -> None:
    order, other = (BatchOrder(corpus_of(60_000).train, 64, seed=3) for _ in range(2))
    np.random.seed(0)
    before = np.random.get_state()[1].tolist()  # type: ignore[index]
    first = order.draw(4).tolist()
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]
    np.random.random(100)
    assert other.draw(4).tolist() == first


def test_the_order_is_the_same_on_every_machine() -> None:
    order = BatchOrder(((0, 1000),), 10, seed=1)
    assert order.draw(5).tolist() == [218, 29, 947, 662, 986]


def test_negative_seeds_are_refused() -> None:
    for seed, salt in ((-1, 0), (0, -1)):
        with pytest.raises(UserError, match="from 0"):
            BatchOrder(((0, 99),), 5, seed=seed, salt=salt)


def test_a_file_is_loaded_split_and_encoded_as_a_whole(tmp_path: Path) -> None:
    text = "".join(chr(97 + i % 23) for i in range(1009))
    (tmp_path / "own.txt").write_text(text)
    own = load_corpus("files", path=str(tmp_path / "own.txt"), test_fraction=0)
    assert own.vocabulary.decode(own.ids) == text and own.sha256 == hashlib.sha256(text.encode()).hexdigest()
    assert (own.split, own.train, own.val, own.test) == ("tail", ((0, 908),), ((908, 1009),), ((908, 1009),))
    assert own.text("train") + own.text("val") == text
    assert any("ten blocks" in note for note in own.notes) and any("serves as test" in note for note in own.notes)


def test_a_text_of_one_character_loads_and_is_refused_where_a_window_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a")
    own = load_corpus("files", path=str(tmp_path / "one.txt"))
    assert (own.num_chars, len(own.vocabulary)) == (1, 1)
    with pytest.raises(UserError, match="train part has 0 characters"):
        BatchOrder(own.train, 8, seed=0)


def test_a_character_that_never_occurs_in_training_is_known_and_said(tmp_path: Path) -> None:
    (tmp_path / "z.txt").write_text("ab" * 500 + "z")
    corpus = load_corpus("files", path=str(tmp_path / "z.txt"))
    assert "z" in corpus.vocabulary.chars and any("never occur" in note for note in corpus.notes)
