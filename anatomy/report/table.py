"""From rows to numbers: the whole report as data (see data.py), of which all views show what they have room for."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import count, islice
from pathlib import Path
from statistics import fmean
from typing import Any

from anatomy.axes import BASES, COUNTERPARTS, Parts
from anatomy.corpus import BLOCK_CHARS, CYCLE
from anatomy.files import is_plain_name
from anatomy.report.attribution import attribute
from anatomy.report.cells import cells_of
from anatomy.report.data import (
    AT_BEST,
    FINAL,
    SCHEMA,
    Attribution,
    Card,
    Registration,
    Report,
    Row,
    Rungs,
    SetAside,
    Table,
)
from anatomy.report.diagnosis import read_diagnosis
from anatomy.report.evidence import read_evidence
from anatomy.report.exams import make_card
from anatomy.report.finding import NAMED, attribution_findings, table_findings
from anatomy.report.gather import Run, Settings, Study, gather, pick_studies
from anatomy.report.measure import measure, number_of, pairs_of, text_of
from anatomy.report.plan import Plan, Words
from anatomy.report.rows import Comparison, Group, compare
from anatomy.report.tuned import BEST, COMMON, Tuned, asked_for, rank_flips, take_apart
from anatomy.report.verdict import ALPHA, judge
from anatomy.rungs import RungEntry, read_rung_losses, read_rungs
from anatomy.runs import ADHOC, finite

MARGIN_NATS = 0.01
LARGEST_MARGIN = 100.0  # nats; no loss differs by more
TEXT_SHARE = 0.25  # above this, the choice of test windows is worth a warning
LIST_SEEDS = 12  # a command names so many seeds one by one; beyond, it gives their range

FindRungs = Callable[[Run], RungEntry | None]
TableOf = Callable[[Study, str | None, Comparison], Table]


def build_report(folder: Path, names: Sequence[str] = ()) -> Report:
    """Read a folder (see `gather`) and compute its tables, of some studies alone if they are named.

    Raises: UserError if there is no such folder or study.
    """
    gathered = gather(folder)
    if names:
        gathered = pick_studies(gathered, names)
    read = cache(lambda sha256: read_rungs(gathered.outputs, sha256))

    def find_rungs(run: Run) -> RungEntry | None:
        sha256 = run.texts["data.sha256"]
        return _matching_rungs(run, read(sha256)) if sha256 and is_plain_name(sha256) else None

    floors = _comparisons(gathered.noise_floor) if gathered.noise_floor else {}

    def table_of(study: Study, base: str | None, comparison: Comparison) -> Table:
        return _table(study, base, comparison, gathered.outputs, floors.get(base), find_rungs)

    def rungs_of(run: Run) -> Rungs | None:
        entry = find_rungs(run)
        return entry["nats_per_char"] if entry else None

    tables: list[Table] = []
    attribution: list[Attribution] = []
    cards: list[Card] = []
    for one in gathered.studies:
        if one.spec.get("factors"):
            own = _cell_tables(one, table_of)
        else:
            tuned = take_apart(one)
            plain = one if tuned is None else tuned.common
            comparisons = _comparisons(plain)
            common = {base: table_of(plain, base, each) for base, each in comparisons.items()}
            own = list(common.values()) if tuned is None else _tuned_tables(tuned, comparisons, common, table_of)
            if not one.spec.get("exam"):  # which swaps one axis alone
                attribution += _attributions(plain, comparisons)
        tables += own
        set_aside = {aside.run for table in own for aside in table.set_aside}
        metric = own[0].metric if own else FINAL
        if card := make_card(one, margin_nats=_margin(one), metric=metric, set_aside=set_aside, find_rungs=rungs_of):
            cards.append(card)
    return Report(SCHEMA, tables, attribution, cards, gathered.warnings)


def _tuned_tables(
    tuned: Tuned, commonly: Mapping[str | None, Comparison], common: Mapping[str | None, Table], table_of: TableOf
) -> list[Table]:
    """The tables of a tuned study: at the common rate, then each row at its best."""
    tables = [replace(table, title=COMMON) for table in common.values()]
    for base, each in _comparisons(tuned.best).items():
        table = table_of(tuned.best, base, each)
        tables.append(_tuned_table(table, each, common.get(base), commonly.get(base), tuned))
    return tables


def _cell_tables(study: Study, table_of: TableOf) -> list[Table]:
    """The tables of a study with factors: those of a base one after another, one a cell."""
    tables = [
        replace(table_of(cell.study, base, each), title=cell.title, cell=cell.values)
        for cell in cells_of(study)
        for base, each in _comparisons(cell.study, cell.parts).items()
    ]
    places = {base: place for place, base in enumerate(dict.fromkeys(table.base for table in tables))}
    return sorted(tables, key=lambda table: places[table.base])


def _matching_rungs(run: Run, entries: Sequence[RungEntry]) -> RungEntry | None:
    wanted = run.settings
    split, num_chars = wanted.get("corpus.split"), run.numbers["data.num_chars"]
    if split == "blocks" and num_chars is not None and num_chars < CYCLE * BLOCK_CHARS:
        split = "tail"  # as the corpus does with a text that is too short
    question = (split, *map(wanted.get, ("corpus.val_fraction", "corpus.test_fraction", "model.ctx_len")))
    for entry in entries:
        if question == (entry["split"], entry["val_fraction"], entry["test_fraction"], entry["ctx_len"]):
            return entry
    return None


# ------------------------------------------------------------------------------------------------- tables


def _comparisons(study: Study, fixed: Parts | None = None) -> dict[str | None, Comparison]:
    """One comparison a base; a run whose base cannot be read may belong to any, so each mentions it. `fixed` as in
    `compare`."""
    bases = list(dict.fromkeys(arm.base for arm in study.arms if arm.base is not None))
    unread = [arm for arm in study.arms if arm.base is None]
    if not bases:
        return {None: Comparison(None, [], [SetAside(str(arm.run), str(arm.damage)) for arm in unread])}
    of_base = {base: [arm for arm in study.arms if arm.base == base] for base in bases}
    return {
        base: compare(base, [*of_base[base], *unread], of_base.get(COUNTERPARTS[base], []), fixed) for base in bases
    }


def _attributions(study: Study, comparisons: Mapping[str | None, Comparison]) -> list[Attribution]:
    """One a pair of base and counterpart. The rows of all tables serve, where they are comparable with this base."""
    found: list[Attribution] = []
    for base in BASES:
        comparison = comparisons.get(base)
        counterpart = COUNTERPARTS[base]
        is_told = any((other.base, other.counterpart) == (counterpart, base) for other in found)
        if comparison is None or comparison.base is None or is_told:
            continue
        joined = comparisons.get(counterpart) if any(group.name == counterpart for group in comparison.groups) else None
        groups = [*comparison.groups, *(joined.groups if joined else ())]
        metric, _ = _metric(study, comparison.base)
        attributed = attribute(study.name, base, groups, metric, _margin(study))
        if attributed is not None:
            found.append(replace(attributed, findings=attribution_findings(attributed)))
    return found


def _table(
    study: Study,
    base: str | None,
    comparison: Comparison,
    outputs: Path,
    floor: Comparison | None,
    find_rungs: FindRungs,
) -> Table:
    groups = comparison.groups
    typical = comparison.base or next((group for group in groups if group.done), Group(""))
    settings: Settings = typical.settings or {}
    done = [run for group in groups for run in group.done]
    metric, doubts = _metric(study, typical)
    margin, looks = _margin(study), _looks(study)
    alpha = ALPHA / max(1, len(looks))
    entry = find_rungs(typical.runs[0]) if typical.runs else None
    rungs = entry["nats_per_char"] if entry else None
    sha256 = text_of(typical, "data.sha256")
    ngrams = read_rung_losses(outputs, sha256, entry) if entry and sha256 else None
    evidence = read_evidence(study.runs, groups, comparison.base, metric, None if ngrams is None else ngrams[-1])

    pairs = [pairs_of(group, comparison.base, metric) for group in groups]
    num_compared = len(groups) - (comparison.base is not None)
    judged, prior = judge(
        [[mine - theirs for mine, theirs in some] for some in pairs],
        margin=margin,
        num_compared=num_compared,
        alpha=alpha,
    )
    rows = [
        measure(group, comparison.base, metric, some, verdict, looks, evidence, rungs)
        for group, some, verdict in zip(groups, pairs, judged, strict=True)
    ]
    tokens, num_params = number_of(typical, "tokens"), number_of(typical, "num_params")
    question = study.spec.get("question")
    table = Table(
        study=study.name,
        base=base,
        title=None,
        cell={},
        is_joined=False,
        metric=metric,
        rows=rows,
        margin_nats=margin,
        alpha=alpha,
        num_compared=num_compared,
        prior_variance=prior.variance if prior else None,
        prior_df=finite(prior.df) if prior else None,
        noise_floor=_noise_floor(comparison, floor, metric),
        seeds_command=_seeds_command(study, rows),
        findings={},
        rungs=rungs,
        set_aside=comparison.set_aside,
        warnings=[
            *study.warnings,
            *doubts,
            *_base_warnings(study, base, comparison),
            *_diverged_base(comparison),
            *_warnings(done),
            *_row_warnings(rows),
            *_timed(rows),
        ],
        question=question if isinstance(question, str) else None,
        corpus=text_of(typical, "data.corpus"),
        corpus_sha256=sha256,
        num_chars=number_of(typical, "data.num_chars"),
        sizes={key.partition(".")[2]: value for key, value in settings.items() if key.startswith("model.")},
        steps=settings.get("train.steps"),
        tokens=tokens,
        tokens_per_param=tokens / num_params if tokens is not None and num_params else None,
        epochs=number_of(typical, "data.epochs"),
        seeds=sorted({run.seed for run in done}),
        devices=_distinct(done, "env.device"),
        commits=_distinct(done, "env.commit"),
        torch_versions=_distinct(done, "env.torch"),
        registration=_registration(study),
        curves=evidence.curves,
        by_position=evidence.by_position,
        by_knowledge=evidence.by_knowledge,
        samples=evidence.samples,
        shared=evidence.shared,
        tuning=[],
        diagnosis=read_diagnosis(study.runs, groups),
    )
    return replace(table, findings=table_findings(table))


def _tuned_table(
    table: Table, comparison: Comparison, common: Table | None, commonly: Comparison | None, tuned: Tuned
) -> Table:
    """The table of best rates, with how they were chosen and what they change against the common rate."""
    tuning = [one for group in comparison.groups if (one := tuned.tuning(group))]
    edges = [f"{one.row} (train.lr={one.best:g})" for one in tuning if one.at_edge]
    flips = []
    if common and commonly:
        flips = rank_flips(_by_words(commonly, common), _by_words(comparison, table))
    warnings = [] if tuning else ["no best rate is known yet: the tuning runs are not all there"]
    if edges:
        warnings.append(f"best at the edge of the grid of rates, a better one may lie beyond: {', '.join(edges)}")
    if flips:
        named = "; ".join(f"{one} and {other}" for one, other in flips[:NAMED])
        more = f"; and {len(flips) - NAMED} more pairs" if len(flips) > NAMED else ""
        warnings.append(f"at the common rate these stand the other way round: {named}{more}")
    return replace(table, title=BEST, tuning=tuning, warnings=[*table.warnings, *warnings])


def _by_words(comparison: Comparison, table: Table) -> dict[Words, Row]:
    return {asked_for(group): row for group, row in zip(comparison.groups, table.rows, strict=True)}


def _margin(study: Study) -> float:
    margin = study.spec.get("margin")
    is_margin = isinstance(margin, int | float) and not isinstance(margin, bool) and 0 < margin < LARGEST_MARGIN
    return float(margin) if is_margin else MARGIN_NATS  # type: ignore[arg-type]


def _looks(study: Study) -> Sequence[int]:
    looks = study.spec.get("looks")
    return [look for look in looks if type(look) is int] if isinstance(looks, list) else []


def _registration(study: Study) -> Registration | None:
    if not study.spec or study.name == ADHOC:
        return None
    return Registration(_strict(study.spec), study.spec_sha256, study.started, study.deviations)


def _strict(value: Any) -> Any:
    """A value as strict JSON can hold it."""
    if isinstance(value, Mapping):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_strict(item) for item in value]
    return finite(value) if isinstance(value, float) else value


def _noise_floor(comparison: Comparison, floor: Comparison | None, metric: str) -> float | None:
    """From the study's own null arms or, where it has none, from those of the study of the noise floor, if its base
    row is the very one."""
    if comparison.base is None:
        return None
    if floor and floor.base and not any(group.is_null for group in comparison.groups):
        if floor.base.settings != comparison.base.settings:
            return None
        comparison = floor
    nulls = [pairs_of(group, comparison.base, metric) for group in comparison.groups if group.is_null]
    return max((abs(fmean(mine - theirs for mine, theirs in some)) for some in nulls if some), default=None)


def _seeds_command(study: Study, rows: Sequence[Row]) -> str | None:
    """What runs as many seeds as the undecided rows ask for, in the words that all planned arms share."""
    undecided = [row.seeds_needed for row in rows if row.verdict and row.verdict.startswith("inconclusive")]
    needed = max((number for number in undecided if number is not None), default=0)
    plan = Plan.of(study.spec)
    if not study.spec or study.name == ADHOC or needed <= max((row.num_pairs for row in rows), default=0):
        return None
    arms = list(plan.arms.values()) if plan else []
    planned = plan.tested if plan else frozenset[int]()
    shared = [word for word in (arms[0] if arms else ()) if all(word in arm for arm in arms)]
    fresh = (seed for seed in count() if seed not in planned)
    seeds = [*sorted(planned), *islice(fresh, max(0, needed - len(planned)))]
    is_range = len(seeds) > LIST_SEEDS and seeds == list(range(len(seeds)))
    listed = f"range(0,{len(seeds)})" if is_range else ",".join(map(str, seeds))
    return shlex.join(["anatomy-train", f"study={study.name}", *shared, f"seed={listed}"])


def _distinct(runs: Sequence[Run], key: str) -> list[str]:
    return sorted({text for run in runs if (text := run.texts[key])})


def _metric(study: Study, typical: Group) -> tuple[str, list[str]]:
    asked = study.spec.get("metric")
    if asked in (FINAL, AT_BEST):
        return asked, []
    epochs = number_of(typical, "data.epochs")
    chosen = AT_BEST if epochs is not None and epochs > 1 else FINAL
    return chosen, [] if asked is None else [f"metric {asked!r} is neither {FINAL} nor {AT_BEST}: {chosen} instead"]


def _base_warnings(study: Study, base: str | None, comparison: Comparison) -> list[str]:
    if base is None:
        return []
    if comparison.base is None or not comparison.base.done:
        what = "no run" if comparison.base is None else "no finished run"
        is_named = study.spec and study.name != ADHOC
        ask = f"study={study.name}" if is_named else f"base={base}, with the settings of these runs"
        return [f"{what} of the base {base}, so there are no differences; type: anatomy-train {ask}"]
    seeds = {run.seed for run in comparison.base.done}
    done = [group for group in comparison.groups if group.done]
    unpaired = [group.name for group in done if seeds.isdisjoint(run.seed for run in group.done)]
    return [f"no seed in common with the base: {', '.join(unpaired)}"] if unpaired else []


def _timed(rows: Sequence[Row]) -> list[str]:
    steps = {row.name: row.steps for row in rows if row.steps is not None}
    if len(set(steps.values())) < 2:
        return []
    listed = ", ".join(f"{name} {number:,.0f}" for name, number in steps.items())
    return [f"steps differ, by step times measured when the study was planned: {listed}"]


def _diverged_base(comparison: Comparison) -> list[str]:
    arms = comparison.base.arms if comparison.base else []
    num = sum(arm.status == "diverged" for arm in arms)
    return [f"the base diverged in {num} of {len(arms)} seeds; differences are over the others"] if num else []


def _warnings(done: Sequence[Run]) -> list[str]:
    warnings = []
    commits = Counter(run.texts["env.commit"] or "unknown" for run in done)
    if len(commits) > 1:
        counts = ", ".join(f"{count} of {commit}" for commit, count in commits.items())
        warnings.append(f"runs of different code are compared, by commit: {counts}")
    if any(run.settings.get("corpus.test_fraction") == 0 for run in done):
        warnings.append("there is no test part (corpus.test_fraction=0): validation serves as test")
    return warnings


def _row_warnings(rows: Sequence[Row]) -> list[str]:
    warnings = []
    judged = [row for row in rows if row.verdict is not None and row.p is not None]
    if judged and min(row.num_pairs for row in judged) < 5:
        warnings.append("fewer than five seeds are a look, not a claim")
    texts = [f"{row.name} {row.text_share:.2f}" for row in rows if row.text_share and row.text_share > TEXT_SHARE]
    if texts:
        warnings.append(
            "another test text might change these differences: standard error from the choice of test windows over "
            f"that from the seeds, {', '.join(texts)}"
        )
    return warnings
