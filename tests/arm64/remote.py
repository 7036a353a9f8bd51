"""The library of C kernels in another process, by default one that an emulator runs."""

import ctypes
import struct
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch

from specdecode_kernels.cpu.library import SIGNATURES, Library
from specdecode_kernels.cpu.tuning import Tuning
from tests.arm64.calls import CALLS, Entries
from tests.arm64.image import Image

MOST_ROWS = 6
"""Of a tile where vectors are narrower than those of AVX-512."""
_NUMBER, _REAL, _POINTER = 0, 1, 2  # kinds of arguments, as in driver.c


class DriverFailed(RuntimeError):
    """The driver ended or answered too little; the message has what it wrote to stderr."""


class Driver:
    """A running driver.c; one call at a time."""

    def __init__(self, command: Sequence[str | Path]) -> None:
        words = [str(word) for word in command]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(words, stdin=pipe, stdout=pipe, stderr=pipe)

    def call(self, request: bytes, answered: int) -> bytes:
        """Send a request and read its answer of so many bytes.

        Raises:
            DriverFailed: when the driver crashed or refused the request.
        """
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(request)
            process.stdin.flush()
            answer = process.stdout.read(answered)
        except BrokenPipeError:
            answer = b""
        if len(answer) == answered and (answered or process.poll() is None):
            return answer
        raise DriverFailed(self._last_words())

    def close(self) -> None:
        """End the driver: it stops where its input ends."""
        self._process.communicate()

    def _last_words(self) -> str:
        _, words = self._process.communicate()
        status = self._process.returncode
        return f"{self._process.args!r} ended with {status}: {words.decode(errors='replace')}"


class RemoteLibrary(Library):
    """The functions of `Library`, each run by a driver on a copy of the memory that it touches."""

    def __init__(self, driver: Driver, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._driver = driver
        self._entries = Entries(dtype.itemsize)
        self.most_rows = MOST_ROWS
        for number, name in enumerate(CALLS):
            setattr(self, name, partial(self._call, number, name))
        self.release_pages = _nothing  # a request's memory lasts for the request alone
        self.decoder_layers = _refuse  # its functions are called one by one
        self.add_low_rank = _refuse  # no test runs it in an emulator
        self.use(Tuning(rows=MOST_ROWS))

    def _call(self, number: int, name: str, *arguments: int | float | None) -> None:
        image = Image(CALLS[name](self._entries, *arguments))
        written = [region for region in image.regions if region.is_written]
        sizes = [region.end - region.start for region in written]
        words = [_argument(image, kind, value) for kind, value in _kinds(name, arguments)]
        request = struct.pack("<2q", number, torch.get_num_threads()) + image.packed()
        request += struct.pack("<q", len(words)) + b"".join(words)
        answer = self._driver.call(request, sum(sizes))
        for region, size in zip(written, sizes, strict=True):
            ctypes.memmove(region.start, answer, size)
            answer = answer[size:]


def _nothing(*_: int) -> None:
    """Take what a function takes that a driver lacks."""


def _refuse(*_: int) -> None:
    raise DriverFailed("a driver computes layers op by op, and no low-rank maps")


def _kinds(
    name: str, arguments: Sequence[int | float | None]
) -> list[tuple[int, int | float | None]]:
    """Pair each argument with its kind, which the signature for ctypes has."""
    of: dict[type, int] = {
        ctypes.c_void_p: _POINTER,
        ctypes.c_long: _NUMBER,
        ctypes.c_float: _REAL,
    }
    kinds = [of[declared] for declared in SIGNATURES[name]]
    return list(zip(kinds, arguments, strict=True))


def _argument(image: Image, kind: int, value: int | float | None) -> bytes:
    if kind == _REAL:
        assert value is not None
        return struct.pack("<qd", kind, value)
    if kind == _POINTER and value and image.holds(int(value)):
        return struct.pack("<q", kind) + image.pointer(int(value))
    return struct.pack("<2q", _NUMBER, 0 if kind == _POINTER else int(value or 0))
