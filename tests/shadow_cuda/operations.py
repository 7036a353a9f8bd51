"""Which operations wait for the device, and which take a tensor of the CPU."""

from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor

from tests.shadow_cuda.device import EMPTY, ShadowDevice
from tests.shadow_cuda.errors import MixedDevices
from tests.shadow_cuda.tensor import ShadowTensor, is_cuda, tensors_of_call
from tests.shadow_cuda.waits import Wait

_aten = torch.ops.aten

INDEXING = {_aten.index.Tensor, _aten._unsafe_index.Tensor}
INDEXED_WRITES = {
    _aten.index_put.default,
    _aten.index_put_.default,
    _aten._index_put_impl_.default,
    _aten._unsafe_index_put.default,
}
TAKE_CPU_SCALARS = {
    _aten.fill_.Tensor,
    _aten.fill.Tensor,
    _aten.masked_fill.Tensor,
    _aten.masked_fill_.Tensor,
}
"""Besides all pointwise operations."""
MASKS = (torch.bool, torch.uint8)


def dispatch(device: ShadowDevice, func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation where its tensors are.

    Raises:
        CaptureRefused: it waits, and a graph is being captured.
        MixedDevices: a GPU would not take these tensors together.
    """
    tensors = tensors_of_call(args, kwargs)
    num_shadows = sum([type(one) is ShadowTensor for one in tensors])
    if not num_shadows:
        if not is_cuda(kwargs.get("device")):
            return func(*args, **kwargs)
        on_cpu = kwargs | {"device": torch.device("cpu")}
        return device.create(lambda: func(*args, **on_cpu), is_filled=func not in EMPTY)
    if func is _aten.copy_.default:
        return _copy(device, *args, **kwargs)
    if func is _aten._to_copy.default and not is_cuda(kwargs.get("device", "cuda")):
        dtype, is_async = kwargs.get("dtype") or args[0].dtype, bool(kwargs.get("non_blocking"))
        return device.download(args[0], dtype, non_blocking=is_async)
    if func in INDEXING or func in INDEXED_WRITES:
        _check_index(device, func, args, kwargs)
    else:
        if num_shadows < len(tensors):
            _check_devices(device, func, tensors)
        if _reads_the_device(func, kwargs):
            device.wait(func.name())
    if kwargs and kwargs.get("device") is not None:
        kwargs = kwargs | {"device": torch.device("cpu")}
    return device.compute(func, args, kwargs)


def _copy(
    device: ShadowDevice, target: Tensor, source: Tensor, non_blocking: bool = False
) -> Tensor:
    if isinstance(target, ShadowTensor) and isinstance(source, ShadowTensor):
        return device.compute(_aten.copy_.default, (target, source), {})  # type: ignore[no-any-return]
    if isinstance(target, ShadowTensor):
        device.copy_in(target, source, non_blocking=non_blocking, what="copy from the CPU")
    elif isinstance(source, ShadowTensor):
        device.copy_out(target, source, non_blocking=non_blocking, what="copy to the CPU")
    return target


def _check_index(device: ShadowDevice, func: Any, args: Any, kwargs: Any) -> None:
    """Indices may be on the CPU and are then copied; a mask has to be counted first."""
    target, indices, *rest = args
    values = rest[0] if func in INDEXED_WRITES else None
    others = [one for one in (target, values) if isinstance(one, Tensor)]
    if not isinstance(target, ShadowTensor) or any(
        not isinstance(one, ShadowTensor) and one.dim() for one in others
    ):
        _refuse(device, func)
    known = [index for index in indices if index is not None]
    if any(not isinstance(index, ShadowTensor) for index in known):
        device.wait(f"{func.name()} with an index on the CPU")
    has_mask = any(index.dtype in MASKS for index in known)
    is_scalar = values is not None and not isinstance(values, ShadowTensor)
    if has_mask and not (is_scalar and len(known) == 1):  # this one is a masked_fill
        device.wait(f"{func.name()} with a mask")
    elif is_scalar and not has_mask:
        device.wait(f"{func.name()} of a value on the CPU")


def _check_devices(device: ShadowDevice, func: Any, tensors: list[Tensor]) -> None:
    for one in tensors:
        if not isinstance(one, ShadowTensor) and (one.dim() or not _takes_cpu_scalars(func)):
            _refuse(device, func)


@cache
def _takes_cpu_scalars(func: Any) -> bool:
    return torch.Tag.pointwise in func.tags or func in TAKE_CPU_SCALARS


def _refuse(device: ShadowDevice, func: Any) -> NoReturn:
    text = (
        "Expected all tensors to be on the same device, but found at least two devices, cuda:0 "
        f"and cpu! ({Wait.here(func.name())})"
    )
    device.fail(MixedDevices(text))


def _reads_the_device(func: Any, kwargs: Any) -> bool:
    """Whether the host has to know elements: sizes of the result, or the result itself."""
    is_sized = func is _aten.repeat_interleave.Tensor and kwargs.get("output_size") is not None
    return _depends_on_elements(func) and not is_sized


@cache
def _depends_on_elements(func: Any) -> bool:
    tags = func.tags
    return torch.Tag.dynamic_output_shape in tags or torch.Tag.data_dependent_output in tags
