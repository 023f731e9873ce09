"""Attention maps: held against a slow loop, and against what each layer made of its values by them."""

import math

import pytest
import torch
import torch.nn.functional as F
from conftest import options, tiny_ids, tiny_model

from anatomy.attention_maps import attention_maps
from anatomy.model import Transformer


def inputs_and_outputs(model: Transformer, ids: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What every layer's attention reads and what it gives."""
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    hooks = [
        block.attn.register_forward_hook(lambda _, given, out: seen.append((given[0], out))) for block in model.blocks
    ]
    with torch.no_grad():
        model(ids)
    for hook in hooks:
        hook.remove()
    return seen


@pytest.mark.parametrize("attn", ["mha", "gqa"])
def test_maps_are_those_of_a_slow_loop_over_heads_and_positions(attn: str) -> None:
    model, ids = tiny_model("pos=learned", f"attn={attn}", "init=torch").requires_grad_(False), tiny_ids(2, 7)
    maps = attention_maps(model, ids)
    assert len(maps) == 3
    for found, block, (x, _) in zip(maps, model.blocks, inputs_and_outputs(model, ids), strict=True):
        q, k = F.linear(x, block.attn.q_proj.weight), F.linear(x, block.attn.k_proj.weight)
        num_shared = q.shape[-1] // k.shape[-1]
        for text in range(2):
            for head in range(4):
                mine, theirs = (
                    slice(6 * head, 6 * head + 6),
                    slice(6 * (head // num_shared), 6 * (head // num_shared) + 6),
                )
                for t in range(7):
                    weights = [
                        math.exp(float(q[text, t, mine] @ k[text, s, theirs]) / math.sqrt(6)) if s <= t else 0.0
                        for s in range(7)
                    ]
                    expected = [weight / sum(weights) for weight in weights]
                    assert found[text, head, t].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("pos", options("pos"))
@pytest.mark.parametrize("attn", options("attn"))
def test_values_mixed_by_the_maps_are_what_attention_gives(attn: str, pos: str) -> None:
    model, ids = tiny_model(f"pos={pos}", f"attn={attn}", "init=torch", seed=1).eval(), tiny_ids()
    maps = attention_maps(model, ids)
    for found, block, (x, given) in zip(maps, model.blocks, inputs_and_outputs(model, ids), strict=True):
        v = F.linear(x, block.attn.v_proj.weight).unflatten(-1, (-1, 6)).transpose(1, 2)
        mixed = found @ v.repeat_interleave(4 // v.shape[1], dim=1)
        expected = F.linear(mixed.transpose(1, 2).flatten(-2), block.attn.o_proj.weight)
        torch.testing.assert_close(given, expected, atol=1e-6, rtol=1e-4)


def test_every_row_sums_to_one_and_nothing_lies_ahead() -> None:
    maps = attention_maps(tiny_model("init=torch"), tiny_ids(2, 11))
    for found in maps:
        assert found.shape == (2, 4, 11, 11) and found.dtype == torch.float32
        torch.testing.assert_close(found.sum(-1), torch.ones(2, 4, 11))
        assert not found.triu(1).any() and (found.tril() > 0).sum() == 2 * 4 * 66


def test_looking_leaves_the_model_as_it_was() -> None:
    model, ids = tiny_model("pos=learned").train(), tiny_ids()
    (found, *_) = attention_maps(model, ids)
    found += 1.0  # an ordinary tensor, not one of inference mode
    with pytest.raises(ValueError, match="position 12"):
        attention_maps(model, tiny_ids(1, 12))
    assert model.training
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in model.modules())


def test_ids_must_be_texts_side_by_side() -> None:
    with pytest.raises(ValueError, match=r"\(B, T\), got \(11,\)"):
        attention_maps(tiny_model(), tiny_ids()[0])
