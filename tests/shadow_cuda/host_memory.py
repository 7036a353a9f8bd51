"""Pinned host memory, and copies that the host has not waited for.

A copy to the host shows poison until an event that was recorded after it, its stream or the device
has been waited for. A copy from pinned memory reads it at some time before such a wait: the memory
must not change until then.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tests.shadow_cuda.errors import HostBufferMisused
from tests.shadow_cuda.plain_torch import plain_torch
from tests.shadow_cuda.poison import poison
from tests.shadow_cuda.weak_storage import WeakStorage

_PRUNE_AT = 4096
"""Pinned storages after which freed ones are dropped from the table."""


class WeakView:
    """A view of a host tensor that does not keep its memory alive, like an address in a graph."""

    def __init__(self, tensor: Tensor) -> None:
        self._storage = WeakStorage(tensor)
        self._dtype = tensor.dtype
        self._place = (tensor.storage_offset(), tensor.size(), tensor.stride())

    def tensor(self) -> Tensor:
        """The view.

        Raises:
            HostBufferMisused: the memory was freed.
        """
        storage = self._storage.get()
        if storage is None:
            raise HostBufferMisused(
                "a CUDA graph copies from or to a host buffer that was freed after the capture"
            )
        return torch.empty(0, dtype=self._dtype).set_(storage, *self._place)


@dataclass(frozen=True, slots=True)
class _Download:
    ticket: int
    destination: Tensor
    content: Tensor


@dataclass(frozen=True, slots=True)
class _Upload:
    ticket: int
    source: Tensor
    content: Tensor


class HostMemory:
    """What is pinned, and the copies under way; tickets number the commands given to the device."""

    def __init__(self) -> None:
        self.ticket = 0
        self.arrived = 0  # the last ticket that is known to be complete
        self._pinned: dict[int, WeakStorage] = {}
        self._downloads: list[_Download] = []
        self._uploads: list[_Upload] = []

    def pin(self, tensor: Tensor) -> Tensor:
        """Mark a host tensor's memory as pinned."""
        if len(self._pinned) >= _PRUNE_AT:
            self._pinned = {key: one for key, one in self._pinned.items() if not one.is_freed}
        if not self.is_pinned(tensor):
            # A weak reference keeps the number of the storage from being given to another one.
            self._pinned[tensor.untyped_storage()._cdata] = WeakStorage(tensor)
        return tensor

    def is_pinned(self, tensor: Tensor) -> bool:
        """Whether a host tensor lies in pinned memory."""
        return tensor.untyped_storage()._cdata in self._pinned

    def download(self, destination: Tensor, content: Tensor) -> None:
        """Start a copy to the host."""
        self.ticket += 1
        arriving = destination.clone()
        arriving.copy_(content)
        self._downloads.append(_Download(self.ticket, destination, arriving))
        destination.copy_(arriving)  # what is opposite of a truth value depends on the value
        poison(destination)

    def upload(self, source: Tensor) -> None:
        """Watch pinned memory that a copy to the device reads."""
        self.ticket += 1
        self._uploads.append(_Upload(self.ticket, source, source.clone()))

    @plain_torch()
    def arrive(self, ticket: int) -> None:
        """Complete every copy up to a ticket.

        Raises:
            HostBufferMisused: the source of one of them was overwritten meanwhile.
        """
        self.arrived = max(self.arrived, ticket)
        with torch.inference_mode():
            for copy in self._downloads:
                if copy.ticket <= ticket:
                    copy.destination.copy_(copy.content)
        arrived = {copy.destination.data_ptr() for copy in self._downloads if copy.ticket <= ticket}
        self._downloads = [copy for copy in self._downloads if copy.ticket > ticket]
        for copy in self._downloads:
            if copy.destination.data_ptr() in arrived:
                poison(copy.destination)  # a later copy to the same memory is under way
        done = [copy for copy in self._uploads if copy.ticket <= ticket]
        self._uploads = [copy for copy in self._uploads if copy.ticket > ticket]
        if not all(_same_bits(copy.source, copy.content) for copy in done):
            raise HostBufferMisused(
                "pinned memory was overwritten before the copy from it was known to be complete"
            )


def _same_bits(a: Tensor, b: Tensor) -> bool:
    flat = (one.contiguous().reshape(-1).view(torch.uint8) for one in (a, b))
    return torch.equal(*flat)
