"""Times linear maps in C for `tuning.measure`, on weights that the caches do not hold."""

import ctypes
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.memory import fresh_memory
from specdecode_kernels.cpu.packing import WeightInC
from specdecode_kernels.cpu.tuning import Kind, Tuning
from specdecode_kernels.packed_weights import BLOCK, PackedLayout

INPUTS = 1024
OUTPUTS: Mapping[Kind, int] = {"floats": 512, "int8": 1024, "int4": 2048}
"""So many that weights have 1 or 2 MB: what is fetched beyond the end of a smaller one would favour
to fetch less far ahead."""
BUFFER_BYTES = 64 << 20
MOST_TIMED_ROWS = 64


class TimedMaps:
    """Maps with the weights of one buffer after the other; one thread."""

    def __init__(self, library: Library) -> None:
        self.most_rows = library.most_rows
        self._library = library
        self._x = torch.ones(MOST_TIMED_ROWS, INPUTS, dtype=library.dtype)
        self._out = torch.empty(MOST_TIMED_ROWS, max(OUTPUTS.values()), dtype=library.dtype)
        self._buffers = {huge: _Buffer(library, huge) for huge in (0, 1)}
        floats = PackedLayout(0 if library.dtype == torch.float32 else 1)
        self._layouts = {"floats": floats, "int8": PackedLayout(2), "int4": PackedLayout(3, 32)}

    def seconds(self, tuning: Tuning, rows: int, kind: Kind) -> float:
        """Return the time of one map, with a weight that was evicted from the caches."""
        self._library.use(tuning)
        layout = self._layouts[kind]
        outputs = OUTPUTS[kind]
        num_bytes = outputs // BLOCK * layout.block_bytes(INPUTS)
        address = self._buffers[tuning.huge_pages].next(num_bytes)
        weight = WeightInC(*layout, address, outputs, INPUTS)
        x, out = self._x.data_ptr(), self._out.data_ptr()
        began_s = time.thread_time()
        self._library.linear(ctypes.addressof(weight), None, x, INPUTS, out, rows)
        return time.thread_time() - began_s


class _Buffer:
    """Memory for packed weights of many maps; all zero."""

    def __init__(self, library: Library, huge: int) -> None:
        self._library = library
        self._memory = fresh_memory(BUFFER_BYTES, Tuning(huge_pages=huge)).zero_()
        self._place = 0

    def next(self, num_bytes: int) -> int:
        """Return the address of the next weight of so many bytes."""
        if self._place + num_bytes > BUFFER_BYTES:
            self._place = 0
        address = self._memory.data_ptr() + self._place
        self._place += num_bytes
        self._library.evict(address, num_bytes)
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
