"""Memory for packed weights, in huge pages where the tuning chose them.

A huge page has 2 MiB and begins at a multiple of that. Weights of a few MiB in memory of their own
contain few whole ones, and memory that was used before keeps its small pages. So weights lie one
after the other in chunks of fresh memory.
"""

import contextlib
import mmap
import threading

import torch
from torch import Tensor

from specdecode_kernels.cpu.tuning import Tuning

HUGE_PAGE_BYTES = 2 << 20
CHUNK_BYTES = 32 << 20
"""At least, of addresses: memory is taken where it is written to."""
LINE_BYTES = 64


class _Chunk:
    """Zeros from the beginning of a huge page on; freed with the last tensor in it."""

    def __init__(self, num_bytes: int, tuning: Tuning) -> None:
        size = -(-num_bytes // HUGE_PAGE_BYTES) * HUGE_PAGE_BYTES
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._mapped = mmap.mmap(-1, size + HUGE_PAGE_BYTES, flags=flags)
        if tuning.huge_pages:
            with contextlib.suppress(OSError):  # a kernel without them
                self._mapped.madvise(mmap.MADV_HUGEPAGE)
        start = torch.frombuffer(self._mapped, dtype=torch.uint8).data_ptr()
        self._place = -start % HUGE_PAGE_BYTES
        self._end = self._place + size

    def has_room(self, num_bytes: int) -> bool:
        return self._place + num_bytes <= self._end

    def take(self, num_bytes: int) -> Tensor:
        """Return the next bytes from a cache line on, with a storage of their own."""
        at = self._place
        self._place += -(-num_bytes // LINE_BYTES) * LINE_BYTES
        return torch.frombuffer(self._mapped, dtype=torch.uint8, count=num_bytes, offset=at)


def fresh_memory(num_bytes: int, tuning: Tuning) -> Tensor:
    """Map memory from the beginning of a huge page on: zeros, u8 [num_bytes]."""
    return _Chunk(num_bytes, tuning).take(num_bytes)


class WeightMemory:
    """Chunks that many weights share; threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._chunk: _Chunk | None = None

    def take(self, num_bytes: int, tuning: Tuning) -> Tensor:
        """Return zeros that begin at a cache line: u8 [num_bytes]."""
        with self._lock:
            if self._chunk is None or not self._chunk.has_room(num_bytes):
                self._chunk = _Chunk(max(num_bytes, CHUNK_BYTES), tuning)
            return self._chunk.take(num_bytes)
