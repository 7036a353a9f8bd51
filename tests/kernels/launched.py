"""Which kernels were really launched: counted where Triton and C are entered, not at the op."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest

from specdecode_kernels.cpu.library import Library
from specdecode_kernels.cpu.loading import TYPES, load_library

_NOT_KERNELS = ("pack", "set_tuning", "release_pages", "evict")
C_FUNCTIONS = [name for name in Library.__annotations__ if name not in _NOT_KERNELS]


class _CountedKernel:
    """A Triton kernel that notes each launch; all else is the kernel's own."""

    def __init__(self, kernel: Any, note: Callable[[], None]) -> None:
        self._kernel = kernel
        self._note = note

    def __getitem__(self, grid: Any) -> Any:
        self._note()
        return self._kernel[grid]


@contextmanager
def launches() -> Iterator[Counter[str]]:
    """Count launches by the kernel's name."""
    counts: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        _count_c(patch, counts)
        _count_triton(patch, counts)
        yield counts


def _count_c(patch: pytest.MonkeyPatch, counts: Counter[str]) -> None:
    for library in (load_library(dtype) for dtype in TYPES):
        for name in C_FUNCTIONS:
            patch.setattr(library, name, _counted(name, getattr(library, name), counts))


def _counted(name: str, function: Callable[..., Any], counts: Counter[str]) -> Callable[..., Any]:
    def call(*arguments: Any) -> Any:
        counts[name] += 1
        return function(*arguments)

    return call


def _count_triton(patch: pytest.MonkeyPatch, counts: Counter[str]) -> None:
    for module_name, module in list(sys.modules.items()):
        if module_name.startswith("specdecode_kernels.triton."):
            for name, kernel in list(vars(module).items()):
                if name.endswith("_kernel"):
                    short = name.strip("_").removesuffix("_kernel")
                    counted = _CountedKernel(kernel, partial(counts.update, [short]))
                    patch.setattr(module, name, counted)
