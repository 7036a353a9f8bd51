"""Configures glibc's malloc to keep freed memory for the next step."""

import contextlib
import ctypes

# Numbers of glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_BYTES = 1 << 30


def keep_freed_memory() -> None:
    """Make glibc return no memory to the kernel; no effect with another C library.

    Call it before any thread starts. Otherwise the arena of a thread returns the buffers of a step,
    and the next step gets them back page by page, with a page fault each that zeroes the page.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
        mallopt(_TRIM_THRESHOLD, _MOST_BYTES)
