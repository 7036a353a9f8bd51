"""Evidence made of requests."""

import random
from collections.abc import Callable, Iterable

import pytest

from specdecode_operator.judge.evidence import ArmEvidence, Latencies, RequestSums, Stratum

Request = tuple[float, float, float]  # tokens, rounds, seconds
SHORT = Stratum(8, "greedy", "free", "short")
LONG = Stratum(16, "sampled", "free", "long")


def add_up(requests: Iterable[Request]) -> RequestSums:
    """The sums that an engine exports."""
    total = RequestSums()
    for tokens, rounds, seconds in requests:
        total = total + RequestSums(
            1.0,
            tokens,
            rounds,
            seconds,
            tokens**2,
            rounds**2,
            seconds**2,
            tokens * rounds,
            seconds * tokens,
        )
    return total


def draw_requests(
    count: int, seed: int, cost: float = 1.0, accept: float = 3.0
) -> Iterable[Request]:
    """Requests of about 60 rounds of 10 ms; `cost` stretches their seconds."""
    draw = random.Random(seed)
    for _ in range(count):
        rounds = 1.0 + int(draw.expovariate(1 / 60))
        tokens = max(rounds, rounds * accept * draw.lognormvariate(0.0, 0.15))
        # Seconds per token stay what they are, whatever the accept length.
        seconds = 0.01 * tokens / 3.0 * draw.lognormvariate(0.0, 0.2) * cost
        yield tokens, rounds, seconds


@pytest.fixture
def sums() -> Callable[[Iterable[Request]], RequestSums]:
    return add_up


@pytest.fixture
def strata() -> tuple[Stratum, Stratum]:
    return SHORT, LONG


@pytest.fixture(scope="session")
def arm() -> Callable[..., ArmEvidence]:
    """`arm(count, seed, cost=…, accept=…, more evidence…)` in one stratum."""

    def build(
        count: int, seed: int, cost: float = 1.0, accept: float = 3.0, **more: object
    ) -> ArmEvidence:
        drawn = add_up(draw_requests(count, seed, cost, accept))
        known = {
            "strata": {SHORT: drawn} if count else {},
            "answered_requests": float(count),
            "pods": 2,
            **more,
        }
        return ArmEvidence(**known)  # type: ignore[arg-type]

    return build


@pytest.fixture
def latencies() -> Callable[..., Latencies]:
    """Counts in buckets up to 0.1 s, 0.2 s, 0.4 s and above."""
    return lambda *counts: Latencies((0.1, 0.2, 0.4), tuple(map(float, counts)))
