"""Times linear maps in C for `tuning.measure`, on weights that the caches do not hold."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from specdecode_kernels.cpu.tuning import Tuning

if TYPE_CHECKING:
    from specdecode_kernels.cpu.library import Library

OUTPUTS, INPUTS = 512, 1024
BUFFER_BYTES = 64 << 20
MOST_TIMED_ROWS = 64


class TimedMaps:
    """Maps with the weights of one buffer after the other; one thread."""

    def __init__(self, library: "Library") -> None:
        self.most_rows = library.most_rows
        self._library = library
        self._x = torch.ones(MOST_TIMED_ROWS, INPUTS, dtype=library.dtype)
        self._out = torch.empty(MOST_TIMED_ROWS, OUTPUTS, dtype=library.dtype)
        self._buffers = {huge: _Buffer(library, huge) for huge in (0, 1)}

    def seconds(self, tuning: Tuning, rows: int) -> float:
        """Return the time of one map, with a weight that was evicted from the caches."""
        self._library.use(tuning)
        packed = self._buffers[tuning.huge_pages].next()
        x, out = self._x.data_ptr(), self._out.data_ptr()
        began_s = time.thread_time()
        self._library.linear(packed, x, INPUTS, None, out, rows, OUTPUTS, INPUTS)
        return time.thread_time() - began_s


class _Buffer:
    """Packed weights of many maps."""

    def __init__(self, library: "Library", huge: int) -> None:
        self._library = library
        self._bytes = OUTPUTS * INPUTS * library.dtype.itemsize
        self._memory: Tensor = torch.empty(BUFFER_BYTES, dtype=torch.uint8)
        if huge:
            library.advise_huge_pages(self._memory.data_ptr(), BUFFER_BYTES)
        self._memory.zero_()
        self._places = cycle(range(0, BUFFER_BYTES - self._bytes + 1, self._bytes))

    def next(self) -> int:
        """Return the address of the next weight."""
        address = self._memory.data_ptr() + next(self._places)
        self._library.evict(address, self._bytes)
        return address


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread within the context."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
