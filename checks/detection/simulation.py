"""False alarms and delays of the detection, for requests of dialled acceptance."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_health import MAX_PER_REQUEST, DraftHealth
from specdecode_engine.adaptive.policy import Decision, Reason

DRAFTS = Decision(3, 1, 0, Reason.STATIC)
BATCH = 8


@dataclass(frozen=True, slots=True)
class Traffic:
    """First-position acceptance of requests: its mean, and how much requests differ in it.

    The acceptance of a request is drawn from Beta(mean s, (1 - mean) s); None: all have the mean.
    """

    mean: float
    spread: float | None = None  # s
    length: int = MAX_PER_REQUEST  # proposals of a request

    def draw(self, rng: random.Random) -> float:
        if self.spread is None:
            return self.mean
        return rng.betavariate(self.mean * self.spread, (1 - self.mean) * self.spread)


def proposals_until_alarm(traffic: Traffic, proposals: int, rng: random.Random) -> int | None:
    """Run requests side by side until the draft is unfit, for so many proposals at most."""
    health, seen = DraftHealth(), 0
    rates, left = [0.0] * BATCH, [0] * BATCH
    while seen < proposals:
        accepted = started = 0
        for row in range(BATCH):
            if not left[row]:
                rates[row], left[row] = traffic.draw(rng), min(traffic.length, MAX_PER_REQUEST)
                started += 1
            left[row] -= 1
            accepted += rng.random() < rates[row]
        seen += BATCH
        health.observe(DRAFTS, FirstPosition(BATCH, accepted, started), 0.01)
        if health.is_unfit:
            return seen
    return None


def alarms(
    traffic: Traffic, runs: int, proposals: int, note: Callable[[], object] = lambda: None
) -> int:
    """Count the runs with an alarm."""
    found = 0
    for seed in range(runs):
        found += proposals_until_alarm(traffic, proposals, random.Random(seed)) is not None
        note()
    return found
