"""From logits to a token: filters against transformers', draws against a slow loop, and numbers at the edge."""

import math
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from anatomy.errors import UserError
from anatomy.sampling import Knobs, NotFinite, Stream, next_ids, probabilities


def shares(probs: list[float], **knobs: float) -> list[float]:
    """What knobs leave of some probabilities."""
    return probabilities(np.log([probs]), Knobs(**{"temperature": 1.0, **knobs}))[0].tolist()


def kept(probs: list[float], **knobs: float) -> set[int]:
    return {index for index, share in enumerate(shares(probs, **knobs)) if share > 0}


def logits_of(num: int = 31, batch_size: int = 7, seed: int = 0) -> torch.Tensor:
    return 3 * torch.randn(batch_size, num, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ------------------------------------------------------------------------------------------------ filters


@pytest.mark.parametrize("temperature", [0.3, 0.8, 1.0, 2.5])
@pytest.mark.parametrize("top_k", [None, 1, 5, 31, 200])
def test_filters_leave_what_those_of_transformers_leave_in_the_same_order(
    temperature: float, top_k: int | None
) -> None:
    logits = logits_of()
    for top_p, min_p in product((None, 0.01, 0.5, 0.9, 1.0), (None, 0.0, 0.02, 0.3, 1.0)):
        warpers = LogitsProcessorList([TemperatureLogitsWarper(temperature)])
        if top_k is not None:
            warpers.append(TopKLogitsWarper(top_k))
        if top_p is not None:
            warpers.append(TopPLogitsWarper(top_p))
        if min_p is not None:
            warpers.append(MinPLogitsWarper(min_p))
        theirs = warpers(torch.zeros(7, 0, dtype=torch.long), logits.clone()).softmax(-1).numpy()
        ours = probabilities(logits.numpy(), Knobs(temperature, top_k, top_p, min_p))
        np.testing.assert_array_equal(ours > 0, theirs > 0, err_msg=f"{top_p=} {min_p=}")
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15, err_msg=f"{top_p=} {min_p=}")


@pytest.mark.parametrize(
    ("probs", "top_p", "left"),
    [
        ([0.5, 0.3, 0.15, 0.05], 0.6, {0, 1}),  # the token that crosses the threshold stays
        ([0.4, 0.3, 0.2, 0.1], 0.8, {0, 1, 2}),
        ([0.4, 0.3, 0.2, 0.1], 1.0, {0, 1, 2, 3}),
        ([0.05, 0.5, 0.15, 0.3], 0.6, {1, 3}),
        ([0.5, 0.25, 0.125, 0.125], 0.5, {0}),  # reached exactly
        ([0.5, 0.25, 0.125, 0.125], 0.75, {0, 1}),
        ([0.4, 0.3, 0.2, 0.1], 0.0, {0}),
        ([0.1, 0.2, 0.3, 0.4], 1e-9, {3}),
    ],
)
def test_top_p_leaves_the_smallest_set_that_reaches_the_mass(probs: list[float], top_p: float, left: set[int]) -> None:
    assert kept(probs, top_p=top_p) == left


def test_each_filter_acts_on_what_the_one_before_has_left() -> None:
    probs = [0.4, 0.3, 0.2, 0.1]
    assert shares(probs, top_k=2) == pytest.approx([4 / 7, 3 / 7, 0, 0])
    assert kept(probs, top_k=2, top_p=0.5) == {0}  # 4/7 of what is left; 0.4 of all would not reach it
    assert kept(probs, top_p=0.6, min_p=0.6) == {0, 1} and kept(probs, min_p=0.6) == {0, 1}
    assert kept(probs, min_p=0.4) == {0, 1, 2}
    assert kept(probs, temperature=0.5, min_p=0.6) == {0}  # at half the temperature 0.3 / 0.4 counts squared


def test_of_equals_the_lower_id_ranks_first_and_min_p_keeps_them_all() -> None:
    assert kept([0.2] * 5, top_k=2) == {0, 1}
    assert kept([0.1, 0.3, 0.3, 0.3], top_k=2) == {1, 2}
    assert kept([0.1, 0.3, 0.3, 0.3], top_p=0.5) == {1, 2}
    assert kept([0.1, 0.3, 0.3, 0.3], min_p=1.0) == {1, 2, 3}
    assert next_ids(torch.tensor([[1.0, 7.0, 7.0, 7.0]]), Knobs(0), []) == [1]


@pytest.mark.parametrize("knobs", [Knobs(1.0, top_k=10**6), Knobs(1.0, top_p=1.0), Knobs(1.0, min_p=0.0)])
def test_a_filter_that_takes_nothing_away_is_no_filter(knobs: Knobs) -> None:
    logits = logits_of().numpy()
    np.testing.assert_array_equal(probabilities(logits, knobs), probabilities(logits, Knobs(1.0)))


knob_values = st.builds(
    Knobs,
    temperature=st.floats(1e-3, 1e3),
    top_k=st.none() | st.integers(1, 12),
    top_p=st.none() | st.floats(0, 1),
    min_p=st.none() | st.floats(0, 1),
)
rows = st.lists(st.floats(-50, 50), min_size=1, max_size=9)


@given(rows, knob_values)
def test_what_is_left_is_a_distribution_over_the_likeliest(row: list[float], knobs: Knobs) -> None:
    (left,) = probabilities(np.array([row]), knobs)
    assert left.sum() == pytest.approx(1) and (left >= 0).all()
    assert left[int(np.argmax(row))] == left.max() > 0
    if (left == 0).any():  # nothing that was dropped is likelier than anything that was not
        assert max(np.array(row)[left == 0]) <= min(np.array(row)[left > 0])
    if knobs.top_k is not None:
        assert (left > 0).sum() <= knobs.top_k


@given(rows, knob_values, st.floats(-1e3, 1e3))
def test_a_shift_of_all_logits_changes_nothing(row: list[float], knobs: Knobs, shift: float) -> None:
    gaps = np.diff(np.sort(np.exp(np.array(row) - max(row))))
    if (gaps < 1e-6).any() or knobs.top_p is not None or knobs.min_p is not None:
        knobs = Knobs(1.0)  # on an edge, rounding decides who stays
    np.testing.assert_allclose(
        probabilities(np.array([row]), knobs), probabilities(np.array([row]) + shift, knobs), rtol=1e-6, atol=1e-9
    )


# ------------------------------------------------------------------------------------------------ draws


def by_a_slow_loop(row: list[float], uniform: float) -> int:
    total = 0.0
    for index, share in enumerate(row):
        total += share
        if uniform < total:
            return index
    return max(index for index, share in enumerate(row) if share > 0)


@pytest.mark.parametrize("knobs", [Knobs(1.0), Knobs(0.8), Knobs(2.0, top_k=5), Knobs(1.5, top_p=0.7, min_p=0.05)])
def test_a_draw_is_the_inverse_of_the_distribution_function_in_the_order_of_ids(knobs: Knobs) -> None:
    logits = logits_of(seed=3)
    streams, twins = ([Stream(5, index) for index in range(7)] for _ in range(2))
    for _ in range(200):
        left = probabilities(logits.numpy(), knobs).tolist()
        expected = [by_a_slow_loop(row, twin.uniform()) for row, twin in zip(left, twins, strict=True)]
        assert next_ids(logits, knobs, streams) == expected


class Fixed(Stream):
    """A stream of one number."""

    def __init__(self, number: float) -> None:
        self.number = number

    def uniform(self) -> float:
        return self.number


LARGEST = 1 - 2**-53


@pytest.mark.parametrize(("number", "drawn"), [(0.0, 1), (0.5 - 2**-53, 1), (0.5, 3), (LARGEST, 3)])
def test_ends_of_the_unit_interval_never_lead_to_a_token_without_a_share(number: float, drawn: int) -> None:
    logits = torch.tensor([[-1e4, 0.0, -1e4, 0.0, -1e4]])
    assert next_ids(logits, Knobs(1.0), [Fixed(number)]) == [drawn]


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_number_leads_to_the_last_token_that_has_a_share(seed: int) -> None:
    logits = logits_of(num=97, batch_size=1, seed=seed)
    (left,) = probabilities(logits.numpy(), Knobs(1.0, top_k=50))
    assert next_ids(logits, Knobs(1.0, top_k=50), [Fixed(LARGEST)]) == [np.flatnonzero(left)[-1]]


def drawn_often(logits: torch.Tensor, knobs: Knobs, num: int = 10_000) -> Counter[int]:
    return Counter(next_ids(logits.expand(num, -1), knobs, [Stream(11, index) for index in range(num)]))


def test_tokens_come_as_often_as_they_are_likely() -> None:
    logits = logits_of(num=13, batch_size=1, seed=1) / 2
    counts = drawn_often(logits, Knobs(0.8))
    expected = (logits / 0.8).softmax(-1)[0].numpy() * 10_000
    assert expected.min() > 5
    assert stats.chisquare([counts[index] for index in range(13)], expected).pvalue > 0.001


@pytest.mark.parametrize(
    "knobs", [Knobs(5.0, top_k=1), Knobs(5.0, top_k=4), Knobs(9.0, top_p=0.6), Knobs(9.0, min_p=0.8)]
)
def test_what_is_filtered_out_is_never_drawn_and_all_else_is(knobs: Knobs) -> None:
    logits = logits_of(batch_size=1, seed=2)
    left = set(np.flatnonzero(probabilities(logits.numpy(), knobs)[0]).tolist())
    assert 0 < len(left) < 31 and set(drawn_often(logits, knobs)) == left


def test_a_text_takes_one_number_a_token_and_none_when_greedy() -> None:
    logits = logits_of(batch_size=2)
    for knobs, num_numbers in ((Knobs(1.0), 3), (Knobs(1.0, top_k=1), 3), (Knobs(0), 0)):
        streams, twins = ([Stream(0, index) for index in range(2)] for _ in range(2))
        for _ in range(3):
            next_ids(logits, knobs, streams)
        for stream, twin in zip(streams, twins, strict=True):
            for _ in range(num_numbers):
                twin.uniform()
            assert stream.uniform() == twin.uniform()


def test_a_text_is_drawn_the_same_in_whatever_company() -> None:
    logits = logits_of(batch_size=5)
    together = next_ids(logits, Knobs(1.0, top_p=0.9), [Stream(3, index) for index in range(5)])
    alone = [next_ids(logits[i : i + 1], Knobs(1.0, top_p=0.9), [Stream(3, i)])[0] for i in range(5)]
    assert together == alone


def test_streams_differ_by_seed_and_index_and_stay_what_they_are() -> None:
    firsts = [[Stream(seed, index).uniform() for seed in range(20)] for index in range(20)]
    flat = [number for row in firsts for number in row]
    assert len(set(flat)) == 400 and min(flat) >= 0 and max(flat) < 1
    stream = Stream(7, 2)
    raw = np.random.PCG64(np.random.SeedSequence(7, spawn_key=(1, 2))).random_raw(3)
    assert [stream.uniform() for _ in range(3)] == [int(number >> np.uint64(11)) / 2**53 for number in raw]


def test_a_text_shares_no_stream_with_the_batches_of_its_run() -> None:
    for salt in range(3):
        batches = int(np.random.PCG64(np.random.SeedSequence(7, spawn_key=(salt,))).random_raw()) >> 11
        assert all(Stream(7, index).uniform() != batches / 2**53 for index in range(9))


# ------------------------------------------------------------------------------------------------ at the edge


@pytest.mark.parametrize("temperature", [1e-6, 1e-40, 5e-324])
def test_towards_temperature_0_only_the_likeliest_is_left(temperature: float) -> None:
    logits = logits_of()
    greedy = next_ids(logits, Knobs(0), [])
    assert greedy == logits.argmax(-1).tolist()
    assert next_ids(logits, Knobs(temperature), [Stream(0, index) for index in range(7)]) == greedy
    tied = probabilities(np.array([[3.0, 1.0, 3.0]]), Knobs(temperature))
    assert tied.tolist() == [[0.5, 0.0, 0.5]]


def test_at_a_huge_temperature_all_are_alike() -> None:
    logits = logits_of()
    assert probabilities(logits.numpy(), Knobs(1e300)) == pytest.approx(1 / 31)
    for only in (Knobs(1e300, top_k=1), Knobs(1e300, top_p=0.0)):  # yet there is a likeliest
        streams = [Stream(0, index) for index in range(7)]
        assert next_ids(logits, only, streams) == next_ids(logits, Knobs(0), [])


@pytest.mark.parametrize("size", [1e30, -1e30, 3e38])
def test_huge_logits_do_not_overflow(size: float) -> None:
    assert probabilities(np.array([[size, size, -3e38]]), Knobs(1.0)).sum() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_logits_of_any_dtype_are_drawn_from(dtype: torch.dtype) -> None:
    logits = torch.tensor([[0.0, 50.0, 1.0]], dtype=dtype, requires_grad=True)
    assert next_ids(logits, Knobs(1.0), [Stream(0, 0)]) == next_ids(logits, Knobs(0), []) == [1]


@pytest.mark.parametrize("fault", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("temperature", [0, 1.0])
def test_logits_that_are_not_finite_are_refused_before_a_number_is_taken(fault: float, temperature: float) -> None:
    logits = logits_of(batch_size=2)
    logits[1, 4] = fault
    streams = [Stream(0, index) for index in range(2)]
    with pytest.raises(NotFinite, match="not finite"):
        next_ids(logits, Knobs(temperature), streams)
    assert [stream.uniform() for stream in streams] == [Stream(0, index).uniform() for index in range(2)]


@pytest.mark.parametrize(
    ("knobs", "named"),
    [
        ({"temperature": -1}, ["temperature=-1"]),
        ({"temperature": math.nan}, ["temperature=nan"]),
        ({"temperature": math.inf}, ["temperature=inf"]),
        ({"top_k": 0}, ["top_k=0"]),
        ({"top_k": -1}, ["top_k=-1"]),
        ({"top_p": 1.5}, ["top_p=1.5"]),
        ({"top_p": math.nan, "min_p": -0.1, "top_k": 0}, ["top_k=0", "top_p=nan", "min_p=-0.1"]),
    ],
)
def test_knobs_out_of_range_are_refused_a_line_each(knobs: dict[str, float], named: list[str]) -> None:
    with pytest.raises(UserError) as error:
        Knobs(**knobs)
    assert [line.partition(":")[0] for line in str(error.value).split("\n")] == named
