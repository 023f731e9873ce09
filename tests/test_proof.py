"""The swap proof: each part of the zoo passes on each base; a swap that does nothing, or more than it says, fails."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from conftest import NUM_SYMBOLS, TINY, compose, options
from torch import Tensor, nn

from anatomy import proof
from anatomy.axes import AXES, BASES, SWAPPED_AXES
from anatomy.build import HOMES, with_parts
from anatomy.compose import read_command
from anatomy.model import Transformer, initialise
from anatomy.parts import attn, ffn, norm, placement, pos
from anatomy.proof import Prover, take_print, undeclared
from anatomy.sweep import Plan, make_plan, write_manifest

Mine = Callable[[str, type[nn.Module]], None]


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mine:
    """Put a class into an axis's module, and a part `mine` that names it into the user's folder `tmp_path`."""

    def put(axis: str, part: type[nn.Module]) -> None:
        monkeypatch.setattr(part, "__module__", HOMES[axis].__name__)
        monkeypatch.setattr(HOMES[axis], part.__name__, part, raising=False)
        _write_part(tmp_path, axis, part.__name__)

    return put


def _write_part(folder: Path, axis: str, class_name: str) -> None:
    knobs = {"norm": "eps: 1.0e-5\n", "ffn": "hidden: null\n"}
    (folder / axis).mkdir()
    text = f"name: mine\nclass: {class_name}\n{knobs.get(axis, '')}"
    (folder / axis / "mine.yaml").write_text(text)


def plan(tmp_path: Path, *words: str) -> Plan:
    """The plan of a sweep at tiny sizes; parts of the user's own lie in `tmp_path`."""
    given = [*TINY, f"output_dir='{tmp_path}'", *words]
    return make_plan(read_command(given, multirun=True, config_dir=str(tmp_path)))


def faults(tmp_path: Path, *words: str) -> list[str | None]:
    return [planned.error for planned in plan(tmp_path, *words).runs]


# ------------------------------------------------------------------------------------------------ the zoo


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("axis", AXES)
def test_every_part_passes_on_every_base(axis: str, base: str) -> None:
    prover, config = Prover(), compose(*TINY, f"base={base}")
    for name in options(axis):
        assert prover.faults(with_parts(config, {axis: name}), NUM_SYMBOLS) == []


@pytest.mark.parametrize("scale", ["quick", "article"])
def test_the_nearest_two_parts_are_told_apart_at_both_scales(scale: str) -> None:
    for base in BASES:
        config = compose(f"base={base}", f"scale={scale}", "ffn=gelu_tanh" if base != "gpt2" else "ffn=gelu")
        exact = with_parts(config, {"ffn": "gelu"})
        ours, theirs = (take_print(with_parts(exact, {"ffn": name}), 65, 16) for name in ("gelu", "gelu_tanh"))
        assert not proof._is_same(ours.outputs[1], theirs.outputs[1])


@pytest.mark.parametrize("base", BASES)
def test_the_other_bases_pass_as_swaps_of_many_parts(base: str) -> None:
    config = compose(*TINY, f"base={base}")
    for other in BASES:
        for match in (None, "params", "flops"):
            moved = with_parts(config, BASES[other]).model_copy(update={"match": match})
            assert Prover().faults(moved, NUM_SYMBOLS) == []


# ------------------------------------------------------------------------------------------------ nothing changes


def test_mqa_for_gqa_with_two_heads_changes_nothing(tmp_path: Path) -> None:
    found = faults(tmp_path, "base=llama", "attn=gqa,mqa,mha", "model.n_head=2")
    assert found == [
        None,
        "attn=mqa: changes nothing, with attn=gqa this model computes the same; take another part",
        None,
    ]


def test_the_bases_own_class_by_another_name_changes_nothing(tmp_path: Path) -> None:
    _write_part(tmp_path, "norm", "RMSNorm")
    (error,) = {error for error in faults(tmp_path, "base=llama,vanilla", "norm=mine") if error}
    assert error.startswith("norm=mine: changes nothing, with norm=rms")


class GELUByHand(ffn._Plain):
    def activation(self, x: Tensor) -> Tensor:
        return x / 2 * (1 + torch.erf(x / 2**0.5))


class SwiGLUByHand(ffn.SwiGLU):
    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate_proj(x)
        return self.down_proj(self.up_proj(x) * gate * torch.sigmoid(gate))


class RMSNormByHand(norm.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.gain


class LayerNormByHand(norm.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt(centred.square().mean(-1, keepdim=True) + self.eps) * self.gain + self.shift


class RoPEInDouble(pos.RoPE):
    def rotation(self, positions: Tensor) -> pos.Rotation:
        exponents = torch.arange(0, self.head_width, 2, dtype=torch.float64) / self.head_width
        angles = positions[:, None].double() / self.theta**exponents
        return pos.Rotation(angles.cos()[:, None].float(), angles.sin()[:, None].float())


class LoopedHeads(attn.MultiHead):
    def forward(self, x: Tensor, rotation: pos.Rotation | None, cache: attn.KVCache | None = None) -> Tensor:
        q, k, v = (layer(x).unflatten(-1, (-1, self.head_width)) for layer in (self.q_proj, self.k_proj, self.v_proj))
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = []
        for head in range(self.n_head):
            scores = q[..., head, :] @ k[..., head, :].mT / self.head_width**0.5
            mixed.append(scores.masked_fill(future, -torch.inf).softmax(-1) @ v[..., head, :])
        return self.o_proj(torch.cat(mixed, -1))


@pytest.mark.parametrize("scale", ["quick", "article"])
@pytest.mark.parametrize(
    ("base", "axis", "part"),
    [
        ("vanilla", "ffn", GELUByHand),
        ("llama", "ffn", SwiGLUByHand),
        ("llama", "norm", RMSNormByHand),
        ("vanilla", "norm", LayerNormByHand),
        ("llama", "pos", RoPEInDouble),
        ("vanilla", "attn", LoopedHeads),
        ("gpt2", "norm", LayerNormByHand),
    ],
)
def test_the_bases_part_written_another_way_is_the_same(
    base: str, axis: str, part: type[nn.Module], scale: str, mine: Mine
) -> None:
    mine(axis, part)
    config = compose(f"base={base}", f"scale={scale}")
    config = config.model_copy(
        update={axis: {**getattr(config, axis), "name": "mine", "class": part.__name__}},
    )
    (fault,) = Prover().faults(config, 65)
    assert fault.startswith(f"{axis}=mine: changes nothing")


def test_of_several_swaps_the_idle_one_is_named(tmp_path: Path) -> None:
    _write_part(tmp_path, "norm", "LayerNorm")
    (error,) = {error for error in faults(tmp_path, "norm=mine,rms", "pos=rope") if error}
    assert error.startswith("norm=mine: changes nothing, with norm=layer") and "\n" not in error


def test_where_nothing_is_normalised_its_place_changes_nothing(tmp_path: Path) -> None:
    assert str(faults(tmp_path, "norm=none,rms", "placement=pre")[0]).startswith("placement=pre: changes nothing")


def test_an_idle_swap_is_seen_through_a_matched_width(tmp_path: Path) -> None:
    _write_part(tmp_path, "ffn", "GELU")
    found = faults(tmp_path, "match=params", "attn=gqa", "ffn=mine,gelu,swiglu")
    assert str(found[0]).startswith("ffn=mine: changes nothing") and found[1:] == [None, None]


# ------------------------------------------------------------------------------------------------ too much changes


class BiasedFFN(ffn._Plain):
    def __init__(self, width: int, bias: bool, *, hidden: int | None = None) -> None:
        super().__init__(width, True, hidden=hidden)

    def activation(self, x: Tensor) -> Tensor:
        return F.silu(x)


class WidensFFN(placement.PreNorm):
    def __init__(self, attn: nn.Module, ffn: nn.Module, *rest: nn.Module) -> None:
        super().__init__(attn, ffn, *rest)
        self.ffn.up_proj = nn.Linear(24, 7, bias=False)
        self.ffn.down_proj = nn.Linear(7, 24, bias=False)


class ReplacesNorm(placement.PreNorm):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.ffn_norm = nn.Identity()


class BringsAGate(placement.PreNorm):
    def __init__(self, *parts: nn.Module) -> None:
        super().__init__(*parts)
        self.gate = nn.Linear(24, 24, bias=False)

    def forward(self, x: Tensor, rotation: pos.Rotation | None, cache: attn.KVCache | None = None) -> Tensor:
        return super().forward(x, rotation, cache) * torch.sigmoid(self.gate(x))


class Breaks(norm.RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        raise RuntimeError("made to fail")


@pytest.mark.parametrize(
    ("axis", "part", "message"),
    [
        ("ffn", BiasedFFN, r"changes tensor blocks.0.ffn.up_proj.bias \(none -> \(96,\)\), which belongs to bias"),
        (
            "placement",
            WidensFFN,
            r"tensor blocks.0.ffn.up_proj.weight \(\(96, 24\) -> \(7, 24\)\), which belongs to ffn \(and 5 more\)",
        ),
        ("placement", ReplacesNorm, r"module blocks.0.ffn_norm \(LayerNorm -> Identity\), which belongs to norm"),
        ("norm", Breaks, r"norm=mine .*: breaks on a batch of random ids \(RuntimeError: made to fail\)"),
        ("placement", BringsAGate, None),
    ],
)
def test_a_part_may_change_only_what_is_of_its_own_axis(
    axis: str, part: type[nn.Module], message: str | None, tmp_path: Path, mine: Mine
) -> None:
    mine(axis, part)
    by_hand, built_in = plan(tmp_path, f"{axis}=mine,{BASES['vanilla'][axis]}").runs
    assert built_in.error is None
    if message is None:
        assert by_hand.error is None
    else:
        with pytest.raises(AssertionError, match=message):
            assert by_hand.error is None, by_hand.error
        assert "\n" not in str(by_hand.error) and by_hand.job is None


def test_biases_follow_their_matrices_where_all_have_them(tmp_path: Path, mine: Mine) -> None:
    mine("ffn", BiasedFFN)
    assert faults(tmp_path, "ffn=mine,gelu", "bias=all", "base=gpt2") == [None, None]


def test_a_start_that_depends_on_other_parts_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_by_size(model: Transformer, init: str, *, seed: int) -> None:
        initialise(model, init, seed=sum(parameter.numel() for parameter in model.parameters()))

    monkeypatch.setattr(proof, "initialise", start_by_size)
    (error,) = filter(None, faults(tmp_path, "norm=rms,layer"))
    assert "norm=rms: changes the start of tensor embed.weight, which belongs to no axis" in error


def test_init_owns_the_values_at_the_start_and_no_shape() -> None:
    config = compose(*TINY, "base=vanilla")
    normal, xavier = (take_print(with_parts(config, {"init": init}), NUM_SYMBOLS, 11) for init in ("normal", "xavier"))
    assert list(undeclared("init", xavier, normal)) == []
    assert any(line.startswith("the start of tensor blocks.0.attn") for line in undeclared("ffn", xavier, normal))
    swiglu = take_print(with_parts(config, {"ffn": "swiglu"}), NUM_SYMBOLS, 11)
    assert any("which belongs to ffn" in line for line in undeclared("init", swiglu, normal))


@pytest.mark.parametrize(
    ("one", "other", "owners"),
    [
        ({"placement": "pre"}, {}, {"placement"}),
        ({"placement": "pre", "norm": "rms"}, {"placement": "pre"}, {"norm"}),
        ({"tying": "tied"}, {}, {"tying"}),
        ({"bias": "all"}, {}, {"bias"}),
        ({"bias": "all", "ffn": "swiglu"}, {"bias": "all"}, {"ffn"}),
        ({"bias": "qkv"}, {"bias": "attn"}, {"bias"}),
        ({"bias": "qkv", "attn": "mqa"}, {"bias": "qkv"}, {"attn"}),
        ({"qk_norm": "rms"}, {}, {"qk_norm"}),
        ({"window": "sliding"}, {}, {"window"}),
        ({"pos": "nope"}, {}, {"pos"}),
        ({"attn": "mqa"}, {}, {"attn"}),
    ],
)
def test_each_difference_belongs_to_one_axis(one: dict[str, str], other: dict[str, str], owners: set[str]) -> None:
    config = compose(*TINY, "base=vanilla")
    ours, theirs = (take_print(with_parts(config, parts), NUM_SYMBOLS, 11) for parts in (one, other))
    found = {line.rsplit("belongs to ", 1)[1] for line in undeclared("", ours, theirs)}
    assert found == owners
    assert [axis for axis in AXES if axis != "init" and not list(undeclared(axis, ours, theirs))] == sorted(owners)


# ------------------------------------------------------------------------------------------------ in a plan


def test_a_refused_swap_is_an_entry_of_the_manifest_and_the_rest_goes_on(tmp_path: Path) -> None:
    from anatomy.runs import read_manifest

    made = plan(tmp_path, "base=llama", "attn=gqa,mqa", "model.n_head=2", "seed=0,1")
    assert [run.job is None for run in made.runs] == [False, False, True, True]
    write_manifest(made)
    manifest = read_manifest(made.layout.study("adhoc"))
    assert manifest is not None
    assert [entry["run"] is None for entry in manifest["entries"]] == [False, False, True, True]
    assert "changes nothing" in manifest["entries"][2]["error"]


def test_a_composition_is_built_once_whatever_the_arms_and_seeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[dict[str, str]] = []

    def counting(config: proof.Config, num_symbols: int, num_tokens: int) -> proof.Print:
        taken.append(config.parts)
        return take_print(config, num_symbols, num_tokens)

    monkeypatch.setattr(proof, "take_print", counting)
    made = plan(tmp_path, "swap=none,[norm],[norm,pos],[pos]", "seed=0,1,2")
    assert len(made.to_do) == 12 and len(taken) == 4


def test_a_single_run_is_not_held_against_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proof, "take_print", None)
    words = [*TINY, f"output_dir='{tmp_path}'", "base=llama", "attn=mqa", "model.n_head=2"]
    assert make_plan(read_command(words, multirun=False)).to_do


def test_where_the_base_cannot_be_built_there_is_nothing_to_hold_against(tmp_path: Path) -> None:
    assert faults(tmp_path, "base=llama", "attn=mha", "model.n_head=1,2") == [None, None]


def test_every_swapped_axis_has_an_owner_in_the_proof() -> None:
    owners = {*proof.SLOT_OWNERS.values(), *proof.END_OWNERS.values(), "placement"}
    assert owners >= set(SWAPPED_AXES)
