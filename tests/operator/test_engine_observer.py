"""Polling of engines: how often, and what is reported about pods that do not answer."""

from datetime import UTC, datetime

import httpx
import pytest

from specdecode_operator import trial
from specdecode_operator.engine_client import EngineClient
from specdecode_operator.engine_observer import EngineObserver
from specdecode_operator.observed import Key, Observed
from specdecode_operator.trial.machine import REST_LOOK_S
from specdecode_operator.trial.record import Record

KEY = Key("default", "chat")
READY = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "127.0.0.1"}


def pod(uid="uid-pod"):
    return {"metadata": {"name": "chat-1", "uid": uid, "annotations": {}}, "status": READY}


@pytest.fixture
async def client():
    async with httpx.AsyncClient(trust_env=False) as client:
        yield client


async def test_a_resource_is_looked_at_as_often_as_it_has_to_be(client):
    now = [100.0]
    observer = EngineObserver(EngineClient(client), lambda: now[0])
    assert observer.due_s(KEY, 60.0) == 0.0
    await observer.observe(KEY, "uid", [], {}, lambda: 0.0)
    assert observer.due_s(KEY, 60.0) == 60.0
    assert observer.due_s(KEY, 15.0) == 15.0
    now[0] += 59.9
    assert observer.due_s(KEY, 60.0) == 0.0
    observer.forget(KEY)
    assert observer.due_s(KEY, 60.0) == 0.0


async def test_a_silent_pod_is_told_of_and_hides_nobody(client):
    observer = EngineObserver(EngineClient(client, port=1), lambda: 0.0)
    sight = await observer.observe(KEY, "uid", [pod()], {}, lambda: 7.0)
    assert sight.at_s == 7.0
    assert sight.readings == {}
    assert "does not answer" in sight.failures["chat-1"]


@pytest.mark.parametrize(
    ("mode", "every_s"), [("Manual", None), ("Recommend", REST_LOOK_S), ("Auto", REST_LOOK_S)]
)
def test_only_who_learns_is_looked_at(example, mode, every_s):
    resource = example("standalone", rollout={"mode": mode})
    serving = Observed(resource, {}, (pod(),), at=datetime.now(UTC))
    assert trial.look_every_s(serving, Record()) == every_s
    assert trial.look_every_s(Observed(resource, {}), Record()) is None
