"""From rows to numbers: the whole report as data, of which terminal, Markdown, CSV and JSON are views.

Field names are the keys of `anatomy-report --format json`. A value that a study cannot give is None.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean, median, stdev

from anatomy.axes import COUNTERPARTS, Parts
from anatomy.corpus import BLOCK_CHARS, CYCLE
from anatomy.report.gather import ADHOC, Arm, Run, Settings, Study, gather, pick_study
from anatomy.report.rows import Comparison, Group, SetAside, compare
from anatomy.rungs import MAX_N, RungEntry, read_rungs

SCHEMA = 1
FINAL, AT_BEST = "test_loss_nats", "test_loss_nats_at_best"
OVER_FITTED_SHARE = 0.01
STATUSES = ("done", "diverged", "failed", "interrupted", "running", "planned")

Rungs = Mapping[str, float]
"""Reference losses of a text in nats per character: "1" to "6" for n-gram tables, and "xz"."""
FindRungs = Callable[[Run], Rungs | None]


@dataclass(frozen=True)
class Row:
    """One composition, over its seeds.

    status      one of STATUSES where all arms agree, else every one but done with its count, `diverged 1/3`
    seeds       of the runs that are done, which are those that the numbers are over; num_seeds of them
    num_arms    all that were asked for, done or not
    num_pairs   seeds that the base has too (the base itself makes no pairs); difference_nats is the mean over
                them of row minus base, in the table's metric
    metric_mean, metric_sd  of the table's metric, which may be another than the final test loss
    *_sd        sample deviation; a single seed has none
    best_step   of each seed
    rung        where metric_mean stands between the n-gram tables: 3.4 is two fifths of the way from the
                trigram's to the 4-gram's, 6 is the 6-gram's or better; below 1, on the way from ln V, which is 0
    *_percent   deviation from the base; block parameters are all but embedding, positions and output
    over_fitted in some seed the best validation loss lies more than 1 % below the final one
    tokens_per_s  median
    errors      why arms failed or diverged, `seed 2: ...`
    """

    name: str
    parts: Parts | None
    status: str
    num_seeds: int
    seeds: Sequence[int]
    num_diverged: int
    test_loss_nats_mean: float | None
    test_loss_nats_sd: float | None
    difference_nats: float | None
    ci_low: float | None
    ci_high: float | None
    own_ci_low: float | None
    own_ci_high: float | None
    variance: float | None
    df: float | None
    p: float | None
    p_holm: float | None
    verdict: str | None
    num_params: float | None
    flops_per_token: float | None
    kv_bytes_per_token: float | None
    tokens_per_s: float | None
    num_arms: int
    num_pairs: int
    metric_mean: float | None
    metric_sd: float | None
    best_step: Sequence[float | None]
    test_bits_per_char: float | None
    rung: float | None
    num_params_percent: float | None
    block_params_percent: float | None
    flops_percent: float | None
    over_fitted: bool | None
    epochs: float | None
    errors: Sequence[str]


@dataclass(frozen=True)
class Table:
    """The rows of one study and base, and what they were measured on.

    base     None where no run could be read
    metric   of the differences: what the study says, else the final test loss, or the test loss at the best
             validation step where runs see their text more than once
    sizes, steps, tokens, ...  those of the base, for they agree, or of the row that most others agree with
    seeds, devices, commits    over all done runs
    """

    study: str
    base: str | None
    metric: str
    rows: Sequence[Row]
    prior_variance: float | None
    prior_df: float | None
    noise_floor: float | None
    rungs: Rungs | None
    set_aside: Sequence[SetAside]
    warnings: Sequence[str]
    question: str | None
    corpus: str | None
    corpus_sha256: str | None
    num_chars: float | None
    sizes: Mapping[str, object]
    steps: object
    tokens: float | None
    tokens_per_param: float | None
    epochs: float | None
    seeds: Sequence[int]
    devices: Sequence[str]
    commits: Sequence[str]


@dataclass(frozen=True)
class Report:
    """All tables of a folder."""

    schema: int
    studies: Sequence[Table]
    attribution: Sequence[Mapping[str, object]]
    warnings: Sequence[str]

    @property
    def is_comparable(self) -> bool:
        """Whether at least one row could be held against its base."""
        return any(row.num_pairs for table in self.studies for row in table.rows)


def build_report(folder: Path, study: str | None = None) -> Report:
    """Read a folder (see `gather`) and compute its tables, of one study if it is named.

    Raises: UserError if there is no such folder or study.
    """
    gathered = gather(folder)
    if study is not None:
        gathered = pick_study(gathered, study)
    read = cache(lambda sha256: read_rungs(gathered.outputs, sha256))

    def find_rungs(run: Run) -> Rungs | None:
        sha256 = run.texts["data.sha256"]
        return _matching_rungs(run, read(sha256)) if sha256 else None

    tables = [table for study in gathered.studies for table in _tables(study, find_rungs)]
    return Report(SCHEMA, tables, [], gathered.warnings)


def rung_of(loss_nats: float, rungs: Rungs, vocab_size: float) -> float:
    """Where a loss stands between the n-gram tables, see `Row.rung`.

    n + (x_n - loss) / (x_n - x_{n+1}) for the highest n whose table's loss x_n the loss reaches; x_0 = ln V; 0 if
    it reaches none.
    """
    marks = [math.log(vocab_size), *(rungs[str(n)] for n in range(1, MAX_N + 1))]
    reached = max((n for n, mark in enumerate(marks) if loss_nats <= mark), default=None)
    if reached is None or reached == MAX_N:
        return float(reached or 0)
    return reached + (marks[reached] - loss_nats) / (marks[reached] - marks[reached + 1])


def _matching_rungs(run: Run, entries: Sequence[RungEntry]) -> Rungs | None:
    wanted = run.settings
    split, num_chars = wanted.get("corpus.split"), run.numbers["data.num_chars"]
    if split == "blocks" and num_chars is not None and num_chars < CYCLE * BLOCK_CHARS:
        split = "tail"  # as the corpus does with a text that is too short
    question = (split, *map(wanted.get, ("corpus.val_fraction", "corpus.test_fraction", "model.ctx_len")))
    for entry in entries:
        if question == (entry["split"], entry["val_fraction"], entry["test_fraction"], entry["ctx_len"]):
            return entry["nats_per_char"]
    return None


# ------------------------------------------------------------------------------------------------- tables


def _tables(study: Study, find_rungs: FindRungs) -> list[Table]:
    """One table a base; a run whose base cannot be read may belong to any, so every table mentions it."""
    bases = list(dict.fromkeys(arm.base for arm in study.arms if arm.base is not None))
    unread = [arm for arm in study.arms if arm.base is None]
    tables = []
    for base in bases:
        others = [arm for arm in study.arms if arm.base == COUNTERPARTS[base]]
        arms = [arm for arm in study.arms if arm.base == base]
        tables.append(_table(study, base, compare(base, [*arms, *unread], others), find_rungs))
    if not bases:
        set_aside = [SetAside(str(arm.run), str(arm.damage)) for arm in unread]
        tables.append(_table(study, None, Comparison(None, [], set_aside), find_rungs))
    return tables


def _table(study: Study, base: str | None, comparison: Comparison, find_rungs: FindRungs) -> Table:
    groups = comparison.groups
    typical = comparison.base or next((group for group in groups if group.done), Group(""))
    settings: Settings = typical.settings or {}
    done = [run for group in groups for run in group.done]
    metric, doubts = _metric(study, typical)
    tokens, num_params = _number(typical, "tokens"), _number(typical, "num_params")
    question = study.spec.get("question")
    return Table(
        study=study.name,
        base=base,
        metric=metric,
        rows=[_row(group, comparison.base, metric, find_rungs) for group in groups],
        prior_variance=None,
        prior_df=None,
        noise_floor=None,
        rungs=find_rungs(typical.runs[0]) if typical.runs else None,
        set_aside=comparison.set_aside,
        warnings=[*study.warnings, *doubts, *_base_warnings(study, base, comparison), *_warnings(done)],
        question=question if isinstance(question, str) else None,
        corpus=_text(typical, "data.corpus"),
        corpus_sha256=_text(typical, "data.sha256"),
        num_chars=_number(typical, "data.num_chars"),
        sizes={key.partition(".")[2]: value for key, value in settings.items() if key.startswith("model.")},
        steps=settings.get("train.steps"),
        tokens=tokens,
        tokens_per_param=tokens / num_params if tokens is not None and num_params else None,
        epochs=_number(typical, "data.epochs"),
        seeds=sorted({run.seed for run in done}),
        devices=sorted({device for run in done if (device := run.texts["env.device"])}),
        commits=sorted({commit for run in done if (commit := run.texts["env.commit"])}),
    )


def _metric(study: Study, typical: Group) -> tuple[str, list[str]]:
    asked = study.spec.get("metric")
    if asked in (FINAL, AT_BEST):
        return asked, []
    epochs = _number(typical, "data.epochs")
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


def _warnings(done: Sequence[Run]) -> list[str]:
    warnings = []
    commits = Counter(run.texts["env.commit"] or "unknown" for run in done)
    if len(commits) > 1:
        counts = ", ".join(f"{count} of {commit}" for commit, count in commits.items())
        warnings.append(f"runs of different code are compared, by commit: {counts}")
    if any(run.settings.get("corpus.test_fraction") == 0 for run in done):
        warnings.append("there is no test part (corpus.test_fraction=0): validation serves as test")
    return warnings


# ------------------------------------------------------------------------------------------------- rows


def _row(group: Group, base: Group | None, metric: str, find_rungs: FindRungs) -> Row:
    done = group.done
    statuses = Counter(arm.status for arm in group.arms)
    final, best = _values(done, FINAL), _values(done, metric)
    pairs = _paired_differences(group, base, metric) if group is not base else []
    rungs, vocab_size = find_rungs(done[0]) if done else None, _number(group, "data.vocab_size")

    def percent(measure: Callable[[Group], float | None]) -> float | None:
        mine, theirs = measure(group), measure(base) if base and group is not base else None
        return None if mine is None or not theirs else 100 * (mine - theirs) / theirs

    return Row(
        name=group.name,
        parts=group.parts,
        status=_status(statuses),
        num_seeds=len(done),
        seeds=[run.seed for run in done],
        num_diverged=statuses["diverged"],
        test_loss_nats_mean=_mean(final),
        test_loss_nats_sd=_sd(final),
        difference_nats=_mean(pairs),
        ci_low=None,
        ci_high=None,
        own_ci_low=None,
        own_ci_high=None,
        variance=None,
        df=None,
        p=None,
        p_holm=None,
        verdict=None,
        num_params=_number(group, "num_params"),
        flops_per_token=_number(group, "flops_per_token"),
        kv_bytes_per_token=_number(group, "kv_bytes_per_token"),
        tokens_per_s=median(speeds) if (speeds := _values(done, "tokens_per_s")) else None,
        num_arms=len(group.arms),
        num_pairs=len(pairs),
        metric_mean=_mean(best),
        metric_sd=_sd(best),
        best_step=[run.numbers["best_step"] for run in done],
        test_bits_per_char=_mean(_values(done, "test_bits_per_char")),
        rung=rung_of(fmean(best), rungs, vocab_size) if best and rungs and vocab_size else None,
        num_params_percent=percent(lambda group: _number(group, "num_params")),
        block_params_percent=percent(_block_params),
        flops_percent=percent(lambda group: _number(group, "flops_per_token")),
        over_fitted=any(map(_is_over_fitted, done)) if done else None,
        epochs=_number(group, "data.epochs"),
        errors=[f"seed {arm.seed}: {error}" for arm in group.arms if (error := _error(arm))],
    )


def _status(statuses: Counter[str]) -> str:
    if len(statuses) == 1:
        return next(iter(statuses))
    total = statuses.total()
    return ", ".join(f"{status} {statuses[status]}/{total}" for status in STATUSES[1:] if statuses[status])


def _error(arm: Arm) -> str | None:
    return arm.refused or (arm.found.texts["error"] if arm.found else None)


def _paired_differences(group: Group, base: Group | None, metric: str) -> list[float]:
    theirs = {run.seed: run.numbers[metric] for run in base.done} if base else {}
    pairs = [(run.numbers[metric], theirs.get(run.seed)) for run in group.done]
    return [mine - other for mine, other in pairs if mine is not None and other is not None]


def _is_over_fitted(run: Run) -> bool:
    best, final = run.numbers["best_val_loss_nats"], run.numbers["val_loss_nats"]
    return best is not None and final is not None and best < (1 - OVER_FITTED_SHARE) * final


def _block_params(group: Group) -> float | None:
    sizes = [_number(group, f"num_params_by_axis.{axis}") for axis in ("norm", "attn", "ffn")]
    return None if None in sizes else sum(filter(None, sizes))


def _number(group: Group, key: str) -> float | None:
    """A number that a row's runs share: that of the first run that has it."""
    return next((value for run in group.runs if (value := run.numbers[key]) is not None), None)


def _text(group: Group, key: str) -> str | None:
    return next((value for run in group.runs if (value := run.texts[key]) is not None), None)


def _values(runs: Sequence[Run], key: str) -> list[float]:
    return [value for run in runs if (value := run.numbers[key]) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _sd(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None
