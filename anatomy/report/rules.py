"""The rules by which an exam decides about a claim: each computes a verdict from what was measured, and says how.

A claim's text stands in its part's YAML, under the key that names its rule here.

    supported here      the interval lies where the claim says
    contradicted here   it lies where the claim says it does not
    not seen here       it reaches over both
    outside this scale  the scenario that the claim is about could not be had at this size, or on this machine
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from anatomy.axes import BASES
from anatomy.measures_file import ArmStep, DecodeStep, NormCall
from anatomy.report.attribution import estimate
from anatomy.report.data import CONTRADICTED, NOT_SEEN, OUTSIDE, SUPPORTED, MapCell, Quantity
from anatomy.report.material import TRAINED, Material, nats

TRAINED_ROPE, OTHER_ROPE = {"theta": 10000.0}, {"theta": 500000.0}  # the claims are about the first
CLAIMED_INIT = "xavier"  # of the claim that post-norm fails
FASTER = 1.05  # a ratio of speeds that a reader would notice
DOMINATES = 0.5  # share of a decoding step spent on the cache, from which the cache is what it waits for
GATED_COST = (1.10, 1.15)  # times a plain FFN's step, as the claim has it


@dataclass(frozen=True)
class Finding:
    """What a rule came to; verdict None where there is nothing to judge by yet."""

    verdict: str | None
    measured: Sequence[Quantity] = ()
    note: str | None = None


@dataclass(frozen=True)
class Rule:
    """A rule in words, in which {margin} stands for the study's margin in nats, and in code."""

    words: str
    judge: Callable[[Material], Finding]


NOTHING_YET = Finding(None, note="the runs that this needs are not there yet")
ONE_SEED = "one seed gives no interval"


def _by_interval(measured: Sequence[Quantity], *, below: float, above: float) -> Finding:
    """Supported where the first quantity's interval ends at or below `below`, contradicted where it begins above
    `above`."""
    if not measured:
        return NOTHING_YET
    whole = measured[0]
    if whole.low is None or whole.high is None:
        return Finding(NOT_SEEN, measured, ONE_SEED)
    return Finding(SUPPORTED if whole.high < below else CONTRADICTED if whole.low > above else NOT_SEEN, measured)


# ------------------------------------------------------------------------------------------------ loss


def _no_worse(part: str, other: str, match: str | None = None) -> Rule:
    return Rule(
        f"supported if the interval of {part} minus {other}, mean over the bases, ends below {{margin}} nats; "
        "contradicted if it begins above that; else not seen",
        lambda m: _by_interval(m.difference(part, other, match), below=m.margin_nats, above=m.margin_nats),
    )


def _better(part: str, other: str, match: str) -> Rule:
    return Rule(
        f"supported if the interval of {part} minus {other}, mean over the bases, lies below 0; contradicted if above; "
        "else not seen",
        lambda m: _by_interval(m.difference(part, other, match), below=0, above=0),
    )


# ------------------------------------------------------------------------------------------------ norm


def _norm_cost(m: Material) -> Finding:
    calls = m.timed.get("norm_calls") if m.timed else None
    rows = [row for row in calls["rows"] if row["norm"] == "rms"] if calls else []
    if calls is None or not rows:
        return NOTHING_YET
    by_torch = [row for row in rows if row["form"] == "torch"]
    measured = [_norm_quantity(row) for row in [*by_torch, *(row for row in rows if row["form"] != "torch")]]
    if not calls["has_fused_rms_norm"]:
        return Finding(OUTSIDE, measured, "on this device PyTorch has no fused kernel for RMSNorm and puts it together "
                       "from smaller operations; `part` is how this tool computes it there")  # fmt: skip
    widest = max(by_torch, key=lambda row: row["width"])
    return _by_interval([_norm_quantity(widest), *measured], below=1, above=1)


def _norm_quantity(row: NormCall) -> Quantity:
    what = f"RMSNorm over LayerNorm, {row['form']}, width {row['width']}, forward and backward"
    return Quantity(what, row["both_over_layer"], row["both_over_layer_low"], row["both_over_layer_high"], "times")


# ------------------------------------------------------------------------------------------------ placement


def _fails_deep_and_bare(m: Material) -> Finding:
    post, pre = _deep_and_bare(m, "post"), _deep_and_bare(m, "pre")
    deciding = [cell for cell in post if cell.factors.get("init") == CLAIMED_INIT]
    trains_with_pre = {_setting(cell) for cell in pre if not _fails(cell)}
    if not deciding or not pre:
        return NOTHING_YET
    shows = [cell for cell in post if _fails(cell) and _setting(cell) in trains_with_pre]
    trains = [cell for cell in post if not _fails(cell)]
    is_seen, is_refuted = (all(cell in some for cell in deciding) for some in (shows, trains))
    rescued = [cell for cell in shows if any(map(_is_rescue(cell), m.map))]
    lost = [cell for cell in shows if cell not in rescued]
    said = [
        f"it trains all the same: {_settings(trains)}" if trains else "",
        f"a warm-up rescues it: {_settings(rescued)}" if rescued else "",
        f"a warm-up does not: {_settings(lost)}" if lost else "",
    ]
    verdict = SUPPORTED if is_seen else CONTRADICTED if is_refuted else NOT_SEEN
    return Finding(verdict, list(map(_count, post)), "; ".join(filter(None, said)) or None)


def _needs_no_warmup(m: Material) -> Finding:
    pre = _deep_and_bare(m, "pre")
    gaps = [gap for cell in pre for gap in m.warmup_gaps(cell)]
    found = estimate(gaps)
    if found is None:
        return NOTHING_YET
    whole = nats(f"without a warm-up minus with one, mean over {len(gaps)} settings", found)
    fails = [cell for cell in pre if _fails(cell)]
    note = f"it fails to train: {_settings(fails)}" if fails else "it trains in every setting"
    judged = _by_interval([whole], below=m.margin_nats, above=m.margin_nats)
    each = [Quantity(f"the same, {_settings([c])}", gap, None, None, "nats") for c in pre for gap in m.warmup_gaps(c)]
    return Finding(CONTRADICTED if fails else judged.verdict, [whole, *each], judged.note or note)


def _deep_and_bare(m: Material, part: str) -> list[MapCell]:
    """The cells of a part that are deepest and have no warm-up."""
    bare = [cell for cell in m.map if cell.part == part and cell.factors.get("train.warmup_steps") == "0"]
    deepest = max((_depth(cell) for cell in bare), default=0)
    return [cell for cell in bare if _depth(cell) == deepest]


def _depth(cell: MapCell) -> int:
    depth = cell.factors.get("model.n_layer", "")
    return int(depth) if depth.isdecimal() else 0


def _fails(cell: MapCell) -> bool:
    """Whether most of its runs stayed on the plateau or diverged."""
    return 2 * cell.outcomes.get(TRAINED, 0) < sum(cell.outcomes.values())


def _setting(cell: MapCell) -> tuple[str, str]:
    return cell.base, cell.factors.get("init", "")


def _settings(cells: Sequence[MapCell]) -> str:
    return ", ".join(f"{cell.base} with init={cell.factors.get('init', '')}" for cell in cells)


def _is_rescue(bare: MapCell) -> Callable[[MapCell], bool]:
    """Whether a cell is the bare one with a warm-up, and trains."""

    def is_it(cell: MapCell) -> bool:
        same = (cell.part, _setting(cell), _depth(cell)) == (bare.part, _setting(bare), _depth(bare))
        return same and cell.factors.get("train.warmup_steps") != "0" and not _fails(cell)

    return is_it


def _count(cell: MapCell) -> Quantity:
    num_runs = sum(cell.outcomes.values())
    what = f"{cell.part} trains, {_settings([cell])}"
    return Quantity(what, cell.outcomes.get(TRAINED, 0), None, None, f"of {num_runs}")


# ------------------------------------------------------------------------------------------------ positions


def _ends_at_its_table(m: Material) -> Finding:
    by_run = [m.at_length(run) for base in m.bases for run in m.runs(base, "learned").values()]
    if not any(by_run):
        return NOTHING_YET
    lengths = sorted(set[int]().union(*by_run))
    there = [length for length in lengths if all(losses.get(length) is not None for losses in by_run)]
    gone = [length for length in lengths if all(losses.get(length) is None for losses in by_run)]
    end = max(there, default=0)
    measured = [
        Quantity("longest window with a loss", end, None, None, "characters"),
        Quantity("longer windows without one", len(gone), None, None, f"of {sum(length > end for length in lengths)}"),
    ]
    if not gone or not there:
        return Finding(CONTRADICTED if there else NOT_SEEN, measured)
    return Finding(SUPPORTED if end < min(gone) and len(there) + len(gone) == len(lengths) else NOT_SEEN, measured)


def _best_where_trained(m: Material) -> Finding:
    rivals = ("learned", "sinusoidal", "nope")
    found = [m.difference("rope", rival, knobs=TRAINED_ROPE) for rival in rivals]
    measured = [differences[0] for differences in found if differences]
    if len(measured) < len(rivals):
        return NOTHING_YET if not measured else Finding(None, measured, NOTHING_YET.note)
    ends = [(one.low, one.high) for one in measured if one.low is not None and one.high is not None]
    if len(ends) < len(measured):
        return Finding(NOT_SEEN, measured, ONE_SEED)
    if all(high < 0 for _, high in ends):
        return Finding(SUPPORTED, measured)
    return Finding(CONTRADICTED if any(low > 0 for low, _ in ends) else NOT_SEEN, measured)


def _degrades_beyond(m: Material) -> Finding:
    trained = [run.settings.get("model.ctx_len") for base in m.bases for run in m.runs(base, "rope").values()]
    start = next((length for length in trained if isinstance(length, int)), None)
    if start is None:
        return NOTHING_YET
    at_twice, at_four_times = (m.rise("rope", times * start, start, TRAINED_ROPE) for times in (2, 4))
    if at_twice is None or at_four_times is None:
        return NOTHING_YET
    others = [m.rise("rope", times * start, start, OTHER_ROPE) for times in (2, 4)]
    found = _by_interval([_negative(at_four_times)], below=-m.margin_nats, above=-m.margin_nats)
    is_early = at_twice.low is not None and at_twice.low > m.margin_nats
    note = "it degrades at twice the length already" if is_early else None
    return Finding(found.verdict, [at_four_times, at_twice, *filter(None, others)], found.note or note)


def _negative(one: Quantity) -> Quantity:
    low, high = (None if end is None else -end for end in (one.high, one.low))
    return Quantity(one.what, -one.value, low, high, one.unit)


# ------------------------------------------------------------------------------------------------ attention


def _decoded(m: Material) -> list[DecodeStep]:
    """The largest size that decoding was timed at, with fewer key-value heads than query heads or as many."""
    rows = m.timed["decode"]["rows"] if m.timed and "decode" in m.timed else []
    widest = max((row["width"] for row in rows), default=0)
    return [row for row in rows if row["width"] == widest]


def _cache_in_proportion(m: Material) -> Finding:
    rows = m.timed["decode"]["rows"] if m.timed and "decode" in m.timed else []
    if not rows:
        return NOTHING_YET
    most = max(row["num_cached"] for row in rows)
    longest = [row for row in rows if row["num_cached"] == most]
    measured = [Quantity(f"cache: {_heads(row)}", row["cache_bytes_measured"], None, None, "bytes") for row in longest]
    is_exact = all(row["cache_bytes"] == row["cache_bytes_measured"] for row in rows)
    per_head: dict[tuple[int, ...], set[float]] = defaultdict(set)
    for row in rows:
        size = (row["width"], row["n_layer"], row["num_cached"])
        per_head[size].add(row["cache_bytes_measured"] / row["n_kv_head"])
    alike = all(len(bytes_of_one) == 1 for bytes_of_one in per_head.values())
    return Finding(SUPPORTED if is_exact and alike else CONTRADICTED, measured)


def _decodes_faster(m: Material) -> Finding:
    rows = _decoded(m)
    if not rows:
        return NOTHING_YET
    longest = max(row["num_cached"] for row in rows)
    full = next((row for row in rows if row["num_cached"] == longest and row["n_kv_head"] == row["n_head"]), None)
    shared = [row for row in rows if row["num_cached"] == longest and row["n_kv_head"] < row["n_head"]]
    if full is None or not shared:
        return NOTHING_YET
    measured = [_over_full_heads(row) for row in sorted(shared, key=lambda row: -row["n_kv_head"])]
    share = full["attending_share"]
    note = f"with all heads {share:.0%} of that step goes to the cache"
    if share < DOMINATES:
        return Finding(OUTSIDE, measured, f"{note}, so it does not dominate")
    found = _by_interval(measured, below=1 / FASTER, above=1)
    return Finding(found.verdict, measured, note)


def _heads(row: DecodeStep) -> str:
    return f"{row['n_kv_head']} of {row['n_head']} KV heads, width {row['width']}, {row['num_cached']:,} tokens"


def _over_full_heads(row: DecodeStep) -> Quantity:
    what = f"decoding step over one with all heads: {_heads(row)}"
    return Quantity(what, row["over_full_heads"], row["over_full_heads_low"], row["over_full_heads_high"], "times")


def _steps(m: Material) -> list[ArmStep]:
    return list(m.timed["train_step"]["rows"]) if m.timed and "train_step" in m.timed else []


def _step_ratios(m: Material, part: str, other: str, match: str) -> list[Quantity]:
    """The time of a training step with `part` over that with `other`, for each base that has one of them as its own."""
    found = []
    for row in _steps(m):
        own = BASES.get(row["base"], {}).get(m.axis)
        ratio, low, high = row["over_base"], row["over_base_low"], row["over_base_high"]
        if row["match"] != match or ratio is None:
            continue
        what = f"training step with {part} over {other}, in {row['base']}"
        if (row["parts"].get(m.axis), own) == (part, other):
            found.append(Quantity(what, ratio, low, high, "times"))
        elif (row["parts"].get(m.axis), own) == (other, part):
            found.append(Quantity(what, 1 / ratio, 1 / high if high else None, 1 / low if low else None, "times"))
    return found


def _trains_no_faster(m: Material) -> Finding:
    measured = _step_ratios(m, "gqa", "mha", "params")
    if not measured:
        return NOTHING_YET
    if any(one.low is None or one.high is None for one in measured):
        return Finding(NOT_SEEN, measured, "too few rounds for an interval")
    least = 1 / FASTER
    if all(one.low is not None and one.low > least for one in measured):
        return Finding(SUPPORTED, measured)
    is_faster = all(one.high is not None and one.high < least for one in measured)
    return Finding(CONTRADICTED if is_faster else NOT_SEEN, measured)


# ------------------------------------------------------------------------------------------------ FFN


def _costs_time(m: Material) -> Finding:
    measured = _step_ratios(m, "swiglu", "gelu", "params")
    if not measured:
        return NOTHING_YET
    least, most = GATED_COST
    meets = [one.low is not None and one.high is not None and one.low <= most and one.high >= least for one in measured]
    return Finding(SUPPORTED if all(meets) else NOT_SEEN if any(meets) else CONTRADICTED, measured)


RULES: Mapping[str, Rule] = {
    "as_good_as_layer": _no_worse("rms", "layer"),
    "cheaper_than_layer": Rule(
        "outside this scale if the device has no fused kernel for RMSNorm; else supported if at the greatest width the "
        "interval of its time over LayerNorm's lies below 1, contradicted if above, else not seen",
        _norm_cost,
    ),
    "fails_deep_and_bare": Rule(
        f"judged with init={CLAIMED_INIT}, as in the claim's source: supported if, deep and without a warm-up, "
        "post-norm fails and pre-norm trains in every base; contradicted if post-norm trains in every base; else not "
        "seen. A setting fails if most of its seeds diverge or end nearer to a table of single characters than to "
        "one of pairs",
        _fails_deep_and_bare,
    ),
    "needs_no_warmup": Rule(
        "supported if, deep, the interval of the test loss without a warm-up minus with one, over the settings (base "
        "and init, each the mean over its seeds), ends below {margin} nats; contradicted if it begins above, or if "
        "most seeds of a setting fail to train; else not seen",
        _needs_no_warmup,
    ),
    "ends_at_its_table": Rule(
        "supported if there is a loss up to some length and none at any longer one; contradicted if there is one at "
        "all; else not seen",
        _ends_at_its_table,
    ),
    "best_where_trained": Rule(
        "supported if at the trained length the interval of RoPE minus each other kind of positions, mean over the "
        "bases, lies below 0; contradicted if one lies above; else not seen",
        _best_where_trained,
    ),
    "degrades_beyond": Rule(
        "supported if the interval of RoPE's rise in loss from the trained length to four times that, over the same "
        "target characters, begins above {margin} nats; contradicted if it ends below that; else not seen",
        _degrades_beyond,
    ),
    "cache_in_proportion": Rule(
        "supported if the bytes of the cache's tensors are the formula's and, at each size, the same for every "
        "key-value head; else contradicted",
        _cache_in_proportion,
    ),
    "as_good_as_mha": _no_worse("gqa", "mha", "params"),
    "decodes_faster": Rule(
        "outside this scale if the cache takes less than half of the longest step; else supported if the interval of "
        f"that step with half the heads over all of them ends below 1/{FASTER}, contradicted if it begins above 1, "
        "else not seen",
        _decodes_faster,
    ),
    "trains_no_faster": Rule(
        f"supported if the interval of the time of a step with gqa over mha begins above 1/{FASTER} in every base; "
        "contradicted if it ends below that in every base; else not seen",
        _trains_no_faster,
    ),
    "better_at_equal_parameters": _better("swiglu", "gelu", "params"),
    "better_at_equal_time": _better("swiglu", "gelu", "time"),
    "costs_time": Rule(
        f"supported if the interval of the time of a step with swiglu over gelu meets {GATED_COST[0]} to "
        f"{GATED_COST[1]} in every base; contradicted if in none; else not seen",
        _costs_time,
    ),
}
