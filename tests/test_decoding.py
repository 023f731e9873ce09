"""The cache and the decoder: a text read in pieces, in company or token by token is the text read whole."""

from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from conftest import NUM_SYMBOLS, options, tiny_ids, tiny_model
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from anatomy.axes import AXES, BASES, VALUE_AXES
from anatomy.build import part_classes
from anatomy.decoding import Decoder, decoder, is_bindable
from anatomy.generation import Generation
from anatomy.model import Cache, Transformer
from anatomy.parts.attn import GroupedQuery, KVCache
from anatomy.parts.binding import Buffer, bind_ffn, bind_norm
from anatomy.parts.ffn import SwiGLU
from anatomy.parts.norm import RMSNorm
from anatomy.parts.pos import RoPE, Rotation
from anatomy.sampling import Knobs

LENGTH = 11
CHOICES = {axis: VALUE_AXES.get(axis) or tuple(options(axis)) for axis in AXES}
compositions = st.fixed_dictionaries({axis: st.sampled_from(choices) for axis, choices in CHOICES.items()})


def random_model(**parts: str) -> Transformer:
    """A tiny model whose gains, shifts and biases are none of the values at which a mistake hides."""
    model = tiny_model(*(f"{axis}={part}" for axis, part in parts.items())).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            low, high = (0.5, 1.5) if name.endswith("gain") else (-0.5, 0.5)
            parameter.uniform_(low, high, generator=generator)
    return model.requires_grad_(False)


def read_in_pieces(model: Transformer, ids: Tensor, cuts: list[int], padding: Tensor | None = None) -> Tensor:
    cache = model.new_cache(2, padding)
    borders = [0, *sorted(set(cuts)), ids.shape[1]]
    return torch.cat([model(ids[:, a:b], cache) for a, b in pairwise(borders) if a < b], dim=1)


def read_token_by_token(model: Transformer, ids: Tensor, num_first: int, padding: Tensor | None = None) -> Tensor:
    """The logits of every position: the first tokens in one piece, the others by the decoder."""
    cache = model.new_cache(ids.shape[1], padding)
    first = model(ids[:, :num_first], cache)
    bound = Decoder(model, cache)
    rest = [bound.next_logits(ids[:, t].tolist()) for t in range(num_first, ids.shape[1])]
    return torch.cat([first, torch.stack(rest, dim=1)], dim=1)


def assert_same(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Within a share of the largest logit: without a norm logits are in the thousands, and their rounding with them."""
    assert found.isfinite().all()
    assert (found - expected).abs().max() <= tolerance * expected.abs().max()


# ---------------------------------------------------------------------------------------------- every composition


@settings(max_examples=120, deadline=None, derandomize=True)
@given(parts=compositions, cuts=st.lists(st.integers(1, LENGTH - 1), max_size=4), num_first=st.integers(1, LENGTH - 1))
def test_any_composition_read_in_pieces_or_token_by_token_gives_the_logits_of_one_pass(
    parts: dict[str, str], cuts: list[int], num_first: int
) -> None:
    model, ids = random_model(**parts), tiny_ids(2)
    whole = model(ids)
    tolerance = 1e-3 if parts["norm"] == "none" else 1e-5  # nothing keeps rounding from growing layer by layer
    assert_same(read_in_pieces(model, ids, cuts), whole, tolerance)
    assert_same(read_token_by_token(model, ids, num_first), whole, tolerance)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(parts=compositions, missing=st.lists(st.integers(0, 6), min_size=2, max_size=4), num_first=st.integers(1, 10))
def test_texts_of_different_lengths_give_side_by_side_what_each_gives_alone(
    parts: dict[str, str], missing: list[int], num_first: int
) -> None:
    model, padding = random_model(**parts), torch.tensor(missing) - min(missing)
    ids = tiny_ids(len(missing))
    tolerance = 1e-3 if parts["norm"] == "none" else 1e-5
    for found in (read_in_pieces(model, ids, [4, 9], padding), read_token_by_token(model, ids, num_first, padding)):
        assert found.isfinite().all()
        for row, num in enumerate(padding.tolist()):
            assert_same(found[row : row + 1, num:], model(ids[row : row + 1, num:]), tolerance)


@pytest.mark.parametrize("axis", AXES)
def test_every_part_of_an_axis_decodes_in_every_base(axis: str) -> None:
    ids = tiny_ids(2)
    for own in BASES.values():
        for part in CHOICES[axis]:
            model = random_model(**{**own, axis: part})
            whole = model(ids)
            assert_same(read_token_by_token(model, ids, 3), whole, 1e-3 if part == "none" else 1e-5)
            assert_same(read_in_pieces(model, ids, [3, 4, 8]), whole, 1e-3 if part == "none" else 1e-5)


@pytest.mark.parametrize("base", BASES)
def test_in_bfloat16_pieces_agree_with_one_pass_to_its_precision(base: str) -> None:
    model, ids = random_model(**BASES[base]), tiny_ids(2)
    exact = model(ids)
    rounded = model.to(torch.bfloat16)
    whole = rounded(ids)
    assert_same(read_in_pieces(rounded, ids, [4, 5, 9]), whole, 2**-6)
    assert_same(whole.float(), exact, 2**-4)
    cache = rounded.new_cache(LENGTH)
    rounded(ids, cache)
    assert cache.layers[0].keys.dtype == torch.bfloat16 and not is_bindable(rounded, cache)


@pytest.mark.parametrize(("fast", "few"), [(1, 10**6), (6, 10**6), (4, 12), (1024, 0)])
@pytest.mark.parametrize("attn", options("attn"))
def test_attention_to_many_keys_is_that_to_few(attn: str, fast: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Block by block, by PyTorch from some length on, and by PyTorch alone; with padding and without."""
    monkeypatch.setattr("anatomy.parts.attn.FAST_LOGITS", fast)
    monkeypatch.setattr("anatomy.parts.attn.FEW_LOGITS", few)
    model, ids = random_model(**{**BASES["llama"], "attn": attn}), tiny_ids(2)
    assert_same(read_token_by_token(model, ids, 3), model(ids))
    found = read_token_by_token(model, ids, 3, torch.tensor([0, 5]))
    assert found.isfinite().all()
    assert_same(found[:1], model(ids[:1]))
    assert_same(found[1:, 5:], model(ids[1:, 5:]))


def test_where_no_decoder_can_be_bound_the_model_itself_goes_on() -> None:
    model, ids = random_model(**BASES["llama"]).to(torch.bfloat16), tiny_ids(2)
    caches = [model.new_cache(LENGTH) for _ in range(2)]
    for cache in caches:
        model(ids[:, :4], cache)
    found = decoder(model, caches[0])(ids[:, 4].tolist())
    assert torch.equal(found, model.next_logits(ids[:, 4:5], caches[1])) and caches[0].num_cached == 5


# ---------------------------------------------------------------------------------------------- the cache


def test_ten_tokens_and_then_five_are_fifteen() -> None:
    model, ids = random_model(**BASES["llama"]), tiny_ids(2, 15)
    cache = model.new_cache(15)
    model(ids[:, :10], cache)
    assert_same(model(ids[:, 10:], cache), model(ids)[:, 10:])
    assert cache.num_cached == 15


def test_what_stands_in_the_padding_changes_nothing() -> None:
    model, ids, padding = random_model(**BASES["llama"]), tiny_ids(3), torch.tensor([0, 4, 7])
    before = read_token_by_token(model, ids, 8, padding)
    for row, num in enumerate(padding.tolist()):
        ids[row, :num] = (ids[row, :num] + 5) % NUM_SYMBOLS
    after = read_token_by_token(model, ids, 8, padding)
    for row, num in enumerate(padding.tolist()):
        assert torch.equal(before[row, num:], after[row, num:])


@pytest.mark.parametrize("attn", options("attn"))
def test_bytes_are_the_formula_for_the_room_taken_and_room_is_taken_once(attn: str) -> None:
    model, ids = random_model(**{**BASES["llama"], "attn": attn}), tiny_ids(2)
    cache = model.new_cache(LENGTH)
    assert cache.nbytes == 0
    model(ids[:, :3], cache)
    held = [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers]
    bound = Decoder(model, cache)
    for t in range(3, LENGTH):
        bound.next_logits(ids[:, t].tolist())
    assert cache.nbytes == 2 * LENGTH * model.kv_bytes_per_token(4)
    assert held == [(layer.keys.data_ptr(), layer.values.data_ptr()) for layer in cache.layers]
    assert all(layer.keys.shape == (2, layer_heads(model), LENGTH, 6) for layer in cache.layers)


def layer_heads(model: Transformer) -> int:
    return model.blocks[0].attn.k_proj.out_features // 6


def test_keys_handed_out_are_views_of_the_cache() -> None:
    cache = KVCache(5)
    cache.extend(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4))
    keys, values = cache.extend(torch.full((1, 2, 1, 4), 2.0), torch.full((1, 2, 1, 4), 3.0))
    assert keys.data_ptr() == cache.keys.data_ptr() and values.data_ptr() == cache.values.data_ptr()
    assert keys[0, 0, :, 0].tolist() == [1, 1, 1, 2] and values[0, 1, :, 3].tolist() == [1, 1, 1, 3]


def test_a_full_cache_grows_to_twice_its_size_or_to_what_is_needed_and_keeps_what_it_has() -> None:
    cache, tokens = KVCache(3), torch.arange(40.0).view(1, 1, 40, 1)
    sizes = []
    for start, stop in ((0, 2), (2, 4), (4, 6), (6, 7), (7, 40)):
        keys, values = cache.extend(tokens[:, :, start:stop], -tokens[:, :, start:stop])
        sizes.append(cache.num_slots)
        assert torch.equal(keys, tokens[:, :, :stop]) and torch.equal(values, -tokens[:, :, :stop])
    assert sizes == [3, 6, 6, 12, 40]


def test_a_cropped_cache_goes_on_from_there() -> None:
    model, ids = random_model(**BASES["gpt2"]), tiny_ids(2)
    cache = model.new_cache(LENGTH)
    model(ids, cache)
    cache.crop(4)
    assert_same(model(ids[:, 4:], cache), model(ids)[:, 4:])
    with pytest.raises(ValueError, match="11 tokens cannot be cropped to 12"):
        cache.crop(12)


def test_a_cache_goes_on_with_as_many_texts_as_it_holds() -> None:
    model, ids = random_model(**BASES["llama"]), tiny_ids(2)
    cache = model.new_cache(LENGTH)
    model(ids[:, :4], cache)
    with pytest.raises(ValueError, match="a cache of 2 texts cannot go on with 1"):
        model(ids[:1, 4:], cache)
    assert_same(model(ids[:, 4:], cache), model(ids)[:, 4:])
    cache.crop(0)
    with pytest.raises(ValueError, match="a cache of 2 texts cannot go on with 1"):
        model(ids[:1], cache)


def test_another_prompt_knows_nothing_of_the_first() -> None:
    model = random_model(**BASES["llama"])
    other, own = tiny_ids(1, 9, seed=1), tiny_ids(1, 9, seed=2)
    alone = read_token_by_token(model, own, 2)
    read_token_by_token(model, other, 2)
    assert torch.equal(read_token_by_token(model, own, 2), alone)


def test_past_the_table_of_positions_nothing_is_read_and_the_error_says_where_it_ends() -> None:
    model, ids = random_model(**BASES["vanilla"]), tiny_ids(1, 12)
    cache = model.new_cache(20)
    model(ids[:, :10], cache)
    bound = Decoder(model, cache)
    bound.next_logits(ids[:, 10].tolist())
    for read in (lambda: bound.next_logits(ids[:, 11].tolist()), lambda: model(ids[:, 11:], cache)):
        with pytest.raises(ValueError, match="position 12 does not exist: the table of learned positions ends at 11"):
            read()


def test_positions_count_from_the_first_token_of_each_text_on() -> None:
    model = random_model(**BASES["vanilla"])
    cache = model.new_cache(9, torch.tensor([0, 2]))
    assert cache.positions(4, torch.device("cpu")).tolist() == [[0, 1, 2, 3], [0, 0, 0, 1]]


# ---------------------------------------------------------------------------------------------- binding


def test_turns_are_what_a_rotation_does_as_matrices() -> None:
    x = torch.randn(2, 5, 3, 6, generator=torch.Generator().manual_seed(0))
    rotating = [part for name, part in part_classes("pos").items() if issubclass(part, RoPE)]
    assert len(rotating) > 2
    for part in rotating:
        for positions in (torch.arange(3, 8), torch.tensor([[0, 1, 2, 3, 4], [0, 0, 7, 8, 9]])):
            rotation = part(6).rotation(positions)
            turns = rotation.turns()
            assert turns.of_queries.shape == (*positions.shape, 6, 6)
            torch.testing.assert_close(x @ turns.of_queries, rotation.turn(x, 3))
            torch.testing.assert_close(x @ turns.of_keys, rotation.turn(x, 0))


class Doubling(nn.Module):
    """A part that does not say how it is bound, and knows its input as training gives it."""

    def forward(self, x: Tensor) -> Tensor:
        batch_size, num_tokens, width = x.shape
        return 2 * x.view(batch_size, num_tokens, width)


class OtherNorm(RMSNorm):
    """A norm that inherits how it is bound, and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 3 * super().forward(x)


class GEGLU(SwiGLU):
    """The same of an FFN."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.gelu(self.gate_proj(x)) * self.up_proj(x))


class NormedQueries(GroupedQuery):
    """The same of attention, by overriding what `bind` computes in its own way."""

    def project(self, x: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, rotation)
        return F.normalize(q, dim=-1), k, v


class Plain(nn.Module):
    """Attention that does not say how it is bound."""

    def __init__(self, attn: nn.Module) -> None:
        super().__init__()
        self.attn, self.qk_norm, self.window = attn, attn.qk_norm, attn.window

    def forward(self, x: Tensor, rotation: Rotation | None, cache: KVCache | None = None) -> Tensor:
        return self.attn(x, rotation, cache)


def test_a_part_that_does_not_say_how_it_is_bound_is_called_as_in_training() -> None:
    x, into = Buffer.of(2, 3), Buffer.of(2, 3)
    into.tensor.fill_(5.0)
    norm, y = bind_norm(Doubling(), x)
    ffn = bind_ffn(Doubling(), x._replace(gain=torch.tensor([1.0, 2.0, 3.0])), into)
    x.array[:] = 2.0
    norm()
    ffn()
    assert y.array.tolist() == [[4.0] * 3] * 2 and into.tensor.tolist() == [[9.0, 13.0, 17.0]] * 2


@pytest.mark.parametrize("part", ["attn_norm", "ffn", "attn", "plain"])
def test_a_part_that_computes_otherwise_than_its_parent_is_decoded_as_it_computes(part: str) -> None:
    model, ids = random_model(**BASES["llama"]), tiny_ids(2)
    before = model(ids)
    for block in model.blocks:
        kinds = {"attn_norm": OtherNorm, "ffn": GEGLU, "attn": NormedQueries}
        if part == "plain":
            block.attn = Plain(block.attn)
        else:
            getattr(block, part).__class__ = kinds[part]
    whole = model(ids)
    assert torch.equal(whole, before) is (part == "plain")
    for use_cache in (True, False):
        greedy = Generation(
            model,
            ids[:, :4].tolist(),
            num_tokens=7,
            knobs=Knobs(temperature=0.0),
            seed=0,
            window=11,
            use_cache=use_cache,
        )
        list(greedy)
        assert all(
            text[4 + t] == model(torch.tensor([text[: 4 + t]]))[0, -1].argmax()
            for text in greedy.texts
            for t in range(7)
        )
    cache = model.new_cache(LENGTH)
    model(ids[:, :3], cache)
    assert is_bindable(model, cache) is (part in ("attn_norm", "ffn"))


def test_models_are_decoded_whatever_the_surroundings() -> None:
    model = random_model(**BASES["llama"])

    def text() -> list[list[int]]:
        generation = Generation(model, [[1, 2, 3]], num_tokens=6, knobs=Knobs(0.0), seed=0, window=11)
        list(generation)
        return generation.texts

    plain = text()
    with torch.autocast("cpu", torch.bfloat16):
        assert len(text()[0]) == 9
    torch.set_default_dtype(torch.float64)
    try:
        assert text() == plain
    finally:
        torch.set_default_dtype(torch.float32)
    model.requires_grad_(True)
    assert text() == plain


@pytest.mark.parametrize("batch_size", [1, 2])
def test_numbers_that_are_not_finite_show_in_the_logits(batch_size: int) -> None:
    model = random_model(**{**BASES["llama"], "norm": "rms"})
    for module in model.modules():
        if isinstance(module, RMSNorm):
            module.eps = 0.0
    model.embed.weight[3] = 0.0  # a token whose size is none
    cache = model.new_cache(5)
    model(torch.ones(batch_size, 2, dtype=torch.int64), cache)
    assert Decoder(model, cache).next_logits([3] * batch_size).isnan().all()


# ---------------------------------------------------------------------------------------------- whole texts


@pytest.mark.parametrize("knobs", [Knobs(temperature=0.0), Knobs(temperature=1.0)])
@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("window", [1, 2, 7, 11])
def test_texts_with_and_without_a_cache_are_the_same_beyond_the_window_too(
    base: str, window: int, knobs: Knobs
) -> None:
    model = random_model(**BASES[base])
    prompts = [tiny_ids(1, length, seed=length)[0].tolist() for length in (1, 5, 14)]
    texts = []
    for use_cache in (True, False):
        generation = Generation(model, prompts, num_tokens=25, knobs=knobs, seed=3, window=window, use_cache=use_cache)
        assert len(list(generation)) == 25 and generation.is_cut
        assert (generation.cache_bytes > 0) is use_cache
        texts.append(generation.texts)
    assert texts[0] == texts[1] and [text[:n] for text, n in zip(texts[0], (1, 5, 14), strict=True)] == prompts
    alone = Generation(model, prompts[:1], num_tokens=25, knobs=knobs, seed=3, window=window)
    list(alone)
    assert alone.texts == texts[0][:1]


def test_of_a_full_window_the_older_half_is_dropped() -> None:
    model = random_model(**BASES["llama"])
    seen: list[list[list[int]]] = []
    read = model.next_logits

    def noting(ids: Tensor, cache: Cache) -> Tensor:
        seen.append(ids.tolist())
        return read(ids, cache)

    model.next_logits = noting  # type: ignore[method-assign]
    generation = Generation(model, [[*range(9)]], num_tokens=8, knobs=Knobs(0.0), seed=0, window=5)
    list(generation)
    text = generation.texts[0]
    assert seen == [[text[4:9]], [text[8:10]], [text[12:14]]]


@pytest.mark.parametrize(("prompts", "window"), [([], 5), ([[1], []], 5), ([[1]], 0)])
def test_what_cannot_be_gone_on_with_is_refused(prompts: list[list[int]], window: int) -> None:
    with pytest.raises(ValueError, match=r"at least one|window=0"):
        Generation(random_model(), prompts, num_tokens=1, knobs=Knobs(), seed=0, window=window)


def test_one_text_takes_room_for_what_it_reads_or_for_the_window() -> None:
    model = random_model(**BASES["llama"])
    for num_tokens, window, num_slots in ((4, 11, 6), (8, 11, 10), (9, 11, 11), (40, 11, 11), (40, 50, 42)):
        generation = Generation(model, [[1, 2, 3]], num_tokens=num_tokens, knobs=Knobs(), seed=0, window=window)
        list(generation)
        assert generation.cache_bytes == num_slots * model.kv_bytes_per_token(4)
