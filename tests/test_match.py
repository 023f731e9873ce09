"""match=params|flops: the FFN's width that brings a model to its base's size, against widths computed by hand."""

from pathlib import Path

import pytest
from conftest import NUM_SYMBOLS, compose

from anatomy.axes import BASES, SWAPPED_AXES
from anatomy.build import build_model, derived, matched_hidden, with_hidden, with_parts
from anatomy.compose import read_command
from anatomy.config import parse_config
from anatomy.errors import UserError
from anatomy.model import Transformer
from anatomy.runner import Job, prepare
from anatomy.sweep import make_plan

D, ARTICLE_D = 48, 128  # widths of the two scales


def solved(*words: str) -> int:
    """The width that the built model has, held against the one that the record would keep."""
    config = compose(*words)
    assert config.ffn["hidden"] is None
    model = build_model(config, NUM_SYMBOLS)
    hidden = derived(model)["ffn_hidden"]
    assert {block.ffn.hidden for block in model.blocks} == {hidden}
    return hidden


def job(*words: str) -> Job:
    (request,) = read_command(words, multirun=False).requests
    config, faults = parse_config(request.resolved)
    assert config is not None, faults
    return prepare(config, request.resolved)


@pytest.mark.parametrize(
    ("base", "swap", "params", "flops"),
    [
        # vanilla, a block: attention 4 D^2, FFN 2 D 4D, norms 4 D; a channel of the FFN costs 2 D
        ("vanilla", "none", 4 * D, 4 * D),
        ("vanilla", "norm", 4 * D + 1, 4 * D),  # two shifts of D saved buy one channel; FLOPs count matrices only
        ("vanilla", "placement", 4 * D, 4 * D),  # the final norm's 2 D are a third of a channel in each of 3 blocks
        ("vanilla", "pos", 4 * D, 4 * D),
        ("vanilla", "attn", 4 * D + D // 2, 4 * D + D // 2),  # GQA saves D^2, which buys D/2 channels
        ("vanilla", "ffn", 8 * D // 3, 8 * D // 3),  # 3 D a channel
        # llama: attention 3 D^2, FFN 3 D 8/3 D, norms 2 D a block and D at the end; a channel costs 3 D
        ("llama", "none", 8 * D // 3, 8 * D // 3),
        ("llama", "norm", 8 * D // 3 - 1, 8 * D // 3),  # 7 shifts of D over 3 blocks: 7/9 of a channel
        ("llama", "placement", 8 * D // 3, 8 * D // 3),
        ("llama", "attn", 8 * D // 3 - D // 3, 8 * D // 3 - D // 3),
        ("llama", "ffn", 4 * D, 4 * D),
    ],
)
def test_widths_at_the_quick_scale_are_those_of_a_hand(base: str, swap: str, params: int, flops: int) -> None:
    assert solved(f"base={base}", f"swap={swap}", "match=params") == params
    assert solved(f"base={base}", f"swap={swap}", "match=flops") == flops


@pytest.mark.parametrize(
    ("words", "hidden"),
    [
        (("base=vanilla", "swap=ffn"), round(8 / 3 * ARTICLE_D)),  # 341, not a multiple of 32
        (("base=vanilla", "swap=attn"), 4 * ARTICLE_D + ARTICLE_D // 2),
        (("base=vanilla", "attn=mqa"), round(4 * ARTICLE_D + 3 / 4 * ARTICLE_D)),
        (("base=llama", "swap=none"), 352),  # the base keeps its own width, rounded up as it is
        (("base=llama", "swap=ffn"), 352 * 3 // 2),
        (("base=llama", "swap=attn"), round(352 - ARTICLE_D / 3)),
    ],
)
def test_widths_at_the_article_scale_are_those_of_a_hand(words: tuple[str, ...], hidden: int) -> None:
    assert solved("scale=article", "match=params", *words) == hidden


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("swap", ["none", "norm,placement,pos,attn,ffn", "bias=none", "bias=all"])
def test_no_other_width_is_nearer(base: str, swap: str) -> None:
    """By building at every width around, whatever the formula."""
    words = [swap] if "bias" in swap else [f"{axis}={BASES['llama'][axis]}" for axis in SWAPPED_AXES if axis in swap]
    config = compose("model.d_model=20", "model.n_layer=2", "model.n_head=2", f"base={base}", "match=params", *words)

    def block_params(model: Transformer) -> int:
        return sum(
            parameter.numel() for name, parameter in model.named_parameters() if name[:6] in ("blocks", "final_")
        )

    plain = with_parts(config, BASES[base]).model_copy(update={"match": None})
    target = block_params(build_model(plain, NUM_SYMBOLS))
    found = matched_hidden(config, NUM_SYMBOLS)
    misses = {
        width: abs(block_params(build_model(with_hidden(config, width), NUM_SYMBOLS)) - target)
        for width in range(max(1, found - 3), found + 4)
    }
    assert min(misses, key=lambda width: (misses[width], width)) == found


def test_a_matched_run_is_the_run_with_that_width_typed(text_file: Path) -> None:
    words = ("corpus=files", f"corpus.path='{text_file}'", "swap=attn")
    matched = job(*words, "match=params")
    assert matched.name == job(*words, "ffn.hidden=216").name != job(*words).name
    assert (matched.resolved["match"], matched.resolved["ffn"]["hidden"]) == ("params", None)
    assert derived(matched.model)["ffn_hidden"] == 216


def test_what_matching_leaves_alone_keeps_its_run(text_file: Path) -> None:
    words = ("corpus=files", f"corpus.path='{text_file}'", "swap=pos")
    assert job(*words, "match=params").name == job(*words, "match=flops").name == job(*words).name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ffn.hidden=64"], "match=params: solves ffn.hidden, so ffn.hidden=64 cannot be given as well; type one of"),
        (
            ["model.d_model=1", "model.n_head=1", "model.n_layer=1", "bias=all", "placement=pre"],
            "without its FFN the model comes to 15, base vanilla to 16, so no width of the FFN fits",
        ),
        (["attn=gqa", "attn.n_kv_head=3"], "it can be 1, 2, 4"),
        (["base=llama", "attn=mha", "model.n_head=1"], "match=params: there is no base llama of these sizes .attn=gqa"),
    ],
)
def test_what_cannot_be_matched_is_refused_in_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make_plan(read_command(["match=params", *words], multirun=False))
    assert len(str(caught.value).splitlines()) == 1


def test_a_word_that_is_no_match_is_refused() -> None:
    with pytest.raises(UserError, match="match=\"weights\": should be 'params', 'flops' or 'time'"):
        make_plan(read_command(["match=weights"], multirun=False))


def test_the_matched_study_has_the_raw_arms_first_and_shares_what_is_the_same() -> None:
    plan = make_plan(read_command(["study=swaps_matched", "seed=0"], multirun=False))
    assert [planned.config.match for planned in plan.runs] == [None] * 12 + ["params"] * 12
    raw, matched = plan.runs[:12], plan.runs[12:]
    changed = {
        (pair[1].config.base, *pair[1].request.swap)
        for pair in zip(raw, matched, strict=True)
        if pair[0].job and pair[1].job and pair[0].job.name != pair[1].job.name
    }
    expected = {("vanilla", "norm"), ("vanilla", "attn"), ("llama", "norm"), ("llama", "attn")}
    assert changed == expected and len(plan.to_do) == 16
