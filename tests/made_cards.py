"""Exam cards made by hand, one an axis and an odd one: no run stands behind their numbers."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from anatomy.axes import BASES
from anatomy.measures_file import ArmStep, DecodeStep, Measures, NormCall
from anatomy.report.data import (
    CONTRADICTED,
    NOT_SEEN,
    OUTSIDE,
    SUPPORTED,
    Card,
    Examined,
    MapCell,
    PartLoss,
    Quantity,
    Series,
)

BASE_LOSS = {"vanilla": 1.53, "llama": 1.37}
LENGTHS = (32, 64, 96, 128, 256, 512)
POSITIONS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
HEADS = (8, 4, 1)
ODD = "<script>alert(1)</script> \x1b[31m a|b $x$ \u202e" + "long_" * 40
NO_MEASURES = Measures(schema=1, device="cpu", threads=1, torch="2.13.0", commit=None)


def claim(part: str, key: str, text: str, verdict: str | None = None, *measured: Quantity, **values: Any) -> Examined:
    rule = f"supported if the numbers of {key} say so; contradicted if they say otherwise; else not seen"
    return replace(Examined(part, key, text, "Someone 2031, arXiv:3101.00001", rule, verdict, measured, None), **values)


def nats(what: str, value: float, half: float | None = 0.0042) -> Quantity:
    return Quantity(what, value, None if half is None else value - half, None if half is None else value + half, "nats")


def times(what: str, value: float) -> Quantity:
    return Quantity(what, value, value - 0.03, value + 0.04, "times")


def made_card(axis: str, **values: Any) -> Card:
    """The card of an axis with all that one can have."""
    card = Card(
        study=f"exam_{axis}",
        axis=axis,
        question=f"What is there to know of {axis}, and what does it cost?",
        scenario="kjv, 48 wide, 3 or 16 layers, context 64, batch 16, 1,000 steps, 36 runs, 3 seeds",
        claims=CLAIMS[axis],
        margin_nats=0.02,
        trained_at=64,
        losses=[],
        by_length=[],
        by_position=[],
        map=[],
        timed=None,
    )
    return replace(replace(card, **PICTURED[axis]()), **values)


def empty_card(axis: str) -> Card:
    """The card of an exam that was planned and not begun."""
    claims = [replace(one, verdict=None, measured=[], note="the runs are not there yet") for one in CLAIMS[axis]]
    nothing: dict[str, Any] = {"losses": [], "by_length": [], "by_position": [], "map": [], "timed": None}
    return made_card(axis, claims=claims, scenario="no runs yet", trained_at=None, **nothing)


def odd_card() -> Card:
    """Names and words that want to act, one seed, and numbers without an interval."""
    lone = PartLoss(ODD, f"norm={ODD}", 1.5, 1.5, 1.5, 1)
    said = claim(ODD, "as_<b>", ODD, None, Quantity(ODD, 1.5, None, None, "<i>{0}"), source=ODD, rule=ODD, note=ODD)
    return made_card("norm", study=f"../{ODD}", question=ODD, scenario=ODD, claims=[said], losses=[lone], timed=None)


# ------------------------------------------------------------------------------------------------ claims

CLAIMS: Mapping[str, Sequence[Examined]] = {
    "norm": [
        claim("rms", "as_good_as_layer", "Centring buys nothing, so RMSNorm reaches the loss of LayerNorm.", SUPPORTED,
              nats("rms minus layer, mean over vanilla and llama", 0.0012),
              nats("rms minus layer in vanilla", 0.0031, 0.0093), nats("rms minus layer in llama", -0.0007, 0.0077)),
        claim("rms", "cheaper_than_layer", "RMSNorm takes less time than LayerNorm where a fused kernel exists.",
              OUTSIDE, times("RMSNorm over LayerNorm, torch, width 1024, forward and backward", 1.83),
              note="on this device PyTorch has no fused kernel for RMSNorm"),
    ],
    "placement": [
        claim("post", "fails_deep_and_bare", "Post-norm fails to train when it is deep and has no warm-up.", SUPPORTED,
              *(Quantity(f"post trains, {base} with init={init}", 1, None, None, "of 3") for base in BASE_LOSS
                for init in ("normal", "xavier")), note="a warm-up rescues it: vanilla with init=torch"),
        claim("pre", "needs_no_warmup", "Pre-norm trains as well without a warm-up as with one.", NOT_SEEN,
              Quantity("pre trains, vanilla with init=normal", 2, None, None, "of 3")),
    ],
    "pos": [
        claim("learned", "ends_at_its_table", "Learned positions end at their table.", SUPPORTED,
              Quantity("longest window with a loss", 64, None, None, "characters"),
              Quantity("longer windows without one", 4, None, None, "of 4")),
        claim("rope", "degrades_beyond", "Beyond about twice the length it was trained at RoPE degrades.", CONTRADICTED,
              nats("rope: loss at 256 minus at 64", -0.0043)),
    ],
    "attn": [
        claim("gqa", "cache_in_proportion", "The bytes of the cache are proportional to the key-value heads.",
              SUPPORTED, Quantity("cache: 8 of 8 KV heads", 268_435_456, None, None, "bytes")),
        claim("gqa", "trains_no_faster", "Training is not faster with fewer key-value heads.", None,
              note="the runs that this needs are not there yet"),
    ],
    "ffn": [
        claim("swiglu", "better_at_equal_parameters", "At equal parameters a gated FFN reaches a lower loss.",
              NOT_SEEN, nats("swiglu minus gelu, mean over vanilla and llama", -0.051, None),
              note="one seed gives no interval"),
        claim("swiglu", "costs_time", "A training step with a gated FFN takes 1.1 to 1.15 times as long.", SUPPORTED,
              times("training step with swiglu over gelu, in vanilla", 1.12)),
    ],
}  # fmt: skip


# ------------------------------------------------------------------------------------------------ pictures


def _loss(base: str, row: str, mean: float) -> PartLoss:
    return PartLoss(base, row, mean, mean - 0.011, mean + 0.013, 3)


def _norm() -> dict[str, Any]:
    above = {"layer": 0.0, "rms": 0.002, "layer_nobias": -0.004, "none": 0.61}
    losses = [_loss(base, f"norm={norm}", BASE_LOSS[base] + up) for base in BASE_LOSS for norm, up in above.items()]
    slow = {("rms", "part"): 1.12, ("rms", "torch"): 1.83, ("rms", "by hand"): 0.71, ("layer_nobias", "part"): 0.96}
    slow |= {("layer", form): 1.0 for form in ("part", "torch", "by hand")}
    rows = [_call(norm, form, width, ratio * (1 + 0.04 * i)) for (norm, form), ratio in slow.items()
            for i, width in enumerate((48, 256, 1024))]  # fmt: skip
    timed = Measures(**NO_MEASURES, norm_calls={"num_rounds": 40, "has_fused_rms_norm": False, "rows": rows})
    return {"losses": losses, "timed": timed}


def _call(norm: str, form: str, width: int, ratio: float) -> NormCall:
    row: dict[str, Any] = {"norm": norm, "form": form, "width": width, "num_tokens": 1024, "num_params": width}
    for kind in ("forward", "both"):
        for key, value in ((f"{kind}_ns", 1e5 * ratio), (f"{kind}_over_layer", ratio)):
            row |= {key: value, f"{key}_low": 0.97 * value, f"{key}_high": 1.02 * value}
    return NormCall(**row)


def _placement() -> dict[str, Any]:
    cells = []
    for base, part, init, depth, warmup in product(BASE_LOSS, ("post", "pre"), ("normal", "xavier", "torch"),
                                                   ("3", "16"), ("100", "0")):  # fmt: skip
        outcomes, loss = {"trained": 1}, 2.21
        if part == "post" and depth == "16":
            outcomes, loss = {"plateau": 1}, 3.03
            if warmup == "0":
                by_init: dict[str, tuple[dict[str, int], float | None]] = {"normal": ({"diverged": 3}, None)}
                by_init["xavier"] = ({"trained": 1, "plateau": 1, "diverged": 1}, 2.64)
                outcomes, loss = by_init.get(init, ({"plateau": 3}, 3.03))  # type: ignore[assignment]
        slope = 0.2 if part == "post" else -0.05
        gradients = [0.3 * math.exp(slope * block) * (1 + len(init)) for block in range(16 if depth == "16" else 3)]
        factors = {"model.n_layer": depth, "train.warmup_steps": warmup, "init": init}
        if (base, part, init, depth, warmup) != ("llama", "pre", "torch", "16", "0"):  # a place that nobody ran
            cells.append(MapCell(base, part, factors, outcomes, loss, gradients))
    return {"map": cells}


def _pos() -> dict[str, Any]:
    rows: Mapping[str, Callable[[int], float | None]] = {
        "pos=learned": lambda length: 0.02 if length <= 64 else None,
        "pos=sinusoidal": lambda length: 0.0 if length <= 64 else 0.4 * math.log2(length / 64),
        "pos=nope": lambda length: 0.2 + 0.02 * math.log2(length / 32),
        "pos.theta=10000 pos=rope": lambda length: -0.05 if length <= 64 else 0.22 * math.log2(length / 64),
        "pos.theta=500000 pos=rope": lambda length: -0.04 if length <= 64 else 0.31 * math.log2(length / 64),
    }
    by_length, by_position = [], []
    for base, (row, above) in product(BASE_LOSS, rows.items()):
        mean = [None if (up := above(length)) is None else BASE_LOSS[base] + up for length in LENGTHS]
        by_length.append(_line(base, row, LENGTHS, mean))
        known = [(x, up) for x in POSITIONS if (up := above(x)) is not None]
        late = [BASE_LOSS[base] + up + 1.6 * math.exp(-x / 9) for x, up in known]
        by_position.append(_line(base, row, [x for x, _ in known], late))
    return {"by_length": by_length, "by_position": by_position,
            "losses": [_loss(base, row, BASE_LOSS[base]) for base, row in product(BASE_LOSS, rows)]}  # fmt: skip


def _line(base: str, row: str, x: Sequence[float], mean: Sequence[float | None]) -> Series:
    low, high = ([None if y is None else y + off for y in mean] for off in (-0.012, 0.017))
    return Series(base, row, x, mean, low, high)


def _attn() -> dict[str, Any]:
    above = {"mha": 0.0, "gqa": 0.008, "mqa": 0.021}
    losses = [_loss(base, f"attn={attn}", BASE_LOSS[base] + up) for base in BASE_LOSS for attn, up in above.items()]
    rows = [_step(width, heads, cached) for width, heads, cached in
            product((48, 512), HEADS, (1024, 2048, 4096, 8192, 16384))]  # fmt: skip
    return {"losses": losses, "timed": Measures(**NO_MEASURES, decode={"num_rounds": 30, "rows": rows})}


def _step(width: int, n_kv_head: int, num_cached: int) -> DecodeStep:
    num_bytes = 2 * 4 * 4 * num_cached * n_kv_head * width // 8
    step_us = 180 + num_bytes / 40_000
    row: dict[str, Any] = {"width": width, "n_layer": 4, "n_head": 8, "n_kv_head": n_kv_head, "head_width": width // 8}
    row |= {"num_cached": num_cached, "cache_bytes": num_bytes, "cache_bytes_measured": num_bytes}
    row |= {"tokens_per_s": 1e6 / step_us}
    for key, value in (("step_us", step_us), ("over_full_heads", n_kv_head / 8), ("attending_share", 0.6)):
        row |= {key: value, f"{key}_low": 0.93 * value, f"{key}_high": 1.05 * value}
    return DecodeStep(**row)


def _ffn() -> dict[str, Any]:
    above = {"gelu": 0.0, "relu": 0.013, "swiglu": -0.055}
    matches = {"params": 0.0, "time": 0.012}
    losses = [_loss(base, f"ffn={ffn} match={match}", BASE_LOSS[base] + up + (ffn == "swiglu") * later)
              for base, (match, later), (ffn, up) in product(BASE_LOSS, matches.items(), above.items())]  # fmt: skip
    slow = {"gelu": 1.0, "relu": 0.93, "swiglu": 1.12}
    rows = [_arm(base, ffn, match, slow[ffn] / slow[BASES[base]["ffn"]])
            for base, match, ffn in product(BASE_LOSS, matches, slow)]  # fmt: skip
    timed = Measures(**NO_MEASURES, train_step={"num_rounds": 30, "rows": rows})
    return {"losses": losses, "timed": timed}


def _arm(base: str, ffn: str, match: str, ratio: float) -> ArmStep:
    is_base = ratio == 1.0
    return ArmStep(sha256="0", base=base, parts={**BASES[base], "ffn": ffn}, match=match, ffn_hidden=192, n_kv_head=4,
                   step_ms=20 * ratio, step_ms_low=19 * ratio, step_ms_high=21 * ratio, over_base=ratio,
                   over_base_low=ratio if is_base else ratio - 0.02,
                   over_base_high=ratio if is_base else ratio + 0.03)  # fmt: skip


PICTURED: Mapping[str, Callable[[], dict[str, Any]]] = {
    "norm": _norm,
    "placement": _placement,
    "pos": _pos,
    "attn": _attn,
    "ffn": _ffn,
}
