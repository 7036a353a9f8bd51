"""Ranks that are threads of one process: the arithmetic of several ranks within one test."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Barrier
from typing import TypeVar

import torch
from torch import Tensor

from specdecode_engine.ranks import LEADER, Ranks
from specdecode_kernels.torch.elementwise import add_parts

PATIENCE_S = 60.0
"""Until a rank that waits for the others in vain is an error."""

T = TypeVar("T")


@dataclass(slots=True)
class Meeting:
    """Where all ranks leave a value and read those of the others."""

    size: int
    values: dict[int, object] = field(default_factory=dict)
    barrier: Barrier = field(init=False)

    def __post_init__(self) -> None:
        self.barrier = Barrier(self.size, timeout=PATIENCE_S)


@dataclass(frozen=True, slots=True)
class ThreadRanks:
    """One rank; see `Ranks`."""

    rank: int
    size: int
    meeting: Meeting

    def add(self, part: Tensor) -> Tensor:
        return add_parts(self.parts(part))

    def parts(self, part: Tensor) -> Tensor:
        return torch.stack(self._exchange(part))

    def join(self, part: Tensor) -> Tensor:
        return torch.cat(self._exchange(part), dim=1)

    def agree(self, *values: float) -> tuple[float, ...]:
        return self._exchange(values)[LEADER]

    def least(self, value: int) -> int:
        return min(self._exchange(value))

    def _exchange(self, value: T) -> list[T]:
        values, barrier = self.meeting.values, self.meeting.barrier
        values[self.rank] = value
        barrier.wait()
        found: list[T] = [values[rank] for rank in range(self.size)]  # type: ignore[misc]
        barrier.wait()
        return found


def on_ranks(size: int, compute: Callable[[Ranks], T]) -> list[T]:
    """Compute on every rank, in lockstep; return what each returns."""
    meeting = Meeting(size)

    def run(rank: int) -> T:
        try:
            with torch.no_grad():
                return compute(ThreadRanks(rank, size, meeting))
        except BaseException:
            meeting.barrier.abort()
            raise

    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(run, range(size)))
