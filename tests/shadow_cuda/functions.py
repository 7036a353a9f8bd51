"""Calls of torch's Python functions that name a device, pinned memory, or a whole transfer.

They are taken before torch's bindings see them, which would look for a driver.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tests.shadow_cuda.device import EMPTY, ShadowDevice
from tests.shadow_cuda.tensor import DEVICE, ShadowTensor, is_cuda

CPU = torch.device("cpu")
FROM_HOST = {torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor}
"""They copy what the host has."""


class Functions:
    """What each function does on the shadow device."""

    def __init__(self, device: ShadowDevice) -> None:
        self._device = device
        self._handlers: dict[Any, Callable[..., Any]] = {
            Tensor.to: self._to,
            Tensor.cuda: self._cuda,
            Tensor.pin_memory: self._pin_memory,
            Tensor.is_pinned: self._is_pinned,
            Tensor.new_tensor: self._new_tensor,
            Tensor.record_stream: lambda tensor, stream: None,
            Tensor.__getitem__: self._getitem,
            Tensor.__setitem__: self._setitem,
        }

    def call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Call a function that torch's user called."""
        if not kwargs and func not in self._handlers:
            return func(*args)
        handler = self._handlers.get(func)
        if handler is not None:
            return handler(*args, **kwargs)
        if kwargs.get("pin_memory"):
            if is_cuda(kwargs.get("device")):
                raise RuntimeError("Only dense CPU tensors can be pinned")
            made = func(*args, **{key: kwargs[key] for key in kwargs if key != "pin_memory"})
            return self._device.host.pin(made)
        if is_cuda(kwargs.get("device")):
            return self._create(func, args, kwargs)
        return func(*args, **kwargs)

    def _create(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func is torch.as_tensor and isinstance(args[0], Tensor):
            return self._to(args[0], kwargs["device"], kwargs.get("dtype"))
        if func in FROM_HOST:
            made = func(*args, **kwargs | {"device": CPU})
            return self._device.upload(made, non_blocking=False, what=func.__name__)
        if any(isinstance(one, ShadowTensor) for one in args):
            # A function like zeros_like: the new tensor is where the given one is.
            return func(*args, **{key: kwargs[key] for key in kwargs if key != "device"})
        on_cpu = kwargs | {"device": CPU}
        return self._device.create(lambda: func(*args, **on_cpu), is_filled=func not in EMPTY)

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        copy = kwargs.pop("copy", False)
        if args and isinstance(args[0], Tensor):
            args = (args[0].device, args[0].dtype, *args[1:])
        target, dtype, non_blocking, memory_format = torch._C._nn._parse_to(*args, **kwargs)
        options = {"dtype": dtype or tensor.dtype, "memory_format": memory_format, "copy": copy}
        options = {key: value for key, value in options.items() if value is not None}
        is_on_device = isinstance(tensor, ShadowTensor)
        if is_on_device and target is not None and not is_cuda(target):
            return self._device.download(tensor, options["dtype"], non_blocking=non_blocking)  # type: ignore[arg-type]
        if is_on_device or target is None:
            return tensor.to(**options)
        if not is_cuda(target):
            return tensor.to(device=target, **options)
        # As on a GPU, the bytes travel first and are cast there.
        made = self._device.upload(tensor, non_blocking=non_blocking, what="Tensor.to")
        return made.to(**options | {"copy": False})

    def _cuda(self, tensor: Tensor, device: Any = None, non_blocking: bool = False) -> Tensor:
        return self._to(tensor, DEVICE, non_blocking=non_blocking)

    def _pin_memory(self, tensor: Tensor, device: Any = None) -> Tensor:
        if isinstance(tensor, ShadowTensor):
            raise RuntimeError(f"cannot pin {tensor!r}: only dense CPU tensors can be pinned")
        host = self._device.host
        return tensor if host.is_pinned(tensor) else host.pin(tensor.clone())

    def _is_pinned(self, tensor: Tensor, device: Any = None) -> bool:
        return not isinstance(tensor, ShadowTensor) and self._device.host.is_pinned(tensor)

    def _new_tensor(self, tensor: Tensor, data: Any, **kwargs: Any) -> Tensor:
        target = kwargs.pop("device", None) or tensor.device
        kwargs.setdefault("dtype", tensor.dtype)
        made = torch.tensor(data, **kwargs)
        if not is_cuda(target):
            return made
        return self._device.upload(made, non_blocking=False, what="new_tensor")

    def _getitem(self, tensor: Tensor, index: Any) -> Tensor:
        return tensor[_without_lists(tensor, index)]

    def _setitem(self, tensor: Tensor, index: Any, value: Any) -> None:
        tensor[_without_lists(tensor, index)] = value


def _without_lists(tensor: Tensor, index: Any) -> Any:
    """Make tensors of the CPU of an index's lists; they are counted when they are used."""
    if not isinstance(tensor, ShadowTensor):
        return index
    if isinstance(index, list):
        return torch.tensor(index)
    if isinstance(index, tuple):
        return tuple(torch.tensor(one) if isinstance(one, list) else one for one in index)
    return index
