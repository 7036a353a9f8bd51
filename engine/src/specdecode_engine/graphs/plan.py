"""What to capture: reachable pairs of num_steps and batch size, largest first, within a budget."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.adaptive.static import StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.batch.shapes import DraftShape, ForwardShape, forwards_of
from specdecode_engine.graphs.reach import padded_size, reachable


@dataclass(frozen=True, slots=True, order=True)
class GraphKey:
    """Steps of one num_steps on batches that are padded to one size."""

    num_steps: int
    batch_size: int

    def __str__(self) -> str:
        return f"num_steps {self.num_steps} at batch size {self.batch_size}"


@dataclass(frozen=True, slots=True)
class Budget:
    """The most that capturing may take; None is unlimited. Seconds count at start only."""

    max_bytes: int | None = None
    max_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class CaptureDecision:
    """Why a pair has no CUDA graphs: it is pending until an idle step, or it stays eager."""

    key: GraphKey
    reason: str
    is_pending: bool = False

    def __str__(self) -> str:
        return f"{self.key} {self.reason}"


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """Reachable pairs, largest first, with the forwards that each needs; pairs may share some."""

    sizes: tuple[int, ...]  # ascending
    pairs: Mapping[GraphKey, tuple[ForwardShape, ...]]

    def key_of(self, num_steps: int, batch_size: int) -> GraphKey | None:
        """Return the pair of a step, reachable or not; None beyond all sizes."""
        padded = padded_size(self.sizes, batch_size)
        return None if padded is None else GraphKey(num_steps, padded)

    def forwards(self) -> frozenset[ForwardShape]:
        """Every forward of every pair."""
        return frozenset(one for forwards in self.pairs.values() for one in forwards)

    def fit(
        self, bytes_of: Callable[[Iterable[ForwardShape]], int], max_bytes: int
    ) -> tuple["GraphPlan", tuple[CaptureDecision, ...]]:
        """Drop the largest pairs until the shared buffers fit; return the rest and the dropped.

        Args:
            bytes_of: bytes of the buffers that these forwards share.
        """
        pairs, dropped = dict(self.pairs), list[CaptureDecision]()
        for key in self.pairs:
            needed = bytes_of(GraphPlan(self.sizes, pairs).forwards())
            if needed <= max_bytes:
                break
            del pairs[key]
            reason = (
                f"runs eagerly: its buffers take {_mib(needed)} and graphs.max_bytes is "
                f"{_mib(max_bytes)}; raise graphs.max_bytes or lower graphs.batch_sizes"
            )
            dropped.append(CaptureDecision(key, reason))
        return GraphPlan(self.sizes, pairs), tuple(dropped)


@dataclass(frozen=True, slots=True)
class GraphSpace:
    """The part of a plan that does not depend on the table.

    `window` is None without a draft model; see `forwards_of`.
    """

    shapes: Mapping[int, DraftShape]  # by num_steps
    sizes: tuple[int, ...]  # ascending
    max_running: int
    window: int | None

    def plan(self, policy: AdaptivePolicy) -> GraphPlan:
        """Compute the pairs that a policy can reach in its table."""
        reach = reachable(_choosable(policy), policy.routing, self.sizes, self.max_running)
        pairs = {
            GraphKey(num_steps, size): forwards_of(self.shapes[num_steps], size, self.window)
            for num_steps, reached in reach.items()
            for size in reached
        }
        keys = sorted(pairs, key=lambda key: (pairs[key][0].total_rows, key), reverse=True)
        return GraphPlan(self.sizes, {key: pairs[key] for key in keys})


def _choosable(policy: AdaptivePolicy) -> RangeTable:
    """Narrow the table to what the policy can choose: one num_steps per range if it is static."""
    if not isinstance(policy, StaticPolicy):
        return policy.table
    return RangeTable(
        BatchRange(state.range_start, (state.num_steps,)) for state in policy.states()
    )


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"
