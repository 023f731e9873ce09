"""What an exam's rules read: the runs of a study by base and part, how they ended, and what was timed beside them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean

from anatomy.axes import AXES, BASES, Parts
from anatomy.measures_file import Measures
from anatomy.report.attribution import estimate
from anatomy.report.data import Estimate, MapCell, Quantity
from anatomy.report.gather import Arm, Run
from anatomy.report.rows import typed_value

Knobs = Mapping[str, float]
NO_KNOBS: Knobs = {}
WARMUP = "train.warmup_steps"
TRAINED, PLATEAU, DIVERGED, UNKNOWN = "trained", "plateau", "diverged", "unknown"


@dataclass(frozen=True)
class Material:
    """An exam's arms and what belongs to them.

    factors    by which a map parts the runs; empty where there is none
    at_length  a run's test loss by length of the window, None past the last position of its model
    map        how runs ended, where there are factors
    timed      the study's measures, None where there are none
    """

    axis: str
    arms: Sequence[Arm]
    factors: Sequence[str]
    margin_nats: float
    metric: str
    at_length: Callable[[Run], Mapping[int, float | None]]
    map: Sequence[MapCell]
    timed: Measures | None

    @cached_property
    def bases(self) -> list[str]:
        return list(dict.fromkeys(arm.base for arm in self.arms if arm.base is not None))

    def runs(self, base: str, part: str, match: str | None = None, knobs: Knobs = NO_KNOBS) -> dict[int, Run]:
        """Seed -> the run that is done of a base with a part on the exam's axis, matched so, with these knobs of it.
        Empty where a seed has several, of other settings, which nothing tells apart here."""
        found: dict[int, Run] = {}
        for run in self._ended(base, part, match, knobs):
            if run.status == "done" and found.setdefault(run.seed, run) is not run:
                return {}
        return found

    def diverged(self, parts: Sequence[str], match: str | None = None) -> list[str]:
        """`rms in llama 2 of 6`: how many runs of these parts did."""
        said = []
        for base in self.bases:
            for part in parts:
                runs = list(self._ended(base, part, match, NO_KNOBS))
                num = sum(run.status == "diverged" for run in runs)
                said += [f"{part} in {base} {num} of {len(runs)}"] if num else []
        return said

    def _ended(self, base: str, part: str, match: str | None, knobs: Knobs) -> Iterator[Run]:
        """Each run once, however many arms it answers."""
        wanted, seen = {**BASES[base], self.axis: part}, set[str]()
        for arm in self.arms:
            run = arm.found
            if run is None or run.name in seen or arm.base != base or arm.match != match:
                continue
            has_knobs = all(run.settings.get(f"{self.axis}.{knob}") == value for knob, value in knobs.items())
            if has_knobs and is_alike(run.parts, wanted, self.factors):
                seen.add(run.name)
                yield run

    def difference(self, part: str, other: str, match: str | None = None, knobs: Knobs = NO_KNOBS) -> list[Quantity]:
        """Test loss with `part` minus with `other`, in nats: the mean over all bases, taken seed by seed, then each
        base's own. Empty where no seed has all of it."""
        by_base = {base: self._paired(base, part, other, match, knobs) for base in self.bases}
        seeds = set.intersection(*(set(pairs) for pairs in by_base.values())) if by_base else set()
        whole = estimate([fmean(pairs[seed] for pairs in by_base.values()) for seed in sorted(seeds)])
        if whole is None:
            return []
        what = f"{part} minus {other}"
        each = {base: estimate(list(pairs.values())) for base, pairs in by_base.items()} if len(by_base) > 1 else {}
        over_all = nats(f"{what}, mean over {' and '.join(self.bases)}", whole)
        return [over_all, *(nats(f"{what} in {base}", one) for base, one in each.items() if one)]

    def _paired(self, base: str, part: str, other: str, match: str | None, knobs: Knobs) -> dict[int, float]:
        mine, theirs = self.runs(base, part, match, knobs), self.runs(base, other, match)
        losses = {
            seed: (mine[seed].numbers[self.metric], theirs[seed].numbers[self.metric])
            for seed in mine
            if seed in theirs
        }
        return {seed: one - two for seed, (one, two) in losses.items() if one is not None and two is not None}

    def warmup_gaps(self, cell: MapCell) -> dict[int, float]:
        """Seed -> what a cell without a warm-up loses against the same with one, in nats."""
        by_warmup: dict[bool, dict[int, float]] = {True: {}, False: {}}
        alike = {factor: value for factor, value in cell.factors.items() if factor != WARMUP}
        for arm in self.arms:
            run = arm.found
            if run is None or arm.base != cell.base or run.parts[self.axis] != cell.part:
                continue
            loss = run.numbers[self.metric]
            if loss is not None and all(typed_value(run.settings.get(key)) == value for key, value in alike.items()):
                by_warmup[run.settings.get(WARMUP) != 0].setdefault(run.seed, loss)
        both = by_warmup[True].keys() & by_warmup[False].keys()
        return {seed: by_warmup[False][seed] - by_warmup[True][seed] for seed in both}

    def rise(self, part: str, length: int, start: int, knobs: Knobs = NO_KNOBS) -> Quantity | None:
        """Test loss with windows of `length` minus that with windows of `start`, mean over bases, seed by seed."""
        by_base = [
            {seed: self.at_length(run) for seed, run in self.runs(base, part, None, knobs).items()}
            for base in self.bases
        ]
        rises = []
        for seed in sorted(set.intersection(*map(set, by_base)) if by_base else ()):
            pairs = [(losses[seed].get(length), losses[seed].get(start)) for losses in by_base]
            both = [long - short for long, short in pairs if long is not None and short is not None]
            if len(both) == len(pairs):
                rises.append(fmean(both))
        found = estimate(rises)
        name = " ".join([part, *(f"{knob}={value:.0f}" for knob, value in knobs.items())])
        return nats(f"{name}: loss at {length} minus at {start}", found) if found else None


def is_alike(parts: Parts, wanted: Parts, factors: Sequence[str]) -> bool:
    """Whether parts agree on every axis that is no factor."""
    return all(parts[axis] == wanted[axis] for axis in AXES if axis not in factors)


def nats(what: str, found: Estimate) -> Quantity:
    """An estimate as a quantity."""
    return Quantity(what, found.nats, found.ci_low, found.ci_high, "nats")
