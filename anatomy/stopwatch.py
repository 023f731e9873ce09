"""Timing side by side: tasks take turns in one process, so that a machine whose speed drifts slows all alike.

Told are medians, each with an interval that assumes nothing about how times are distributed.
"""

import math
import random
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch

Task = Callable[[], None]
LEAST_ROUNDS = 15  # so many, however long they take; below 6 a median would have no interval


class Median(NamedTuple):
    """A median and its 95 % interval, None where there are too few values for one."""

    value: float
    low: float | None
    high: float | None

    def named(self, name: str) -> dict[str, Any]:
        """As three keys of a row."""
        return {name: self.value, f"{name}_low": self.low, f"{name}_high": self.high}


def take_turns(tasks: Sequence[Task], rounds: int) -> list[list[float]]:
    """Milliseconds of each task, round by round. A first call, which pays for allocations and kernels, is not timed."""
    _warm_up(tasks)
    by_round = [[_milliseconds(task) for task in tasks] for _ in range(rounds)]
    return [list(times) for times in zip(*by_round, strict=True)]


def take_turns_for(tasks: Sequence[Task], seconds: float) -> list[list[float]]:
    """The same for about so many seconds, and at least LEAST_ROUNDS. How the times come out does not end it.

    Every round has an order of its own: what a task finds in the processor's caches depends on the one before.
    """
    _warm_up(tasks)
    began = time.perf_counter()
    order, shuffler = list(range(len(tasks))), random.Random(0)
    by_task: list[list[float]] = [[] for _ in tasks]
    while len(by_task[0]) < LEAST_ROUNDS or time.perf_counter() - began < seconds:
        shuffler.shuffle(order)
        for i in order:
            by_task[i].append(_milliseconds(tasks[i]))
    return by_task


def median_of(values: Sequence[float]) -> Median:
    """The median with the order statistics that enclose the true one in at least 95 % of all samples."""
    rank = interval_rank(len(values))
    ordered = sorted(values)
    low, high = (ordered[rank - 1], ordered[-rank]) if rank else (None, None)
    return Median(statistics.median(values), low, high)


def median_ratio(values: Sequence[float], others: Sequence[float]) -> Median:
    """The median of one task's time over another's, each ratio taken within a round."""
    return median_of([value / other for value, other in zip(values, others, strict=True)])


def interval_rank(num_values: int) -> int:
    """The largest k for which the k-th smallest and k-th largest value enclose the median with 95 % confidence; or 0.

    Each value falls below the true median with probability 1/2, so the interval misses it with probability
    2 P(Bin(n, 1/2) < k), whatever the distribution.
    """
    rank, num_misses = 0, 0  # of the 2^n equally likely sets of sides, those with fewer than `rank` values below
    while 2 * 20 * (num_misses + math.comb(num_values, rank)) <= 2**num_values:
        num_misses += math.comb(num_values, rank)
        rank += 1
    return rank


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def _warm_up(tasks: Sequence[Task]) -> None:
    for task in tasks:
        task()


def _milliseconds(task: Task) -> float:
    began = time.perf_counter()
    task()
    return 1e3 * (time.perf_counter() - began)
