"""What was captured, what it took and what ran without: plain numbers for logs and metrics."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Eager(StrEnum):
    """Why a decode round ran without captured passes."""

    OFF = "off"  # nothing is captured
    TOO_LARGE = "too_large"  # the batch is larger than the largest captured size
    UNPLANNED = "unplanned"  # the table that was planned for does not reach it
    REFUSED = "refused"  # by the budget, or memory ran out


@dataclass(frozen=True, slots=True)
class TierReport:
    """One depth. A pass that several depths use is counted where it was captured first."""

    num_steps: int
    batch_sizes: tuple[int, ...]  # captured, ascending
    passes: int
    seconds: float
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GraphReport:
    """The whole engine; rounds are those of decoding."""

    mode: str  # off, static or cuda
    tiers: tuple[TierReport, ...] = ()
    shared_bytes: int = 0  # inputs and outputs, which all passes share
    lazy: tuple[str, ...] = ()  # pairs that wait for their first use, with the reason
    refused: tuple[str, ...] = ()  # pairs without a graph, with the reason
    captured_rounds: int = 0
    eager_rounds: Mapping[str, int] = field(default_factory=dict)  # by reason
    switches: int = 0  # rounds whose state was another than that of the round before

    @property
    def pairs(self) -> int:
        """Captured pairs of depth and batch size."""
        return sum(len(tier.batch_sizes) for tier in self.tiers)

    @property
    def seconds(self) -> float:
        """Time that capturing took, at start and since."""
        return sum(tier.seconds for tier in self.tiers)

    @property
    def num_bytes(self) -> int:
        """Memory that all of it takes."""
        return self.shared_bytes + sum(tier.num_bytes for tier in self.tiers)

    def lines(self) -> tuple[str, ...]:
        """Say it in lines for the log: one per depth, then what is left out."""
        rows = [
            f"depth {tier.num_steps:>2}  {tier.passes:>4} passes  {tier.seconds:7.2f} s  "
            f"{tier.num_bytes / 2**20:8.1f} MiB  batch sizes {_joined(tier.batch_sizes)}"
            for tier in self.tiers
        ]
        shared = f"shared inputs and outputs  {self.shared_bytes / 2**20:8.1f} MiB"
        return (*rows, shared, *self.lazy, *self.refused)


def _joined(sizes: tuple[int, ...]) -> str:
    return " ".join(map(str, sizes)) or "none"
