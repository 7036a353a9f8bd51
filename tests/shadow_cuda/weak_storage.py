"""References to tensors' memory that do not keep it alive."""

import torch
from torch import Tensor


class WeakStorage:
    """The storage of a tensor, while anything else refers to it."""

    def __init__(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.num_bytes = storage.nbytes()
        self._reference: int = storage._weak_ref()  # type: ignore[assignment]

    @property
    def is_freed(self) -> bool:
        """Whether nothing refers to it any more."""
        return bool(torch.UntypedStorage._expired(self._reference))

    def get(self) -> torch.UntypedStorage | None:
        """The storage; None once it was freed."""
        return torch.UntypedStorage._new_with_weak_ptr(self._reference)

    def __del__(self) -> None:
        torch.UntypedStorage._free_weak_ref(self._reference)
