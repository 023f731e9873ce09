"""The rules of the exams: what is supported, contradicted, not seen or outside this scale, by numbers made to be so."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from fake_runs import fake_record

from anatomy.about import claims_on
from anatomy.axes import SWAPPED_AXES
from anatomy.exam_rules import RULES_IN_WORDS
from anatomy.report.data import CONTRADICTED, NOT_SEEN, OUTSIDE, SUPPORTED, MapCell
from anatomy.report.gather import Arm, Run, parse_record
from anatomy.report.material import Material
from anatomy.report.rules import RULES

MARGIN = 0.02
BOTH = ("vanilla", "llama")


def arm(base: str, axis: str, part: str, loss: float, seed: int, match: str | None = None, **config: Any) -> Arm:
    name = f"{base}-{part}-{match}-{seed}-{len(config)}{sum(map(hash, map(str, config.values()))) % 9973}"
    keys = {key.replace("__", "."): value for key, value in config.items()}
    record = fake_record(name, loss, base=base, seed=seed, parts={axis: part}, config=keys)
    words = {f"base={base}", f"{axis}={part}", *([f"match={match}"] if match else [])}
    return Arm(base, f"{axis}={part}", seed, name, frozenset(words), found=parse_record(name, record))


def arms_of(axis: str, losses: Mapping[str, Sequence[float]], match: str | None = None) -> list[Arm]:
    """The same losses by seed of each part, in both bases."""
    return [
        arm(base, axis, part, loss, seed, match)
        for base in BOTH
        for part, some in losses.items()
        for seed, loss in enumerate(some)
    ]


def material(axis: str, arms: Sequence[Arm] = (), **given: Any) -> Material:
    fields: dict[str, Any] = {
        "factors": [],
        "margin_nats": MARGIN,
        "metric": "test_loss_nats",
        "map": [],
        "timed": None,
    }
    return Material(axis=axis, arms=arms, **(fields | {"at_length": lambda run: {}} | given))


def verdict(claim: str, m: Material) -> str | None:
    return RULES[claim](m).verdict


def test_every_claim_has_its_rule_and_every_rule_its_claim() -> None:
    claims = [claim["claim"] for axis in SWAPPED_AXES for claim in claims_on(axis, MARGIN)]
    assert sorted(claims) == sorted(RULES) == sorted(RULES_IN_WORDS)


@pytest.mark.parametrize("claim", RULES)
def test_without_runs_nothing_is_judged(claim: str) -> None:
    (axis,) = [axis for axis in SWAPPED_AXES if claim in {one["claim"] for one in claims_on(axis, MARGIN)}]
    found = RULES[claim](material(axis))
    assert found.verdict is None and found.note and not found.measured


def test_a_difference_is_the_mean_over_bases_seed_by_seed() -> None:
    losses = {"vanilla": {"layer": (1.0, 2.0), "rms": (1.1, 2.3)}, "llama": {"layer": (1.0, 1.0), "rms": (0.9, 1.0)}}
    arms = [
        arm(base, "norm", part, loss, seed)
        for base, by_part in losses.items()
        for part, some in by_part.items()
        for seed, loss in enumerate(some)
    ]
    whole, *each = material("norm", arms).difference("rms", "layer")
    # seed 0: (.1 - .1) / 2 = 0; seed 1: (.3 + 0) / 2 = .15; t = 12.706 on one degree of freedom
    assert whole.value == pytest.approx(0.075)
    assert whole.high is not None and whole.high - whole.value == pytest.approx(12.706 * 0.075, rel=1e-4)
    assert [one.value for one in each] == pytest.approx([0.2, -0.05])


def test_a_seed_that_one_base_lacks_is_left_out() -> None:
    arms = arms_of("norm", {"layer": (1.0, 1.0, 1.0), "rms": (1.0, 1.0, 1.0)})
    arms.append(arm("vanilla", "norm", "rms", 9.0, 3))
    arms.append(arm("vanilla", "norm", "layer", 1.0, 3))
    assert material("norm", arms).difference("rms", "layer")[0].value == 0


@pytest.mark.parametrize(
    ("rms", "said"),
    [
        ((1.001, 1.002, 1.000), SUPPORTED),
        ((0.8, 0.81, 0.79), SUPPORTED),  # better than claimed
        ((1.1, 1.11, 1.09), CONTRADICTED),
        ((1.0, 1.1, 1.0), NOT_SEEN),
    ],
)
def test_as_good_as_is_judged_by_the_intervals_upper_end_and_the_margin(rms: Sequence[float], said: str) -> None:
    arms = arms_of("norm", {"layer": (1.0, 1.0, 1.0), "rms": rms})
    assert verdict("as_good_as_layer", material("norm", arms)) == said


def test_one_seed_gives_no_verdict_but_not_seen() -> None:
    found = RULES["as_good_as_layer"](material("norm", arms_of("norm", {"layer": (1.0,), "rms": (0.5,)})))
    assert found.verdict == NOT_SEEN and found.note == "one seed gives no interval"


@pytest.mark.parametrize(
    ("gated", "said"), [((0.9, 0.91, 0.89), SUPPORTED), ((1.1, 1.11, 1.09), CONTRADICTED), ((0.9, 1.1, 1.0), NOT_SEEN)]
)
@pytest.mark.parametrize(
    ("claim", "match"), [("better_at_equal_parameters", "params"), ("better_at_equal_time", "time")]
)
def test_gating_is_judged_among_runs_matched_alike(claim: str, match: str, gated: Sequence[float], said: str) -> None:
    arms = arms_of("ffn", {"gelu": (1.0, 1.0, 1.0), "swiglu": gated}, match)
    other = arms_of("ffn", {"gelu": (1.0, 1.0, 1.0), "swiglu": (5.0, 5.1, 4.9)})
    assert verdict(claim, material("ffn", [*other, *arms])) == said


# ------------------------------------------------------------------------------------------------ placement


def cell(part: str, base: str, init: str, trained: int, plateau: int = 0, warmup: int = 0, depth: int = 16) -> MapCell:
    factors = {"model.n_layer": str(depth), "train.warmup_steps": str(warmup), "init": init}
    return MapCell(base, part, factors, {"trained": trained, "plateau": plateau}, 2.0, [])


def bare(post: Mapping[str, tuple[int, int]], pre: tuple[int, int] = (3, 0)) -> list[MapCell]:
    """init -> (trained, plateau) of post-norm in both bases, and of pre-norm everywhere; shallow cells all train."""
    deep = [cell("post", base, init, *ended) for base in BOTH for init, ended in post.items()]
    deep += [cell("pre", base, init, *pre) for base in BOTH for init in post]
    return deep + [cell(part, base, "xavier", 1, depth=3) for part in ("post", "pre") for base in BOTH]


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (bare({"xavier": (0, 3), "normal": (3, 0)}), SUPPORTED),
        (bare({"xavier": (1, 2)}), SUPPORTED),
        (bare({"xavier": (3, 0), "torch": (0, 3)}), CONTRADICTED),  # judged in the init of the claim's source
        (bare({"xavier": (0, 3)}, pre=(0, 3)), NOT_SEEN),
        ([cell("post", "vanilla", "xavier", 3), *bare({"xavier": (0, 3)})[1:]], NOT_SEEN),  # fails in one base alone
    ],
)
def test_post_norm_is_judged_deep_and_bare_against_pre_norm_there(cells: list[MapCell], said: str) -> None:
    assert verdict("fails_deep_and_bare", material("placement", map=cells)) == said


@pytest.mark.parametrize("claim", ["fails_deep_and_bare", "needs_no_warmup"])
def test_without_the_texts_tables_nothing_is_said_to_fail(claim: str) -> None:
    cells = [replace(cell, outcomes={"unknown": 3}) for cell in bare({"xavier": (0, 3)})]
    found = RULES[claim](material("placement", map=cells))
    assert found.verdict is None and found.note and "n-gram tables" in found.note


def test_the_note_says_where_post_norm_trains_and_what_a_warm_up_does() -> None:
    cells = bare({"xavier": (0, 3), "normal": (3, 0)})
    cells += [cell("post", "vanilla", "xavier", 1, warmup=100), cell("post", "llama", "xavier", 0, 1, warmup=100)]
    note = RULES["fails_deep_and_bare"](material("placement", map=cells)).note
    assert note == (
        "it trains all the same: vanilla with init=normal, llama with init=normal; a warm-up rescues it: vanilla with "
        "init=xavier; a warm-up does not: llama with init=xavier"
    )


@pytest.mark.parametrize(
    ("without", "said"),  # a seed
    [((1.0, 1.001), SUPPORTED), ((1.2, 1.21), CONTRADICTED), ((1.0, 1.3), NOT_SEEN)],
)
def test_pre_norm_without_a_warm_up_is_judged_by_its_loss_with_one(without: tuple[float, float], said: str) -> None:
    arms, cells = [], []
    for base in BOTH:
        for seed, loss in enumerate(without):
            for warmup, nats in ((0, loss), (100, 1.0)):
                config = {"train__warmup_steps": warmup, "model__n_layer": 16}
                arms.append(arm(base, "placement", "pre", nats, seed, **config))
        cells += [cell("pre", base, "normal", 2), cell("pre", base, "normal", 2, depth=3)]
    factors = ["model.n_layer", "train.warmup_steps", "init"]
    assert verdict("needs_no_warmup", material("placement", arms, map=cells, factors=factors)) == said


# ------------------------------------------------------------------------------------------------ positions


def at_lengths(part: str, losses: Mapping[int, Sequence[float | None]]) -> Material:
    """Loss by length, a value a seed, the same in both bases."""
    num_seeds = len(next(iter(losses.values())))
    arms = arms_of("pos", {part: [1.0] * num_seeds})
    return material("pos", arms, at_length=lambda run: {length: some[run.seed] for length, some in losses.items()})


@pytest.mark.parametrize(
    ("losses", "said"),
    [
        ({32: [1.0], 64: [1.0], 96: [None], 128: [None]}, SUPPORTED),
        ({32: [1.0], 64: [1.0], 96: [1.5], 128: [2.0]}, CONTRADICTED),
        ({32: [1.0], 64: [None], 96: [None]}, NOT_SEEN),  # ends before its table
        ({32: [1.0], 64: [1.0], 96: [None], 128: [2.0]}, NOT_SEEN),
        ({32: [1.0], 64: [1.0]}, None),  # nothing longer was tried
    ],
)
def test_learned_positions_end_where_no_longer_window_has_a_loss(
    losses: Mapping[int, Sequence[float | None]], said: str | None
) -> None:
    assert verdict("ends_at_its_table", at_lengths("learned", losses)) == said


@pytest.mark.parametrize(
    ("at_128", "said"),
    [([2.0, 2.1, 1.9], SUPPORTED), ([1.0, 1.001, 1.0], CONTRADICTED), ([1.0, 1.2, 1.0], NOT_SEEN)],
)
def test_rope_is_judged_by_its_rise_at_twice_the_trained_length(at_128: Sequence[float], said: str) -> None:
    losses: Mapping[int, Sequence[float]] = {64: [1.0, 1.0, 1.0], 128: at_128, 256: [9.0, 9.0, 9.0]}
    both = [
        arm(base, "pos", "rope", 1.0, seed, pos__theta=theta)
        for base in BOTH
        for theta in (10000.0, 500000.0)
        for seed in range(3)
    ]

    def at_length(run: Run) -> Mapping[int, float | None]:
        is_other = run.settings["pos.theta"] == 500000.0  # shown beside it, and not judged
        return {length: 5.0 if is_other else some[run.seed] for length, some in losses.items()}

    found = RULES["degrades_beyond"](material("pos", both, at_length=at_length))
    assert found.verdict == said and [one.what for one in found.measured] == [
        f"rope theta={theta}: loss at {length} minus at 64" for theta in (10000, 500000) for length in (128, 256)
    ]


def test_rope_must_beat_every_rival_at_the_trained_length() -> None:
    rivals = {"learned": (1.2, 1.21, 1.19), "sinusoidal": (1.3, 1.31, 1.29), "nope": (1.5, 1.51, 1.49)}
    base = {"rope": (1.0, 1.0, 1.0)}
    assert verdict("best_where_trained", material("pos", arms_of("pos", {**base, **rivals}))) == SUPPORTED
    tie = {**rivals, "nope": (1.0, 1.1, 0.9)}
    assert verdict("best_where_trained", material("pos", arms_of("pos", {**base, **tie}))) == NOT_SEEN
    worse = {**rivals, "learned": (0.8, 0.81, 0.79)}
    assert verdict("best_where_trained", material("pos", arms_of("pos", {**base, **worse}))) == CONTRADICTED
    del rivals["nope"]
    assert verdict("best_where_trained", material("pos", arms_of("pos", {**base, **rivals}))) is None


# ------------------------------------------------------------------------------------------------ what was timed


def calls(ratio: float, *, fused: bool) -> Any:
    row = {"norm": "rms", "width": 1024, "num_tokens": 1024, "num_params": 1024, "form": "torch"}
    both = {"both_over_layer": ratio, "both_over_layer_low": ratio - 0.05, "both_over_layer_high": ratio + 0.05}
    return {"norm_calls": {"num_rounds": 15, "has_fused_rms_norm": fused, "rows": [row | both]}}


@pytest.mark.parametrize(
    ("ratio", "fused", "said"),
    [(0.8, True, SUPPORTED), (1.2, True, CONTRADICTED), (1.0, True, NOT_SEEN), (5.0, False, OUTSIDE)],
)
def test_a_norms_cost_is_judged_only_where_its_kernel_is_fused(ratio: float, fused: bool, said: str) -> None:
    assert verdict("cheaper_than_layer", material("norm", timed=calls(ratio, fused=fused))) == said


def decoded(
    num_kv: int, over_full: float, *, width: int = 512, share: float = 0.8, extra_bytes: int = 0, cached: int = 16384
) -> dict[str, Any]:
    size = 2 * 4 * num_kv * 64 * 4 * cached
    row: dict[str, Any] = {"width": width, "n_layer": 4, "n_head": 8, "n_kv_head": num_kv, "head_width": 64}
    row |= {"num_cached": cached, "cache_bytes": size, "cache_bytes_measured": size + extra_bytes}
    row |= {"over_full_heads": over_full, "over_full_heads_low": over_full - 0.02}
    return row | {"over_full_heads_high": over_full + 0.02, "attending_share": share}


def timed_decode(*rows: dict[str, Any]) -> Material:
    return material("attn", timed={"decode": {"num_rounds": 15, "rows": list(rows)}})


def test_a_cache_in_proportion_has_the_formulas_bytes() -> None:
    assert verdict("cache_in_proportion", timed_decode(decoded(8, 1.0), decoded(4, 0.6))) == SUPPORTED
    assert verdict("cache_in_proportion", timed_decode(decoded(8, 1.0), decoded(4, 0.6, extra_bytes=8))) == CONTRADICTED


@pytest.mark.parametrize(
    ("over_full", "share", "said"),
    [(0.6, 0.8, SUPPORTED), (1.2, 0.8, CONTRADICTED), (0.97, 0.8, NOT_SEEN), (0.6, 0.3, OUTSIDE)],
)
def test_decoding_is_judged_where_the_cache_dominates(over_full: float, share: float, said: str) -> None:
    small = decoded(4, 3.0, width=48)  # the larger size decides
    assert verdict("decodes_faster", timed_decode(small, decoded(8, 1.0, share=share), decoded(4, over_full))) == said


def steps(axis: str, part: str, base_part: str, ratio: float, base: str = "vanilla") -> dict[str, Any]:
    row = {"base": base, "parts": {axis: part}, "match": "params", "over_base": ratio}
    return row | {"over_base_low": ratio - 0.01, "over_base_high": ratio + 0.01}


@pytest.mark.parametrize(
    ("in_vanilla", "in_llama", "said"),
    [(1.0, 1.0, SUPPORTED), (0.8, 1.25, CONTRADICTED), (0.8, 1.0, NOT_SEEN), (1.1, 0.9, SUPPORTED)],
)
def test_training_time_is_judged_in_every_base(in_vanilla: float, in_llama: float, said: str) -> None:
    """In llama the row is mha over gqa, so the ratio turns over: 1.25 there says that gqa takes .8 of the time."""
    rows = [steps("attn", "gqa", "mha", in_vanilla), steps("attn", "mha", "gqa", in_llama, "llama")]
    timed = {"train_step": {"num_rounds": 15, "rows": rows}}
    arms = arms_of("attn", {"mha": (1.0,)})
    assert verdict("trains_no_faster", material("attn", arms, timed=timed)) == said


@pytest.mark.parametrize(
    ("ratio", "in_llama", "said"),
    [
        (1.12, 1.13, SUPPORTED),
        (1.17, 1.13, SUPPORTED),
        (1.3, 1.0, CONTRADICTED),
        (1.12, 1.3, NOT_SEEN),
        (1.12, None, None),
    ],
)
def test_the_cost_of_gating_lies_about_the_claimed_range(
    ratio: float, in_llama: float | None, said: str | None
) -> None:
    rows = [steps("ffn", "swiglu", "gelu", ratio)]
    rows += [steps("ffn", "gelu", "swiglu", 1 / in_llama, "llama")] if in_llama else []
    timed = {"train_step": {"num_rounds": 15, "rows": rows}}
    arms = arms_of("ffn", {"gelu": (1.0,)})  # the exam is about both bases, so one alone decides nothing
    assert verdict("costs_time", material("ffn", arms, timed=timed)) == said


def test_an_interval_too_wide_to_tell_supports_nothing() -> None:
    row = steps("ffn", "swiglu", "gelu", 1.12) | {"over_base_low": 0.5, "over_base_high": 2.0}
    timed = {"train_step": {"num_rounds": 15, "rows": [row]}}
    arms = [arm("vanilla", "ffn", "gelu", 1.0, 0)]
    assert verdict("costs_time", material("ffn", arms, timed=timed)) == NOT_SEEN


def test_what_diverged_is_told_and_supports_nothing() -> None:
    arms = arms_of("norm", {"layer": (1.0, 1.0, 1.0), "rms": (1.0, 1.001, 1.0)})
    record = fake_record("gone", None, base="llama", seed=3, status="diverged", parts={"norm": "rms"})
    words = frozenset({"base=llama", "norm=rms"})
    gone = Arm("llama", "norm=rms", 3, "gone", words, found=parse_record("gone", record))
    found = RULES["as_good_as_layer"](material("norm", [*arms, gone]))
    assert found.verdict == NOT_SEEN and found.note == "diverged, and so left out: rms in llama 1 of 4"


def test_bases_that_disagree_support_nothing() -> None:
    arms = [
        arm(base, "norm", part, loss + (shift if part == "rms" else 0), seed)
        for base, shift in (("vanilla", 0.2), ("llama", -0.4))
        for part in ("layer", "rms")
        for seed, loss in enumerate((1.0, 1.001, 0.999))
    ]
    found = RULES["as_good_as_layer"](material("norm", arms))
    assert found.verdict == NOT_SEEN and found.note == "the bases disagree"


def test_a_seed_with_two_runs_that_nothing_tells_apart_is_no_answer() -> None:
    arms = arms_of("norm", {"layer": (1.0, 1.0), "rms": (1.0, 1.0)})
    arms.append(arm("vanilla", "norm", "rms", 0.5, 0, train__lr=0.1))
    assert verdict("as_good_as_layer", material("norm", arms)) is None
