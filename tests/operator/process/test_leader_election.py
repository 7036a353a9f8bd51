"""Leader election: decided on the Lease and the local clock alone."""

import asyncio
import copy
import random
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from specdecode_operator.cluster.denials import PERMISSION_GRACE_S, Denials
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Key
from specdecode_operator.process.errors import StartError
from specdecode_operator.process.leader_election import (
    DEADLINE_S,
    DURATION_S,
    PERIOD_S,
    REQUEST_S,
    Attempt,
    Election,
    Leadership,
    LeaseAction,
    ObservedLease,
    decide,
    released,
    see,
    written,
)
from specdecode_operator.process.leader_gate import STOP_S, LeaderGate, lead
from specdecode_operator.process.queue import Queue

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
        (None, "a", 0, LeaseAction.CREATE),
        (lease(), "a", 0, LeaseAction.RENEW),
        (lease(), "a", 999, LeaseAction.RENEW),
        (lease(), "b", 0, LeaseAction.WAIT),
        (lease(), "b", 14.9, LeaseAction.WAIT),
        (lease(), "b", 15, LeaseAction.TAKE),
        (lease(leaseDurationSeconds=60), "b", 59, LeaseAction.WAIT),
        (lease(""), "b", 0, LeaseAction.TAKE),
        (lease(None), "b", 0, LeaseAction.TAKE),
        # The times that the holder wrote do not count.
        (lease(renewTime="1999-01-01T00:00:00.000000Z"), "b", 1, LeaseAction.WAIT),
        (lease(renewTime="2099-01-01T00:00:00.000000Z"), "b", 16, LeaseAction.TAKE),
    ],
)
def test_a_lease_is_taken_when_its_holder_has_not_renewed_by_the_local_clock(
    found, who, age_s, step
):
    seen = see(found, None, 100.0)
    assert decide(found, who, seen, 100.0 + age_s) is step


def test_a_changed_lease_restarts_the_wait():
    first = see(lease(version="1"), None, 10.0)
    assert see(lease(version="1"), first, 20.0) == first
    assert see(lease(version="2"), first, 20.0) == ObservedLease("2", 35.0)
    assert see(None, first, 20.0) is None


def test_a_written_lease_contains_holder_times_and_transitions():
    fresh = written(None, "n", "l", "b", NOW)["spec"]
    assert (fresh["holderIdentity"], fresh["leaseTransitions"]) == ("b", 0)
    assert fresh["acquireTime"] == fresh["renewTime"] == "2026-11-21T12:00:00.000000Z"
    kept = written(lease(), "n", "l", "a", NOW)
    assert kept["metadata"]["resourceVersion"] == "1"
    assert kept["spec"]["acquireTime"] == "2026-11-21T11:00:00.000000Z"
    assert kept["spec"]["leaseTransitions"] == 3
    assert written(lease(), "n", "l", "b", NOW)["spec"]["leaseTransitions"] == 4
    assert released(lease(), NOW)["spec"]["holderIdentity"] == ""


def test_a_leader_stops_well_before_a_standby_may_start():
    assert DEADLINE_S + STOP_S < DURATION_S
    assert 2 * (PERIOD_S + REQUEST_S) > DEADLINE_S > PERIOD_S + REQUEST_S
    assert DURATION_S + PERIOD_S <= 15, "20 s with the first reconciles of a busy machine"


LEADER = Leadership(is_leader=True, renewed_at_s=100.0, was_permitted=True)


@pytest.mark.parametrize("attempt", [Attempt.FAILED, Attempt.DENIED])
def test_a_leader_survives_renewals_without_success_until_the_deadline(attempt):
    state = LEADER
    for now_s in (102.0, 106.0, 100.0 + DEADLINE_S - 0.1):
        state = state.after(attempt, now_s - 1, now_s)
        assert state.is_leader
    assert not state.after(attempt, 107.0, 100.0 + DEADLINE_S).is_leader


def test_a_successful_renewal_counts_from_when_it_was_sent():
    state = LEADER.after(Attempt.DENIED, 104.0, 105.0).after(Attempt.HELD, 106.0, 109.0)
    assert state == Leadership(True, 106.0, True, None)
    assert state.remaining_s(109.0) == DEADLINE_S - 3.0


def test_another_holder_ends_leadership_at_once():
    assert not LEADER.after(Attempt.NOT_HELD, 101.0, 101.5).is_leader


@pytest.mark.parametrize(
    ("before", "lacks"),
    [((), True), ((Attempt.FAILED,), True), ((Attempt.HELD,), False), ((Attempt.NOT_HELD,), False)],
)
def test_denials_count_as_missing_permission_only_before_any_permitted_answer(before, lacks):
    state = Leadership()
    for attempt in before:
        state = state.after(attempt, 0.0, 0.0)
    state = state.after(Attempt.DENIED, 10.0, 10.5)
    assert not state.lacks_permission(10.0 + PERMISSION_GRACE_S - 0.1)
    state = state.after(Attempt.DENIED, 20.0, 20.5)
    assert state.lacks_permission(10.0 + PERMISSION_GRACE_S) is lacks


def test_an_outage_between_two_denials_restarts_the_grace_period():
    state = Leadership().after(Attempt.DENIED, 0.0, 0.5).after(Attempt.FAILED, 5.0, 5.5)
    state = state.after(Attempt.DENIED, 90.0, 90.5)
    assert not state.lacks_permission(90.0)
    assert state.lacks_permission(90.0 + PERMISSION_GRACE_S)


def test_refused_writes_are_retried_before_they_are_reported():
    now_s = 0.0
    denials: Denials[str] = Denials(lambda: now_s)
    assert denials.is_recent("a", 403)
    now_s = 9.0
    assert denials.is_recent("a", 401)
    now_s = 10.0
    assert not denials.is_recent("a", 403)
    assert denials.is_recent("b", 403), "each resource has a grace period of its own"
    assert not denials.is_recent("c", 422)
    denials.clear("a")
    assert denials.is_recent("a", 403)


class Server:
    """A Lease in an API that can fail, and a clock that only `sleep` moves."""

    def __init__(self):
        self.lease: Manifest | None = None
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
            raise KubeApiError(409, "exists")
        return self._store(manifest)

    async def replace(self, manifest):
        assert self.lease is not None
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise KubeApiError(409, "changed")
        return self._store(manifest)


@pytest.fixture
def server(monkeypatch):
    found = Server()

    async def sleep(seconds):
        found.now_s += seconds
        await asyncio.sleep(0)

    # Of that module alone: servers in other threads sleep too.
    own = SimpleNamespace(sleep=sleep, timeout=asyncio.timeout)
    monkeypatch.setattr("specdecode_operator.process.leader_election.asyncio", own)
    return found


def join(server, who):
    now = lambda: NOW + timedelta(seconds=server.now_s)  # noqa: E731
    return Election(server, "n", "l", who, clock=lambda: server.now_s, now=now)


def test_a_standby_takes_over_from_a_leader_that_falls_silent(server):
    async def scenario():
        first, second = join(server, "a"), join(server, "b")
        assert await first.acquire() is False
        began_s = server.now_s
        assert await second.acquire() is True
        return server.now_s - began_s, first, second

    waited_s, _, second = asyncio.run(scenario())
    assert waited_s == DURATION_S
    assert second.is_leader
    assert server.lease["spec"]["leaseTransitions"] == 1


def test_a_leader_that_gives_back_is_followed_at_once(server):
    async def scenario():
        first, second = join(server, "a"), join(server, "b")
        await first.acquire()
        await first.release()
        return await second.acquire(), server.now_s

    assert asyncio.run(scenario()) == (False, 0.0)


@pytest.mark.parametrize("code", [0, 401, 403, 500])
def test_a_leader_that_cannot_renew_stops_at_the_deadline(server, code):
    async def scenario():
        election = join(server, "a")
        await election.acquire()
        server.error = KubeApiError(code, "no")
        await election.keep()
        return server.now_s, election.is_leader

    assert asyncio.run(scenario()) == (DEADLINE_S, False)


@pytest.mark.parametrize("code", [0, 401, 403, 503])
def test_a_short_outage_costs_no_leadership(server, code):
    async def scenario():
        election = join(server, "a")
        await election.acquire()
        keeping = asyncio.ensure_future(election.keep())
        server.error = KubeApiError(code, "no")
        began_s = server.now_s
        while server.now_s - began_s < DEADLINE_S - PERIOD_S:
            await asyncio.sleep(0)
        server.error = None
        while server.now_s - began_s < 3 * DEADLINE_S:
            await asyncio.sleep(0)
        keeping.cancel()
        return election.is_leader, keeping.done() and not keeping.cancelled()

    assert asyncio.run(scenario()) == (True, False)


def test_a_leader_whose_lease_was_taken_stops(server):
    async def scenario():
        election = join(server, "a")
        await election.acquire()
        server.lease["spec"]["holderIdentity"] = "b"
        server.lease["metadata"]["resourceVersion"] = "99"
        await election.keep()
        return server.now_s, election.is_leader

    assert asyncio.run(scenario()) == (PERIOD_S, False)


def test_missing_permissions_at_the_start_are_reported_with_the_remedy(server):
    server.error = KubeApiError(403, "leases is forbidden")
    with pytest.raises(StartError, match="--no-leader-election"):
        asyncio.run(join(server, "a").acquire())
    assert server.now_s == PERMISSION_GRACE_S


def test_denials_at_the_start_that_end_in_time_do_no_harm(server):
    async def scenario():
        election = join(server, "a")
        server.error = KubeApiError(403, "leases is forbidden")
        acquiring = asyncio.ensure_future(election.acquire())
        while server.now_s < PERMISSION_GRACE_S - PERIOD_S:
            await asyncio.sleep(0)
        server.error = None
        return await acquiring, election.is_leader

    assert asyncio.run(scenario()) == (True, True)


def test_a_process_that_lost_the_lease_stands_by_and_works_again(server):
    """Workers end with the leadership, the queue is empty, and all is listed before they return."""
    key, calls = Key("n", "chat"), []
    queue: Queue[Key] = Queue(lambda: server.now_s, random.Random(1))
    gate = LeaderGate(queue, lambda: [key])

    async def catch_up():
        calls.append("catch up")

    async def workers():
        calls.append(f"work at {queue.depth()}")
        try:
            await asyncio.Event().wait()
        finally:
            calls.append("stop")

    async def pass_time(seconds):
        until_s = server.now_s + seconds
        while server.now_s < until_s:
            await asyncio.sleep(0)

    async def scenario():
        leading = asyncio.ensure_future(lead(gate, join(server, "a"), catch_up, workers))
        await pass_time(DEADLINE_S)
        assert calls == ["work at 1"]
        server.error = KubeApiError(403, "leases is forbidden")
        await pass_time(DEADLINE_S + 2 * PERMISSION_GRACE_S)  # far longer than the deadline
        assert calls == ["work at 1", "stop"]
        assert not gate.is_open
        gate.add(key)
        gate.add_after(key, 0.0)
        assert queue.take() is None
        assert not leading.done()
        server.error = None
        await pass_time(2 * PERIOD_S)
        assert calls == ["work at 1", "stop", "catch up", "work at 1"]
        assert gate.is_open
        leading.cancel()
        await asyncio.wait((leading,))
        assert calls[-1] == "stop"

    asyncio.run(scenario())


def test_workers_that_outlive_the_lease_end_the_process(server, monkeypatch):
    monkeypatch.setattr("specdecode_operator.process.leader_gate.STOP_S", 0.01)
    gate = LeaderGate(Queue(lambda: server.now_s, random.Random(1)), list)
    may_end = asyncio.Event()

    async def stubborn():
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    async def nothing():
        pass

    async def scenario():
        leading = asyncio.ensure_future(lead(gate, join(server, "a"), nothing, stubborn))
        while server.now_s < DEADLINE_S:
            await asyncio.sleep(0)
        server.error = KubeApiError(0, "unreachable")
        try:
            with pytest.raises(StartError, match="did not stop"):
                await leading
        finally:
            may_end.set()

    asyncio.run(scenario())
