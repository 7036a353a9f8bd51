"""What to capture, the (num_steps, batch size) pairs that a table can reach; what was captured.

The num_steps at start has no special role: it is reached where the table contains it.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from specdecode_engine.adaptive.policy import AdaptivePolicy, StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable, Routing, padded_size
from specdecode_engine.batch.shapes import (
    DraftForwards,
    DraftShape,
    ForwardShape,
    forwards_of,
    plain_forward,
)


@dataclass(frozen=True, slots=True, order=True)
class GraphKey:
    """Steps of one num_steps on batches that are padded to one size."""

    num_steps: int
    batch_size: int
    is_plain: bool = False  # nothing is kept for the draft, which is unfit
    verify_tokens: int = 0  # see `DraftShape`

    def __str__(self) -> str:
        ending = " without what the draft reads" if self.is_plain else ""
        if self.verify_tokens:
            ending += f", verifying {self.verify_tokens} of a request on average"
        return f"num_steps {self.num_steps} at batch size {self.batch_size}{ending}"


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

    def key_of(
        self, num_steps: int, batch_size: int, *, is_plain: bool = False, verify_tokens: int = 0
    ) -> GraphKey | None:
        """Return the pair of a step, reachable or not; None beyond all sizes."""
        padded = padded_size(self.sizes, batch_size)
        return None if padded is None else GraphKey(num_steps, padded, is_plain, verify_tokens)

    def forwards(self) -> frozenset[ForwardShape]:
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

    `has_plain` adds steps without a draft at every size, for a proposer that may find nothing.
    """

    shapes: Mapping[int, DraftShape]  # by num_steps
    sizes: tuple[int, ...]  # ascending
    max_running: int
    draft_forwards: DraftForwards
    has_plain: bool = False

    def plan(self, policy: AdaptivePolicy, *, with_plain: bool = False) -> GraphPlan:
        """Compute the pairs that a policy can reach in its table.

        Args:
            with_plain: add steps that keep nothing for the draft, at every size.
        """
        pairs = dict[GraphKey, tuple[ForwardShape, ...]]()
        table = _choosable(policy)
        for size, entry in reachable(table, policy.routing, self.sizes, self.max_running):
            for num_steps in entry.candidate_steps:
                shape = self.shapes[num_steps].verifying(entry.verify_tokens)
                key = GraphKey(num_steps, size, verify_tokens=shape.verify_tokens)
                pairs[key] = forwards_of(shape, size, self.draft_forwards)
        if self.has_plain:
            for size in {key.batch_size for key in pairs}:
                forwards = forwards_of(self.shapes[0], size, self.draft_forwards)
                pairs[GraphKey(0, size)] = forwards
        if with_plain:
            for size in self.sizes:
                pairs[GraphKey(0, size, is_plain=True)] = (plain_forward(size),)
        keys = sorted(pairs, key=lambda key: (pairs[key][0].total_rows, key), reverse=True)
        return GraphPlan(self.sizes, {key: pairs[key] for key in keys})


def _choosable(policy: AdaptivePolicy) -> RangeTable:
    """Narrow the table to what the policy can choose: one num_steps per range if it is static."""
    if not isinstance(policy, StaticPolicy):
        return policy.table
    chosen = {state.range_start: (state.num_steps,) for state in policy.states()}
    ranges = policy.table.ranges
    return RangeTable(replace(one, candidate_steps=chosen[one.lower_bound]) for one in ranges)


def _mib(num_bytes: int) -> str:
    return f"{num_bytes / 2**20:.1f} MiB"


def batch_sizes(max_running: int, wanted: Iterable[int] | None = None) -> tuple[int, ...]:
    """List the batch sizes to capture, ascending: the configured ones, or few with little padding.

    The default is 1, 2, 4, 8, 12, 16, 24, 32, … 64, then quarters of a power of two: beyond 16 at
    most a third of the rows are padding. `max_running` is always among them. A configured size
    beyond `max_running` counts as `max_running`.
    """
    if wanted is not None:
        return tuple(sorted({min(size, max_running) for size in wanted}))
    sizes, size = [], 1
    while size < max_running:
        sizes.append(size)
        size += _gap(size)
    return (*sizes, max_running)


def reachable(
    table: RangeTable, routing: Routing, sizes: tuple[int, ...], max_running: int
) -> Iterator[tuple[int, BatchRange]]:
    """Yield the captured batch sizes with every range that can come to decide for them.

    A range that the routing keeps beyond its bounds must have been entered before, by a batch that
    is no larger than batches can be.

    Args:
        sizes: captured batch sizes, ascending; a batch is padded to the next of them.
        max_running: the largest batch.
    """
    batches = range(1, max_running + 1)
    entered = {routing.route(table, batch_size, None).lower_bound for batch_size in batches}
    found = set[tuple[int, int]]()
    for batch_size in batches:
        padded = padded_size(sizes, batch_size)
        if padded is None:
            return
        for entry in routing.reachable(table, batch_size):
            place = padded, entry.lower_bound
            if entry.lower_bound in entered and place not in found:
                found.add(place)
                yield padded, entry


def _gap(size: int) -> int:
    if size < 8:
        return size
    if size < 64:
        return 4 if size < 16 else 8
    power: int = 1 << (size.bit_length() - 1)
    return power // 4


CAPTURING = "capturing CUDA graphs"
"""The stage of an engine that does so."""


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
