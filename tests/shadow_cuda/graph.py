"""CUDA graphs: a capture records operations with addresses and numbers, a replay runs them again.

As on a GPU, a captured operation reads whatever lies at its addresses when the graph is replayed,
numbers stay what they were, and capturing changes no memory. Memory that was allocated during the
capture belongs to the pool: it is poisoned after the capture and before each replay of any graph
that shares the pool.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tests.shadow_cuda.errors import CaptureRefused
from tests.shadow_cuda.poison import poison


@dataclass(slots=True, eq=False)
class GraphPool:
    """Memory that graphs share: what one left there is lost when another is replayed."""

    last: "GraphRecord | None" = None


@dataclass(frozen=True, slots=True)
class Recorded:
    """One operation: `run` computes it again and its results go to `outputs`."""

    run: Callable[[], Iterable[Tensor]]
    outputs: tuple[Tensor, ...]


@dataclass(slots=True, eq=False)
class GraphRecord:
    """The operations of one capture, and the memory that they allocated."""

    pool: GraphPool
    operations: list[Recorded] = field(default_factory=list)
    allocated: list[Tensor] = field(default_factory=list)

    def replay(self) -> None:
        """Run all operations again."""
        before, self.pool.last = self.pool.last, self
        if before is not None and before is not self:
            before.poison()
        self.poison()
        with torch.inference_mode():
            for operation in self.operations:
                results = operation.run()
                for output, result in zip(operation.outputs, results, strict=False):
                    output.copy_(result)

    def poison(self) -> None:
        """Poison what the operations allocated."""
        for tensor in self.allocated:
            poison(tensor)


class Capture:
    """A capture under way."""

    def __init__(self, pool: GraphPool) -> None:
        self.record = GraphRecord(pool)
        self.refusal: str | None = None
        self._own: set[int] = set()
        self._saved: dict[int, tuple[Tensor, Tensor]] = {}

    def allocated(self, content: Tensor) -> None:
        """Note memory that belongs to the graph."""
        self.record.allocated.append(content)
        self._own.add(content.untyped_storage().data_ptr())

    def before_write(self, content: Tensor) -> None:
        """Keep what lies at an address outside the pool: capturing does not execute."""
        storage = content.untyped_storage()
        if storage.data_ptr() not in self._own and storage.data_ptr() not in self._saved:
            memory = torch.empty(0, dtype=torch.uint8).set_(storage)
            self._saved[storage.data_ptr()] = (memory, memory.clone())

    def add(self, run: Callable[[], Iterable[Tensor]], outputs: tuple[Tensor, ...]) -> None:
        """Record an operation."""
        self.record.operations.append(Recorded(run, outputs))

    def end(self) -> GraphRecord:
        """Restore what was written, and poison what was computed.

        Raises:
            CaptureRefused: something was refused before.
        """
        with torch.inference_mode():
            for memory, saved in self._saved.values():
                memory.copy_(saved)
        self.record.poison()
        if self.refusal is not None:
            raise CaptureRefused(self.refusal)
        return self.record
