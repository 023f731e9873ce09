"""From runs to the rows of one table: which belong together, which may be compared, and what each is called.

A row is all runs whose resolved config agrees but for the seed; labels never matter. A name is the sorted differences
from the base, as one would type them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anatomy.axes import AXES, BASES, COUNTERPARTS, Parts, differences
from anatomy.report.gather import Arm, Run, Setting, Settings

BASE_ROW = "base"

GUARDED = (
    "corpus.sha256",
    "corpus.split",
    "corpus.val_fraction",
    "corpus.test_fraction",
    "train.steps",
    "train.batch_size",
    "train.grad_accum_steps",
    "train.warmup_steps",
    "train.schedule",
    "train.min_lr_ratio",
    "model.ctx_len",
)
"""Settings in which a run must agree with the base to be compared with it. The learning rate is not among them: each
part may have its own, and the row's name says so."""


@dataclass(frozen=True)
class SetAside:
    """A run that is there but not compared, and why."""

    run: str
    reason: str


@dataclass
class Group:
    """The arms of one row. parts and settings are None while nothing but the request is known."""

    asked: str
    parts: Parts | None = None
    settings: Settings | None = None
    arms: list[Arm] = field(default_factory=list)
    name: str = ""

    @property
    def runs(self) -> list[Run]:
        return [arm.found for arm in self.arms if arm.found]

    @property
    def done(self) -> list[Run]:
        """The runs that count in the row's numbers."""
        return [run for run in self.runs if run.status == "done"]


@dataclass(frozen=True)
class Comparison:
    """The rows of one table, the base first and its counterpart next, named; the base is None where nothing ran."""

    base: Group | None
    groups: Sequence[Group]
    set_aside: Sequence[SetAside]


def compare(base: str, arms: Sequence[Arm], counterpart: Group | None = None) -> Comparison:
    """Make the rows of a base's table.

    `counterpart` is the base row of the counterpart's own table, which joins this one where a study holds both
    directions; a run that is in both counts once.
    """
    set_aside = [SetAside(str(arm.run), arm.damage) for arm in arms if arm.damage is not None]
    groups = group_arms([*(arm for arm in arms if arm.damage is None), *(counterpart.arms if counterpart else ())])
    base_group = find_base(base, groups)
    reference = base_group or _most_typical(groups, groups)
    if reference is not None:
        whose = "the base has" if base_group else "most rows have"
        set_aside += _guard(groups, reference, whose)
    set_aside += _second_seeds(groups)
    groups = [group for group in groups if group.arms]
    if base_group not in groups:
        base_group = None
    _name(base, base_group, groups)
    return Comparison(base_group, sorted(groups, key=lambda group: _place(base, base_group, group)), set_aside)


def group_arms(arms: Iterable[Arm]) -> list[Group]:
    """Group arms into rows, in the order of their first arm.

    An arm whose run never found out its sizes and text joins the row of a run that was asked for with the same config;
    one without a run, the row of a run that was asked for in the same words.
    """
    arms = list({(arm.run if arm.run is not None else index): arm for index, arm in reversed([*enumerate(arms)])}.values())
    arms.reverse()
    row_of_config: dict[object, object] = {}
    row_of_words: dict[object, object] = {}
    for arm in arms:
        if arm.found and arm.found.is_resolved:
            row = _key(arm.found.settings)
            row_of_config.setdefault(_key(arm.found.asked), row)
            row_of_words.setdefault((arm.base, arm.asked), row)
    groups: dict[object, Group] = {}
    for arm in arms:
        words = (arm.base, arm.asked)
        if arm.found is None:
            row = row_of_words.get(words, words)
        elif arm.found.is_resolved:
            row = _key(arm.found.settings)
        else:
            row = row_of_config.get(_key(arm.found.asked), _key(arm.found.asked))
        group = groups.setdefault(row, Group(arm.asked))
        group.arms.append(arm)
        if arm.found and (group.settings is None or arm.found.is_resolved):
            group.parts, group.settings = arm.found.parts, arm.found.settings
    return list(groups.values())


def find_base(base: str, groups: Sequence[Group]) -> Group | None:
    """The base's row: of those with its parts, the one whose guarded settings most rows share; then that with most
    seeds; then the first."""
    return _most_typical([group for group in groups if group.parts == BASES[base]], groups)


def _most_typical(candidates: Sequence[Group], groups: Sequence[Group]) -> Group | None:
    candidates = [group for group in candidates if group.settings is not None]
    shared = Counter(_guarded(group.settings) for group in groups if group.settings is not None)
    return max(
        candidates, key=lambda group: (shared[_guarded(group.settings or {})], len(group.done)), default=None
    )


def _guarded(settings: Settings) -> tuple[Setting | None, ...]:
    return tuple(settings.get(key) for key in GUARDED)


def _key(settings: Settings) -> object:
    return frozenset(settings.items())


# ------------------------------------------------------------------------------------------- what may be compared


def _guard(groups: Sequence[Group], reference: Group, whose: str) -> Iterable[SetAside]:
    """Take out of the groups what must not be compared with the reference."""
    orders = {run.seed: run.texts["data.batch_order_sha256"] for run in reversed(reference.done)}
    num_targets = next((run.numbers["num_test_targets"] for run in reference.done), None)
    for group in groups:
        kept = []
        for arm in group.arms:
            reasons = []
            if arm.found:
                reasons = [
                    _mismatch(key, arm.found, reference, whose)
                    for key in GUARDED
                    if _differ(arm.found.settings.get(key), (reference.settings or {}).get(key), key)
                ]
            if not reasons and arm.found and arm.found.status == "done":
                run = arm.found
                order, targets = run.texts["data.batch_order_sha256"], run.numbers["num_test_targets"]
                if run.seed in orders and order != orders[run.seed]:
                    reasons.append(f"other batches, or in another order, than the base's run of seed {run.seed}")
                if targets != num_targets:
                    reasons.append(f"num_test_targets={targets}, {whose} {num_targets}")
            if reasons:
                yield SetAside(str(arm.run), "; ".join(reasons))
            else:
                kept.append(arm)
        group.arms = kept
