"""The core's state and totals after a step, as plain numbers that any thread may read."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from specdecode_engine.depth.decision import RangeState
from specdecode_engine.graph_plan.report import GraphReport
from specdecode_engine.load import load


@dataclass(frozen=True, slots=True)
class RangeSnapshot:
    """One range of batch sizes: what its policy knows, and the totals of what it decided."""

    state: RangeState
    rounds_total: int
    request_rounds_total: int
    drafted_tokens_total: int
    accepted_tokens_total: int
    emitted_tokens_total: int
    decode_seconds_total: float
    switches_total: Mapping[str, int]  # changes of depth that it decided, by reason

    @property
    def wasted_tokens_total(self) -> int:
        """Drafted tokens that the target did not keep."""
        return self.drafted_tokens_total - self.accepted_tokens_total


@dataclass(frozen=True, slots=True)
class StratumSnapshot:
    """Sums over the requests of one stratum; labels and sums as the series of them have them."""

    labels: tuple[str, ...]
    sums: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TableSnapshot:
    """What was counted while one table decided."""

    table_hash: str
    strata: tuple[StratumSnapshot, ...]
    retracted_total: int


@dataclass(frozen=True, slots=True)
class DepthSnapshot:
    """Rounds of one depth in one band of batch sizes."""

    band: int
    num_steps: int
    rounds_total: int
    request_rounds_total: int
    busy_seconds_total: float


@dataclass(frozen=True, slots=True)
class PositionSnapshot:
    """Drafted tokens at one position in one band: those that mattered, and those kept."""

    band: int
    position: int
    reached_total: int
    accepted_total: int


@dataclass(frozen=True, slots=True)
class CoreSnapshot:
    """The core's state and totals at the end of a step.

    `kv_pages_free` counts pages that only the prefix cache holds as free: they can be had.
    `request_rounds_total` counts verify rounds once per request in them, so that
    `emitted_tokens_total / request_rounds_total` is the accept length.
    """

    running_requests: int = 0
    waiting_requests: int = 0
    kv_pages_total: int = 0
    kv_pages_free: int = 0
    num_steps: int = 0
    rounds_total: int = 0
    request_rounds_total: int = 0
    drafted_tokens_total: int = 0
    accepted_tokens_total: int = 0
    emitted_tokens_total: int = 0
    prompt_tokens_total: int = 0
    decode_seconds_total: float = 0.0
    prefill_seconds_total: float = 0.0
    retracted_total: int = 0
    prefix_cache_pages: int = 0
    prefix_cache_queried_tokens_total: int = 0
    prefix_cache_hit_tokens_total: int = 0
    prefix_cache_evicted_pages_total: int = 0
    active_range: int = 0  # lower bound of the range that decided the latest decode round
    reason: str = ""  # why that one runs at its depth
    num_draft_tokens: int = 1
    places: int = 0  # requests that may decode together
    recent_accept_length: float = 1.0
    ranges: tuple[RangeSnapshot, ...] = ()
    tables: tuple[TableSnapshot, ...] = ()
    mixed_requests_total: int = 0
    unsorted_requests_total: int = 0
    depths: tuple[DepthSnapshot, ...] = ()
    positions: tuple[PositionSnapshot, ...] = ()
    graphs: GraphReport = field(default_factory=lambda: GraphReport("off"))

    @property
    def accept_length(self) -> float:
        """Tokens that one verify round adds to one request; 0 before the first round."""
        rounds = self.request_rounds_total
        return self.emitted_tokens_total / rounds if rounds else 0.0

    @property
    def load(self) -> float:
        """Requests that run and wait, by places, corrected by the accept length of late."""
        requests = self.running_requests + self.waiting_requests
        return load(requests, self.places, self.recent_accept_length)
