"""What the numbers say, in sentences. Each is computed from the table that it stands above and claims no more than the
intervals allow."""

from collections.abc import Mapping, Sequence
from itertools import takewhile

from anatomy.report.data import BASE_ROW, Attribution, Breakdown, Estimate, Profile, Row, Table

NAMED = 4  # rows that a sentence names before it only counts


def table_findings(table: Table) -> dict[str, str]:
    """A sentence for the table (`verdict`) and for each of its figures that there is data for, by the figure's name."""
    swaps = [row for row in table.rows if row.num_pairs]
    if not swaps:
        diverged = [row for row in table.rows if row.num_diverged]
        return {"verdict": f"Against {table.base}: diverged: {_list(diverged)}."} if diverged else {}
    ordered = sorted(swaps, key=lambda row: -abs(row.difference_nats or 0))
    sentences = {
        "verdict": " ".join([_verdict(table, swaps), *_predictions(swaps)]),
        "forest": _forest(table, ordered[0]),
        "curves": _curves(table),
        "position": _position(table.by_position, ordered),
        "knowledge": _knowledge(table.by_knowledge, ordered),
        "cost": _cost(table),
        "tuning": _tuning(table),
    }
    return {name: sentence for name, sentence in sentences.items() if sentence}


def _verdict(table: Table, swaps: Sequence[Row]) -> str:
    seeds = sorted({row.num_pairs for row in swaps})
    count = str(seeds[0]) if len(seeds) == 1 else f"{seeds[0]} to {seeds[-1]}"
    held = f"Against {table.base}, over {count} seed{'s' * (seeds != [1])}:"
    if not any(row.verdict for row in swaps):
        return f"{held} differences without intervals, which need at least two seeds; {_list(swaps)}."
    groups = {
        word: [row for row in swaps if row.verdict and row.verdict.startswith(word)]
        for word in ("better", "worse", "equivalent", "inconclusive")
    }
    groups["diverged"] = [row for row in table.rows if row.num_diverged]
    groups["without a verdict"] = [row for row in swaps if row.verdict is None]
    said = {"equivalent": f"equivalent within {table.margin_nats:g}"}
    return f"{held} {'; '.join(f'{said.get(word, word)}: {_list(rows)}' for word, rows in groups.items() if rows)}."


def _predictions(rows: Sequence[Row]) -> list[str]:
    """What was predicted, and what came of it: a sentence, or none."""
    told = []
    for row in rows:
        if row.prediction_nats is not None:
            measured = f"{row.name} {row.prediction_nats:+.3f}, measured {row.difference_nats:+.3f}"
            told.append(measured + _held(row.prediction_nats, row.ci_low, row.ci_high))
    return [f"Predicted: {_some(told, '; ')}."] if told else []


def _held(prediction_nats: float, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return " without an interval"
    what = "holds the prediction" if low <= prediction_nats <= high else "leaves the prediction out"
    return f" ({low:+.3f} to {high:+.3f}, which {what})"


def _list(rows: Sequence[Row]) -> str:
    ordered = sorted(rows, key=lambda row: -abs(row.difference_nats or 0))
    return _some([f"{row.name} ({_qualified(row)})" if row.num_pairs else row.name for row in ordered])


def _qualified(row: Row) -> str:
    words = [f"{row.difference_nats:+.3f}"]
    words += ["exploratory"] if row.verdict and "exploratory" in row.verdict else []
    return ", ".join([*words, "unmatched"] if row.unmatched else words)


def _some(names: Sequence[str], joint: str = ", ") -> str:
    return joint.join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


def _forest(table: Table, strongest: Row) -> str:
    if strongest.ci_low is None or strongest.ci_high is None:
        return f"The largest difference to {table.base} is {strongest.name}'s, {strongest.difference_nats:+.3f} nats."
    floor = table.noise_floor
    beside = f" The base differs from itself by up to {floor:.3f}." if floor is not None else ""
    return (
        f"The largest difference to {table.base} is {strongest.name}'s: {strongest.difference_nats:+.3f} nats, between "
        f"{strongest.ci_low:+.3f} and {strongest.ci_high:+.3f} with {100 * (1 - table.alpha):g} % confidence in all "
        f"{table.num_compared} rows at once.{beside}"
    )


def _curves(table: Table) -> str:
    curves = [curve for curve in table.curves if curve.mean]
    if len(curves) < 2:
        return ""
    best = min(curves, key=lambda curve: curve.mean[-1])
    rivals = [dict(zip(curve.steps, curve.mean, strict=True)) for curve in curves if curve is not best]
    backwards = list(zip(best.steps, best.mean, strict=True))[::-1]
    leads = list(takewhile(lambda at: all(at[0] in rival and at[1] < rival[at[0]] for rival in rivals), backwards))
    since = ""
    if leads:
        since = " and has led throughout" if leads[-1] == backwards[-1] else f" and has led since step {leads[-1][0]:,}"
    row = next(row for row in table.rows if row.name == best.row)
    rung = f", at rung {row.rung:.2f} of the n-gram tables" if row.rung is not None else ""
    name = table.base if best.row == BASE_ROW else best.row
    return f"{name} ends lowest, at {best.mean[-1]:.3f} nats of validation loss{rung}{since}."


def _profile(breakdown: Breakdown | None, ordered: Sequence[Row]) -> Profile | None:
    """Of the row with the largest difference among those that were looked at so closely."""
    profiles = {profile.row: profile for profile in breakdown.profiles} if breakdown else {}
    return next((profiles[row.name] for row in ordered if row.name in profiles), None)


def _position(breakdown: Breakdown | None, ordered: Sequence[Row]) -> str:
    profile = _profile(breakdown, ordered)
    if breakdown is None or profile is None:
        return ""
    return (
        f"{profile.row}'s difference goes from {profile.mean[0]:+.3f} nats at position {breakdown.bins[0]} of the "
        f"window to {profile.mean[-1]:+.3f} at positions {breakdown.bins[-1]}."
    )


def _knowledge(breakdown: Breakdown | None, ordered: Sequence[Row]) -> str:
    profile = _profile(breakdown, ordered)
    if breakdown is None or profile is None:
        return ""
    parts = [share * nats for share, nats in zip(breakdown.shares, profile.mean, strict=True)]
    whole = sum(parts)
    one_way = [part if part * whole > 0 else 0.0 for part in parts]  # what other bins give back is not counted
    if not any(one_way):
        return ""
    place = max(range(len(parts)), key=lambda i: abs(one_way[i]))
    percent, of_targets = 100 * parts[place] / sum(one_way), 100 * breakdown.shares[place]
    verb = "gains" if whole < 0 else "loses"
    return (
        f"{percent:.0f} % of what {profile.row} {verb} comes from the {of_targets:.0f} % of characters on which a "
        f"6-gram table loses {breakdown.bins[place]} nats."
    )


def _cost(table: Table) -> str:
    known = [
        (row.flops_per_token, row.metric_mean, str(table.base) if row.name == BASE_ROW else row.name)
        for row in table.rows
        if row.flops_per_token is not None and row.metric_mean is not None
    ]
    front: list[tuple[float, float, str]] = []
    for flops, loss, name in sorted(known):
        is_as_good = bool(front) and (flops, loss) == front[-1][:2]
        if not front or loss < front[-1][1] or is_as_good:
            front.append((flops, loss, name))
    names = _some([name for *_, name in front])
    return f"What no row beats in both loss and FLOPs per token: {names}." if len(known) > 1 else ""


def _tuning(table: Table) -> str:
    if not table.tuning:
        return ""
    rates = sorted({tuned.best for tuned in table.tuning})
    edges = sum(tuned.at_edge for tuned in table.tuning)
    return (
        f"The best rates of {len(table.tuning)} rows lie between {rates[0]:g} and {rates[-1]:g}; {edges} of them at an "
        "edge of the grid."
    )


def attribution_findings(found: Attribution) -> dict[str, str]:
    """A sentence for the whole (`verdict`) and for each figure that there is data for, by the figure's name."""
    sentences = {
        "verdict": _whole(found),
        "walk": _walk(found),
        "shapley": _ends(found),
        "interactions": _interactions(found.interactions),
    }
    return {name: sentence for name, sentence in sentences.items() if sentence}


def _whole(found: Attribution) -> str:
    """Who earned the whole, by Shapley values where there are any, else step by step, else from either end."""
    whole = f"From {found.base} to {found.counterpart}"
    if found.total is not None:
        whole += f", {found.total.nats:+.3f} nats"
    if found.shapley:
        ordered = sorted(found.shapley.items(), key=lambda item: -abs(item[1].nats))
        earned = "Shapley values " + ", ".join(f"{axis} {share.nats:+.3f}" for axis, share in ordered)
    elif found.walk:
        earned = "step by step " + ", ".join(f"{axis} {step.nats:+.3f}" for axis, step in found.walk)
    else:
        earned = f"one part at a time, in {found.base} and in {found.counterpart}, {_both_ends(found)}"
    rest = found.depends_on_the_rest
    depends = f" What {_and(rest)} {'does' if len(rest) == 1 else 'do'} depends on the rest." if rest else ""
    return f"{whole}: {earned}.{depends}"


def _ends(found: Attribution) -> str:
    if not (found.add_one_in or found.leave_one_out):
        return ""
    return f"Alone in {found.base}, and as the last one in {found.counterpart}: {_both_ends(found)}."


def _both_ends(found: Attribution) -> str:
    ends = (found.add_one_in, found.leave_one_out)
    told = {axis: [f"{end[axis].nats:+.3f}" if axis in end else "unknown" for end in ends] for axis in found.axes}
    return ", ".join(f"{axis} {' and '.join(pair)}" for axis, pair in told.items() if set(pair) != {"unknown"})


def _walk(found: Attribution) -> str:
    if not found.walk:
        return ""
    axis, step = max(found.walk, key=lambda one: abs(one[1].nats))
    whole = sum(step.nats for _, step in found.walk)
    return f"In this order the largest step is {axis}'s, {step.nats:+.3f} of {whole:+.3f} nats."


def _interactions(pairs: Mapping[str, Estimate]) -> str:
    if not pairs:
        return ""
    name, strongest = max(pairs.items(), key=lambda item: abs(item[1].nats))
    clear = [pair for pair, one in pairs.items() if one.ci_low is not None and one.ci_low * (one.ci_high or 0) > 0]
    beyond = "more than their sum" if strongest.nats < 0 else "less than their sum"
    return (
        f"Together {name.replace('*', ' and ')} earn {beyond} by {abs(strongest.nats):.3f} nats; of {len(pairs)} "
        f"pairs, {len(clear)} have an interval clear of 0."
    )


def _and(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
