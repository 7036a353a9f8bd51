"""torch's caching allocator for CUDA, as arithmetic, fed by what a program does with meta tensors.

Rules and sizes are those of c10/cuda/CUDACachingAllocator.cpp of torch 2.11 with its defaults: no
expandable segments, no limit on splitting.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.shadow_cuda.tensor import tensors_in
from tests.shadow_cuda.weak_storage import WeakStorage

MIB = 1 << 20
META = torch.device("meta")

GRAIN_BYTES = 512
SMALL_BYTES, SMALL_SEGMENT_BYTES = MIB, 2 * MIB
MEDIUM_BYTES, MEDIUM_SEGMENT_BYTES = 10 * MIB, 20 * MIB
LARGE_GRAIN_BYTES = 2 * MIB


@dataclass(slots=True, eq=False)
class MemoryBlock:
    """A part of a segment; `segment` holds its neighbours in the order of their addresses."""

    num_bytes: int
    segment: "list[MemoryBlock]"
    is_small: bool
    is_free: bool = False


class CachingAllocator:
    """Blocks of segments: a freed block is kept for later, and merged with its free neighbours."""

    def __init__(self) -> None:
        self._segments: list[list[MemoryBlock]] = []
        self.peak_bytes = 0

    @property
    def reserved_bytes(self) -> int:
        """What the device lacks: all segments, free blocks included."""
        return sum(block.num_bytes for segment in self._segments for block in segment)

    @property
    def allocated_bytes(self) -> int:
        blocks = (block for segment in self._segments for block in segment)
        return sum(block.num_bytes for block in blocks if not block.is_free)

    def allocate(self, num_bytes: int) -> MemoryBlock:
        """Take the smallest free block that suffices, or a new segment."""
        wanted = max(GRAIN_BYTES, -(-num_bytes // GRAIN_BYTES) * GRAIN_BYTES)
        is_small = wanted <= SMALL_BYTES
        free = [
            block
            for segment in self._segments
            for block in segment
            if block.is_free and block.is_small is is_small and block.num_bytes >= wanted
        ]
        block = min(free, key=lambda one: one.num_bytes, default=None)
        if block is None:
            block = MemoryBlock(_segment_bytes(wanted), [], is_small, is_free=True)
            block.segment.append(block)
            self._segments.append(block.segment)
            self.peak_bytes = max(self.peak_bytes, self.reserved_bytes)
        return _split(block, wanted)

    def free(self, block: MemoryBlock) -> None:
        """Keep a block for later."""
        block.is_free = True
        merged: list[MemoryBlock] = []
        for one in block.segment:
            if merged and merged[-1].is_free and one.is_free:
                merged[-1].num_bytes += one.num_bytes
            else:
                merged.append(one)
        block.segment[:] = merged

    def empty_cache(self) -> None:
        """Return the segments that are free as a whole."""
        self._segments = [s for s in self._segments if not (len(s) == 1 and s[0].is_free)]


def _segment_bytes(wanted: int) -> int:
    if wanted <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if wanted < MEDIUM_BYTES:
        return MEDIUM_SEGMENT_BYTES
    return -(-wanted // LARGE_GRAIN_BYTES) * LARGE_GRAIN_BYTES


def _split(block: MemoryBlock, wanted: int) -> MemoryBlock:
    """Use the first `wanted` bytes of a free block, and leave the rest free if it is worth it."""
    block.is_free = False
    rest = block.num_bytes - wanted
    if rest >= GRAIN_BYTES if block.is_small else rest > SMALL_BYTES:
        block.num_bytes = wanted
        place = block.segment.index(block) + 1
        block.segment.insert(place, MemoryBlock(rest, block.segment, block.is_small, is_free=True))
    return block


class MetaMemory(TorchDispatchMode):
    """Allocates a block for every new storage of a meta tensor, and frees it with the storage."""

    def __init__(self) -> None:
        super().__init__()
        self.allocator = CachingAllocator()
        self._live: list[tuple[WeakStorage, MemoryBlock]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        known = {one.untyped_storage()._cdata for one in tensors_in((*args, *kwargs.values()))}
        for one in tensors_in((result,)):
            if one.is_meta and one.untyped_storage()._cdata not in known:
                self._note(one)
        return result

    def _note(self, tensor: Tensor) -> None:
        self.free_expired()
        storage = WeakStorage(tensor)
        self._live.append((storage, self.allocator.allocate(storage.num_bytes)))

    def free_expired(self) -> None:
        """Free the blocks of storages that nothing refers to; the order does not matter."""
        for storage, block in self._live:
            if storage.is_freed:
                self.allocator.free(block)
        self._live = [(s, b) for s, b in self._live if not s.is_freed]
