"""Low-rank maps that are added to the outputs of a linear map, another one for each row."""

import ctypes
from dataclasses import dataclass, field
from typing import Self

import torch
from torch import Tensor

from specdecode_kernels.packed_weights import BLOCK

LANES = 16
"""Ranks whose factors lie side by side; as in cpu/vectors.h."""


@dataclass(frozen=True, slots=True, eq=False)
class LowRankFactors:
    """Maps x [rows, inputs] to x · aᵀ · bᵀ, in float32 or float64."""

    a: Tensor  # [rank, inputs]
    b: Tensor  # [outputs, rank]


@dataclass(frozen=True, slots=True, eq=False)
class PackedLowRank:
    """Factors in float32 in the order in which C reads them.

    Of each block of outputs only the ranks from the first to the last with a number other than
    zero are stored: maps that are computed as one have no factors for the outputs of one another.
    """

    a: Tensor  # [vectors, inputs, LANES] f32, zeros after the rank
    b: Tensor  # [ranks of all blocks, BLOCK] f32, zeros after the outputs
    blocks: Tensor  # [blocks, 3] i64: the first rank, how many, and where they begin in `b`

    @classmethod
    def of(cls, factors: LowRankFactors) -> Self:
        """Pack factors of float32."""
        rank, inputs = factors.a.shape
        vectors, blocks = -(-rank // LANES), -(-len(factors.b) // BLOCK)
        a = torch.zeros(vectors * LANES, inputs)
        a[:rank] = factors.a
        b = torch.zeros(blocks * BLOCK, rank)
        b[: len(factors.b)] = factors.b
        by_block = b.view(blocks, BLOCK, rank)
        bounds, parts, start = list[tuple[int, int, int]](), list[Tensor](), 0
        for used, own in zip(by_block.any(dim=1), by_block, strict=True):
            ranks = used.nonzero().flatten().tolist()
            first, count = (ranks[0], ranks[-1] + 1 - ranks[0]) if ranks else (0, 0)
            bounds.append((first, count, start))
            parts.append(own[:, first : first + count].T)
            start += count
        packed = a.view(vectors, LANES, inputs).transpose(1, 2).contiguous()
        return cls(packed, torch.cat(parts).contiguous(), torch.tensor(bounds))


class LowRankInC(ctypes.Structure):
    """`struct low_rank` of low_rank.h; without vectors there is no map."""

    _fields_ = (
        ("vectors", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("a", "b", "blocks")],
    )


@dataclass(frozen=True, slots=True, eq=False)
class LowRankMaps:
    """The low-rank maps that may be added to one linear map, by slot."""

    by_slot: list[LowRankFactors | PackedLowRank | None]
    in_c: "ctypes.Array[LowRankInC]"  # of packed ones

    @classmethod
    def empty(cls, num_slots: int) -> Self:
        """Make room for `num_slots` maps."""
        return cls([None] * num_slots, (LowRankInC * num_slots)())

    def put(self, slot: int, one: LowRankFactors | PackedLowRank | None) -> None:
        """Replace the map of a slot, which no row of a running forward may have."""
        self.by_slot[slot] = one
        self.in_c[slot] = LowRankInC()
        if isinstance(one, PackedLowRank):
            addresses = [part.data_ptr() for part in (one.a, one.b, one.blocks)]
            self.in_c[slot] = LowRankInC(len(one.a), *addresses)

    @property
    def address(self) -> int:
        """Where C finds the maps."""
        return ctypes.addressof(self.in_c)


class LowRankRowsInC(ctypes.Structure):
    """`struct low_rank_rows` of low_rank.h."""

    _fields_ = (
        ("rows", ctypes.c_void_p),
        ("groups", ctypes.c_void_p),
        ("count", ctypes.c_int64),
    )


@dataclass(frozen=True, slots=True, eq=False)
class LowRankRows:
    """The rows of a forward that have a map, sorted by its slot; on a CPU, contiguous."""

    rows: Tensor  # [n] i64, each at most once
    groups: Tensor  # [groups, 3] i64: the slot, where its rows begin in `rows`, and how many
    num_rows: int  # of the forward, or of the part of it that they are among
    in_c: LowRankRowsInC = field(init=False)

    def __post_init__(self) -> None:
        fields = LowRankRowsInC(self.rows.data_ptr(), self.groups.data_ptr(), len(self.groups))
        object.__setattr__(self, "in_c", fields)

    @property
    def address(self) -> int:
        """Where C finds the rows."""
        return ctypes.addressof(self.in_c)


@dataclass(slots=True, eq=False)
class ActiveRows:
    """The rows that have a map in the forward that is being launched; None: no row has one."""

    rows: LowRankRows | None = None


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LayerLowRank:
    """The low-rank maps of a decoder layer's linear maps, which share their slots."""

    active: ActiveRows
    qkv: LowRankMaps | None
    output: LowRankMaps | None
    gate_up: LowRankMaps | None
    down: LowRankMaps | None
