"""The skeleton: golden numbers, starts, costs, and the same function as `transformers` computes."""

import math

import pytest
import torch
import transformers
from conftest import NUM_SYMBOLS, TINY, compose, tiny_ids, tiny_model
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from anatomy.axes import BASES
from anatomy.build import build_model, derived
from anatomy.errors import UserError
from anatomy.model import Transformer, init_digests, initialise

ARTICLE = ("model.d_model=128", "model.n_layer=4", "model.n_head=4", "model.ctx_len=128")


def meta_model(vocab_size: int, *words: str) -> Transformer:
    return build_model(compose(*words), vocab_size)


def sizes(d_model: int, n_layer: int, n_head: int, ctx_len: int = 1024) -> tuple[str, ...]:
    return (
        f"model.d_model={d_model}",
        f"model.n_layer={n_layer}",
        f"model.n_head={n_head}",
        f"model.ctx_len={ctx_len}",
    )


GPT2 = ("base=gpt2",)
LLAMA = ("base=llama",)
GOLDEN = [
    (1_244_928, 1719, ("base=vanilla", *ARTICLE)),
    (1_178_496, 1719, ("base=llama", *ARTICLE)),
    (212, 3, (*LLAMA, *sizes(4, 2, 2, 8), "ffn.hidden=3")),
    (124_439_808, 50257, (*GPT2, *sizes(768, 12, 12))),
    (354_823_168, 50257, (*GPT2, *sizes(1024, 24, 16))),
    (774_030_080, 50257, (*GPT2, *sizes(1280, 36, 20))),
    (1_557_611_200, 50257, (*GPT2, *sizes(1600, 48, 25))),
    (6_738_415_616, 32000, (*LLAMA, *sizes(4096, 32, 32), "attn=mha", "ffn.multiple_of=256")),
    (13_015_864_320, 32000, (*LLAMA, *sizes(5120, 40, 40), "attn=mha", "ffn.multiple_of=256")),
    (68_976_648_192, 32000, (*LLAMA, *sizes(8192, 80, 64), "attn.n_kv_head=8", "ffn.hidden=28672")),
    (8_030_261_248, 128256, (*LLAMA, *sizes(4096, 32, 32), "attn.n_kv_head=8", "ffn.hidden=14336")),
    (70_553_706_496, 128256, (*LLAMA, *sizes(8192, 80, 64), "attn.n_kv_head=8", "ffn.hidden=28672")),
    (1_235_814_400, 128256, (*LLAMA, *sizes(2048, 16, 32), "attn.n_kv_head=8", "ffn.hidden=8192", "tying=tied")),
    (7_241_732_096, 32000, (*LLAMA, *sizes(4096, 32, 32), "attn.n_kv_head=8", "ffn.hidden=14336")),
]


@pytest.mark.parametrize(("num_params", "vocab_size", "words"), GOLDEN, ids=lambda value: str(value)[:40])
def test_published_parameter_counts_hold(num_params: int, vocab_size: int, words: tuple[str, ...]) -> None:
    model = meta_model(vocab_size, *words)
    assert sum(model.num_params_by_axis().values()) == num_params
    assert sum(parameter.numel() for parameter in model.parameters()) == num_params


def test_a_layer_at_article_scale_splits_as_published() -> None:
    vanilla, llama = (meta_model(1719, f"base={base}", *ARTICLE) for base in ("vanilla", "llama"))
    assert (vanilla.blocks[0].attn.num_params(), vanilla.blocks[0].ffn.num_params()) == (65_536, 131_072)
    assert derived(llama) == {"ffn_hidden": 352, "n_kv_head": 2, "head_width": 32, "vocab_size": 1719}
    assert vanilla.num_params_by_axis()["pos"] == 16_384


def test_the_212_parameter_llama_is_the_worked_example() -> None:
    block = meta_model(3, *LLAMA, *sizes(4, 2, 2, 8), "ffn.hidden=3").blocks[0]
    norms = block.attn_norm.num_params() + block.ffn_norm.num_params()
    assert (block.attn.num_params(), block.ffn.num_params(), norms) == (48, 36, 8)


def test_a_gpt2_block_and_a_llama3_block_at_width_4096() -> None:
    gpt2 = meta_model(50257, *GPT2, *sizes(4096, 1, 32)).blocks[0]
    llama3 = meta_model(128256, *LLAMA, *sizes(4096, 1, 32), "attn.n_kv_head=8", "ffn.hidden=14336").blocks[0]
    assert gpt2.attn.num_params() == 4 * 4096 * 4097  # 67.13 M
    assert gpt2.ffn.num_params() == 2 * 4 * 4096**2 + 5 * 4096  # 134.24 M
    assert llama3.attn.num_params() == 41_943_040
    assert llama3.ffn.num_params() == 176_160_768
    assert [2 * block.attn_norm.num_params() for block in (gpt2, llama3)] == [16_384, 8_192]


@pytest.mark.parametrize(
    ("kv_bytes", "words"),
    [
        (36_864, (*GPT2, *sizes(768, 12, 12))),
        (524_288, (*LLAMA, *sizes(4096, 32, 32), "attn=mha")),
        (131_072, (*LLAMA, *sizes(4096, 32, 32), "attn.n_kv_head=8")),
    ],
)
def test_kv_bytes_per_token_are_the_published_ones(kv_bytes: int, words: tuple[str, ...]) -> None:
    assert meta_model(97, *words).kv_bytes_per_token() == kv_bytes


def test_flops_per_token_of_gpt2_small_are_the_published_ones() -> None:
    assert meta_model(50257, *GPT2, *sizes(768, 12, 12)).flops_per_token(1024) == 854_438_400


@pytest.mark.parametrize("base", BASES)
def test_the_linear_term_of_the_flops_is_what_torch_counts(base: str) -> None:
    model, ids = tiny_model(f"base={base}"), tiny_ids()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids)
    attention = 12 * 3 * 24 * min(11, model.blocks[0].attn.window.size or 11)
    per_token = counter.get_flop_counts()["Global"][torch.ops.aten.mm] / ids.numel()
    # With biases, torch counts the product under another name.
    per_token += counter.get_flop_counts()["Global"].get(torch.ops.aten.addmm, 0) / ids.numel()
    assert 3 * per_token == model.flops_per_token(11) - attention


# ------------------------------------------------------------------------------------------------ the start


@pytest.mark.parametrize("base", BASES)
def test_the_first_loss_is_ln_v_and_the_spread_of_the_logits(base: str) -> None:
    model = tiny_model(f"base={base}")
    ids = tiny_ids(batch_size=200)
    loss = model.mean_loss_nats(ids[:, :-1], ids[:, 1:]).item()
    assert loss == pytest.approx(math.log(29) + 24 * 0.02**2 / 2, abs=0.05)


@pytest.mark.parametrize(("init", "std"), [("normal", 0.02), ("gpt2", 0.02 / math.sqrt(2 * 3))])
def test_residual_projections_start_at_the_std_of_their_init(init: str, std: float) -> None:
    model = tiny_model(f"init={init}", "model.d_model=96")
    for block in model.blocks:
        assert block.attn.o_proj.weight.std().item() == pytest.approx(std, rel=0.05)
        assert block.ffn.down_proj.weight.std().item() == pytest.approx(std, rel=0.05)
        assert block.attn.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)


@pytest.mark.parametrize(("init", "bound"), [("xavier", math.sqrt(6 / (96 + 384))), ("torch", 1 / math.sqrt(96))])
def test_uniform_inits_keep_their_bound(init: str, bound: float) -> None:
    weight = tiny_model(f"init={init}", "model.d_model=96").blocks[0].ffn.up_proj.weight
    assert 0.98 * bound < weight.abs().max().item() <= bound


def test_a_start_depends_on_seed_salt_and_name_and_on_nothing_else() -> None:
    torch.manual_seed(0)
    first = init_digests(tiny_model())
    torch.manual_seed(1)
    assert init_digests(tiny_model()) == first
    for other in (tiny_model(seed=1), tiny_model(salt=1)):
        digests = init_digests(other)
        assert all(digests[name] != digest for name, digest in first.items() if not name.endswith(("gain", "shift")))
    matrices = [digest for name, digest in first.items() if name.endswith("_proj.weight")]
    assert len(set(matrices)) == len(matrices)


def test_tied_equals_untied_with_a_copied_matrix() -> None:
    tied, untied = tiny_model("tying=tied"), tiny_model("tying=untied")
    untied.load_state_dict({**tied.state_dict(), "output.weight": tied.embed.weight})
    torch.testing.assert_close(tied(tiny_ids()), untied(tiny_ids()), rtol=0, atol=0)


def test_the_surplus_of_a_padded_vocabulary_takes_no_part() -> None:
    plain, padded = (build_model(compose(f"model.vocab_size={size}"), 29, device="cpu") for size in ("null", "64"))
    initialise(padded, "normal", seed=0)
    matrices = ("embed.weight", "output.weight")
    plain.load_state_dict({name: t[:29] if name in matrices else t for name, t in padded.state_dict().items()})
    assert padded(tiny_ids()).shape[-1] == 29
    torch.testing.assert_close(padded(tiny_ids()), plain(tiny_ids()), rtol=0, atol=0)


def test_the_chunked_loss_is_the_mean_of_the_single_losses() -> None:
    model = build_model(compose(), 211, device="cpu")
    initialise(model, "torch", seed=0)
    ids = torch.randint(211, (37, 63), generator=torch.Generator().manual_seed(0))
    mean = model.mean_loss_nats(ids[:, :-1], ids[:, 1:])
    torch.testing.assert_close(mean, model.losses_nats(ids[:, :-1], ids[:, 1:]).mean())


def test_no_buffer_and_no_wrapper_enters_the_state() -> None:
    model = tiny_model("base=llama")
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


# ------------------------------------------------------------------------------------------------ transformers


def _randomise(model: Transformer) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            low, high = (0.5, 1.5) if name.endswith("gain") else (-0.3, 0.3)
            parameter.uniform_(low, high, generator=generator)


def test_a_part_with_a_buffer_is_refused_before_anything_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(nn.Module):
        def __init__(self, width: int, *, eps: float = 1e-5) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(1))

    monkeypatch.setattr("anatomy.parts.norm.LayerNorm", Counting)
    Counting.__module__ = "anatomy.parts.norm"
    with pytest.raises(UserError, match=r"parts keep buffers \(calls\)"):
        build_model(compose(*TINY), NUM_SYMBOLS)


def test_gpt2_computes_what_transformers_does() -> None:
    model = tiny_model("base=gpt2", "model.ctx_len=71")
    _randomise(model)
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=29, n_embd=24, n_layer=3, n_head=4, n_positions=71, resid_pdrop=0, embd_pdrop=0
        )
    )
    state = {"transformer.wte.weight": model.embed.weight, "transformer.wpe.weight": model.pos.table}
    state |= {"lm_head.weight": model.embed.weight}

    def put(home: str, weight: torch.Tensor, bias: torch.Tensor) -> None:
        state[f"{home}.weight"], state[f"{home}.bias"] = weight, bias

    put("transformer.ln_f", model.final_norm.gain, model.final_norm.shift)
    for i, block in enumerate(model.blocks):
        home = f"transformer.h.{i}"
        put(f"{home}.ln_1", block.attn_norm.gain, block.attn_norm.shift)
        put(f"{home}.ln_2", block.ffn_norm.gain, block.ffn_norm.shift)
        qkv = (block.attn.q_proj, block.attn.k_proj, block.attn.v_proj)
        joint = torch.cat([layer.weight for layer in qkv]).T, torch.cat([layer.bias for layer in qkv])
        put(f"{home}.attn.c_attn", *joint)
        put(f"{home}.attn.c_proj", block.attn.o_proj.weight.T, block.attn.o_proj.bias)
        put(f"{home}.mlp.c_fc", block.ffn.up_proj.weight.T, block.ffn.up_proj.bias)
        put(f"{home}.mlp.c_proj", block.ffn.down_proj.weight.T, block.ffn.down_proj.bias)
    theirs.load_state_dict(state)
    ids = tiny_ids(length=71)
    with torch.no_grad():
        assert (model(ids) - theirs.eval()(ids).logits).abs().max() < 1e-4
