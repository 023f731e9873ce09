"""What LLaMA's successors added: scalings of RoPE, a window, QK-norm, biases of some layers, a head width of its own.

The scalings are held against transformers' own functions, the rest against slow loops and single changed tokens.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import compose, tiny_ids, tiny_model
from torch import Tensor, nn
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from anatomy.axes import BIASED, LATER_AXES
from anatomy.build import build_model, derived, part_section
from anatomy.config import Composition
from anatomy.errors import UserError
from anatomy.parts.attn import AttentionSizes, GroupedQuery, KVCache
from anatomy.parts.pos import RoPE, RoPELinear, RoPELlama3, RoPEYaRN, rotate
from anatomy.parts.qk_norm import NoQKNorm, RMSPerHead
from anatomy.parts.window import NoWindow, Sliding
from anatomy.runs import identity, run_name

CPU = torch.device("cpu")


def theirs(head_width: int, kind: str, **parameters: float | None) -> tuple[Tensor, float]:
    """Frequencies and attention factor as transformers computes them."""
    config = LlamaConfig(
        hidden_size=2 * head_width,
        num_attention_heads=2,
        head_dim=head_width,
        rope_parameters={"rope_type": kind, **parameters},
    )
    return ROPE_INIT_FUNCTIONS[kind](config, CPU)


# ------------------------------------------------------------------------------------------------ RoPE for longer texts


def test_llama_31_keeps_29_pairs_blends_6_and_divides_29() -> None:
    plain, scaled = RoPE(128, theta=5e5).frequencies(CPU), RoPELlama3(128).frequencies(CPU)
    shares = (scaled / plain).tolist()
    assert sum(share == 1 for share in shares) == 29
    assert sum(share == pytest.approx(1 / 8) for share in shares) == 29
    assert plain[29].item() == pytest.approx(2.616099253e-3, rel=1e-6)
    assert scaled[29].item() == pytest.approx(2.166570764e-3, rel=1e-6)


@pytest.mark.parametrize("head_width", [6, 16, 128])
@pytest.mark.parametrize("theta", [100.0, 10000.0, 5e5])
@pytest.mark.parametrize("original_len", [32, 2048, 8192])
def test_scaled_frequencies_equal_those_of_transformers(head_width: int, theta: float, original_len: int) -> None:
    shared = {"rope_theta": theta, "original_max_position_embeddings": original_len}
    for factor in (1.0, 2.5, 8.0, 40.0):
        ours: list[tuple[RoPE, float, tuple[Tensor, float]]] = [
            (
                RoPELinear(head_width, theta=theta, factor=factor),
                1.0,
                theirs(head_width, "linear", rope_theta=theta, factor=factor),
            ),
            (
                RoPELlama3(head_width, theta=theta, factor=factor, low_freq_factor=1.5, original_len=original_len),
                1.0,
                theirs(head_width, "llama3", factor=factor, low_freq_factor=1.5, high_freq_factor=4.0, **shared),
            ),
        ]
        for beta_fast, attention_factor in ((32.0, None), (5.0, 1.7)):
            yarn = RoPEYaRN(
                head_width,
                theta=theta,
                factor=factor,
                original_len=original_len,
                beta_fast=beta_fast,
                attention_factor=attention_factor,
            )
            asked = {"factor": factor, "beta_fast": beta_fast, "attention_factor": attention_factor}
            ours.append((yarn, yarn.attention_factor, theirs(head_width, "yarn", **asked, **shared)))
        for part, amplitude, (frequencies, factor_of_scores) in ours:
            torch.testing.assert_close(part.frequencies(CPU), frequencies, rtol=2e-6, atol=0)
            assert amplitude == pytest.approx(factor_of_scores)


def test_linear_scaling_turns_a_position_as_plain_rope_turns_its_share() -> None:
    q = torch.randn(1, 12, 2, 6, generator=torch.Generator().manual_seed(1))
    scaled = rotate(q, RoPELinear(6, factor=4.0).rotation(torch.arange(12)))
    torch.testing.assert_close(scaled[:, ::4], rotate(q[:, ::4], RoPE(6).rotation(torch.arange(3))))


def test_yarn_multiplies_scores_by_the_square_of_its_attention_factor() -> None:
    q, k = torch.randn(2, 1, 9, 2, 8, generator=torch.Generator().manual_seed(1))
    plain, sharper = (RoPEYaRN(8, attention_factor=factor).rotation(torch.arange(9)) for factor in (1.0, 1.5))
    scores = [torch.einsum("bthk,bshk->bhts", rotate(q, each), rotate(k, each)) for each in (plain, sharper)]
    torch.testing.assert_close(scores[1], 1.5**2 * scores[0])
    assert RoPEYaRN(8, factor=8.0).attention_factor == pytest.approx(0.1 * math.log(8) + 1)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RoPELlama3(8, low_freq_factor=4.0), "low_freq_factor=4.0 must be below"),
        (lambda: RoPEYaRN(8, beta_slow=33.0), "beta_slow=33.0 must not be above"),
        (lambda: RoPEYaRN(8, theta=1.0), "theta=1"),
        (lambda: RoPELinear(7), "must be even"),
    ],
)
def test_scalings_that_cannot_be_are_refused(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


# ------------------------------------------------------------------------------------------------ QK-norm


def attention(qk_norm: nn.Module, window: nn.Module, head_width: int = 4) -> GroupedQuery:
    torch.manual_seed(6)
    part = GroupedQuery(AttentionSizes(10, 6, head_width, True, False), qk_norm, window, n_kv_head=2)
    with torch.no_grad():
        for name, parameter in part.named_parameters():
            parameter.uniform_(0.5, 1.5) if name.endswith("gain") else parameter.normal_()
    return part


def attention_by_loops(part: GroupedQuery, x: Tensor) -> Tensor:
    """Every head, query and key in turn: first the norm, then the turn, then what the window lets see."""
    H, G, K, T = part.n_head, part.n_kv_head, part.head_width, x.shape[1]
    rotation = RoPE(K).rotation(torch.arange(T))
    q, k = (F.linear(x, p.weight, p.bias).view(1, T, -1, K) for p in (part.q_proj, part.k_proj))
    v = F.linear(x, part.v_proj.weight, part.v_proj.bias).view(1, T, G, K)
    if isinstance(part.qk_norm, RMSPerHead):
        q, k = (
            torch.stack([row / (row.square().mean() + norm.eps).sqrt() * norm.gain for row in rows.reshape(-1, K)])
            for rows, norm in ((q, part.qk_norm.q_norm), (k, part.qk_norm.k_norm))
        )
    q, k = rotate(q.view(1, T, H, K), rotation), rotate(k.view(1, T, G, K), rotation)
    out = torch.zeros(1, T, H, K)
    for h in range(H):
        g = h // (H // G)
        for t in range(T):
            first = 0 if part.window.size is None else max(0, t + 1 - part.window.size)
            weights = (k[0, first : t + 1, g] @ q[0, t, h] / math.sqrt(K)).softmax(0)
            out[0, t, h] = weights @ v[0, first : t + 1, g]
    return F.linear(out.flatten(-2), part.o_proj.weight, part.o_proj.bias)


@pytest.mark.parametrize("qk_norm", [NoQKNorm(), RMSPerHead(4, eps=1e-2)], ids=["none", "rms"])
@pytest.mark.parametrize("window", [NoWindow(), Sliding(9, 0, size=3)], ids=["none", "sliding"])
@torch.no_grad()
def test_attention_equals_a_loop_with_norm_then_turn_then_window(qk_norm: nn.Module, window: nn.Module) -> None:
    part = attention(qk_norm, window)
    x = torch.randn(1, 9, 10, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(part(x, RoPE(4).rotation(torch.arange(9))), attention_by_loops(part, x))


@torch.no_grad()
def test_norm_and_turn_do_not_commute_where_the_gains_are_free() -> None:
    qk, norm = torch.randn(1, 9, 8, 4, generator=torch.Generator().manual_seed(3)), RMSPerHead(4)
    torch.manual_seed(1)
    for each in (norm.q_norm, norm.k_norm):
        each.gain.uniform_(0.5, 1.5)
    rotation = RoPE(4).rotation(torch.arange(9))
    assert (rotate(norm(qk, 6), rotation) - norm(rotate(qk, rotation), 6)).abs().max() > 0.1


# ------------------------------------------------------------------------------------------------ the window


def test_a_token_sees_itself_and_the_last_few_before_it() -> None:
    model, ids = tiny_model("base=mistral", "model.n_layer=1", "window.size=4"), tiny_ids(1)
    before = model(ids)
    for changed in range(11):
        other = ids.clone()
        other[0, changed] = (other[0, changed] + 1) % 29
        moved = (model(other) - before).abs().amax(-1)[0] > 0
        assert moved.nonzero().flatten().tolist() == list(range(changed, min(changed + 4, 11)))


def test_a_window_as_long_as_the_text_is_no_window_bit_for_bit() -> None:
    plain, ids = tiny_model("base=llama"), tiny_ids()
    for size, is_same in ((11, True), (64, True), (10, False), (1, False)):
        windowed = tiny_model("base=mistral", f"window.size={size}")
        assert torch.equal(windowed(ids), plain(ids)) is is_same


def test_the_layers_before_the_first_see_everything() -> None:
    model = tiny_model("base=mistral", "window.first_layer=1", "window.size=2")
    assert [block.attn.window.size for block in model.blocks] == [None, 2, 2]
    assert [layer.window for layer in model.new_cache(11).layers] == [None, 2, 2]


def test_a_window_that_no_layer_has_is_refused() -> None:
    with pytest.raises(UserError, match=r"window.first_layer=3: none of 3 layers"):
        tiny_model("base=mistral", "window.first_layer=3")


def test_the_default_window_is_half_of_the_context() -> None:
    config = compose("base=mistral", "model.ctx_len=9")
    assert derived(build_model(config, 29))["window"] == 4
    assert "window" not in derived(build_model(compose("base=llama"), 29))


def test_what_lies_behind_a_window_costs_neither_flops_nor_cache() -> None:
    plain, windowed = (build_model(compose(f"base={base}", "model.ctx_len=32"), 29) for base in ("llama", "mistral"))
    channels = sum(block.attn.n_head * block.attn.head_width for block in plain.blocks)
    assert plain.flops_per_token(32) - windowed.flops_per_token(32) == 12 * channels * 16
    assert windowed.kv_bytes(8) == plain.kv_bytes(8) == 8 * plain.kv_bytes_per_token()
    assert windowed.kv_bytes(1000) == plain.kv_bytes(16) == windowed.kv_bytes(16)


@pytest.mark.parametrize("window", [1, 3, 8])
@pytest.mark.parametrize("pieces", [[20], [7, 1, 1, 11], [8, 1, 11], [9, 1, 1, 1, 8], [1] * 20, [3, 5, 5, 1, 6]])
def test_a_cache_with_a_window_holds_no_more_and_hands_out_what_is_seen(window: int, pieces: list[int]) -> None:
    cache, tokens = KVCache(20, window=window), torch.arange(20.0).view(1, 1, 20, 1)
    start = 0
    for piece in pieces:
        stop = start + piece
        keys, values = cache.extend(tokens[:, :, start:stop], -tokens[:, :, start:stop])
        is_visible = cache.visible(piece, keys.shape[2], CPU)
        for query in range(piece):
            seen = keys[0, 0, :, 0] if is_visible is None else keys[0, 0, is_visible[0, 0, query], 0]
            assert sorted(seen.tolist()) == list(range(max(0, start + query + 1 - window), start + query + 1))
        assert torch.equal(values, -keys)
        assert cache.keys.shape[2] <= window
        start = stop
    assert cache.num_cached == 20


def test_padding_that_the_window_has_left_behind_hides_nothing() -> None:
    cache, tokens = KVCache(9, torch.tensor([0, 2]), window=3), torch.arange(9.0).view(1, 1, 9, 1).expand(2, 1, 9, 1)
    seen = []
    for t in range(9):
        keys, _ = cache.extend(tokens[:, :, t : t + 1], tokens[:, :, t : t + 1])
        is_visible = cache.visible(1, keys.shape[2], CPU)
        assert is_visible is not None
        seen.append([sorted(keys[b, 0, is_visible[b, 0, 0], 0].tolist()) for b in range(2)])
    assert seen[3] == [[1, 2, 3], [2, 3]] and seen[4:] == [[[t - 2, t - 1, t]] * 2 for t in range(4, 9)]


def test_a_cache_is_not_cropped_to_what_its_window_has_let_go() -> None:
    cache, tokens = KVCache(9, window=4), torch.zeros(1, 1, 9, 1)
    cache.extend(tokens[:, :, :4], tokens[:, :, :4])
    cache.crop(2)
    cache.extend(tokens[:, :, :5], tokens[:, :, :5])
    with pytest.raises(ValueError, match="7 tokens cannot be cropped to 6"):
        cache.crop(6)
    cache.crop(0)
    assert cache.extend(tokens[:, :, :3], tokens[:, :, :3])[0].shape[2] == 3


def test_a_cache_with_layers_of_both_kinds_is_cropped_whole_or_not_at_all() -> None:
    model, ids = tiny_model("base=mistral", "window.first_layer=1", "window.size=4"), tiny_ids(2)
    cache = model.new_cache(11)
    model(ids[:, :8], cache)
    with pytest.raises(ValueError, match="cannot be cropped"):
        cache.crop(5)
    torch.testing.assert_close(model(ids[:, 8:], cache), model(ids)[:, 8:])


# ------------------------------------------------------------------------------------------------ biases, head width


@pytest.mark.parametrize("bias", BIASED)
def test_each_option_of_bias_has_exactly_the_biases_it_names(bias: str) -> None:
    model = tiny_model("base=llama", f"bias={bias}")
    has = {name.split(".")[-2] for name, _ in model.named_parameters() if name.endswith(".bias")}
    assert has == set(BIASED[bias])
    assert model.num_params_by_axis()["attn"] == sum(
        parameter.numel() for name, parameter in model.named_parameters() if ".attn." in name
    )


def test_a_head_may_be_wider_than_its_share_of_the_model() -> None:
    model = tiny_model("base=qwen3", "model.head_width=10", "model.n_head=6", "attn.n_kv_head=2")
    attn = model.blocks[0].attn
    assert attn.q_proj.weight.shape == (60, 24) and attn.k_proj.weight.shape == (20, 24)
    assert attn.o_proj.weight.shape == (24, 60) and model(tiny_ids()).isfinite().all()
    assert model.kv_bytes_per_token() == 2 * 3 * 2 * 10 * 2


def test_heads_that_do_not_divide_the_width_need_a_head_width_of_their_own() -> None:
    with pytest.raises(UserError, match=r"n_head=5 does not divide model.d_model=24; .* or give model.head_width"):
        tiny_model("base=vanilla", "model.n_head=5")
    assert tiny_model("base=vanilla", "model.n_head=5", "model.head_width=3")(tiny_ids()).shape == (3, 11, 29)


# ------------------------------------------------------------------------------------------------ runs of before


def known_by(*words: str) -> dict[str, object]:
    config = compose(*words)
    return identity(config.model_dump(mode="json"), derived(build_model(config, 65)), "0")


def test_a_run_from_before_these_axes_is_known_by_the_same_content() -> None:
    config = compose("base=llama")
    resolved = config.model_dump(mode="json")
    before = {key: value for key, value in resolved.items() if key not in ("qk_norm", "window")}
    before["model"] = {key: value for key, value in resolved["model"].items() if key != "head_width"}
    sizes = derived(build_model(config, 65))
    assert identity(before, sizes, "0") == identity(resolved, sizes, "0")
    assert not {"qk_norm", "window"} & identity(resolved, sizes, "0").keys()


@pytest.mark.parametrize(
    ("base", "name"),  # as the code named them before there were these axes, of a text that hashes to "abc"
    [
        ("vanilla", "layer-post-learned-mha-gelu-none-untied-normal_48x3_ctx64_seed0_37afd275f6"),
        ("llama", "rms-pre-rope-gqa-swiglu-none-untied-normal_48x3_ctx64_seed0_7437342d64"),
        ("gpt2", "layer-pre-learned-mha-gelu_tanh-all-tied-normal_48x3_ctx64_seed0_06eb8834d0"),
    ],
)
def test_a_run_keeps_the_name_it_had(base: str, name: str) -> None:
    config = compose(f"base={base}")
    sizes = derived(build_model(config, 65))
    assert run_name(config.model_dump(mode="json"), sizes, "abc") == name


def test_what_a_config_without_the_later_axes_has_is_what_the_axes_say() -> None:
    fields = Composition.model_fields
    for axis, part in LATER_AXES.items():
        assert fields[axis].default == part_section(axis, part)


def test_sizes_that_come_to_the_same_make_one_run() -> None:
    assert known_by("base=llama", "model.head_width=12") == known_by("base=llama")
    assert known_by("base=llama", "model.head_width=14") != known_by("base=llama")
    assert known_by("base=mistral", "window.size=32") == known_by("base=mistral")
    assert known_by("base=mistral", "window.size=31") != known_by("base=mistral")


def test_a_builtin_parts_section_takes_other_knobs() -> None:
    assert part_section("pos", "rope", {"theta": 5.0}) == {"name": "rope", "class": "RoPE", "theta": 5.0}
    assert part_section("pos", "rope")["theta"] == 10000.0 and part_section("bias", "qkv") == "qkv"
