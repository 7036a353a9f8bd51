"""What is known of one arm: sums over requests per stratum, tails of latencies, failures."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple


class Role(StrEnum):
    """Which configuration a pod runs."""

    BASELINE = "baseline"
    CANDIDATE = "candidate"


@dataclass(frozen=True, slots=True, order=True)
class ArmKey:
    """What a pod ran: the hashes of its configuration and of the table that chose draft steps."""

    config_hash: str
    table_hash: str


class Stratum(NamedTuple):
    """Requests that are comparable with each other.

    `batch_size` is the lower bound of a batch bucket of the contract, not of a table's range: two
    arms have two tables, and the same buckets.
    """

    batch_size: int
    sampling: str  # "greedy" or "sampled"
    grammar: str  # "free" or "constrained"
    prompt: str  # "short", "medium" or "long"
    label: str = ""  # what the user marked the request with


@dataclass(frozen=True, slots=True)
class RequestSums:
    """Sums over requests: they give tokens per step, and decode seconds per token.

    Tokens are those that decode steps added; seconds are those of the steps the request was in.
    """

    requests: float = 0.0
    tokens: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0

    def __add__(self, other: "RequestSums") -> "RequestSums":
        return RequestSums(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.steps + other.steps,
            self.seconds + other.seconds,
        )

    def __sub__(self, other: "RequestSums") -> "RequestSums":
        return RequestSums(
            self.requests - other.requests,
            self.tokens - other.tokens,
            self.steps - other.steps,
            self.seconds - other.seconds,
        )


@dataclass(frozen=True, slots=True)
class Latencies:
    """Observations by bucket: `counts[i]` lie in (bounds_s[i-1], bounds_s[i]], the last above.

    `sum_s` is the sum of all observations in seconds.
    """

    bounds_s: tuple[float, ...] = ()
    counts: tuple[float, ...] = ()
    sum_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ArmEvidence:
    """All that was seen of one arm since the start of a trial, its warm-up left out."""

    strata: Mapping[Stratum, RequestSums] = field(default_factory=lambda: MappingProxyType({}))
    first_token: Latencies = Latencies()
    inter_token: Latencies = Latencies()
    answered_requests: float = 0.0
    failed_requests: float = 0.0
    preempted_requests: float = 0.0
    restarts: float = 0.0
    pods: int = 0
    unfit_drafts: float = 0.0  # engines that found since then that their draft does not fit


def pool(parts: Iterable[ArmEvidence]) -> ArmEvidence:
    """Evidence of several pods or blocks as that of one arm.

    Raises:
        ValueError: latencies were counted in different buckets.
    """
    parts = tuple(parts)
    strata: dict[Stratum, RequestSums] = {}
    for part in parts:
        for stratum, sums in part.strata.items():
            known = strata.get(stratum)
            strata[stratum] = sums if known is None else known + sums
    return ArmEvidence(
        strata=strata,
        first_token=_add(part.first_token for part in parts),
        inter_token=_add(part.inter_token for part in parts),
        answered_requests=sum(part.answered_requests for part in parts),
        failed_requests=sum(part.failed_requests for part in parts),
        preempted_requests=sum(part.preempted_requests for part in parts),
        restarts=sum(part.restarts for part in parts),
        pods=sum(part.pods for part in parts),
        unfit_drafts=sum(part.unfit_drafts for part in parts),
    )


def _add(parts: Iterable[Latencies]) -> Latencies:
    known = [part for part in parts if part.counts]
    if not known:
        return Latencies()
    bounds_s = known[0].bounds_s
    if any(part.bounds_s != bounds_s for part in known):
        raise ValueError(
            f"latencies in buckets {[part.bounds_s for part in known]}: count them all in the same"
        )
    counts = zip(*(part.counts for part in known), strict=True)
    sum_s = sum(part.sum_s for part in known)
    return Latencies(bounds_s, tuple(sum(count) for count in counts), sum_s)
