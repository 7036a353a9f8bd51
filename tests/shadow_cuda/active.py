"""Makes the shadow device torch's CUDA device for a while."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.shadow_cuda.device import GIB, ShadowDevice
from tests.shadow_cuda.functions import Functions
from tests.shadow_cuda.operations import dispatch
from tests.shadow_cuda.ops import reference_numbers
from tests.shadow_cuda.runtime import replacements
from tests.shadow_cuda.triton_kernels import triton_kernels

HOPPER = (9, 0)


@contextmanager
def shadow_cuda(
    total_bytes: int = 2 * GIB, capability: tuple[int, int] = HOPPER
) -> Iterator[ShadowDevice]:
    """Let torch find one CUDA device, which computes on the CPU and enforces what a GPU needs.

    For the calling thread, for others within `on_this_thread`; everything is restored at the end.
    One thing stays: where there is no GPU, torch's C++ code keeps a guard for CUDA devices that
    does nothing.

    Args:
        total_bytes: memory of the device.
        capability: its compute capability, by which backends are chosen and kernels specialized.
    """
    device = ShadowDevice(total_bytes)
    torch._C._ensureCUDADeviceGuardSet()
    with ExitStack() as stack:
        for name, value in replacements(device, capability).items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        name = "_cuda_endAllocateToPool"
        stack.enter_context(mock.patch.object(torch._C, name, device.end_allocate, create=True))
        stack.enter_context(triton_kernels(device, capability))
        stack.enter_context(reference_numbers(device))
        stack.enter_context(on_this_thread(device))
        yield device


@contextmanager
def on_this_thread(device: ShadowDevice) -> Iterator[None]:
    """Let another thread compute on an active device: what torch calls modes are per thread."""
    with _DispatchMode(device), _FunctionMode(device):
        yield


class _FunctionMode(TorchFunctionMode):
    def __init__(self, device: ShadowDevice) -> None:
        super().__init__()
        self._functions = Functions(device)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self._functions.call(func, args, kwargs or {})


class _DispatchMode(TorchDispatchMode):
    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled here, and the wrapper costs as much as an operation

    def __init__(self, device: ShadowDevice) -> None:
        super().__init__()
        self._device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return dispatch(self._device, func, args, kwargs or {})
