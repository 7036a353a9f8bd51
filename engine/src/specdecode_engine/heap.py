"""What the C library does with memory that is freed: keep it for the next round."""

import contextlib
import ctypes

# Numbers of glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Have glibc give nothing back to the kernel; before threads begin. Elsewhere do nothing.

    A thread's own arena would give the buffers of a round back, and the kernel hands them out again
    page by page, each with a fault and cleared: some hundred of them in every round.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
        mallopt(_TRIM_THRESHOLD, _MOST_BYTES)
