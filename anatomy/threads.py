"""How many threads compute, for a while."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def using_threads(num: int) -> Iterator[None]:
    """Compute with so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(num)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def half_the_threads() -> Iterator[None]:
    """Compute with half of the threads: where cores are busy, single tokens on all of them took three times as long."""
    with using_threads(max(1, torch.get_num_threads() // 2)):
        yield
