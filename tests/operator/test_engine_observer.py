"""Looks at engines: how often, at which pods, and the report about pods without a response."""

import asyncio
import math
from datetime import UTC, datetime

import httpx
import pytest

from specdecode_operator import trial
from specdecode_operator.engine_client import EngineClient
from specdecode_operator.engine_observer import EngineObserver
from specdecode_operator.observed import Key, Observed
from specdecode_operator.trial.looks import REST_LOOK_S, Look
from specdecode_operator.trial.record import Record

KEY = Key("default", "chat")
READY = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "127.0.0.1"}


def pod(uid="uid-pod"):
    return {"metadata": {"name": "chat-1", "uid": uid, "annotations": {}}, "status": READY}


@pytest.fixture
async def client():
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


@pytest.fixture
async def silent_port():
    """A port that accepts connections and never responds."""
    connected = asyncio.Event()

    async def stay_silent(reader, writer):
        connected.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
    yield server.sockets[0].getsockname()[1], connected
    server.close()


async def test_observer_reports_the_age_of_the_latest_look(client):
    now = [100.0]
    observer = EngineObserver(EngineClient(client), lambda: now[0])
    assert observer.since_s(KEY) == math.inf
    observer.start(KEY, "uid", Look(0.0), lambda: 0.0)
    await observer.complete(KEY)
    now[0] += 7.5
    assert observer.since_s(KEY) == 7.5
    observer.forget(KEY)
    assert observer.since_s(KEY) == math.inf


async def test_a_pod_without_a_response_is_reported_and_hides_no_other(client):
    observer = EngineObserver(EngineClient(client, port=1), lambda: 0.0)
    snapshot = await observer.observe("uid", Look(0.0, (pod(),)), lambda: 7.0)
    assert snapshot.at_s == 7.0
    assert snapshot.readings == {}
    assert "does not answer" in snapshot.failures["chat-1"]


async def test_a_look_at_a_silent_pod_does_not_wait_and_wakes_its_resource(client):
    woken: list[Key] = []
    observer = EngineObserver(EngineClient(client, port=1), lambda: 0.0, woken.append)
    observer.start(KEY, "uid", Look(0.0, (pod(),)), lambda: 7.0)
    assert observer.is_running(KEY)
    assert observer.take(KEY) is None
    await observer.complete(KEY)
    assert woken == [KEY]
    snapshot = observer.take(KEY)
    assert snapshot is not None
    assert snapshot.failures.keys() == {"chat-1"}
    assert observer.take(KEY) is None


async def test_a_forgotten_look_ends_without_a_result(client, silent_port):
    port, connected = silent_port
    woken: list[Key] = []
    observer = EngineObserver(EngineClient(client, port=port), lambda: 0.0, woken.append)
    observer.start(KEY, "uid", Look(0.0, (pod(),)), lambda: 7.0)
    await connected.wait()
    observer.forget(KEY)
    assert not observer.is_running(KEY)
    await asyncio.sleep(0)
    assert observer.take(KEY) is None
    assert woken == []


@pytest.mark.parametrize(
    ("mode", "every_s"), [("Manual", None), ("Recommend", REST_LOOK_S), ("Auto", REST_LOOK_S)]
)
def test_only_resources_that_learn_are_looked_at(example, mode, every_s):
    resource = example("standalone", rollout={"mode": mode})
    serving = Observed(resource, {}, (pod(),), at=datetime.now(UTC))
    look = trial.next_look(serving, Record(), 0.0, 0.0)
    assert (look and look.due_s) == every_s
    assert trial.next_look(Observed(resource, {}), Record(), 0.0, 0.0) is None


async def test_a_look_that_fails_is_logged_and_wakes_its_resource(client, caplog):
    woken: list[Key] = []
    observer = EngineObserver(EngineClient(client), lambda: 0.0, woken.append)
    broken = {"metadata": {}, "status": READY}
    observer.start(KEY, "uid", Look(0.0, (broken,)), lambda: 7.0)
    await observer.complete(KEY)
    assert woken == [KEY]
    assert observer.take(KEY) is None
    assert "look failed" in caplog.text
