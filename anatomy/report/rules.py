"""The rules by which an exam decides about a claim: each computes a verdict from what was measured.

In words they stand in exam_rules.py, under the key that the claim has in its part's YAML.

    supported here      the interval lies where the claim says
    contradicted here   it lies where the claim says it does not
    not seen here       it reaches over both
    outside this scale  the scenario that the claim is about could not be had at this size, or on this machine
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from anatomy.axes import BASES
from anatomy.exam_rules import CLAIMED_INIT, DOMINATES, FASTER, GATED_COST, NEAR_GATED_COST
from anatomy.measures_file import ArmStep, DecodeStep, NormCall
from anatomy.report.attribution import estimate
from anatomy.report.data import CONTRADICTED, NOT_SEEN, OUTSIDE, SUPPORTED, MapCell, Quantity
from anatomy.report.material import NO_KNOBS, TRAINED, UNKNOWN, Knobs, Material, nats

TRAINED_ROPE, OTHER_ROPE = {"theta": 10000.0}, {"theta": 500000.0}  # the claims are about the first


@dataclass(frozen=True)
class Finding:
    """What a rule came to; verdict None where there is nothing to judge by yet."""

    verdict: str | None
    measured: Sequence[Quantity] = ()
    note: str | None = None


Rule = Callable[[Material], Finding]
Holds = Callable[[float, float], bool]

NOTHING_YET = Finding(None, note="what this needs was not run, or not timed, yet")
ONE_SEED = "one seed gives no interval"
NO_TABLES = "the text's n-gram tables are not at hand, which tell a plateau"


def _by_interval(measured: Sequence[Quantity], *, bound: float) -> Finding:
    """Supported where the first quantity's interval ends below `bound`, contradicted where it begins above."""
    if not measured:
        return NOTHING_YET
    whole = measured[0]
    if whole.low is None or whole.high is None:
        return Finding(NOT_SEEN, measured, ONE_SEED)
    return Finding(SUPPORTED if whole.high < bound else CONTRADICTED if whole.low > bound else NOT_SEEN, measured)


# ------------------------------------------------------------------------------------------------ loss


def _lower(part: str, other: str, match: str | None, m: Material, bound: float) -> Finding:
    """Whether the difference is below `bound`: over all bases, and in none of them clearly otherwise. Where runs
    diverged, those that are left support nothing."""
    found = _by_interval(m.difference(part, other, match), bound=bound)
    each = found.measured[1:]  # of the bases
    above = any(one.low is not None and one.low > bound for one in each)
    below = any(one.high is not None and one.high < bound for one in each)
    if (found.verdict == SUPPORTED and above) or (found.verdict == CONTRADICTED and below):
        return Finding(NOT_SEEN, found.measured, "the bases disagree")
    if gone := m.diverged((part, other), match):
        verdict = NOT_SEEN if found.verdict == SUPPORTED else found.verdict
        return Finding(verdict, found.measured, f"diverged, and so left out: {', '.join(gone)}")
    return found


def _no_worse(part: str, other: str, match: str | None = None) -> Rule:
    return lambda m: _lower(part, other, match, m, m.margin_nats)


def _better(part: str, other: str, match: str) -> Rule:
    return lambda m: _lower(part, other, match, m, 0.0)


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
                       "from smaller operations; 'part' is how this tool computes it there")  # fmt: skip
    if not by_torch:
        return NOTHING_YET
    widest = max(by_torch, key=lambda row: row["width"])
    others = [_norm_quantity(row) for row in rows if row is not widest]
    return _by_interval([_norm_quantity(widest), *others], bound=1)


def _norm_quantity(row: NormCall) -> Quantity:
    what = f"RMSNorm over LayerNorm, {row['form']}, width {row['width']}, forward and backward"
    return Quantity(what, row["both_over_layer"], row["both_over_layer_low"], row["both_over_layer_high"], "times")


# ------------------------------------------------------------------------------------------------ placement


def _fails_deep_and_bare(m: Material) -> Finding:
    post, pre = _deep_and_bare(m, "post"), _deep_and_bare(m, "pre")
    deciding = [cell for cell in post if cell.factors.get("init") == CLAIMED_INIT]
    if not deciding or not pre:
        return NOTHING_YET
    measured = list(map(_count, post))
    if _is_untold(m):
        return Finding(None, measured, NO_TABLES)
    trains_with_pre = {_setting(cell) for cell in pre if not _fails(cell)}
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
    return Finding(verdict, measured, "; ".join(filter(None, said)) or None)


def _needs_no_warmup(m: Material) -> Finding:
    pre = _deep_and_bare(m, "pre")
    if _is_untold(m):
        return Finding(None, list(map(_count, pre)), NO_TABLES)
    if fails := [cell for cell in pre if _fails(cell)]:
        return Finding(CONTRADICTED, list(map(_count, pre)), f"it fails to train: {_settings(fails)}")
    gaps = {_setting(cell): m.warmup_gaps(cell) for cell in pre}
    common = sorted(set.intersection(*map(set, gaps.values()))) if gaps else []
    found = estimate([fmean(by_seed[seed] for by_seed in gaps.values()) for seed in common])
    if found is None:
        return NOTHING_YET
    each = [
        nats(f"the same, {_settings([cell])}", one)
        for cell in pre
        if (one := estimate(list(gaps[_setting(cell)].values())))
    ]
    whole = nats(f"without a warm-up minus with one, mean over {len(gaps)} settings", found)
    judged = _by_interval([whole, *each], bound=m.margin_nats)
    return Finding(judged.verdict, judged.measured, judged.note or "it trains in every setting")


def _deep_and_bare(m: Material, part: str) -> list[MapCell]:
    """The cells of a part that are deepest and have no warm-up; none where all are of one depth."""
    depths = set(map(_depth, m.map))
    deepest = max(depths) if len(depths) > 1 else None
    return [
        cell
        for cell in m.map
        if (cell.part, cell.factors.get("train.warmup_steps"), _depth(cell)) == (part, "0", deepest)
    ]


def _is_untold(m: Material) -> bool:
    """Whether it is not known of some run if it stayed on the plateau."""
    return any(cell.outcomes.get(UNKNOWN) for cell in m.map)


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


def _trained_at(m: Material, part: str, knobs: Knobs = NO_KNOBS) -> int | None:
    lengths = [
        run.settings.get("model.ctx_len") for base in m.bases for run in m.runs(base, part, None, knobs).values()
    ]
    return next((length for length in lengths if isinstance(length, int)), None)


def _ends_at_its_table(m: Material) -> Finding:
    by_run = [m.at_length(run) for base in m.bases for run in m.runs(base, "learned").values()]
    trained, lengths = _trained_at(m, "learned"), sorted(set[int]().union(*by_run))
    longer = [length for length in lengths if trained is not None and length > trained]
    if trained is None or not longer:
        return NOTHING_YET
    gone, there = (
        [length for length in lengths if all((losses.get(length) is None) is is_gone for losses in by_run)]
        for is_gone in (True, False)
    )
    measured = [
        Quantity("longest window with a loss", max(there, default=0), None, None, "characters"),
        Quantity("longer windows without one", len(set(longer) & set(gone)), None, None, f"of {len(longer)}"),
    ]
    if set(longer) <= set(there):
        return Finding(CONTRADICTED, measured)
    is_end = set(longer) <= set(gone) and set(lengths) - set(longer) <= set(there)
    return Finding(SUPPORTED if is_end else NOT_SEEN, measured)


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
    start = _trained_at(m, "rope", TRAINED_ROPE)
    if start is None:
        return NOTHING_YET
    rises = [m.rise("rope", times * start, start, theta) for theta in (TRAINED_ROPE, OTHER_ROPE) for times in (2, 4)]
    if rises[0] is None:
        return NOTHING_YET
    found = _by_interval([_negative(rises[0])], bound=-m.margin_nats)
    return Finding(found.verdict, [rise for rise in rises if rise], found.note)


def _negative(one: Quantity) -> Quantity:
    low, high = (None if end is None else -end for end in (one.high, one.low))
    return Quantity(one.what, -one.value, low, high, one.unit)


# ------------------------------------------------------------------------------------------------ attention


def _decoded(m: Material) -> list[DecodeStep]:
    return list(m.timed["decode"]["rows"]) if m.timed and "decode" in m.timed else []


def _cache_in_proportion(m: Material) -> Finding:
    rows = _decoded(m)
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
    widest = max((row["width"] for row in _decoded(m)), default=0)
    rows = [row for row in _decoded(m) if row["width"] == widest]
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
    least, most = measured[0].low, measured[0].high
    if least is None or most is None:
        return Finding(NOT_SEEN, measured, "too few rounds for an interval")
    return Finding(SUPPORTED if most < 1 / FASTER else CONTRADICTED if least > 1 else NOT_SEEN, measured, note)


def _heads(row: DecodeStep) -> str:
    return f"{row['n_kv_head']} of {row['n_head']} KV heads, width {row['width']}, {row['num_cached']:,} tokens"


def _over_full_heads(row: DecodeStep) -> Quantity:
    what = f"decoding step over one with all heads: {_heads(row)}"
    return Quantity(what, row["over_full_heads"], row["over_full_heads_low"], row["over_full_heads_high"], "times")


def _steps(m: Material) -> list[ArmStep]:
    return list(m.timed["train_step"]["rows"]) if m.timed and "train_step" in m.timed else []


def _step_ratios(m: Material, part: str, other: str, match: str) -> list[Quantity]:
    """The time of a training step with `part` over that with `other`, a base a quantity; empty unless there is one for
    every base that the exam is about."""
    found: dict[str, Quantity] = {}
    for row in _steps(m):
        own = BASES.get(row["base"], {}).get(m.axis)
        ratio, low, high = row["over_base"], row["over_base_low"], row["over_base_high"]
        if row["match"] != match or not ratio:
            continue
        what = f"training step with {part} over {other}, in {row['base']}"
        if (row["parts"].get(m.axis), own) == (part, other):
            found[row["base"]] = Quantity(what, ratio, low, high, "times")
        elif (row["parts"].get(m.axis), own) == (other, part):
            turned = 1 / high if high else None, 1 / low if low else None
            found[row["base"]] = Quantity(what, 1 / ratio, *turned, "times")
    return [found[base] for base in m.bases] if m.bases and set(m.bases) <= set(found) else []


def _in_every_base(measured: Sequence[Quantity], holds: Holds, fails: Holds) -> Finding:
    """Supported where an interval (low, high) holds in every base, contradicted where it fails in every base."""
    ends = [(one.low, one.high) for one in measured if one.low is not None and one.high is not None]
    if not measured:
        return NOTHING_YET
    if len(ends) < len(measured):
        return Finding(NOT_SEEN, measured, "too few rounds for an interval")
    is_held, is_failed = (all(says(low, high) for low, high in ends) for says in (holds, fails))
    return Finding(SUPPORTED if is_held else CONTRADICTED if is_failed else NOT_SEEN, measured)


def _trains_no_faster(m: Material) -> Finding:
    least = 1 / FASTER
    measured = _step_ratios(m, "gqa", "mha", "params")
    return _in_every_base(measured, lambda low, high: low > least, lambda low, high: high < least)


# ------------------------------------------------------------------------------------------------ FFN


def _costs_time(m: Material) -> Finding:
    (least, most), (claimed_least, claimed_most) = NEAR_GATED_COST, GATED_COST
    return _in_every_base(
        _step_ratios(m, "swiglu", "gelu", "params"),
        lambda low, high: least <= low and high <= most,
        lambda low, high: high < claimed_least or low > claimed_most,
    )


RULES: Mapping[str, Rule] = {
    "as_good_as_layer": _no_worse("rms", "layer"),
    "cheaper_than_layer": _norm_cost,
    "fails_deep_and_bare": _fails_deep_and_bare,
    "needs_no_warmup": _needs_no_warmup,
    "ends_at_its_table": _ends_at_its_table,
    "best_where_trained": _best_where_trained,
    "degrades_beyond": _degrades_beyond,
    "cache_in_proportion": _cache_in_proportion,
    "as_good_as_mha": _no_worse("gqa", "mha", "params"),
    "decodes_faster": _decodes_faster,
    "trains_no_faster": _trains_no_faster,
    "better_at_equal_parameters": _better("swiglu", "gelu", "params"),
    "better_at_equal_time": _better("swiglu", "gelu", "time"),
    "costs_time": _costs_time,
}
