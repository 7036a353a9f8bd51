"""What the machine can do on one thread, in the same minute: memory's rate and a matrix product."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

_BYTES = 256 * 2**20  # several times the largest cache of common processors
_SIDE = 768
_RUNS = 3


@dataclass(frozen=True, slots=True)
class Floors:
    """Rates by processor time."""

    read_gb_s: float
    copy_gb_s: float  # bytes read and bytes written
    gemm_gflop_s: dict[str, float]  # by type


class Limits:
    """Buffers to measure with, made once."""

    def __init__(self) -> None:
        count = _BYTES // 4
        self._source = torch.ones(count)
        self._target = torch.empty(count)
        self._matrix = self._source.view(-1, 4096)
        self._row = torch.ones(4096)
        self._squares = {
            name: torch.randn(_SIDE, _SIDE).to(getattr(torch, name))
            for name in ("float32", "bfloat16")
        }

    def measure(self) -> Floors:
        """Return the best of a few runs each: the least that others disturbed.

        Reading is the faster of a sum and of a product with one row.
        """
        sum_s = _least(lambda: self._source.sum())
        row_s = _least(lambda: torch.mv(self._matrix, self._row))
        copy_s = _least(lambda: self._target.copy_(self._source))
        gemm = {
            name: 2 * _SIDE**3 / _least(lambda one=square: one @ one) / 1e9  # type: ignore[misc]
            for name, square in self._squares.items()
        }
        return Floors(_BYTES / min(sum_s, row_s) / 1e9, 2 * _BYTES / copy_s / 1e9, gemm)


def _least(run: Callable[[], Tensor]) -> float:
    times = []
    for _ in range(_RUNS):
        began_s = time.process_time()
        run()
        times.append(time.process_time() - began_s)
    return min(times)
