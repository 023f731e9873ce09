"""Cells: where a study crosses the parts it compares with other factors (depth, warm-up, text), rows are compared
within a combination of the factors' values, and nowhere else."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby
from typing import TypeVar

from anatomy.axes import AXES, Parts
from anatomy.report.data import BASE_ROW, Table
from anatomy.report.gather import Arm, Study
from anatomy.report.rows import typed_value

Value = TypeVar("Value")
CORPUS = "corpus"  # as a factor: the text's name, for its hash says nothing to a reader
MAX_CELLS = 3  # of one base: so many stand as tables of their own, more are shown as one


@dataclass(frozen=True)
class Cell:
    """The arms of one combination of values. values: factor -> value, as one would type both; none where a study has
    no factors."""

    study: Study
    values: Mapping[str, str]

    @property
    def title(self) -> str | None:
        return ", ".join(f"{factor}={value}" for factor, value in self.values.items()) or None

    @property
    def parts(self) -> Parts:
        """The parts that all rows share, where a factor is an axis."""
        return {factor: value for factor, value in self.values.items() if factor in AXES}


def cells_of(study: Study) -> list[Cell]:
    """A study in cells, in order of first appearance; one without factors is one. What cannot be read, and so may
    belong to any cell, is in all of them; where there is none, or factors are damaged, the study is one cell."""
    factors = study.spec.get("factors")
    if not isinstance(factors, list) or not all(isinstance(factor, str) for factor in factors):
        return [Cell(study, {})]
    found: dict[tuple[str, ...], list[Arm]] = {}
    unknown: list[Arm] = []
    for arm in study.arms:
        values = [value for factor in factors if (value := _value_of(arm, factor)) is not None]
        (found.setdefault(tuple(values), []) if len(values) == len(factors) else unknown).append(_without(factors, arm))
    cells = [(dict(zip(factors, values, strict=True)), arms) for values, arms in found.items()]
    return [Cell(replace(study, arms=[*arms, *unknown]), values) for values, arms in cells] or [Cell(study, {})]


def _without(factors: Sequence[str], arm: Arm) -> Arm:
    """The arm with the factors left out of what it was asked for: its cell says them."""
    words = [word for word in arm.asked.split(" ") if word.partition("=")[0] not in factors]
    return replace(arm, asked=" ".join(words) or "base")


def _value_of(arm: Arm, factor: str) -> str | None:
    if arm.found is None:
        return next((word.partition("=")[2] for word in arm.words if word.startswith(f"{factor}=")), None)
    if factor == CORPUS:
        return arm.found.texts["data.corpus"]
    value = arm.found.settings.get(factor)
    return None if value is None else typed_value(value)


def shown_tables(tables: Sequence[Table]) -> Iterator[Table]:
    """The tables as views show them: those of a study and base with many cells as one, its rows named by their cell."""
    for _, same in groupby(tables, key=lambda table: (table.study, table.base, bool(table.cell))):
        cells = list(same)
        if cells[0].cell and len(cells) > MAX_CELLS:
            yield _in_one(cells)
        else:
            yield from cells


def _in_one(cells: Sequence[Table]) -> Table:
    first = cells[0]
    rows = [
        replace(row, name=f"{table.title}: {table.base if row.name == BASE_ROW else row.name}")
        for table in cells
        for row in table.rows
    ]
    return replace(
        first,
        title=f"{len(cells)} cells of {', '.join(first.cell)}; each row against its own cell's base",
        is_joined=True,
        rows=rows,
        findings={},
        seeds=sorted(set(chain.from_iterable(table.seeds for table in cells))),
        set_aside=list(dict.fromkeys(chain.from_iterable(table.set_aside for table in cells))),
        warnings=[
            f"intervals and p hold for the rows of one cell at once, not for all {len(cells)} cells",
            *dict.fromkeys(chain.from_iterable(table.warnings for table in cells)),
        ],
        commits=sorted(set(chain.from_iterable(table.commits for table in cells))),
        sizes={key: value for key, value in first.sizes.items() if f"model.{key}" not in first.cell},
        prior_variance=None,
        prior_df=None,
        rungs=_common([table.rungs for table in cells]),
        corpus=_common([table.corpus for table in cells]),
        corpus_sha256=_common([table.corpus_sha256 for table in cells]),
        num_chars=_common([table.num_chars for table in cells]),
        tokens_per_param=_common([table.tokens_per_param for table in cells]),
        epochs=_common([table.epochs for table in cells]),
        noise_floor=None,
        seeds_command=None,
        curves=[],
        by_position=None,
        by_knowledge=None,
        samples=[],
        shared=[],
        diagnosis=None,
    )


def _common(values: Sequence[Value]) -> Value | None:
    """The value of all cells, None where they differ."""
    return values[0] if all(value == values[0] for value in values) else None
