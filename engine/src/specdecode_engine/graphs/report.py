"""Captured graphs, their time and memory, and the steps that ran eagerly, for logs and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Eager(StrEnum):
    """Why a decode step ran eagerly."""

    OFF = "off"  # nothing is captured
    TOO_LARGE = "too_large"  # the batch is larger than the largest captured size
    UNPLANNED = "unplanned"  # the table does not reach it
    PENDING = "pending"  # it is captured in an idle step
    REFUSED = "refused"  # no memory within the budget, or capturing failed


@dataclass(frozen=True, slots=True)
class GraphSetReport:
    """The graphs of one num_steps. One that several share is counted where it was captured."""

    num_steps: int
    batch_sizes: tuple[int, ...] = ()  # complete, ascending
    graphs: int = 0
    seconds: float = 0.0
    num_bytes: int = 0


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The graphs of the engine; steps are decode steps."""

    mode: str  # off, static or cuda
    sets: tuple[GraphSetReport, ...] = ()
    shared_bytes: int = 0  # input and output buffers
    pending: tuple[str, ...] = ()  # pairs that wait for an idle step, with the reason
    refused: tuple[str, ...] = ()  # pairs that stay eager, with the reason
    failure: str = ""  # the error that ended capturing
    graph_steps: int = 0
    eager_steps: Mapping[str, int] = field(default_factory=dict)  # by reason

    @property
    def pairs(self) -> int:
        """Captured pairs of num_steps and batch size."""
        return sum(len(one.batch_sizes) for one in self.sets)

    @property
    def seconds(self) -> float:
        """Time that capturing took, at start and since."""
        return sum(one.seconds for one in self.sets)

    @property
    def num_bytes(self) -> int:
        """Memory of buffers and graphs."""
        return self.shared_bytes + sum(one.num_bytes for one in self.sets)

    def lines(self) -> tuple[str, ...]:
        """Format it for the log: a line per num_steps, then the pairs without graphs."""
        rows = [
            f"num_steps {one.num_steps:>2}  {one.graphs:>4} graphs  {one.seconds:7.2f} s  "
            f"{one.num_bytes / 2**20:8.1f} MiB  batch sizes {_joined(one.batch_sizes)}"
            for one in self.sets
        ]
        shared = f"shared input and output buffers  {self.shared_bytes / 2**20:8.1f} MiB"
        return (*rows, shared, *self.pending, *self.refused)


def _joined(sizes: tuple[int, ...]) -> str:
    return " ".join(map(str, sizes)) or "none"
