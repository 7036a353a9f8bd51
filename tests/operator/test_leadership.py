"""Who of several operators works: by the Lease and the own clock alone."""

import asyncio
import copy
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from specdecode_operator.cluster import ApiError
from specdecode_operator.election import DOUBT_S, Election, LeadershipLost
from specdecode_operator.errors import StartError
from specdecode_operator.leadership import (
    DEADLINE_S,
    DURATION_S,
    PERIOD_S,
    Seen,
    Step,
    decide,
    released,
    see,
    written,
)

NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)


def lease(holder="a", version="1", **spec):
    return {
        "metadata": {"name": "l", "namespace": "n", "resourceVersion": version},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": 15,
            "acquireTime": "2026-11-21T11:00:00.000000Z",
            "leaseTransitions": 3,
            **spec,
        },
    }


@pytest.mark.parametrize(
    ("found", "who", "age_s", "step"),
    [
        (None, "a", 0, Step.CREATE),
        (lease(), "a", 0, Step.RENEW),
        (lease(), "a", 999, Step.RENEW),
        (lease(), "b", 0, Step.WAIT),
        (lease(), "b", 15, Step.WAIT),
        (lease(), "b", 15.1, Step.TAKE),
        (lease(leaseDurationSeconds=60), "b", 59, Step.WAIT),
        (lease(""), "b", 0, Step.TAKE),
        (lease(None), "b", 0, Step.TAKE),
        # A holder whose clock is wrong is judged by ours.
        (lease(renewTime="1999-01-01T00:00:00.000000Z"), "b", 1, Step.WAIT),
        (lease(renewTime="2099-01-01T00:00:00.000000Z"), "b", 16, Step.TAKE),
    ],
)
def test_a_lease_is_taken_when_its_holder_is_silent_by_the_own_clock(found, who, age_s, step):
    seen = Seen("1", 100.0) if found else None
    assert decide(found, who, seen, 100.0 + age_s) is step


def test_a_change_begins_the_wait_anew():
    first = see(lease(version="1"), None, 10.0)
    assert see(lease(version="1"), first, 20.0) == first
    assert see(lease(version="2"), first, 20.0) == Seen("2", 20.0)
    assert see(None, first, 20.0) is None


def test_what_is_written_tells_who_and_since_when():
    fresh = written(None, "n", "l", "b", NOW)["spec"]
    assert (fresh["holderIdentity"], fresh["leaseTransitions"]) == ("b", 0)
    assert fresh["acquireTime"] == fresh["renewTime"] == "2026-11-21T12:00:00.000000Z"
    kept = written(lease(), "n", "l", "a", NOW)
    assert kept["metadata"]["resourceVersion"] == "1"
    assert kept["spec"]["acquireTime"] == "2026-11-21T11:00:00.000000Z"
    assert kept["spec"]["leaseTransitions"] == 3
    assert written(lease(), "n", "l", "b", NOW)["spec"]["leaseTransitions"] == 4
    assert released(lease(), NOW)["spec"]["holderIdentity"] == ""


def test_a_leader_stops_well_before_anybody_else_may_begin():
    assert DEADLINE_S + PERIOD_S < DURATION_S
    assert DURATION_S + PERIOD_S < 20


class Server:
    """A Lease behind an API that can fail, and a clock that only `sleep` moves."""

    def __init__(self):
        self.lease = None
        self.version = 0
        self.error = None
        self.now_s = 0.0

    def _store(self, manifest):
        self.version += 1
        self.lease = copy.deepcopy(manifest)
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    async def get(self, kind, namespace, name):
        if self.error is not None:
            raise self.error
        return copy.deepcopy(self.lease)

    async def create(self, manifest):
        if self.lease is not None:
            raise ApiError(409, "exists")
        return self._store(manifest)

    async def replace(self, manifest):
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ApiError(409, "changed")
        return self._store(manifest)


@pytest.fixture
def server(monkeypatch):
    found = Server()

    async def sleep(seconds):
        found.now_s += seconds
        await asyncio.sleep(0)

    # Of that module alone: servers in other threads sleep too.
    own = SimpleNamespace(sleep=sleep, timeout=asyncio.timeout)
    monkeypatch.setattr("specdecode_operator.election.asyncio", own)
    return found


def join(server, who):
    now = lambda: NOW + timedelta(seconds=server.now_s)  # noqa: E731
    return Election(server, "n", "l", who, clock=lambda: server.now_s, now=now)


def test_a_standby_takes_over_from_a_leader_that_falls_silent(server):
    async def scenario():
        first, second = join(server, "a"), join(server, "b")
        assert await first.win() is False
        began_s = server.now_s
        assert await second.win() is True
        return server.now_s - began_s, first, second

    waited_s, _, second = asyncio.run(scenario())
    assert DURATION_S < waited_s <= DURATION_S + 2 * PERIOD_S
    assert second.is_leader
    assert server.lease["spec"]["leaseTransitions"] == 1


def test_a_leader_that_gives_back_is_followed_at_once(server):
    async def scenario():
        first, second = join(server, "a"), join(server, "b")
        await first.win()
        await first.release()
        return await second.win(), server.now_s

    assert asyncio.run(scenario()) == (False, 0.0)


def test_a_leader_that_cannot_renew_stops_in_time(server):
    async def scenario():
        election = join(server, "a")
        await election.win()
        server.error = ApiError(0, "unreachable")
        with pytest.raises(LeadershipLost, match="lease n/l was not renewed"):
            await election.keep()
        return server.now_s, election.is_leader

    stopped_s, is_leader = asyncio.run(scenario())
    assert DEADLINE_S < stopped_s < DURATION_S
    assert not is_leader


def test_a_short_outage_costs_no_leadership(server):
    async def scenario():
        election = join(server, "a")
        await election.win()
        keeping = asyncio.ensure_future(election.keep())
        server.error = ApiError(503, "busy")
        began_s = server.now_s
        while server.now_s - began_s < DEADLINE_S - PERIOD_S:
            await asyncio.sleep(0)
        server.error = None
        while server.now_s - began_s < 3 * DEADLINE_S:
            await asyncio.sleep(0)
        keeping.cancel()
        return election.is_leader, keeping.done() and not keeping.cancelled()

    assert asyncio.run(scenario()) == (True, False)


def test_after_an_outage_what_is_watched_is_doubted_for_a_while(server):
    told = []

    async def scenario():
        election = join(server, "a")
        election.on_return = lambda: told.append(server.now_s)
        await election.win()
        keeping = asyncio.ensure_future(election.keep())

        async def pass_time(until_s):
            while server.now_s < until_s:
                await asyncio.sleep(0)

        await pass_time(20.0)
        assert not told, "nothing was amiss"
        server.error = ApiError(0, "unreachable")
        await pass_time(26.0)
        assert not told, "it has not come back"
        server.error = None
        await pass_time(26.0 + 2 * DOUBT_S)
        keeping.cancel()

    asyncio.run(scenario())
    assert told[0] <= 26.0 + 2 * PERIOD_S
    assert DOUBT_S - 4 * PERIOD_S < told[-1] - told[0] <= DOUBT_S
    assert len(told) > DOUBT_S / PERIOD_S / 2


def test_a_leader_whose_lease_was_taken_stops(server):
    async def scenario():
        election = join(server, "a")
        await election.win()
        server.lease["spec"]["holderIdentity"] = "b"
        server.lease["metadata"]["resourceVersion"] = "99"
        with pytest.raises(LeadershipLost):
            await election.keep()

    asyncio.run(scenario())


def test_want_of_rights_is_told_with_the_remedy(server):
    server.error = ApiError(403, "leases is forbidden")
    with pytest.raises(StartError, match="--no-leader-election"):
        asyncio.run(join(server, "a").win())
