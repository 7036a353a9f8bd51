"""One sample of an engine's metrics."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Totals:
    """Totals of decode steps since the engine's start."""

    steps: float = 0.0
    request_steps: float = 0.0
    drafted_tokens: float = 0.0
    accepted_tokens: float = 0.0
    emitted_tokens: float = 0.0
    decode_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class RangeSample:
    """A range of batch sizes: lower bound, draft steps, totals."""

    bound: int
    num_steps: int
    totals: Totals


@dataclass(frozen=True, slots=True)
class EngineSample:
    """The metrics of one engine at one time."""

    at_s: float
    num_steps: int
    active_range: int
    running_requests: int
    waiting_requests: int
    kv_pages_free: float
    kv_pages_used: float
    queried_tokens: float
    hit_tokens: float
    totals: Totals
    ranges: tuple[RangeSample, ...]

    @property
    def kv_use(self) -> float | None:
        """Share of the KV cache in use."""
        pages = self.kv_pages_free + self.kv_pages_used
        return self.kv_pages_used / pages if pages else None
