"""A report made by hand, as large and as odd as a test wants it: no run stands behind its numbers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anatomy.axes import BASES, COUNTERPARTS, SWAPPED_AXES, swapped_part
from anatomy.report.data import (
    FINAL,
    SCHEMA,
    Attribution,
    Breakdown,
    Curve,
    Estimate,
    Profile,
    Registration,
    Report,
    Row,
    Sample,
    SetAside,
    Shared,
    Table,
)

RUNGS = {"1": 3.02, "2": 2.26, "3": 1.74, "4": 1.35, "5": 1.16, "6": 1.08, "xz": 1.69}
SEEDS = (0, 1, 2)
LOSS = {"vanilla": 1.532, "llama": 1.368}
# nats that a swap moves the loss, margin of the simultaneous interval, verdict
SWAPS: Mapping[str, Mapping[str, tuple[float, float, str]]] = {
    "vanilla": {
        "norm": (-0.0021, 0.0072, "equivalent"),
        "placement": (0.0412, 0.0093, "worse"),
        "pos": (-0.0388, 0.0121, "better"),
        "attn": (0.0084, 0.0091, "inconclusive"),
        "ffn": (-0.0527, 0.0102, "better"),
    },
    "llama": {
        "norm": (0.0008, 0.0061, "equivalent"),
        "placement": (0.1225, 0.0143, "worse"),
        "pos": (0.0641, 0.0131, "worse"),
        "attn": (-0.0077, 0.0064, "better"),
        "ffn": (0.1204, 0.0114, "worse"),
    },
}
STEPS = tuple(range(0, 1001, 100))
ODD_NAMES = ("None", "null", "NA", "👩‍👩‍👧", "中文的名字" * 9, "<script>x</script>", "$x$", "a|b", "long_" * 60)
ODD_NAMES += ("tab\there\x1b[31m\u202e\ud800\n", '#010203 id="x" url(#y) --> &amp;')


def made_row(name: str = "norm=rms", difference: float | None = None, half: float = 0.01, **values: Any) -> Row:
    """A row of three seeds; with a difference, also the intervals around it."""
    compared = difference is not None
    row = Row(
        name=name,
        parts=dict(BASES["vanilla"]),
        status="done",
        num_seeds=3,
        seeds=SEEDS,
        num_diverged=0,
        test_loss_nats_mean=1.532 + (difference or 0),
        test_loss_nats_sd=0.0064,
        difference_nats=difference,
        prediction_nats=None,
        ci_low=difference - half if difference is not None else None,
        ci_high=difference + half if difference is not None else None,
        own_ci_low=difference - 1.3 * half if difference is not None else None,
        own_ci_high=difference + 1.3 * half if difference is not None else None,
        variance=2.1e-5 if compared else None,
        df=9.4 if compared else None,
        p=0.00123 if compared else None,
        p_holm=0.0049 if compared else None,
        verdict="inconclusive" if compared else None,
        num_params=93_264,
        flops_per_token=626_976,
        kv_bytes_per_token=576,
        tokens_per_s=41_200,
        smallest_margin_nats=abs(difference) + half if difference is not None else None,
        minimum_detectable_effect_nats=0.0113 if compared else None,
        seeds_needed=5 if compared else None,
        correlation=0.42 if compared else None,
        sd_paired=0.0046 if compared else None,
        sd_unpaired=0.0091 if compared else None,
        text_share=0.18 if compared else None,
        is_base=name == "base",
        is_null=False,
        unmatched=False,
        num_arms=3,
        num_pairs=3 if compared else 0,
        metric_mean=1.532 + (difference or 0),
        metric_sd=0.0064,
        best_val_loss_nats_mean=1.54 + (difference or 0),
        last_three_val_loss_nats_mean=1.541 + (difference or 0),
        best_step=(1000.0, 900.0, 1000.0),
        test_bits_per_char=(1.532 + (difference or 0)) / math.log(2),
        rung=3.53,
        num_params_percent=0.0,
        block_params_percent=0.0,
        flops_percent=0.0,
        steps=1000,
        over_fitted=False,
        epochs=0.3,
        errors=(),
    )
    return replace(row, **values)


def made_table(base: str = "vanilla", rows: Sequence[Row] | None = None, **values: Any) -> Table:
    """A table of the study `swaps` with all that a report can have; `rows` in place of its own have no details."""
    detailed = rows is None
    rows = _rows(base) if rows is None else rows
    names = [row.name for row in rows]
    table = Table(
        study="swaps",
        base=base,
        title=None,
        cell={},
        is_joined=False,
        metric=FINAL,
        rows=rows,
        margin_nats=0.01,
        alpha=0.05,
        num_compared=len(rows) - 1,
        prior_variance=2.1e-5,
        prior_df=None,
        noise_floor=0.0061,
        seeds_command="anatomy-train study=swaps 'seed=range(6)'",
        findings={
            "verdict": f"{base}: the feed-forward part moves the loss most (-0.0527 ± 0.0102 nats); norm=rms is "
            "equivalent within 0.01 nats; attn=gqa stays open.",
            "forest": "Of five swaps two are better, one is worse, one is equivalent and one is inconclusive.",
            "curves": "Both ends get past the trigram table; the counterpart does so 300 steps earlier.",
            "position": "The gain of the counterpart sits in the second half of the window.",
            "knowledge": "Two thirds of the gain sit in targets that the 6-gram table lost more than 2 nats on.",
            "cost": "The best loss for its cost has ffn=swiglu: 1.4793 nats at 0.0 % more FLOPs per token.",
        },
        rungs=RUNGS,
        set_aside=(SetAside("vanilla-48x3-s4-0badcafe", "seed 0 appears twice; the earlier run counts"),),
        warnings=("3 seeds are a look, 5 a claim",),
        question="Which of the five parts earns the gain from the 2017 model to LLaMA?",
        corpus="kjv",
        corpus_sha256="ab" * 32,
        num_chars=4_298_239,
        sizes={"d_model": 48, "n_layer": 3, "n_head": 4, "ctx_len": 64, "batch_size": 16},
        steps=1000,
        tokens=1_024_000,
        tokens_per_param=10.98,
        epochs=0.3,
        seeds=SEEDS,
        devices=("cpu",),
        commits=("193dc70",),
        torch_versions=("2.13.0",),
        registration=Registration(
            spec={"question": "Which part earns the gain?", "metric": FINAL, "seeds": [0, 1, 2], "margin": 0.01},
            spec_sha256="cd" * 32,
            started="2031-02-03T04:05:06+00:00",
            deviations=("seed 3 of norm=rms lies outside the plan",),
        ),
        curves=_curves(base, names) if detailed else (),
        by_position=_breakdown(("1-4", "5-8", "9-16", "17-32", "33-64"), names, "position") if detailed else None,
        by_knowledge=_breakdown(("0-0.1", "0.1-0.5", "0.5-1", "1-2", "2-4", "4+"), names, "know") if detailed else None,
        samples=_samples(names) if detailed else (),
        shared=_shared(names) if detailed else (),
        tuning=(),
        diagnosis=None,
    )
    return replace(table, **values)


def odd_table() -> Table:
    """Odd names, and rows without an interval, without a difference and far beyond the others."""
    rows = [made_row("base"), *(made_row(name, 0.004 * i - 0.02, parts=None) for i, name in enumerate(ODD_NAMES))]
    nothing = dict.fromkeys(("ci_low", "ci_high", "own_ci_low", "own_ci_high"))
    rows[2] = replace(rows[2], difference_nats=3.2, ci_low=2.5, ci_high=3.9, verdict="worse (exploratory)")
    rows[3] = replace(rows[3], verdict=None, num_pairs=1, num_seeds=1, metric_sd=None, **nothing)
    rows[4] = replace(rows[4], difference_nats=None, metric_mean=None, verdict="diverged 2/3", **nothing)
    curves = [Curve(row.name, STEPS, *([1.5] * len(STEPS),) * 3, 3) for row in rows]
    rows[5] = replace(rows[5], flops_per_token=7e8)
    return made_table(rows=rows, curves=curves, study="</svg> 中文 \x07", base="gpt2")


def made_attribution(**values: Any) -> Attribution:
    """The full factorial between vanilla and llama, with the golden effects of the protocol."""
    add = dict(zip(SWAPPED_AXES, (-0.002, 0.041, -0.039, 0.008, -0.053), strict=True))
    leave = dict(zip(SWAPPED_AXES, (-0.001, -0.122, -0.064, 0.008, -0.120), strict=True))
    shapley = dict(zip(SWAPPED_AXES, (-0.0015, -0.0405, -0.0515, 0.0081, -0.0786), strict=True))
    walk = (("norm", -0.002), ("placement", 0.039), ("pos", -0.061), ("attn", 0.009), ("ffn", -0.149))
    pairs = [f"{a}*{b}" for i, a in enumerate(SWAPPED_AXES) for b in SWAPPED_AXES[i + 1 :]]
    sizes = (0.001, -0.002, 0.000, 0.003, -0.018, 0.002, -0.094, 0.004, -0.012, 0.001)
    attribution = Attribution(
        study="factorial",
        base="vanilla",
        counterpart="llama",
        axes=SWAPPED_AXES,
        design="factorial",
        metric=FINAL,
        total=_estimate(-0.164, 0.011),
        add_one_in={axis: _estimate(nats) for axis, nats in add.items()},
        leave_one_out={axis: _estimate(nats) for axis, nats in leave.items()},
        walk=tuple((axis, _estimate(nats)) for axis, nats in walk),
        main_effects={axis: _estimate(nats * 1.02, 0.006) for axis, nats in shapley.items()},
        interactions={pair: _estimate(nats, 0.005) for pair, nats in zip(pairs, sizes, strict=True)},
        shapley={axis: _estimate(nats, 0.005) for axis, nats in shapley.items()},
        model="all 32 compositions",
        depends_on_the_rest=("placement", "ffn"),
        findings={
            "verdict": "ffn earns -0.0786 ± 0.0050 of -0.1640 nats; what placement and ffn do depends on the rest.",
            "walk": "The largest step is ffn's.",
        },
    )
    return replace(attribution, **values)


def made_report(**values: Any) -> Report:
    """The study `swaps` in both directions, and the factorial between its ends."""
    tables = (made_table("vanilla"), made_table("llama"))
    return replace(Report(SCHEMA, tables, (made_attribution(),), (), ()), **values)


def _estimate(nats: float, half: float = 0.009) -> Estimate:
    return Estimate(nats, nats - half, nats + half, 3)


def _rows(base: str) -> list[Row]:
    other = COUNTERPARTS[base]
    ends = LOSS[other] - LOSS[base]
    costs: Mapping[str, Mapping[str, Any]] = {
        "norm": {"tokens_per_s": 39_100},
        "pos": {"num_params_percent": -3.29, "num_params": 90_192, "tokens_per_s": 36_800},
        "attn": {"num_params_percent": -7.41, "block_params_percent": -8.28, "flops_percent": -6.6, "unmatched": True}
        | {"flops_per_token": 585_504, "kv_bytes_per_token": 288, "num_params": 86_352, "tokens_per_s": 40_600},
        "ffn": {"tokens_per_s": 37_900},
    }
    rows = [made_row("base", parts=BASES[base], metric_mean=LOSS[base], test_loss_nats_mean=LOSS[base])]
    whole = {"flops_per_token": 585_504, "kv_bytes_per_token": 288, "num_params": 83_280, "tokens_per_s": 33_500}
    rows.append(made_row(other, ends, 0.013, parts=BASES[other], metric_mean=LOSS[other], **whole))
    rows[-1] = replace(rows[-1], verdict="better" if ends < 0 else "worse", unmatched=True, block_params_percent=-8.28)
    for axis, (difference, half, verdict) in SWAPS[base].items():
        parts = {**BASES[base], axis: swapped_part(base, axis)}
        mean = LOSS[base] + difference
        row = made_row(f"{axis}={parts[axis]}", difference, half, parts=parts, metric_mean=mean, verdict=verdict)
        rows.append(replace(row, test_loss_nats_mean=mean, **costs.get(axis, {})))
    return rows


def _curves(base: str, names: Sequence[str]) -> list[Curve]:
    curves = []
    for i, name in enumerate(names):
        end = {"base": LOSS[base], **LOSS}.get(name) or LOSS[base] + SWAPS[base][name.split("=")[0]][0]
        mean = [end + 2.75 * math.exp(-step / (170 + 14 * i)) for step in STEPS]
        half = [0.006 + 0.03 * math.exp(-step / 300) for step in STEPS]
        low = [m - h for m, h in zip(mean, half, strict=True)]
        curves.append(Curve(name, STEPS, mean, low, [m + h for m, h in zip(mean, half, strict=True)], 3))
    return curves


def _breakdown(bins: Sequence[str], names: Sequence[str], what: str) -> Breakdown:
    shares = [2.0 ** (i if what == "position" else -abs(i - 2)) for i in range(len(bins))]
    profiles = []
    for k, name in enumerate(names[1:]):
        mean = [(-1) ** k * 0.02 * (k + 1) * (0.4 + 0.8 * i / len(bins)) for i in range(len(bins))]
        profiles.append(Profile(name, mean, [m - 0.012 for m in mean], [m + 0.012 for m in mean]))
    return Breakdown(bins, [share / sum(shares) for share in shares], profiles)


def _samples(names: Sequence[str]) -> list[Sample]:
    text = "In the beginning God created the\nheaven of the LORD, and the sons of Israel said unto him, Behold, "
    return [Sample(name, 0, text + "and it was so. " * (1 + i % 3)) for i, name in enumerate(names)]


def _shared(names: Sequence[str]) -> list[Shared]:
    changed = ("blocks.*.ffn.up_proj.weight", "blocks.*.ffn.down_proj.weight")
    return [Shared(name, 29 - i, changed if i % 2 else (), ("blocks.*.ffn.gate_proj.weight",), ()) for i, name in
            enumerate(names[1:])]  # fmt: skip
