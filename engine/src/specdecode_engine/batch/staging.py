"""Numbers of the host on their way to the device: gathered in pinned memory, copied without a wait.

A copy from pageable memory blocks the host until the device has finished everything before it, so
that the host could never prepare a step while the device computes. All that a step takes from the
host is therefore put into pinned memory first and copied at once.
"""

from collections.abc import Callable
from collections.abc import Sequence as Items

import torch
from torch import Tensor

ENTRIES = 1 << 15
"""64-bit numbers of a segment, unless one list is longer."""

ALIGNED_ENTRIES = 2
"""Every list starts at a multiple of 16 bytes: Triton would compile more kernels otherwise."""


class StagingBuffer:
    """A ring of pinned segments, each with its copy on the device; on a CPU there is no copy.

    `put` returns a view of the device's copy that holds the numbers for everything launched after
    the next `send`. A segment is written again only after an event recorded after its last copy was
    reached; where that is not so yet, the ring gets one more segment, so that nothing ever waits.
    """

    def __init__(self, device: torch.device, entries: int = ENTRIES) -> None:
        self.device = device
        self._is_copied = device.type == "cuda"
        self._entries = entries
        self._ring: list[_Segment] = []  # the one that was left first comes first
        self._segment: _Segment | None = None
        self._writes: list[Callable[[], object]] = []

    def put(self, numbers: Items[int]) -> Tensor:
        """Stage integers: [n] i64."""
        if not self._is_copied:
            return torch.tensor(numbers, dtype=torch.int64)
        segment, places = self._take(len(numbers))
        segment.integers[places] = numbers
        return segment.on_device[places]

    def put_floats(self, numbers: Items[float]) -> Tensor:
        """Stage floats: [n] f64."""
        if not self._is_copied:
            return torch.tensor(numbers, dtype=torch.float64)
        segment, places = self._take(len(numbers))
        segment.floats[places] = numbers
        return segment.on_device[places].view(torch.float64)

    def after_send(self, write: Callable[[], object]) -> None:
        """Call a function that launches what reads staged numbers, once these were sent."""
        if self._is_copied:
            self._writes.append(write)
        else:
            write()

    def send(self) -> None:
        """Copy everything put since the last call, then launch what waited for it."""
        if self._segment is not None:
            self._segment.send()
        writes, self._writes = self._writes, []
        for write in writes:
            write()

    def _take(self, count: int) -> "tuple[_Segment, slice]":
        segment = self._segment_for(count)
        first = segment.take(count)
        return segment, slice(first, first + count)

    def _segment_for(self, count: int) -> "_Segment":
        """Return a segment with room for `count` numbers."""
        segment = self._segment
        if segment is not None and segment.has_room(count):
            return segment
        following = self._next(count)  # first: without memory for it nothing changes
        if segment is not None:
            segment.leave()
            self._ring.append(segment)
        self._segment = following
        return following

    def _next(self, count: int) -> "_Segment":
        for place, segment in enumerate(self._ring):
            if segment.try_reuse(count):
                return self._ring.pop(place)
        return _Segment(max(count, self._entries), self.device)


class _Segment:
    """Pinned numbers and their copy on the device, filled from the front."""

    def __init__(self, entries: int, device: torch.device) -> None:
        self._pinned = torch.empty(entries, dtype=torch.int64, pin_memory=True)
        self.integers = self._pinned.numpy()
        self.floats = self._pinned.view(torch.float64).numpy()
        self.on_device = torch.empty(entries, dtype=torch.int64, device=device)
        self._sent = self._end = 0
        self._left = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def has_room(self, count: int) -> bool:
        return self._end + count <= len(self.integers)

    def take(self, count: int) -> int:
        """Reserve `count` numbers; return the index of the first."""
        first = self._end
        self._end = -(-(first + count) // ALIGNED_ENTRIES) * ALIGNED_ENTRIES
        return first

    def send(self) -> None:
        new = slice(self._sent, self._end)
        if self._sent < self._end:
            self.on_device[new].copy_(self._pinned[new], non_blocking=True)
            self._sent = self._end

    def leave(self) -> None:
        """Mark the end of the copies from the segment."""
        self.send()
        self._left.record()

    def try_reuse(self, count: int) -> bool:
        """Start again from the front if the copies are complete and `count` numbers fit."""
        if count > len(self.integers) or not self._left.query():  # type: ignore[no-untyped-call]
            return False
        self._sent = self._end = 0
        return True
