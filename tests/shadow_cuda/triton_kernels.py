"""Triton on the shadow device: launchers run in Python, kernels do not run at all.

Real is everything on the way to a launch: the launcher with its checks, allocations and copies, and
where kernels are compiled, Triton's binding of arguments, its specialization for the device's
capability, its cache of variants and its hooks. Where the process interprets kernels, arguments are
bound by name and no variants are known.

The compiled kernel is a stand-in. It refuses operands that are not on the device, counts a launch,
and writes nothing: `tests.shadow_cuda.ops` puts in the numbers.
"""

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import triton
from torch import Tensor
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.interpreter import InterpretedFunction

from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.errors import MixedDevices
from tests.shadow_cuda.tensor import ShadowTensor, tensors_in
from tests.shadow_cuda.waits import Wait

OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "maxnreg", "debug"})
"""Keyword arguments of a launch that are not the kernel's."""


@contextmanager
def triton_kernels(device: ShadowDevice, capability: tuple[int, int]) -> Iterator[None]:
    """Let Triton find the device, and replace what it compiles or interprets meanwhile."""
    major, minor = capability
    shadow = _Driver(GPUTarget("cuda", 10 * major + minor, 32))
    used: set[Any] = set()

    def compile_kernel(source: Any, **_: Any) -> "_ShadowKernel":
        used.add(source.fn)
        device.compiled.append(str(Wait.here(f"{source.fn.fn.__name__}({source.signature})")))
        return _ShadowKernel(device, source.fn.fn.__name__)

    def interpret(kernel: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        if not warmup:
            bound = _bind(kernel.fn, args, kwargs)
            dimensions = grid(bound) if callable(grid) else grid
            _ShadowKernel(device, kernel.fn.__name__).launch(dimensions, bound.values())

    try:
        with (
            mock.patch.object(driver, "_active", shadow),
            mock.patch.object(triton.compiler, "compile", compile_kernel),
            mock.patch.object(InterpretedFunction, "run", interpret),
        ):
            yield
    finally:
        for kernel in used:
            kernel.device_caches.clear()


class _Driver:
    """What Triton calls on a driver before it launches."""

    def __init__(self, target: GPUTarget) -> None:
        self._target = target

    def get_current_target(self) -> GPUTarget:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, index: int) -> int:
        return 0


class _ShadowKernel:
    """A compiled kernel that computes nothing."""

    function = packed_metadata = None

    def __init__(self, device: ShadowDevice, name: str) -> None:
        self._device = device
        self._name = name

    def launch_metadata(self, grid: Any, stream: int, *arguments: Any) -> None:
        """Return nothing: only profilers use it."""

    def run(self, *arguments: Any) -> None:
        """Launch as Triton's C launcher does, with the grid first and the operands last."""
        self.launch(arguments[:3], arguments[9:])

    def launch(self, grid: Any, operands: Any) -> None:
        """Check the operands' devices and count; an empty grid launches nothing."""
        for tensor in tensors_in(operands):
            self._check(tensor)
        if all(grid):
            self._device.launch()
            self._device.triton_launches += 1

    def _check(self, tensor: Tensor) -> None:
        if type(tensor) is not ShadowTensor:
            place = Wait.here(f"Triton kernel {self._name}")
            text = f"Pointer argument cannot be accessed from Triton (cpu tensor?) ({place})"
            self._device.fail(MixedDevices(text))


def _bind(function: Any, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    named = {key: value for key, value in kwargs.items() if key not in OPTIONS}
    return _signature(function).bind(*args, **named).arguments


@cache
def _signature(function: Any) -> inspect.Signature:
    return inspect.signature(function)
