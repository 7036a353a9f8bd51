"""Numbers for ops whose kernels do not run on the shadow device: those of the torch reference.

An op of a backend first runs its real launcher, which checks, allocates, waits and counts as it
does on a GPU, and whose outputs stay poison. If a Triton kernel was launched, the op's reference
computes on the contents of the same arguments, uncounted, and its results are copied into what the
launcher returned; what the reference writes in place is written. In a capture both are recorded.
That the kernels compute the reference's numbers is proven elsewhere, by Triton's interpreter:
tests/kernels/test_<op>_triton.py.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import is_dataclass, replace
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from specdecode_engine.startup import config
from specdecode_kernels import Backend, Choice, choose_backend
from specdecode_kernels.backend import TORCH
from specdecode_kernels.testing import OPS
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.plain_torch import plain_torch
from tests.shadow_cuda.tensor import ShadowTensor, tensors_in

Op = Callable[..., Any]


@contextmanager
def reference_numbers(device: ShadowDevice) -> Iterator[None]:
    """Give the backends of the engines that are built meanwhile the reference's numbers."""

    def choose(*arguments: Any, **named: Any) -> Choice:
        choice = choose_backend(*arguments, **named)
        return choice._replace(backend=with_reference_numbers(choice.backend, device))

    with mock.patch.object(config, "choose_backend", choose):
        yield


def with_reference_numbers(backend: Backend, device: ShadowDevice) -> Backend:
    """Replace every op that has a launcher of its own."""
    pairs = {op: (getattr(backend, op), getattr(TORCH, op)) for op in OPS}
    changed: dict[str, Any] = {
        op: _with_reference(device, launcher, reference)
        for op, (launcher, reference) in pairs.items()
        if launcher is not reference
    }
    return replace(backend, **changed)


def _with_reference(device: ShadowDevice, launcher: Op, reference: Op) -> Op:
    def call(*arguments: Any) -> Any:
        before = device.triton_launches
        results = launcher(*arguments)
        if device.triton_launches > before:  # else it computed the numbers with torch
            _compute(device, reference, arguments, results)
        return results

    return call


@plain_torch()
def _compute(device: ShadowDevice, reference: Op, arguments: Any, results: Any) -> None:
    plain = [map_records(one, _content) for one in arguments]
    outputs = [_content(one) for one in tensors_in((results,))]

    def run() -> tuple[Tensor, ...]:
        for output, value in zip(outputs, tensors_in((reference(*plain),)), strict=True):
            if output.shape != value.shape:
                raise AssertionError(f"{reference}: {output.shape} instead of {value.shape}")
            output.copy_(value)
        return ()

    if device.capture is not None:
        for tensor in (*all_tensors(plain), *outputs):
            device.capture.before_write(tensor)
        device.capture.add(run, ())
    with torch.inference_mode():
        run()


def map_records(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The argument of an op with `change` applied to its tensors, also in records."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, tuple):
        items = [map_records(item, change) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if is_dataclass(value):
        made = object.__new__(type(value))
        for name in _field_names(value):
            object.__setattr__(made, name, map_records(getattr(value, name), change))
        return made
    return value


def _content(tensor: Tensor) -> Tensor:
    return tensor.content if type(tensor) is ShadowTensor else tensor


def all_tensors(items: Any) -> Iterator[Tensor]:
    """Every tensor in arguments of an op, also in records."""
    for item in items:
        if isinstance(item, Tensor):
            yield item
        elif isinstance(item, list | tuple):
            yield from all_tensors(item)
        elif is_dataclass(item):
            yield from all_tensors([getattr(item, name) for name in _field_names(item)])


def _field_names(record: Any) -> tuple[str, ...]:
    return tuple(type(record).__dataclass_fields__)
