"""The process itself: its memory allocator, and the message that it leaves when it ends.

The message is written to a file if the environment names one. In a pod the file is the container's
termination log, which Kubernetes copies to the pod's status.
"""

import contextlib
import ctypes
import gc
import logging
import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from specdecode_api import names
from specdecode_api.report import TerminationMessage, TerminationReason

log = logging.getLogger(__name__)

STARTED_S = time.monotonic()
"""When this process began to import the engine, the first thing that it does."""

_DEVICE_ERROR = re.compile(r"CUDA error|Triton Error \[CUDA\]", re.IGNORECASE)

# Numbers of glibc's malloc.h
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8
_MOST_BYTES = 1 << 30
_COLLECTION_THRESHOLDS = 5_000, 20, 1000  # of the three generations
_TENSOR_BYTES = 1 << 19  # the rows of a weight that are dequantized at once have more


class ConfigurationError(Exception):
    """The boot file or the flags are invalid; the message lists every error with its field."""

    reason = TerminationReason.BOOT_FILE_INVALID


class DeviceFailed(Exception):
    """The GPU reported an error after which it accepts no work from this process."""

    reason: ClassVar[TerminationReason] = TerminationReason.DEVICE_FAILED


class StepTimedOut(Exception):
    """A step takes longer than server.step_timeout_seconds; the process should be restarted."""

    reason: ClassVar[TerminationReason] = TerminationReason.STEP_TIMED_OUT


def is_device_error(error: BaseException) -> bool:
    """Whether an error is one of CUDA, as torch, its libraries and Triton report them.

    Nearly all of these are sticky: every later call of the process fails too.
    """
    return isinstance(error, RuntimeError) and bool(_DEVICE_ERROR.search(str(error)))


def termination_message_for(error: Exception) -> TerminationMessage:
    """Return the reason of the error's class, else ENGINE_FAILED, with the error's message."""
    reason = getattr(error, "reason", None)
    if isinstance(reason, TerminationReason):
        return TerminationMessage(reason=reason, message=str(error))
    if is_device_error(error):
        return TerminationMessage(reason=TerminationReason.DEVICE_FAILED, message=str(error))
    return TerminationMessage(
        reason=TerminationReason.ENGINE_FAILED, message=f"{type(error).__name__}: {error}"
    )


def leave(words: TerminationMessage, environment: Mapping[str, str] = os.environ) -> None:
    """Write `words` to the file that the environment names, if any."""
    path = environment.get(names.VARIABLE_TERMINATION_MESSAGE_PATH)
    if not path:
        return
    try:
        Path(path).write_bytes(words.encode())
    except OSError as error:
        log.warning("cannot leave the reason of this end in %s: %s", path, error)


def configure_logging(level: int = logging.INFO) -> None:
    """Log to the standard error, in one format for all processes of an engine."""
    logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def return_freed_tensors() -> None:
    """Make glibc return the memory of tensors to the kernel; no effect with another C library.

    Call it before any thread starts. While a model is loaded, maps are fused and packed, and the
    originals of all layers are freed. In a heap they would leave gaps that no later one fits into,
    as much as half of the model.
    """
    with contextlib.suppress(AttributeError, OSError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_ARENA_MAX, 1)
        mallopt(_MMAP_THRESHOLD, _TENSOR_BYTES)


def keep_freed_memory() -> None:
    """Make glibc return no memory to the kernel from now on; no effect with another C library.

    Otherwise the buffers of a step are returned, and the next step gets them back page by page,
    with a page fault each that zeroes the page. Call `return_freed_tensors` before threads start:
    with one arena, they share the buffers.
    """
    with contextlib.suppress(AttributeError, OSError):
        libc = ctypes.CDLL(None)
        libc.malloc_trim(0)
        libc.mallopt(_MMAP_THRESHOLD, _MOST_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, _MOST_BYTES)


def freeze_heap() -> None:
    """Exempt everything that exists now from garbage collection, and collect less often.

    The modules and objects of a loaded engine live until exit. A collection of all of them, 340 000
    on the CPU, holds the interpreter for 0.2 s and stops all responses. So do collections of a body
    of 4 MiB with a million lists, which Python would begin for each 700 of them. What a collection
    of the second generation visits is bounded too: at most the 100 000 objects since the last one.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTION_THRESHOLDS)
