"""What the machine can do at most in the same minute: memory's rate, and multiply-adds of float32.

All rates are of all threads together, by the processor time of each.
"""

import ctypes
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from specdecode_kernels.cpu.compile import FLAGS, compile_library

DEFAULT_L3_BYTES = 32 * 2**20
_LEAST_BYTES = 256 * 2**20
_SIDE = 768
_ROUNDS = 400_000
_RUNS = 3
_STREAMS = (1, 2, 4)
_AHEAD = (0, 2048, 4096, 8192, 16384)  # bytes


@dataclass(frozen=True, slots=True)
class Floors:
    """Rates by processor time."""

    read_gb_s: float
    copy_gb_s: float  # bytes read and bytes written
    product_gflop_s: float  # of float32
    pair_gflop_s: float = 0.0  # of pairs of bfloat16, added in float32; 0: there is no instruction

    def products_of(self, dtype: torch.dtype) -> float:
        """Return the rate of multiply-adds with weights of a type, in GFLOP/s."""
        pairs = self.pair_gflop_s if dtype == torch.bfloat16 else 0.0
        return max(self.product_gflop_s, pairs)


def l3_bytes() -> int:
    """Return the size of the last cache, as the C library reports it."""
    found = os.sysconf("SC_LEVEL3_CACHE_SIZE") if "SC_LEVEL3_CACHE_SIZE" in os.sysconf_names else 0
    return found if found > 0 else DEFAULT_L3_BYTES


class Limits:
    """Buffers to measure with, made once; larger than four times the last cache."""

    def __init__(self, threads: int = 1) -> None:
        self._threads = threads
        self._bytes = max(_LEAST_BYTES, 5 * l3_bytes())
        self._source = torch.empty(self._bytes // 4)
        _rates().advise_huge_pages(self._source.data_ptr(), self._bytes)
        self._source.fill_(1.0)
        self._target = torch.empty(self._bytes // 4)
        self._matrix = self._source[: self._bytes // 4 // 4096 * 4096].view(-1, 4096)
        self._row = torch.ones(4096)
        self._square = torch.randn(_SIDE, _SIDE)
        ways = [(streams, ahead) for streams in _STREAMS for ahead in _AHEAD]
        self._streams, self._ahead = min(
            ways, key=lambda way: self._seconds(lambda: self._read(way))
        )

    def measure(self) -> Floors:
        """Return the best of a few runs each: the least that others disturbed.

        Reading is the fastest of a sum, a product with one row, and a loop in C; the product is the
        faster of torch's square product and of multiply-adds in registers.
        """
        way = self._streams, self._ahead
        read_s = min(
            self._least_s(self._source.sum),
            self._least_s(lambda: torch.mv(self._matrix, self._row)),
            self._least_s(lambda: self._read(way)),
        )
        copy_s = self._least_s(lambda: self._target.copy_(self._source))
        square = 2 * _SIDE**3 / self._least_s(lambda: self._square @ self._square)
        return Floors(
            self._bytes / read_s / 1e9,
            2 * self._bytes / copy_s / 1e9,
            max(square, self._per_s(_rates().multiply_and_add)) / 1e9,
            self._per_s(_rates().multiply_pairs) / 1e9,
        )

    def _read(self, way: tuple[int, int]) -> None:
        _rates().read_memory(self._source.data_ptr(), self._bytes, *way, self._threads)

    def _per_s(self, multiplied: Callable[..., int]) -> float:
        total, operations = ctypes.c_float(), 0

        def multiply() -> None:
            nonlocal operations
            operations = multiplied(_ROUNDS, 0.999, 1e-5, total, self._threads)

        seconds = self._least_s(multiply)
        return self._threads * operations / seconds

    def _least_s(self, run: Callable[[], object]) -> float:
        return min(self._seconds(run) for _ in range(_RUNS))

    def _seconds(self, run: Callable[[], object]) -> float:
        began_s = time.process_time()
        run()
        return (time.process_time() - began_s) / self._threads


class _Rates:
    """The functions of rates.c."""

    def __init__(self, file: Path) -> None:
        loaded = ctypes.CDLL(str(file))
        address, count, number = ctypes.c_void_p, ctypes.c_long, ctypes.c_float
        self.advise_huge_pages = loaded.advise_huge_pages
        self.advise_huge_pages.argtypes = [address, count]
        self.read_memory = loaded.read_memory
        self.read_memory.argtypes = [address, count, count, count, count]
        self.read_memory.restype = number
        self.multiply_and_add, self.multiply_pairs = loaded.multiply_and_add, loaded.multiply_pairs
        for multiplied in (self.multiply_and_add, self.multiply_pairs):
            multiplied.argtypes = [count, number, number, ctypes.POINTER(number), count]
            multiplied.restype = count


@cache
def _rates() -> _Rates:
    return compile_library((Path(__file__).with_name("rates.c"),), (), FLAGS, _Rates)
