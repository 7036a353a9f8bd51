"""How much memory of the shadow device is taken."""

import torch
from torch import Tensor

from tests.shadow_cuda.failures import Failures
from tests.shadow_cuda.weak_storage import WeakStorage

_PRUNE_AT = 100_000
"""Storages after which freed ones are dropped from the list, which is all that they cost."""


class DeviceMemory:
    """Counts the bytes of live storages; freed ones are noticed when it matters.

    `allocations` counts the storages that were made.
    """

    def __init__(self, total_bytes: int, failures: Failures) -> None:
        self.total_bytes = total_bytes
        self.allocations = 0
        self._failures = failures
        self._live: list[WeakStorage] = []
        self._most_bytes = 0  # an upper bound: some of these may be freed by now

    def allocate(self, content: Tensor) -> None:
        """Count a storage that was just made.

        Raises:
            torch.OutOfMemoryError: the device has not that much, or a test asked for it.
        """
        storage = WeakStorage(content)
        self._failures.on_allocation(storage.num_bytes)
        self.allocations += 1
        self._live.append(storage)
        self._most_bytes += storage.num_bytes
        if self._most_bytes > self.total_bytes and self.used_bytes() > self.total_bytes:
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {storage.num_bytes} bytes on the shadow "
                f"device, which has {self.total_bytes}"
            )
        if len(self._live) > _PRUNE_AT:
            self.used_bytes()

    def used_bytes(self) -> int:
        """Bytes of the storages that are still alive."""
        self._live = [storage for storage in self._live if not storage.is_freed]
        self._most_bytes = sum(storage.num_bytes for storage in self._live)
        return self._most_bytes
