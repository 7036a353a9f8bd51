"""Measures the memory of tensors that are alive at once, by watching what torch allocates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from specdecode_kernels.cpu.memory import WeightMemory
from specdecode_kernels.cpu.tuning import Tuning
from tests.shadow_cuda.weak_storage import WeakStorage


class LiveBytes(TorchDispatchMode):
    """Within the context, `peak` is the most bytes of storages made in it that lived at a time.

    Views share a storage. What a file maps is not made by an operation, and does not count.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._live: list[WeakStorage] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        known = {_pointer(one) for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)}
        made = {_pointer(one): one for one in tree_leaves(result) if isinstance(one, Tensor)}
        new = [tensor for pointer, tensor in made.items() if pointer not in known]
        if new:
            self._live = [one for one in self._live if not one.is_freed]
            self._live += [WeakStorage(tensor) for tensor in new]
            self.peak = max(self.peak, sum(one.num_bytes for one in self._live))
        return result


class TorchMemory(WeightMemory):
    """Memory for packed weights that torch allocates, so that `LiveBytes` counts it."""

    def take(self, num_bytes: int, tuning: Tuning) -> Tensor:
        return torch.empty(num_bytes, dtype=torch.uint8)


def _pointer(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
