"""The ranks of an engine whose target is divided among several devices: tensor parallelism.

Every rank is a process that runs the same engine core on its part of the target. A core is
deterministic, but for the time that it measures: the other ranks follow rank 0, the leader, by
receiving its commands and its measurements, and no tokens.
"""

import struct
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Protocol

import torch
from torch import Tensor, distributed

from specdecode_kernels.torch.elementwise import add_parts

LEADER = 0
FEW_ROWS = 16
"""Rows for each rank up to which parts are gathered whole: one message costs less than two."""


class RanksDiverged(Exception):
    """A rank is about to compute another step than the leader."""


class Ranks(Protocol):
    """One rank among `size`; all of them call the same methods in the same order."""

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def add(self, part: Tensor) -> Tensor:
        """Return the sum of the parts [rows, dim] of all ranks, the same bits on every rank.

        An element is the sum of its parts in the order of ranks, in float32 for types of 16 bits,
        whatever the number of rows: rows of a draft that are verified together get the bits that
        each would get alone.
        """
        ...

    def parts(self, part: Tensor) -> Tensor:
        """Return the parts of all ranks [size, rows, dim], which `add_parts` adds to that sum.

        Or the sum [rows, dim], where less has to be sent for it.
        """
        ...

    def join(self, part: Tensor) -> Tensor:
        """Return the columns [rows, n] of all ranks in their order: [rows, size * n]."""
        ...

    def agree(self, *values: float) -> tuple[float, ...]:
        """Return the leader's values."""
        ...

    def least(self, value: int) -> int:
        """Return the least of all ranks."""
        ...


class _Alone:
    """The only rank."""

    rank = LEADER
    size = 1

    def add(self, part: Tensor) -> Tensor:
        return part

    def parts(self, part: Tensor) -> Tensor:
        return part

    def join(self, part: Tensor) -> Tensor:
        return part

    def agree(self, *values: float) -> tuple[float, ...]:
        return values

    def least(self, value: int) -> int:
        return value


ALONE: Ranks = _Alone()


class ProcessRanks:
    """A rank in a process of its own, by a process group of torch: NCCL on GPUs, gloo on CPUs.

    The default process group must have been initialized.

    Args:
        links: to the followers, for the leader; to the leader, for a follower.
    """

    def __init__(self, links: Sequence[Connection]) -> None:
        self.rank = distributed.get_rank()
        self.size = distributed.get_world_size()
        self._links = links

    def add(self, part: Tensor) -> Tensor:
        parts = self.parts(part)
        return parts if parts.dim() == part.dim() else add_parts(parts)

    def parts(self, part: Tensor) -> Tensor:
        rows = len(part)
        if rows <= FEW_ROWS * self.size:
            return self._gather(part)
        share = -(-rows // self.size)
        padded = part.new_zeros(share * self.size, *part.shape[1:])
        padded[:rows] = part
        parts = torch.empty_like(padded)
        distributed.all_to_all_single(_bytes(parts), _bytes(padded))
        own = add_parts(parts.view(self.size, share, *part.shape[1:]))
        return self._gather(own).flatten(0, 1)[:rows]

    def join(self, part: Tensor) -> Tensor:
        return self._gather(part).movedim(0, 1).flatten(1)

    def agree(self, *values: float) -> tuple[float, ...]:
        form = f"{len(values)}d"
        if self.rank != LEADER:
            return struct.unpack(form, self._links[0].recv_bytes())
        for link in self._links:
            link.send_bytes(struct.pack(form, *values))
        return values

    def least(self, value: int) -> int:
        numbers = [0] * self.size
        distributed.all_gather_object(numbers, value)
        return min(numbers)

    def _gather(self, part: Tensor) -> Tensor:
        """Return the parts of all ranks: [size, *shape]."""
        parts = part.new_empty(self.size, *part.shape)
        distributed.all_gather_into_tensor(_bytes(parts.flatten(0, 1)), _bytes(part.contiguous()))
        return parts


def shared_clock(ranks: Ranks, clock: Callable[[], float]) -> Callable[[], float]:
    """Return a clock with the leader's readings, by which every rank decides alike."""
    return clock if ranks.size == 1 else lambda: ranks.agree(clock())[0]


def check_agreement(ranks: Ranks, *numbers: int) -> None:
    """Compare with the leader what this rank is about to compute.

    Raises:
        RanksDiverged: the numbers differ.
    """
    if ranks.size == 1:
        return
    leaders = tuple(map(int, ranks.agree(*numbers)))
    if leaders != numbers:
        raise RanksDiverged(
            f"rank {ranks.rank} is about to compute {numbers}, and the leader {leaders}"
        )


def _bytes(tensor: Tensor) -> Tensor:
    """Return the same memory as bytes, which process groups send whatever the type."""
    return tensor.view(torch.uint8)
