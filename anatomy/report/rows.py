"""From runs to the rows of one table: which belong together, which may be compared, and what each is called.

A row is all runs whose resolved config agrees but for the seed; labels never matter. A name is the sorted differences
from the base, as one would type them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from anatomy.axes import AXES, BASES, COUNTERPARTS, Parts, differences
from anatomy.report.data import BASE_ROW, SetAside
from anatomy.report.gather import Arm, Run, Setting, Settings

TEXT = "corpus.sha256"
GUARDED = (
    TEXT,
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


SALTS = ("init_salt", "order_salt")
"""What a null arm differs in from the base, and in nothing else: its start, or the order of its batches."""

DERIVED = ("ffn.hidden", "attn.n_kv_head", "model.vocab_size", "window.size")
"""Sizes that follow from others unless they are asked for; they name a row only then, or where nothing else does."""


@dataclass(eq=False)
class Group:
    """The arms of one row. parts and settings are None while nothing but the request is known; see `Run` for
    is_resolved.

    is_null   the base again with other salts
    is_pure   nothing but parts differs from the base
    """

    asked: str
    parts: Parts | None = None
    settings: Settings | None = None
    is_resolved: bool = False
    arms: list[Arm] = field(default_factory=list)
    name: str = ""
    is_null: bool = False
    is_pure: bool = False

    @property
    def runs(self) -> list[Run]:
        return [arm.found for arm in self.arms if arm.found]

    @property
    def match(self) -> str | None:
        """What all its arms were matched with the base in."""
        matches = {arm.match for arm in self.arms}
        return matches.pop() if len(matches) == 1 else None

    @property
    def done(self) -> list[Run]:
        """The runs that count in the row's numbers."""
        return [run for run in self.runs if run.status == "done"]


@dataclass(frozen=True)
class Comparison:
    """The named rows of a table, the base first and its counterpart next; base is None where it never ran."""

    base: Group | None
    groups: Sequence[Group]
    set_aside: Sequence[SetAside]


def compare(base: str, arms: Sequence[Arm], others: Sequence[Arm], fixed: Parts | None = None) -> Comparison:
    """Make the rows of a base's table.

    `others` are the arms of the counterpart's own table: its base row joins this one where a study holds both
    directions; a run that is in both counts once. `fixed` are parts that all rows share, whatever the base's own are.
    """
    bases = {name: {**parts, **(fixed or {})} for name, parts in BASES.items()}
    set_aside = [SetAside(str(arm.run), arm.damage) for arm in arms if arm.damage is not None]
    counterpart = find_base(bases[COUNTERPARTS[base]], group_arms(arm for arm in others if arm.damage is None))
    sound = [arm for arm in arms if arm.damage is None]
    groups = group_arms([*sound, *(counterpart.arms if counterpart else ())])
    base_row = find_base(bases[base], groups)
    reference = base_row or _most_typical(groups, groups)
    if base_row is not None:
        for group in groups:
            group.is_null = _is_null(group, base_row)
    if reference is not None:
        set_aside += _guard(groups, reference, "the base has" if base_row else "most rows have")
    set_aside += _second_seeds(groups)
    groups = [group for group in groups if group.arms]
    names = _Names(base, bases, reference, groups)
    for group in groups:
        group.name, group.is_pure = (BASE_ROW, True) if group is base_row else names.of(group)
    places = {BASE_ROW: 0, COUNTERPARTS[base]: 1}
    groups.sort(key=lambda group: places.get(group.name, 2))
    return Comparison(base_row if base_row in groups else None, groups, set_aside)


def group_arms(arms: Iterable[Arm]) -> list[Group]:
    """Group the arms that can be read into rows, in order of first appearance. A run named twice counts once.

    An arm whose run never found out its sizes and text joins the row of a run that was asked for with the same config;
    one without a run, the row of a run that was asked for in the same words.
    """
    arms = list(_once(arm for arm in arms if arm.damage is None))
    resolved = [arm.found for arm in arms if arm.found and arm.found.is_resolved]
    row_of_config = {_key(run.asked): _key(run.settings) for run in resolved}

    def row_of(run: Run) -> object:
        return _key(run.settings) if run.is_resolved else row_of_config.get(_key(run.asked), _key(run.asked))

    row_of_words = {(arm.base, arm.asked): row_of(arm.found) for arm in reversed(arms) if arm.found}
    groups: dict[object, Group] = {}
    for arm in arms:
        words = (arm.base, arm.asked)
        row = row_of(arm.found) if arm.found else row_of_words.get(words, words)
        group = groups.setdefault(row, Group(arm.asked))
        group.arms.append(arm)
        if arm.found and not group.is_resolved:
            group.parts, group.settings = arm.found.parts, arm.found.settings
            group.is_resolved = arm.found.is_resolved
    return list(groups.values())


def find_base(base: Parts, groups: Sequence[Group]) -> Group | None:
    """The base's row: of those with its parts, the one whose guarded settings most rows share; of several such, one
    without salts, then one that was asked for in fewest words, then one with most seeds asked for, then the first."""
    return _most_typical([group for group in groups if group.parts == base], groups)


def _most_typical(candidates: Sequence[Group], groups: Sequence[Group]) -> Group | None:
    shared = Counter(_guarded(group.settings) for group in groups if group.settings is not None)
    known = [(group, group.settings) for group in candidates if group.settings is not None]

    def rank(pair: tuple[Group, Settings]) -> tuple[int, bool, int, int]:
        group, settings = pair
        num_words = min(len(arm.words) for arm in group.arms)
        return shared[_guarded(settings)], not _salted(settings), -num_words, len(group.arms)

    best = max(known, key=rank, default=None)
    return best[0] if best else None


def _salted(settings: Settings) -> bool:
    return any(settings.get(salt) for salt in SALTS)


def _guarded(settings: Settings) -> tuple[Setting | None, ...]:
    return tuple(settings.get(key) for key in GUARDED)


def _key(settings: Settings) -> object:
    return frozenset(settings.items())


def _once(arms: Iterable[Arm]) -> Iterable[Arm]:
    seen = set()
    for arm in arms:
        if arm.run is None or arm.run not in seen:
            yield arm
        seen.add(arm.run)


# ------------------------------------------------------------------------------------------- what may be compared


def _guard(groups: Sequence[Group], reference: Group, whose: str) -> list[SetAside]:
    """Take out of the groups, and return, what must not be compared with the reference."""
    taken: list[SetAside] = []
    orders = {run.seed: run.texts["data.batch_order_sha256"] for run in reversed(reference.done)}
    num_targets = next((run.numbers["num_test_targets"] for run in reference.done), None)
    standard = reference.settings or {}
    for group in groups:
        expected = {} if group.is_null else orders
        kept = []
        for arm in group.arms:
            reason = _mismatch(arm, arm.found, standard, expected, num_targets, whose) if arm.found else None
            if reason is None:
                kept.append(arm)
            else:
                taken.append(SetAside(str(arm.run), reason))
        group.arms = kept
    return taken


def _is_null(group: Group, reference: Group) -> bool:
    if group.settings is None or reference.settings is None:
        return False
    changed = {key for key, _ in set(group.settings.items()) ^ set(reference.settings.items())}
    return bool(changed) and changed <= set(SALTS)


def _mismatch(
    arm: Arm, run: Run, standard: Settings, orders: Mapping[int, str | None], num_targets: float | None, whose: str
) -> str | None:
    """Why a run must not be compared, or None. A run matched in time has steps, and so batches, of its own."""
    known = [key for key in GUARDED if run.is_resolved or not key.startswith("corpus.")]
    if arm.match == "time":
        known.remove("train.steps")
        orders = {}
    reasons = [
        f"{_typed(key, run.settings.get(key))}, {whose} {typed_value(standard.get(key))}"
        for key in known
        if run.settings.get(key) != standard.get(key)
    ]
    if not reasons and run.status == "done":
        if orders.get(run.seed, run.texts["data.batch_order_sha256"]) != run.texts["data.batch_order_sha256"]:
            reasons.append(f"other batches, or in another order, than the base's run of seed {run.seed}")
        if num_targets is not None and run.numbers["num_test_targets"] != num_targets:
            reasons.append(f"num_test_targets={run.numbers['num_test_targets']}, {whose} {num_targets}")
    return "; ".join(reasons) or None


def _second_seeds(groups: Sequence[Group]) -> list[SetAside]:
    """Keep one arm a seed in each group, a finished one before others and the earlier before the later."""
    taken = []
    for group in groups:
        first: dict[int | None, Arm] = {}
        for arm in sorted(group.arms, key=lambda arm: arm.status != "done"):
            if arm.seed in first:
                again = f"seed {arm.seed} is there twice; {first[arm.seed].run} counts"
                taken.append(SetAside(arm.run or arm.asked, "; ".join(filter(None, [again, arm.refused]))))
            else:
                first[arm.seed] = arm
        group.arms = sorted(first.values(), key=lambda arm: -1 if arm.seed is None else arm.seed)
    return taken


# ------------------------------------------------------------------------------------------- names


class _Names:
    """Names the rows of one table by their sorted differences from the base, as one would type them."""

    def __init__(self, base: str, bases: Mapping[str, Parts], reference: Group | None, groups: Sequence[Group]) -> None:
        self.base, self.bases = base, bases
        self.standard = (reference and reference.settings) or {}
        self.num_rivals: Counter[tuple[str, str]] = Counter()
        self.num_rivals_with: Counter[tuple[str, str, str, Setting | None]] = Counter()
        for group in groups:
            if group.parts is None or group.settings is None:
                continue
            self.num_rivals.update(group.parts.items())
            for key, value in group.settings.items():
                axis = key.partition(".")[0]
                if axis in group.parts:
                    self.num_rivals_with[axis, group.parts[axis], key, value] += 1
                    self.num_rivals_with[axis, group.parts[axis], key, None] -= 1

    def of(self, group: Group) -> tuple[str, bool]:
        """The row's name, and whether it differs from the base in parts alone. Where nothing else is known, the name
        is what was asked."""
        if group.parts is None or group.settings is None or not self.standard:
            return group.asked, False
        changed = differences(group.parts, self.bases[self.base])
        counterpart = COUNTERPARTS[self.base]
        words = [f"{axis}={group.parts[axis]}" for axis in changed]
        if group.parts == self.bases[counterpart]:
            words = [counterpart]
        asked: list[str] = []
        derived: list[str] = []
        is_pure = group.match is None
        for key in sorted((group.settings.keys() | self.standard.keys()) - {*AXES, TEXT}):
            if self._differs(group, key, changed):
                was_asked = key not in DERIVED or any(key in run.asked for run in group.runs)
                (asked if was_asked else derived).append(_typed(key, group.settings.get(key)))
                is_pure &= not was_asked and key.partition(".")[0] in changed
        if group.match is not None:
            asked = [word for word in asked if not (group.match == "time" and word.startswith("train.steps="))]
            asked.append(f"match={group.match}")
        names = words + (asked if words or asked else derived)
        return " ".join(names if words == [counterpart] else sorted(names)) or BASE_ROW, is_pure

    def _differs(self, group: Group, key: str, changed: Sequence[str]) -> bool:
        """Whether a row has a setting otherwise than the base; a changed part's knob, than other rows with the part."""
        assert group.parts is not None and group.settings is not None
        axis, value = key.partition(".")[0], group.settings.get(key)
        if axis not in changed:
            return value != self.standard.get(key)
        part = group.parts[axis]
        num_alike = self.num_rivals_with[axis, part, key, value]  # of None: how many do have it, below 0
        return num_alike < (0 if value is None else self.num_rivals[axis, part])


def _typed(key: str, value: Setting | None) -> str:
    return f"{key}={typed_value(value)}"


def typed_value(value: Setting | None) -> str:
    """A value as one would type it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return f"[{','.join(map(typed_value, value))}]"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return str(value)
