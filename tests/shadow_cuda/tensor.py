"""A tensor that reports device cuda:0 and keeps its elements in a CPU tensor."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

DEVICE = torch.device("cuda", 0)


class ShadowTensor(Tensor):
    """A tensor of the shadow device.

    Views share `content`'s storage as views on a GPU share memory. Operations run only while a
    `ShadowCuda` is active: its dispatch mode sees them first.
    """

    content: Tensor

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(cls, content: Tensor) -> "ShadowTensor":
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            content.size(),
            strides=content.stride(),
            storage_offset=content.storage_offset(),
            dtype=content.dtype,
            device=DEVICE,
        )
        made.content = content
        return made

    def __init__(self, content: Tensor) -> None:
        pass

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> object:
        raise RuntimeError(f"{func} on a tensor of the shadow device, which is not active")

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"ShadowTensor({list(self.shape)}, {self.dtype}, device={DEVICE})"

    def tolist(self) -> Any:
        """Read everything, which waits for the device."""
        return self.cpu().tolist()

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory that stands for the device's."""
        return self.content.untyped_storage()

    def data_ptr(self) -> int:
        """An address that views share as on a GPU."""
        return self.content.data_ptr()


def is_cuda(device: object) -> bool:
    """Whether a `device` argument means the shadow device."""
    if isinstance(device, int) and not isinstance(device, bool):
        return True
    return isinstance(device, str | torch.device) and torch.device(device).type == "cuda"


def map_tensors(tree: Any, change: Callable[[Tensor], object]) -> Any:
    """Apply `change` to every tensor in nested lists, tuples and dicts."""
    if isinstance(tree, Tensor):
        return change(tree)
    kind = type(tree)
    if kind is tuple or kind is list:
        return kind([map_tensors(item, change) for item in tree])
    if kind is dict:
        return {key: map_tensors(value, change) for key, value in tree.items()}
    if isinstance(tree, tuple):  # a named one, as torch.return_types has
        return kind([map_tensors(item, change) for item in tree])
    return tree


def tensors_in(items: Iterable[Any]) -> list[Tensor]:
    """Every tensor in nested lists and tuples, in order."""
    found: list[Tensor] = []
    for item in items:
        if isinstance(item, Tensor):
            found.append(item)
        elif isinstance(item, list | tuple):
            found += tensors_in(item)
    return found


def tensors_of_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Every tensor that an operation is given."""
    return tensors_in((*args, *kwargs.values())) if kwargs else tensors_in(args)


def contents(items: Iterable[Any]) -> list[Any]:
    """The items with the tensors on the CPU in place of the device's, also in lists."""
    return [
        item.content
        if type(item) is ShadowTensor
        else contents(item)
        if type(item) is list or type(item) is tuple
        else item
        for item in items
    ]
