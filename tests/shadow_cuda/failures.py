"""Failures that tests request: a sticky CUDA error, exhausted memory, a slow step."""

import threading

import torch

ILLEGAL_ADDRESS = "CUDA error: an illegal memory access was encountered"


class Failures:
    """What fails next; without a request nothing does."""

    def __init__(self) -> None:
        self.error: torch.AcceleratorError | None = None
        self._launches_left = 0  # until the one that fails; 0 where none does
        self._allocations_left = 0
        self._message = ILLEGAL_ADDRESS
        self._is_running = threading.Event()
        self._is_running.set()
        self._stall_seconds: float | None = None

    def fail_launch(self, number: int = 1, message: str = ILLEGAL_ADDRESS) -> None:
        """Let the `number`-th launch or copy from now raise `torch.AcceleratorError`.

        The error is sticky, as in CUDA: every later launch, copy, wait and query of an event raises
        it again. Launches in a capture count as well, and a replay is one.
        """
        self._launches_left, self._message = number, message

    def fail_allocation(self, number: int = 1) -> None:
        """Let the `number`-th allocation from now raise `torch.OutOfMemoryError`, once."""
        self._allocations_left = number

    def stall(self, seconds: float | None = None) -> None:
        """Let the device reach no event and complete no copy to the host until `release`.

        Args:
            seconds: the longest that one wait of the host lasts, after which the device runs again.
        """
        self._stall_seconds = seconds
        self._is_running.clear()

    def release(self) -> None:
        """End a stall; for any thread."""
        self._is_running.set()

    @property
    def is_stalled(self) -> bool:
        return not self._is_running.is_set()

    def on_launch(self) -> None:
        """Raise if this launch fails, or one before it did."""
        self.check()
        if self._launches_left:
            self._launches_left -= 1
            if not self._launches_left:
                self.error = torch.AcceleratorError(self._message)
                raise self.error

    def on_allocation(self, num_bytes: int) -> None:
        """Raise if this allocation fails."""
        self.check()
        if self._allocations_left:
            self._allocations_left -= 1
            if not self._allocations_left:
                raise torch.OutOfMemoryError(
                    f"CUDA out of memory. Tried to allocate {num_bytes} bytes, which was to fail"
                )

    def on_wait(self) -> None:
        """Block the host during a stall; raise the sticky error."""
        self.check()
        if not self._is_running.wait(self._stall_seconds):
            self._is_running.set()
        self.check()

    def check(self) -> None:
        """Raise the error of an earlier launch again."""
        if self.error is not None:
            raise torch.AcceleratorError(*self.error.args)
