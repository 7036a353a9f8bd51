"""A fleet of simulated engines that know what they did, and report it as real ones do."""

import time
from collections import defaultdict

import pytest

from specdecode_operator.fleet.reading import BucketTotals, PositionTotals, Reading
from specdecode_operator.judge.evidence import (
    ArmEvidence,
    ArmKey,
    Latencies,
    RequestSums,
    Stratum,
)

BOUNDS_S = (0.1, 1.0)


def sums_of(tokens, rounds, seconds):
    """The sums of one request."""
    return RequestSums(1, tokens, rounds, seconds)


class Pod:
    """One pod: counts since its process started, under the last four tables."""

    def __init__(self, uid, start_s, table="a", config="c"):
        self.uid, self.config, self.table = uid, config, table
        self.restart(start_s)

    def restart(self, start_s):
        self.start_s = start_s
        self.strata = {}
        self.answered = defaultdict(float)
        self.tokens_seen = defaultdict(float)
        self.use(self.table)

    def use(self, table):
        self.table = table
        self.strata.setdefault(table, defaultdict(RequestSums))
        if len(self.strata) > 4:
            del self.strata[next(each for each in self.strata if each != table)]

    def serve(self, tokens, rounds=1, seconds=0.5, bucket=1):
        one = sums_of(tokens, rounds, seconds)
        stratum = Stratum(bucket, "greedy", "free", "short")
        self.strata[self.table][stratum] += one
        self.answered[self.table] += 1
        self.tokens_seen[self.table] += tokens
        return one

    @property
    def key(self):
        return ArmKey(self.config, self.table)

    def read(self):
        arms = {
            ArmKey(self.config, table): ArmEvidence(
                strata=dict(strata),
                inter_token=Latencies(BOUNDS_S, (self.tokens_seen[table], 0.0, 0.0)),
                answered_requests=self.answered[table],
            )
            for table, strata in self.strata.items()
        }
        return Reading(
            self.uid,
            self.start_s,
            self.key,
            arms,
            {(1, 3): BucketTotals(1.0, 1.0, 0.1)},
            {(1, 1): PositionTotals(1.0, 1.0)},
        )


@pytest.fixture(scope="session")
def pod():
    """Makes a pod."""
    return Pod


def total(evidence):
    """Sums over all strata."""
    return sum(evidence.strata.values(), RequestSums())


@pytest.fixture(name="total", scope="session")
def _total():
    return total


@pytest.fixture(scope="session")
def eventually():
    """Waits until something holds."""

    def wait(holds, timeout_s=30.0):
        end_s = time.monotonic() + timeout_s
        while not holds():
            assert time.monotonic() < end_s, f"{holds} did not come true within {timeout_s} s"
            time.sleep(0.02)

    return wait
