"""Characters and tokens keep one interface; text comes whole however it is cut into tokens."""

from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_models import END, NUM_TOKENS, SENTENCES, byte_level, composition_of, lively
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from anatomy.checkpoints.tokenizers_of import tokenizer_of_chars
from anatomy.corpus import Vocabulary
from anatomy.errors import UserError
from anatomy.model import Transformer
from anatomy.sample import prompt_ids, sample
from anatomy.sampling import Knobs
from anatomy.tokens import HALF, Codec, Tokens, TokenSpeller

TEXT = "the keys 中文, é 👩‍👩‍👧\n\n  and\0 e\u0301 🙂"
WARM = Knobs(temperature=1.0)
TOKENS = Tokens(byte_level(), NUM_TOKENS)
CODECS: dict[str, Codec] = {
    "characters": Vocabulary.of(TEXT),
    "tokens": TOKENS,
    "characters as tokens": Tokens(tokenizer_of_chars(Vocabulary.of(TEXT).chars), len(Vocabulary.of(TEXT))),
}


def spelled(codec: Codec, ids: Sequence[int], begin: int = 0) -> list[str]:
    """The pieces of text that ids give from one of them on, what is left at the end included."""
    speller = codec.speller(list(ids[:begin]))
    return [*(speller.add(int(each)) for each in ids[begin:]), speller.rest()]


@pytest.mark.parametrize("name", CODECS)
def test_text_goes_to_ids_and_back(name: str) -> None:
    codec = CODECS[name]
    ids = codec.encode(TEXT)
    assert ids.dtype == np.int32 and codec.decode(ids) == TEXT
    assert codec.encode("").tolist() == [] and codec.decode([]) == ""
    assert min(ids) >= 0 and max(ids) < len(codec) and codec.unknown(TEXT) == []


@pytest.mark.parametrize("name", CODECS)
def test_ids_that_come_one_by_one_give_the_text_from_wherever_they_begin(name: str) -> None:
    codec = CODECS[name]
    ids = codec.encode(TEXT).tolist()
    for begin in range(len(ids)):
        before = codec.decode(ids[:begin])
        if not before.endswith(HALF):  # a prompt is text, so it ends with a whole character
            assert before + "".join(spelled(codec, ids, begin)) == TEXT


@pytest.mark.parametrize("name", CODECS)
def test_ids_outside_the_vocabulary_are_refused(name: str) -> None:
    for ids in ([-1], [0, len(CODECS[name])]):
        with pytest.raises(ValueError, match=f"between 0 and {len(CODECS[name]) - 1}"):
            CODECS[name].decode(ids)


@pytest.mark.parametrize("name", CODECS)
def test_a_byte_that_is_not_utf_8_is_refused_in_the_same_words(name: str) -> None:
    with pytest.raises(UserError, match=r"the text has U\+DCFF at index 1, half a character or a byte not UTF-8"):
        CODECS[name].encode("a\udcffb")


def test_unknown_characters_are_named_in_the_same_words() -> None:
    messages = []
    for codec in (CODECS["characters"], CODECS["characters as tokens"]):
        with pytest.raises(UserError, match=r"'Ω' \(U\+03A9\) at index 1, '€' \(U\+20AC\) at index 2") as error:
            codec.encode("aΩ€Ω")
        messages.append(str(error.value))
        assert codec.unknown("Ωa€Ω") == ["Ω", "€"]
    assert messages[0] == messages[1]


ALPHABET = {"<unk>": 0, "a": 1, "b": 2, "é": 3}


def letters(kind: str, normalizer: normalizers.Normalizer | None = None) -> Tokens:
    """Three letters and no bytes. What is none of them is dropped, or has the unknown token."""
    scores = [(token, -1.0) for token in ALPHABET]
    tokenizer = Tokenizer(
        {
            "dropped": lambda: models.BPE(ALPHABET, []),
            "each unknown": lambda: models.BPE(ALPHABET, [], unk_token="<unk>"),
            "unknown together": lambda: models.BPE(ALPHABET, [], unk_token="<unk>", fuse_unk=True),
            "unigram": lambda: models.Unigram(scores, 0, False),
        }[kind]()
    )
    tokenizer.add_special_tokens([AddedToken("<unk>", normalized=False)])
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    return Tokens(tokenizer, len(ALPHABET))


@pytest.mark.parametrize("kind", ["dropped", "each unknown", "unknown together", "unigram"])
def test_a_character_that_no_token_stands_for_is_refused_by_name(kind: str) -> None:
    tokens = letters(kind)
    for text, unknown in {"axb": "x", "x": "x", "a b\n": " \n", "éyaxxyb": "yx", "xaxb": "x", "xé": "x"}.items():
        assert tokens.unknown(text) == list(unknown)
        with pytest.raises(UserError, match=r"the vocabulary of 4 lacks: ") as error:
            tokens.encode(text)
        for char in unknown:
            assert f"{char!r} (U+{ord(char):04X}) at index {text.index(char)}" in str(error.value)
    assert tokens.unknown("abé") == [] and tokens.encode("abé").tolist() == [1, 2, 3]


@pytest.mark.parametrize("kind", ["dropped", "each unknown", "unknown together", "unigram"])
def test_the_unknown_token_may_be_meant(kind: str) -> None:
    assert letters(kind).encode("a<unk>b").tolist() == [1, 0, 2]


def test_a_word_that_is_no_token_is_refused_though_its_letters_are() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "a": 1, "b": 2, "ab": 3}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = Tokens(tokenizer, 4)
    assert tokens.encode("ab a").tolist() == [3, 1] and tokens.unknown("ab a") == []
    assert tokens.unknown("a ba") == ["b", "a"]
    with pytest.raises(UserError, match="lacks"):
        tokens.encode("a ba")


@pytest.mark.parametrize("kind", ["dropped", "each unknown", "unigram"])
def test_what_a_normaliser_makes_of_a_text_is_no_fault(kind: str) -> None:
    assert letters(kind, normalizers.NFC()).encode("ae\u0301b").tolist() == [1, 3, 2]
    assert letters(kind, normalizers.Lowercase()).encode("AÉb").tolist() == [1, 3, 2]
    assert letters(kind, normalizers.Strip()).encode("  ab ").tolist() == [1, 2]
    for normalizer in (normalizers.NFC(), normalizers.Lowercase()):
        assert letters(kind, normalizer).unknown("aXb") == ["X"]


def test_a_character_that_the_normaliser_made_of_several_and_no_token_stands_for_is_refused_by_those() -> None:
    assert letters("dropped", normalizers.NFC()).unknown("abo\u0301") == ["o", "\u0301"]


def test_blanks_that_a_post_processor_takes_off_the_stretches_are_no_lost_ones() -> None:
    tokenizer = byte_level()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    text = "   the  key \n"
    tokens = Tokens(tokenizer, NUM_TOKENS)
    assert tokens.unknown(text) == [] and tokens.encode(text).tolist() == TOKENS.encode(text).tolist()
    assert tokens.behind_first(text) == TOKENS.behind_first(text) == text[len(TOKENS.decode(TOKENS.encode(text)[:1])) :]


def test_a_text_is_read_whole_however_the_tokenizer_was_saved() -> None:
    tokenizer = byte_level()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=99)
    assert Tokens(tokenizer, NUM_TOKENS).encode(TEXT).tolist() == TOKENS.encode(TEXT).tolist()


# ------------------------------------------------------------------------------------------------ what ids stand for


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("text", [TEXT, "the key", "t", "", "  the"])
def test_behind_its_first_id_stands_the_rest_of_a_text(name: str, text: str) -> None:
    codec = CODECS[name]
    if codec.unknown(text):
        pytest.fail("the texts are all of known characters")
    first = codec.decode(codec.encode(text)[:1])
    assert first + codec.behind_first(text) == text


def test_a_mark_of_the_beginning_stands_for_no_character_and_a_spelled_one_for_its_own() -> None:
    marked = Tokens(byte_level(marks_beginning=True), NUM_TOKENS)
    assert marked.behind_first("the key") == "the key" and marked.behind_first(f"{END}the") == f"{END}the"
    assert TOKENS.behind_first(f"{END}the") == "the"


def test_a_character_that_the_first_token_begins_counts_for_the_last_that_shares_it() -> None:
    assert TOKENS.decode(TOKENS.encode("👩b")[:1]) == HALF and TOKENS.behind_first("👩b") == "👩b"


def test_characters_are_those_of_the_text_and_not_of_what_a_normaliser_made_of_it() -> None:
    assert letters("dropped", normalizers.NFC()).behind_first("e\u0301ae\u0301") == "ae\u0301"
    lengthened = normalizers.Replace("b", "éé")
    assert letters("dropped", lengthened).behind_first("aba") == "ba"


# ------------------------------------------------------------------------------------------------ halves


def test_a_character_of_several_tokens_comes_when_it_is_whole() -> None:
    ids = TOKENS.encode("a👩b").tolist()
    assert len(ids) > 4 and HALF in TOKENS.decode(ids[:-2])
    assert spelled(TOKENS, ids) == ["a", *[""] * (len(ids) - 3), "👩", "b", ""]


def test_half_a_character_at_the_end_is_written_as_what_it_is() -> None:
    ids = TOKENS.encode("a👩").tolist()[:-1]
    assert spelled(TOKENS, ids) == ["a", *[""] * (len(ids) - 1), HALF]


def test_the_character_that_stands_for_half_of_one_may_be_meant() -> None:
    ids = TOKENS.encode(f"a{HALF}").tolist()
    assert "".join(spelled(TOKENS, ids)) == f"a{HALF}" and "".join(spelled(TOKENS, ids * 2)) == f"a{HALF}" * 2


@given(st.lists(st.integers(0, NUM_TOKENS - 1), max_size=40))
def test_whatever_is_drawn_comes_to_what_all_of_it_is(ids: list[int]) -> None:
    pieces = spelled(TOKENS, ids)
    assert "".join(pieces) == TOKENS.decode(ids)
    for at, piece in enumerate(pieces[:-1]):  # a half is written when nothing can complete it any more
        assert not piece.endswith(HALF) or pieces[at - 3 : at] == [""] * 3


def test_halves_without_end_are_written_as_they_come_and_each_token_costs_the_same() -> None:
    continuing = TOKENS.encode("è").tolist()[-1]
    assert TOKENS.decode([continuing]) == HALF
    num_decoded: list[int] = []

    def text_of(ids: list[int]) -> str:
        num_decoded.append(len(ids))
        return TOKENS.decode(ids)

    speller = TokenSpeller(text_of, TOKENS.encode("the").tolist())
    pieces = [speller.add(continuing) for _ in range(400)]
    assert max(num_decoded) <= 8
    for end in range(1, 401):
        assert end - 5 < len("".join(pieces[:end])) <= end
    text = "".join(pieces) + "".join(speller.add(each) for each in TOKENS.encode("中").tolist()) + speller.rest()
    assert text == HALF * 400 + "中"


def test_bytes_without_end_that_are_tokens_of_their_own_are_written_too() -> None:
    tokens = with_blanks_in_words()
    pieces = spelled(
        tokens, [1 + 0x80] * 99 + [1 + byte for byte in "中".encode()] + [tokens.tokenizer.token_to_id("s")]
    )
    assert sum(map(bool, pieces[:99])) >= 24 and max(map(len, pieces)) <= 8
    assert "".join(pieces) == HALF * 102 + "s"  # one byte that is no character spoils all in its row


@cache
def with_blanks_in_words() -> Tokens:
    """As SentencePiece has it: a blank is part of a word and falls away at the start, bytes are tokens of their own."""
    words = ["<s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "▁the", "▁key", "s", "a"]
    tokenizer = Tokenizer(models.BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    return Tokens(tokenizer, len(words))


def test_a_blank_that_a_decoder_drops_at_the_start_stays_inside_a_text() -> None:
    tokens = with_blanks_in_words()
    ids = [tokens.tokenizer.token_to_id(word) for word in ("▁the", "▁key", "s", "▁the")]
    assert spelled(tokens, ids) == ["the", " key", "s", " the", ""]
    assert spelled(tokens, ids, begin=1) == [" key", "s", " the", ""]


def test_characters_of_bytes_that_follow_each_other_come_one_by_one() -> None:
    tokens = with_blanks_in_words()
    ids = [1 + byte for byte in "中文é".encode()]
    assert spelled(tokens, ids) == ["", "", "中", "", "", "文", "", "é", ""]
    assert spelled(tokens, ids, begin=6) == ["", "é", ""]


# ------------------------------------------------------------------------------------------------ beginnings


def test_the_post_processor_decides_what_a_text_is_marked_with() -> None:
    marked = Tokens(byte_level(marks_beginning=True), NUM_TOKENS)
    assert marked.encode("the").tolist() == [0, *TOKENS.encode("the").tolist()]
    assert prompt_ids(marked, "") == [0] and prompt_ids(marked, "the") == marked.encode("the").tolist()


def test_an_empty_prompt_begins_with_what_the_config_names_or_else_with_a_line_end() -> None:
    assert prompt_ids(Tokens(byte_level(), NUM_TOKENS, 5), "") == [5]
    assert prompt_ids(TOKENS, "") == TOKENS.encode("\n").tolist()
    chars = [Vocabulary("\t\nab"), Vocabulary("ab")]
    for vocabulary in chars:
        as_tokens = Tokens(tokenizer_of_chars(vocabulary.chars), len(vocabulary))
        assert prompt_ids(as_tokens, "") == prompt_ids(vocabulary, "")


def test_a_prompt_of_which_no_token_is_left_is_an_empty_one() -> None:
    tokenizer = byte_level()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(" ", "removed"), tokenizer.pre_tokenizer])
    assert prompt_ids(Tokens(tokenizer, NUM_TOKENS, 7), "  ") == [7]


def test_a_token_that_the_model_does_not_have_is_refused_by_name() -> None:
    with pytest.raises(UserError, match=r"more tokens than the model, which has 300: .* is number 30\d"):
        Tokens(byte_level(), 300).encode(" ".join(SENTENCES))


def test_rows_of_the_model_that_stand_for_no_token_are_written_as_nothing() -> None:
    assert Tokens(byte_level(), 400).decode([399, *TOKENS.encode("the")]) == "the"


def test_special_tokens_are_written_as_they_are_spelled() -> None:
    ids = TOKENS.encode(f"the{END}key").tolist()
    assert 0 in ids and TOKENS.decode(ids) == f"the{END}key" == "".join(spelled(TOKENS, ids))


# ------------------------------------------------------------------------------------------------ sampling


@cache
def model() -> Transformer:
    return lively(composition_of("base=llama"))


def whole_and_ids(num_tokens: int = 50, seed: int = 0) -> tuple[str, list[int]]:
    """A continuation, and the tokens that it is made of."""
    watched: list[int] = []

    class Listening(Tokens):
        def speller(self, before: Sequence[int]):  # type: ignore[no-untyped-def]
            speller = super().speller(before)
            add = speller.add
            speller.add = lambda new: watched.append(new) or add(new)  # type: ignore[func-returns-value, method-assign]
            return speller

    listening = Listening(byte_level(), NUM_TOKENS)
    (made,) = sample(model(), listening, "the key", window=11, num_tokens=num_tokens, knobs=WARM, seed=seed)
    assert made.num_tokens == num_tokens == len(watched)
    return made.continuation, watched


@pytest.mark.parametrize("seed", range(4))
def test_a_continuation_is_the_text_of_its_tokens(seed: int) -> None:
    text, ids = whole_and_ids(seed=seed)
    prompt = TOKENS.encode("the key").tolist()
    assert TOKENS.decode(prompt + ids) == "the key" + text


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_text_ends_right_behind_a_stop_wherever_tokens_are_cut(seed: int, length: int) -> None:
    whole, ids = whole_and_ids(seed=seed)
    for begin in range(0, len(whole) - length, 7):
        stops = [whole[begin : begin + length], "never written"]
        end = whole.index(stops[0]) + length
        seen: list[str] = []
        (made,) = sample(
            model(),
            TOKENS,
            "the key",
            window=11,
            num_tokens=50,
            knobs=WARM,
            seed=seed,
            stop=stops,
            watch=lambda _, piece, seen=seen: seen.append(piece),  # type: ignore[misc]
        )
        assert made.continuation == whole[:end] == "".join(seen) and all(seen)
        prompt = TOKENS.encode("the key").tolist()
        texts = (TOKENS.decode(prompt + ids[:num]).removeprefix("the key") for num in range(1, 51))
        needed = next(num for num, text in enumerate(texts, 1) if text.rstrip(HALF).startswith(whole[:end]))
        assert made.num_tokens == needed or HALF in stops[0]


@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_a_watcher_has_seen_is_taken_back(seed: int) -> None:
    seen: list[str] = []
    (made,) = sample(
        model(), TOKENS, window=11, num_tokens=60, knobs=WARM, seed=seed, watch=lambda _, piece: seen.append(piece)
    )
    assert made.continuation == "".join(seen) and all(seen)
