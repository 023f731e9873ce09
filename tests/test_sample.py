"""A text that a model goes on with: prompts, windows, stops, and that it comes out the same in whatever company."""

from collections.abc import Sequence
from unittest import mock

import pytest
import torch
from conftest import NUM_SYMBOLS, options, tiny_model

import anatomy.sample
from anatomy.corpus import Vocabulary
from anatomy.errors import UserError
from anatomy.generation import Generation
from anatomy.model import Transformer
from anatomy.sample import check_window, prompt_ids, sample
from anatomy.sampling import Knobs, NotFinite, Stream, next_ids

VOCABULARY = Vocabulary("".join(sorted("abcdefghijklmnopqrstuvwxyz .\n")))
assert len(VOCABULARY) == NUM_SYMBOLS
WARM = Knobs(temperature=1.0)
MODELS = [f"pos={name}" for name in options("pos")]


def lively(*words: str) -> Transformer:
    """A tiny model of which the next character depends on the text: at its start it hardly does."""
    model = tiny_model(*words)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 2:
                parameter.mul_(9.0)
    return model


def by_a_slow_loop(
    model: Transformer, ids: Sequence[int], num_tokens: int, *, window: int, knobs: Knobs, seed: int = 0, index: int = 0
) -> list[int]:
    """One text alone, read anew for each token; of a text grown longer than the window its newer half is kept."""
    text, stream = list(ids), Stream(seed, index)
    seen = text[-window:]
    for _ in range(num_tokens):
        if len(seen) > window:
            seen = seen[-max(1, window // 2) :]
        with torch.no_grad():
            logits = model.eval()(torch.tensor([seen]))[:, -1]
        (new,) = next_ids(logits, knobs, [stream])
        text.append(new)
        seen = [*seen, new]
    return text


@pytest.mark.parametrize("words", MODELS)
@pytest.mark.parametrize("prompt", ["a", "the norm", "a prompt that is longer than the window"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_a_text_is_what_a_slow_loop_draws(words: str, prompt: str, use_cache: bool) -> None:
    model = lively(words)
    (made,) = sample(model, VOCABULARY, prompt, window=11, num_tokens=30, knobs=WARM, seed=5, use_cache=use_cache)
    expected = by_a_slow_loop(model, VOCABULARY.encode(prompt), 30, window=11, knobs=WARM, seed=5)
    assert made.text == VOCABULARY.decode(expected) == prompt + made.continuation
    assert (made.prompt, made.num_tokens, made.is_cut) == (prompt, 30, True)
    assert len(set(made.continuation)) > 5


@pytest.mark.parametrize("window", [1, 2, 3, 7])
def test_small_windows_are_kept_to(window: int) -> None:
    model = lively("pos=rope")
    for use_cache in (True, False):
        (made,) = sample(model, VOCABULARY, "the", window=window, num_tokens=20, knobs=WARM, use_cache=use_cache)
        expected = by_a_slow_loop(model, VOCABULARY.encode("the"), 20, window=window, knobs=WARM)
        assert made.text == VOCABULARY.decode(expected)


def test_a_window_longer_than_any_text_comes_to_the_same_as_one_that_just_holds_it() -> None:
    model = lively("pos=rope")
    texts = [sample(model, VOCABULARY, "the", window=window, num_tokens=20, knobs=WARM) for window in (23, 10**15)]
    assert texts[0][0].text == texts[1][0].text and not texts[1][0].is_cut


@pytest.mark.parametrize("words", MODELS)
def test_a_sample_is_the_same_however_many_are_drawn_beside_it(words: str) -> None:
    model = lively(words)
    five = sample(model, VOCABULARY, "norm", window=11, num_tokens=25, num_samples=5, knobs=WARM, seed=2)
    assert len({made.text for made in five}) == 5
    assert sample(model, VOCABULARY, "norm", window=11, num_tokens=25, knobs=WARM, seed=2)[0].text == five[0].text
    with mock.patch.object(anatomy.sample, "MAX_AT_ONCE", 2):
        by_two = sample(model, VOCABULARY, "norm", window=11, num_tokens=25, num_samples=5, knobs=WARM, seed=2)
    assert [made.text for made in by_two] == [made.text for made in five]


@pytest.mark.parametrize("use_cache", [True, False])
def test_prompts_of_different_lengths_go_on_as_each_would_alone(use_cache: bool) -> None:
    model = lively("pos=learned")
    prompts = [VOCABULARY.encode(text).tolist() for text in ("a", "the norm of a", "key", "rope and gate and stream")]
    generation = Generation(
        model, prompts, num_tokens=25, knobs=WARM, seed=4, window=11, use_cache=use_cache, first_index=3
    )
    new = list(generation)
    expected = [
        by_a_slow_loop(model, ids, 25, window=11, knobs=WARM, seed=4, index=index)
        for index, ids in enumerate(prompts, 3)
    ]
    assert generation.texts == expected
    assert [list(ids) for ids in zip(*new, strict=True)] == [text[-25:] for text in expected]


def test_seeds_differ_and_a_seed_repeats() -> None:
    model = lively()
    texts = [sample(model, VOCABULARY, window=11, knobs=WARM, seed=seed)[0].text for seed in (0, 1, 2**63 - 1, 0)]
    assert texts[0] == texts[3] and len(set(texts)) == 3 and len(texts[0]) == 200


def test_sampling_draws_from_no_generator_of_torchs() -> None:
    before = torch.get_rng_state()
    sample(lively(), VOCABULARY, window=11, num_tokens=5, knobs=WARM)
    assert torch.equal(torch.get_rng_state(), before)


def test_dropout_is_off() -> None:
    model = lively("train.dropout=0.5").train()
    texts = {sample(model.train(), VOCABULARY, "a", window=11, num_tokens=30, knobs=Knobs(0))[0].text for _ in range(3)}
    assert len(texts) == 1


# ------------------------------------------------------------------------------------------------ the start


def test_an_empty_prompt_starts_behind_a_line_end_that_is_no_part_of_the_text() -> None:
    model = lively()
    (made,) = sample(model, VOCABULARY, window=11, num_tokens=9, knobs=WARM)
    (behind,) = sample(model, VOCABULARY, "\n", window=11, num_tokens=9, knobs=WARM)
    assert (made.prompt, made.text) == ("", behind.continuation) and behind.text == "\n" + made.text


def test_without_a_line_end_an_empty_prompt_starts_behind_the_first_character() -> None:
    assert prompt_ids(Vocabulary("Aab"), "") == [0]
    assert prompt_ids(Vocabulary("\t\nab"), "") == [1]
    assert prompt_ids(Vocabulary("x"), "") == [0]


def test_no_tokens_leave_the_prompt_as_it_is() -> None:
    (made,) = sample(lively(), VOCABULARY, "a prompt longer than the window", window=11, num_tokens=0)
    assert (made.text, made.continuation, made.num_tokens) == ("a prompt longer than the window", "", 0)
    assert made.tokens_per_s is None and made.is_cut
    assert sample(lively(), VOCABULARY, window=11, num_tokens=0)[0].text == ""


def test_a_prompt_with_unknown_characters_is_refused_with_all_of_them() -> None:
    with pytest.raises(UserError, match=r"'Ω' \(U\+03A9\) at index 2, '€' \(U\+20AC\) at index 3"):
        sample(lively(), VOCABULARY, "a Ω€Ω", window=11)


# ------------------------------------------------------------------------------------------------ stopping


def long_texts(num_samples: int = 4) -> list[str]:
    made = sample(lively(), VOCABULARY, "no", window=11, num_tokens=60, num_samples=num_samples, knobs=WARM)
    return [text.continuation for text in made]


def test_one_stop_string_may_come_without_a_list() -> None:
    stop = "".join(sample(lively(), VOCABULARY, "no", window=11, num_tokens=60, knobs=WARM)[0].continuation[9:11])
    alone, listed = (
        sample(lively(), VOCABULARY, "no", window=11, num_tokens=60, knobs=WARM, stop=each) for each in (stop, [stop])
    )
    assert alone[0].text == listed[0].text and alone[0].text.endswith(stop)


def test_each_text_ends_behind_the_first_stop_string_in_its_continuation() -> None:
    whole = long_texts()
    stops = (whole[0][20:22], whole[1][3:5], whole[2][30:33])
    stopped = sample(lively(), VOCABULARY, "no", window=11, num_tokens=60, num_samples=4, knobs=WARM, stop=stops)
    for made, text in zip(stopped, whole, strict=True):
        ends = [text.find(stop) + len(stop) for stop in stops if stop in text]
        assert made.continuation == text[: min(ends, default=60)]
        assert made.num_tokens == len(made.continuation) and made.text == "no" + made.continuation
        assert made.is_cut == (len(made.text) - 1 > 11)  # what was read for the last character
    assert len({made.num_tokens for made in stopped}) > 1 and len({made.is_cut for made in stopped}) > 1


def test_a_stop_string_in_the_prompt_or_across_its_end_does_not_stop() -> None:
    first = long_texts(1)[0]
    stop = "o" + first[:1]
    end = first.find(stop) + 2 if stop in first else 60
    made = sample(lively(), VOCABULARY, "no", window=11, num_tokens=60, knobs=WARM, stop=["no", stop])[0]
    assert made.continuation == first[: min(end, first.find("no") + 2 if "no" in first else 60)] and end > 1


def test_generation_ends_when_every_text_has() -> None:
    whole = long_texts()
    calls: list[int] = []
    stops = [text[7] for text in whole]
    with mock.patch("anatomy.generation.next_ids", side_effect=lambda *given: calls.append(1) or next_ids(*given)):
        made = sample(lively(), VOCABULARY, "no", window=11, num_tokens=60, num_samples=4, knobs=WARM, stop=stops)
    assert len(calls) == max(text.num_tokens for text in made) <= 8


def test_a_text_that_stopped_before_it_outgrew_the_window_was_not_cut() -> None:
    whole = long_texts(1)[0]
    made = sample(lively(), VOCABULARY, "no", window=11, num_tokens=60, knobs=WARM, stop=[whole[:9]])[0]
    assert (made.num_tokens, made.is_cut) == (9, False)
    assert sample(lively(), VOCABULARY, "no", window=11, num_tokens=11, knobs=WARM)[0].is_cut


# ------------------------------------------------------------------------------------------------ watching, refusing


def test_a_watcher_sees_every_character_as_it_comes_and_none_behind_a_stop() -> None:
    seen: dict[int, str] = {}

    def watch(index: int, char: str) -> None:
        assert len(char) == 1
        seen[index] = seen.get(index, "") + char

    stop = long_texts()[2][10]
    with mock.patch.object(anatomy.sample, "MAX_AT_ONCE", 3):
        made = sample(
            lively(), VOCABULARY, "no", window=11, num_tokens=60, num_samples=4, knobs=WARM, stop=[stop], watch=watch
        )
    assert seen == {index: text.continuation for index, text in enumerate(made)}


def test_nothing_is_drawn_from_a_model_that_is_not_finite() -> None:
    model = lively()
    with torch.no_grad():
        model.embed.weight[3, 3] = torch.nan
    seen: list[str] = []
    with pytest.raises(NotFinite, match="not finite"):
        sample(model, VOCABULARY, VOCABULARY.chars[3], window=11, watch=lambda _, char: seen.append(char))
    assert not seen


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"num_tokens": -1}, "num_tokens=-1"),
        ({"num_samples": 0}, "num_samples=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": 2**63}, "seed=9223372036854775808"),
        ({"window": 0}, "window=0"),
        ({"window": 12}, "window=12"),
        ({"stop": ["a", ""]}, "stop=''"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_in_one_line(settings: dict, named: str) -> None:
    with pytest.raises(UserError) as error:
        sample(lively("pos=learned"), VOCABULARY, "a", **{"window": 11, **settings})
    assert str(error.value).startswith(f"{named}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("words", MODELS)
def test_only_a_table_of_positions_ends_the_window(words: str) -> None:
    model = tiny_model(words)
    check_window(model, 11)
    if model.max_len is None:
        check_window(model, 10**9)
    else:
        with pytest.raises(UserError, match="ends at 11"):
            check_window(model, 12)
