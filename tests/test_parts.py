"""Every part on every base, whatever parts there are; then each part against an independent computation."""

import inspect
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from conftest import compose, options, tiny_ids, tiny_model
from omegaconf import OmegaConf
from torch import nn

from anatomy.axes import AXES, BASES, PART_AXES
from anatomy.build import knobs_of, part_classes
from anatomy.files import CONF
from anatomy.model import init_digests
from anatomy.parts import attn, ffn, norm, pos, qk_norm, window
from anatomy.parts.norm import _RMSNormOnCPU
from anatomy.parts.pos import RoPE, Rotation, rotate
from anatomy.train import optimizer_for

PARTS = [(axis, name) for axis in AXES for name in options(axis)]
ON_EVERY_BASE = pytest.mark.parametrize(
    ("base", "axis", "name"), [(base, *part) for base in BASES for part in PARTS], ids=lambda value: str(value)
)


@ON_EVERY_BASE
def test_logits_have_the_right_shape_and_are_finite(base: str, axis: str, name: str) -> None:
    logits = tiny_model(f"base={base}", f"{axis}={name}")(tiny_ids())
    assert logits.shape == (3, 11, 29)
    assert logits.isfinite().all()


@ON_EVERY_BASE
def test_a_later_token_never_changes_an_earlier_logit(base: str, axis: str, name: str) -> None:
    model, ids = tiny_model(f"base={base}", f"{axis}={name}"), tiny_ids()
    changed = ids.clone()
    changed[:, 7] = (changed[:, 7] + 1) % 29
    before, after = model(ids), model(changed)
    torch.testing.assert_close(after[:, :7], before[:, :7], rtol=0, atol=0)
    assert (after[:, 7] != before[:, 7]).any()


@ON_EVERY_BASE
def test_every_parameter_gets_a_gradient(base: str, axis: str, name: str) -> None:
    model, ids = tiny_model(f"base={base}", f"{axis}={name}"), tiny_ids()
    model.mean_loss_nats(ids[:, :-1], ids[:, 1:]).backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all(), parameter_name
        if parameter_name not in ("embed.weight", "pos.table"):  # rows that the batch does not touch stay at 0
            assert parameter.grad.abs().sum() > 0, parameter_name


@ON_EVERY_BASE
def test_parameters_by_axis_equal_the_tensors(base: str, axis: str, name: str) -> None:
    model = tiny_model(f"base={base}", f"{axis}={name}")
    counted = dict.fromkeys(("embed", "pos", "norm", "attn", "ffn", "output"), 0)
    for parameter_name, parameter in model.named_parameters():
        words = parameter_name.split(".")
        home = words[2] if words[0] == "blocks" else words[0]  # of blocks.0.attn.qk_norm.q_norm.gain: attn
        counted["norm" if home.endswith("norm") else home] += parameter.numel()
    assert model.num_params_by_axis() == counted


@ON_EVERY_BASE
def test_tensors_that_a_swap_leaves_alone_start_bit_identical(base: str, axis: str, name: str) -> None:
    old, new = tiny_model(f"base={base}"), tiny_model(f"base={base}", f"{axis}={name}")
    old_digests, new_digests = init_digests(old), init_digests(new)
    old_shapes, new_shapes = ({n: p.shape for n, p in model.named_parameters()} for model in (old, new))
    shared = [n for n in old_shapes.keys() & new_shapes.keys() if old_shapes[n] == new_shapes[n]]
    assert "embed.weight" in shared
    if axis != "init":
        assert {n: old_digests[n] for n in shared} == {n: new_digests[n] for n in shared}


@pytest.mark.parametrize(("axis", "name"), PARTS, ids=str)
def test_a_model_learns_one_batch(axis: str, name: str) -> None:
    model = tiny_model("base=llama", f"{axis}={name}")
    optimizer = optimizer_for(model, compose("base=llama", "train.lr=1e-2").train)
    ids = tiny_ids(batch_size=2)
    first = model.mean_loss_nats(ids[:, :-1], ids[:, 1:]).item()
    for _ in range(60):
        loss = model.mean_loss_nats(ids[:, :-1], ids[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5 * first


# ------------------------------------------------------------------------------------------------ YAML and class


@pytest.mark.parametrize("axis", PART_AXES)
def test_every_yaml_has_its_class_and_every_class_its_yaml(axis: str) -> None:
    named = {name: OmegaConf.load(CONF / axis / f"{name}.yaml") for name in options(axis)}
    assert sorted(config["class"] for config in named.values()) == sorted(part_classes(axis))
    for name, config in named.items():
        assert config.name == name
        knobs = {knob: parameter.default for knob, parameter in knobs_of(part_classes(axis)[config["class"]]).items()}
        assert {key: value for key, value in config.items() if key not in ("name", "class", "about")} == knobs
        assert (CONF / axis / f"{name}.yaml").read_text(encoding="utf-8").startswith("# ")


@pytest.mark.parametrize("axis", PART_AXES)
def test_every_part_is_documented_and_takes_no_open_arguments(axis: str) -> None:
    for part in part_classes(axis).values():
        assert part.__doc__ and "Shapes:" in part.__doc__
        kinds = {parameter.kind for parameter in inspect.signature(part).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds


# ------------------------------------------------------------------------------------------------ norms


def test_layer_norm_is_the_population_formula() -> None:
    x = torch.randn(5, 3, 8, generator=torch.Generator().manual_seed(1))
    part = norm.LayerNorm(8, eps=1e-3)
    with torch.no_grad():
        part.gain.uniform_(0.5, 1.5)
        part.shift.uniform_(-1, 1)
    variance = ((x - x.mean(-1, keepdim=True)) ** 2).sum(-1, keepdim=True) / 8
    expected = (x - x.mean(-1, keepdim=True)) / (variance + 1e-3).sqrt() * part.gain + part.shift
    torch.testing.assert_close(part(x), expected, rtol=1e-5, atol=1e-6)


def test_rms_norm_equals_its_formula_and_torch() -> None:
    x = 3 * torch.randn(5, 3, 7, generator=torch.Generator().manual_seed(1))
    part = norm.RMSNorm(7, eps=1e-2)
    with torch.no_grad():
        part.gain.uniform_(0.5, 1.5)
    expected = x / (x.pow(2).mean(-1, keepdim=True) + 1e-2).sqrt() * part.gain
    torch.testing.assert_close(part(x), expected)
    torch.testing.assert_close(part(x), F.rms_norm(x, (7,), part.gain, 1e-2))


def test_rms_norm_on_a_cpu_has_the_right_gradient() -> None:
    x = torch.randn(2, 3, 5, dtype=torch.float64, requires_grad=True)
    gain = torch.rand(5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, gain: _RMSNormOnCPU.apply(x, gain, 1e-5), (x, gain))


def test_rms_norm_equals_layer_norm_on_centred_input() -> None:
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(2))
    x = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(norm.RMSNorm(6)(x), norm.LayerNormNoBias(6)(x))


@pytest.mark.parametrize("name", [name for name in part_classes("norm") if name != "NoNorm"])
def test_norms_keep_bfloat16_and_take_their_statistics_in_float32(name: str) -> None:
    part = part_classes("norm")[name](64)
    x = 50 * torch.randn(50, 64, generator=torch.Generator().manual_seed(3)).bfloat16()
    with torch.no_grad():
        half = part.bfloat16()(x)
        full = part.float()(x.float())
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.float(), full, rtol=2**-8, atol=1e-6)  # half a unit in the last place


# ------------------------------------------------------------------------------------------------ positions


def test_rope_turns_half_split_pairs_by_the_papers_angles() -> None:
    x = torch.randn(1, 5, 2, 6, generator=torch.Generator().manual_seed(4))
    turned = rotate(x, RoPE(6, theta=100.0).rotation(torch.arange(5)))
    for t in range(5):
        for pair in range(3):
            angle = t * 100.0 ** (-2 * pair / 6)
            a, b = x[0, t, :, pair], x[0, t, :, pair + 3]
            torch.testing.assert_close(turned[0, t, :, pair], a * math.cos(angle) - b * math.sin(angle))
            torch.testing.assert_close(turned[0, t, :, pair + 3], b * math.cos(angle) + a * math.sin(angle))


def test_rope_has_the_right_gradient() -> None:
    x = torch.randn(1, 3, 2, 4, dtype=torch.float64, requires_grad=True)
    table = torch.randn(2, 3, 1, 2, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda x: rotate(x, Rotation(table[0].cos(), table[0].sin())), x)


def test_queries_and_keys_turned_at_once_are_bit_for_bit_those_turned_alone() -> None:
    qk = torch.randn(2, 7, 5, 6, generator=torch.Generator().manual_seed(8), requires_grad=True)
    rotation = RoPE(6).rotation(torch.arange(3, 10))
    turned = rotation.turn(qk, 3)
    q, k = rotate(qk[:, :, :3], rotation), rotate(qk[:, :, 3:], rotation)
    torch.testing.assert_close(turned, torch.cat((q, k), dim=2), rtol=0, atol=0)
    as_complex = torch.complex(qk[..., :3], qk[..., 3:]) * torch.complex(rotation.cos, rotation.sin)
    torch.testing.assert_close(turned, torch.cat((as_complex.real, as_complex.imag), dim=-1))


@pytest.mark.parametrize("shift", [1, 5, 1000])
def test_shifting_every_position_leaves_rope_scores_unchanged(shift: int) -> None:
    q, k = torch.randn(2, 1, 9, 2, 8, generator=torch.Generator().manual_seed(5))
    rope = RoPE(8)
    scores = [
        torch.einsum("bthk,bshk->bhts", rotate(q, rotation), rotate(k, rotation))
        for rotation in (rope.rotation(torch.arange(9)), rope.rotation(torch.arange(9) + shift))
    ]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-3, atol=2e-4)


def _scores(part: RoPE, positions: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """Scores (B, H, T, S) of q and k (B, T, H, K) as attention comes by them: turned side by side."""
    turned = part.rotation(positions).turn(torch.cat((q, k), dim=2), q.shape[2])
    return torch.einsum("bthk,bshk->bhts", turned[:, :, : q.shape[2]], turned[:, :, q.shape[2] :])


@pytest.mark.parametrize("part", [pos.RoPE, pos.BrokenRoPEQueriesOnly, pos.BrokenRoPEMixedPairs])
def test_only_healthy_rope_sees_nothing_but_distances(part: type[RoPE]) -> None:
    q, k = torch.randn(2, 1, 1, 2, 8, generator=torch.Generator().manual_seed(5)).expand(2, 1, 9, 2, 8)
    positions = torch.arange(9)
    moved = (_scores(part(8), positions + 5, q, k) - _scores(part(8), positions, q, k)).abs().max().item()
    assert (moved < 1e-4) if part is RoPE else (moved > 0.5)


def test_with_queries_turned_alone_a_key_scores_the_same_wherever_it_stands() -> None:
    q, k = torch.randn(2, 1, 1, 2, 8, generator=torch.Generator().manual_seed(5)).expand(2, 1, 9, 2, 8)
    scores = _scores(pos.BrokenRoPEQueriesOnly(8), torch.arange(9), q, k)
    torch.testing.assert_close(scores, scores[..., :1].expand_as(scores))
    assert (scores[:, :, 1:] - scores[:, :, :1]).abs().max() > 0.5
    turned = rotate(q, RoPE(8).rotation(torch.arange(9)))
    torch.testing.assert_close(scores, torch.einsum("bthk,bshk->bhts", turned, k))


def test_mixed_pairs_turn_half_split_queries_and_adjacent_keys_by_the_same_angles() -> None:
    qk = torch.randn(1, 5, 3, 6, generator=torch.Generator().manual_seed(4))
    turned = pos.BrokenRoPEMixedPairs(6, theta=100.0).rotation(torch.arange(5)).turn(qk, 2)
    for t in range(5):
        for pair in range(3):
            angle = t * 100.0 ** (-2 * pair / 6)
            for heads, one, other in ((slice(0, 2), pair, pair + 3), (slice(2, 3), 2 * pair, 2 * pair + 1)):
                a, b = qk[0, t, heads, one], qk[0, t, heads, other]
                torch.testing.assert_close(turned[0, t, heads, one], a * math.cos(angle) - b * math.sin(angle))
                torch.testing.assert_close(turned[0, t, heads, other], b * math.cos(angle) + a * math.sin(angle))


def test_rope_phases_stay_exact_when_the_model_is_cast() -> None:
    rotation = RoPE(16).bfloat16().rotation(torch.arange(4096))
    angles = torch.arange(4096, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, 16, 2).double() / 16)
    assert (rotation.cos[:, 0].double() - angles.cos()).abs().max() < 5e-4


def test_sinusoidal_positions_are_the_papers() -> None:
    x = pos.Sinusoidal(6)(torch.zeros(1, 7, 6), torch.arange(7))
    for t in range(7):
        for pair in range(3):
            angle = t / 10000 ** (2 * pair / 6)
            assert x[0, t, 2 * pair].item() == pytest.approx(math.sin(angle), abs=1e-6)
            assert x[0, t, 2 * pair + 1].item() == pytest.approx(math.cos(angle), abs=1e-6)


def test_the_position_after_the_last_learned_one_does_not_exist() -> None:
    model = tiny_model("pos=learned", "model.ctx_len=128")
    assert model.num_params_by_axis()["pos"] == 128 * 24
    with pytest.raises(ValueError, match="position 129 does not exist"):
        model(tiny_ids(length=129))


@pytest.mark.parametrize("name", ["rope", "sinusoidal", "nope"])
def test_other_positions_go_on_past_the_context(name: str) -> None:
    assert tiny_model(f"pos={name}")(tiny_ids(length=40)).isfinite().all()


def test_one_layer_without_positions_cannot_tell_the_order_of_earlier_tokens() -> None:
    ids = tiny_ids()
    swapped = ids[:, [3, 1, 2, 0, *range(4, 11)]]
    nope, rope = (tiny_model("base=llama", f"pos={name}", "model.n_layer=1") for name in ("nope", "rope"))
    torch.testing.assert_close(nope(ids)[:, -1], nope(swapped)[:, -1])
    assert (rope(ids)[:, -1] - rope(swapped)[:, -1]).abs().max() > 1e-5


# ------------------------------------------------------------------------------------------------ attention


def _attention(
    kind: type[nn.Module], width: int, n_head: int, head_width: int, bias: bool, n_kv_head: int | None = None
) -> Any:
    """Attention with nothing on the axes that act inside it."""
    knobs = {} if n_kv_head is None else {"n_kv_head": n_kv_head}
    sizes = attn.AttentionSizes(width, n_head, head_width, bias, bias)
    return kind(sizes, qk_norm.NoQKNorm(), window.NoWindow(), **knobs)


def _attention_by_loops(part: torch.nn.Module, x: torch.Tensor, rotation: Rotation | None) -> torch.Tensor:
    """Every head, query and key in turn: query head h reads key-value head h // (H / G)."""
    H, G, K = part.n_head, part.n_kv_head, part.head_width
    q, k, v = (F.linear(x, p.weight, p.bias) for p in (part.q_proj, part.k_proj, part.v_proj))
    q, k, v = q.view(*x.shape[:2], H, K), k.view(*x.shape[:2], G, K), v.view(*x.shape[:2], G, K)
    if rotation is not None:
        q, k = rotate(q, rotation), rotate(k, rotation)
    out = torch.zeros(*x.shape[:2], H, K)
    for b in range(x.shape[0]):
        for h in range(H):
            for t in range(x.shape[1]):
                scores = torch.stack([q[b, t, h] @ k[b, s, h // (H // G)] for s in range(t + 1)]) / math.sqrt(K)
                for s, weight in enumerate(scores.softmax(0)):
                    out[b, t, h] += weight * v[b, s, h // (H // G)]
    return F.linear(out.flatten(-2), part.o_proj.weight, part.o_proj.bias)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kv_heads", [1, 2, 3, 6])
def test_attention_equals_a_loop_over_heads(kv_heads: int, bias: bool) -> None:
    torch.manual_seed(6)
    part = _attention(attn.GroupedQuery, 10, 6, 4, bias, n_kv_head=kv_heads)
    x = torch.randn(2, 5, 10)
    rotation = RoPE(4).rotation(torch.arange(5))
    with torch.no_grad():
        for given in (None, rotation):
            torch.testing.assert_close(part(x, given), _attention_by_loops(part, x, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_projections_are_what_the_product_is_made_of(kv_heads: int) -> None:
    torch.manual_seed(6)
    part = _attention(attn.GroupedQuery, 10, 6, 4, False, n_kv_head=kv_heads)
    x, rotation = torch.randn(2, 5, 10), RoPE(4).rotation(torch.arange(5))
    q, k, v = part.project(x, rotation)
    assert (q.shape, k.shape, v.shape) == ((2, 6, 5, 4), (2, kv_heads, 5, 4), (2, kv_heads, 5, 4))
    torch.testing.assert_close(v, part.v_proj(x).view(2, 5, kv_heads, 4).transpose(1, 2))
    torch.testing.assert_close(k, rotate(part.k_proj(x).view(2, 5, kv_heads, 4), rotation).transpose(1, 2))
    weights = (q @ k.repeat_interleave(6 // kv_heads, 1).mT / 2 + torch.full((5, 5), -torch.inf).triu(1)).softmax(-1)
    mixed = weights @ v.repeat_interleave(6 // kv_heads, 1)
    torch.testing.assert_close(part.o_proj(mixed.transpose(1, 2).flatten(-2)), part(x, rotation))


@pytest.mark.parametrize("kv_heads", [1, 3, 6])
def test_attention_says_which_of_the_heads_it_turns_are_queries(kv_heads: int) -> None:
    part, x = _attention(attn.GroupedQuery, 10, 6, 4, False, n_kv_head=kv_heads), torch.randn(2, 5, 10)
    q, k, _ = part.project(x, pos.BrokenRoPEQueriesOnly(4).rotation(torch.arange(5)))
    healthy_q, _, _ = part.project(x, RoPE(4).rotation(torch.arange(5)))
    _, unturned_k, _ = part.project(x, None)
    torch.testing.assert_close((q, k), (healthy_q, unturned_k), rtol=0, atol=0)


def test_grouped_query_with_all_heads_is_multi_head() -> None:
    grouped, multi = (
        _attention(attn.GroupedQuery, 8, 4, 2, True, n_kv_head=4),
        _attention(attn.MultiHead, 8, 4, 2, True),
    )
    multi.load_state_dict(grouped.state_dict())
    x = torch.randn(2, 7, 8)
    torch.testing.assert_close(grouped(x, None), multi(x, None), rtol=0, atol=0)


@pytest.mark.parametrize(("n_head", "n_kv_head"), [(2, 1), (4, 2), (6, 3), (9, 3), (7, 1), (12, 6), (32, 16)])
def test_the_default_number_of_kv_heads_is_the_largest_divisor_not_above_half(n_head: int, n_kv_head: int) -> None:
    assert _attention(attn.GroupedQuery, 8, n_head, 2, False).n_kv_head == n_kv_head


@pytest.mark.parametrize("n_kv_head", [0, -2, 4, 12])
def test_kv_heads_that_do_not_divide_are_refused(n_kv_head: int) -> None:
    with pytest.raises(ValueError, match="it can be 1, 2, 3, 6"):
        _attention(attn.GroupedQuery, 8, 6, 2, False, n_kv_head=n_kv_head)


# ------------------------------------------------------------------------------------------------ FFN


def test_swiglu_gates_with_the_silu_of_its_gate_branch() -> None:
    part = ffn.SwiGLU(5, False, hidden=7)
    x = torch.randn(3, 5)
    gate, up = x @ part.gate_proj.weight.T, x @ part.up_proj.weight.T
    torch.testing.assert_close(part(x), (gate * torch.sigmoid(gate) * up) @ part.down_proj.weight.T)


@pytest.mark.parametrize(
    ("part", "activation"),
    [
        (ffn.ReLU, lambda x: x.clamp(min=0)),
        (ffn.GELU, lambda x: x * (1 + torch.erf(x / math.sqrt(2))) / 2),
        (ffn.GELUTanh, lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2),
    ],
)
def test_plain_ffns_are_two_matrices_around_their_formula(part: type, activation: object) -> None:
    made = part(5, True, hidden=11)
    x = 2 * torch.randn(3, 5)
    up = x @ made.up_proj.weight.T + made.up_proj.bias
    expected = activation(up) @ made.down_proj.weight.T + made.down_proj.bias  # type: ignore[operator]
    torch.testing.assert_close(made(x), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("width", "multiple_of", "hidden"), [(4096, 256, 11008), (128, 32, 352), (48, 32, 128), (3, 1, 8)]
)
def test_the_gated_width_follows_llamas_rule(width: int, multiple_of: int, hidden: int) -> None:
    with torch.device("meta"):
        assert ffn.SwiGLU(width, False, multiple_of=multiple_of).hidden == hidden


@pytest.mark.parametrize("width", [48, 96, 144])
def test_at_multiples_of_48_swiglu_has_the_parameters_of_gelu(width: int) -> None:
    assert ffn.SwiGLU(width, False).num_params() == ffn.GELU(width, False).num_params()


# ------------------------------------------------------------------------------------------------ placement


def test_a_pre_norm_block_with_silent_sublayers_is_the_identity() -> None:
    model = tiny_model("base=llama")
    block = model.blocks[0]
    with torch.no_grad():
        block.attn.o_proj.weight.zero_()
        block.ffn.down_proj.weight.zero_()
    x = torch.randn(2, 5, 24)
    torch.testing.assert_close(block(x, model.pos.rotation(torch.arange(5))), x, rtol=0, atol=0)


def test_a_post_norm_block_normalises_each_sum_and_needs_no_final_norm() -> None:
    model = tiny_model("base=vanilla")
    block = model.blocks[0]
    x = torch.randn(2, 5, 24)
    middle = F.layer_norm(x + block.attn(x, None), (24,))
    torch.testing.assert_close(block(x, None), F.layer_norm(middle + block.ffn(middle), (24,)))
    assert model.final_norm is None and tiny_model("placement=pre").final_norm is not None


def test_without_its_final_norm_a_pre_norm_model_leaves_the_size_of_its_stream_to_chance() -> None:
    healthy, broken = (tiny_model("base=llama", f"placement={name}") for name in ("pre", "broken_pre_no_final_norm"))
    assert broken.final_norm is None
    for model, sizes in ((healthy, (1.0, 1.0)), (broken, (0.0, 20.0))):
        with torch.no_grad():
            at_start = model.hidden(tiny_ids()).square().mean(-1).sqrt()
            model.embed.weight.mul_(1000)
            with_large_embeddings = model.hidden(tiny_ids()).square().mean(-1).sqrt()
        for found, expected in zip((at_start, with_large_embeddings), sizes, strict=True):
            torch.testing.assert_close(found, torch.full_like(found, expected), rtol=0.4, atol=0.1)
