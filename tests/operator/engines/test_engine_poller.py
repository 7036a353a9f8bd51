"""Polls of engines: looks at metrics, degradations, and pods without a response."""

import asyncio
import json
import math
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import pytest
from aiohttp import ClientSession, web

from specdecode_api import names
from specdecode_api.report import Degradation
from specdecode_operator import trial
from specdecode_operator.engines.engine_client import EngineClient, open_engine_client
from specdecode_operator.engines.engine_poller import MAX_PODS, EnginePoller
from specdecode_operator.objects.observed import Key, Observed
from specdecode_operator.trial.record.record import Record
from specdecode_operator.trial.strategies.looks import REST_LOOK_S, Look

KEY = Key("default", "chat")
READY = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "127.0.0.1"}


def pod(uid="uid-pod"):
    return {"metadata": {"name": "chat-1", "uid": uid, "annotations": {}}, "status": READY}


@pytest.fixture
async def client():
    async with ClientSession() as client:
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


async def test_poller_reports_the_age_of_the_latest_look(client):
    now = [100.0]
    poller = EnginePoller(EngineClient(client), lambda: now[0])
    assert poller.since_s(KEY) == math.inf
    poller.look(KEY, "uid", Look(0.0), lambda: 0.0)
    await poller.complete(KEY)
    now[0] += 7.5
    assert poller.since_s(KEY) == 7.5
    poller.forget(KEY)
    assert poller.since_s(KEY) == math.inf


async def test_a_pod_without_a_response_is_reported_and_hides_no_other(client):
    poller = EnginePoller(EngineClient(client, port=1), lambda: 0.0)
    snapshot = await poller.observe("uid", Look(0.0, (pod(),)), lambda: 7.0)
    assert snapshot.at_s == 7.0
    assert snapshot.readings == {}
    assert "does not answer" in snapshot.failures["chat-1"]


async def test_a_look_at_a_silent_pod_does_not_wait_and_wakes_its_resource(client):
    woken: list[Key] = []
    poller = EnginePoller(EngineClient(client, port=1), lambda: 0.0, woken.append)
    poller.look(KEY, "uid", Look(0.0, (pod(),)), lambda: 7.0)
    assert poller.is_looking(KEY)
    assert poller.take(KEY) is None
    await poller.complete(KEY)
    assert woken == [KEY]
    snapshot = poller.take(KEY)
    assert snapshot is not None
    assert snapshot.failures.keys() == {"chat-1"}
    assert poller.take(KEY) is None


async def test_a_forgotten_look_ends_without_a_result(client, silent_port):
    port, connected = silent_port
    woken: list[Key] = []
    poller = EnginePoller(EngineClient(client, port=port), lambda: 0.0, woken.append)
    poller.look(KEY, "uid", Look(0.0, (pod(),)), lambda: 7.0)
    await connected.wait()
    poller.forget(KEY)
    assert not poller.is_looking(KEY)
    await asyncio.sleep(0)
    assert poller.take(KEY) is None
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
    poller = EnginePoller(EngineClient(client), lambda: 0.0, woken.append)
    broken = {"metadata": {}, "status": READY}
    poller.look(KEY, "uid", Look(0.0, (broken,)), lambda: 7.0)
    await poller.complete(KEY)
    assert woken == [KEY]
    assert poller.take(KEY) is None
    assert "look failed" in caplog.text


async def test_looks_that_are_no_longer_due_leave_nothing(client):
    poller = EnginePoller(EngineClient(client, port=1), lambda: 0.0)
    poller.look(KEY, "uid", Look(0.0, (pod(),)), lambda: 7.0)
    await poller.complete(KEY)
    poller.stop_looks(KEY)
    assert poller.take(KEY) is None
    assert poller.since_s(KEY) == math.inf


def serving(name, address="127.0.0.1", is_ready=True):
    """A pod of KEY."""
    condition = {"type": "Ready", "status": "True" if is_ready else "False"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": KEY.namespace, "uid": f"uid-{name}"},
        "status": {"podIP": address, "conditions": [condition]},
    }


@asynccontextmanager
async def engine(responses):
    """An engine that sends the responses in turn, the last one forever; lists the requests."""
    requests = []

    async def respond(request):
        requests.append(request.path)
        return web.Response(text=responses[min(len(requests), len(responses)) - 1])

    app = web.Application()
    app.router.add_get(names.PATH_DEGRADED, respond)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with open_engine_client(runner.addresses[0][1]) as engines:
            yield engines, requests
    finally:
        await runner.cleanup()


WORSE = json.dumps({"degraded": [{"reason": "NeedsRestart", "message": "device"}], "new": 1})
FINE = json.dumps({"degraded": []})


async def polled(pods, responses, times):
    """The poller after so many periods, the keys that it queued, and the requests."""
    woken: list[Key] = []
    async with engine(responses) as (engines, requests):
        poller = EnginePoller(engines, lambda: 0.0, woken.append)
        poller.follow(KEY, pods)
        for _ in range(times):
            await poller.poll_degradations()
    return poller, woken, requests


async def test_a_resource_is_queued_when_degradations_of_its_engine_change():
    pods = [serving("a")]
    poller, woken, _ = await polled(pods, [WORSE, WORSE, FINE, FINE], 2)
    assert woken == [KEY]
    expected = Degradation(reason="NeedsRestart", message="device")
    assert poller.degraded(pods) == (("a", expected),)
    poller, woken, _ = await polled(pods, [WORSE, WORSE, FINE, FINE], 4)
    assert woken == [KEY] * 2
    assert poller.degraded(pods) == ()


async def test_a_healthy_engine_queues_nothing():
    _, woken, requests = await polled([serving("a")], [FINE], 3)
    assert woken == []
    assert len(requests) == 3


@pytest.mark.parametrize("response", ["", "not JSON", '{"degraded": [{"reason": "no reason"}]}'])
async def test_an_invalid_response_changes_nothing(response):
    poller, woken, _ = await polled([serving("a")], [WORSE, response], 2)
    assert woken == [KEY]
    assert poller.degraded([serving("a")])[0][1].reason == "NeedsRestart"


async def test_a_pod_that_cannot_be_polled_hides_no_other(caplog):
    poller, woken, _ = await polled([serving("a", address=5), serving("b")], [WORSE], 1)
    assert woken == [KEY]
    assert [name for name, _ in poller.degraded([serving("a"), serving("b")])] == ["b"]
    (record,) = [each for each in caplog.records if each.exc_info]
    assert record.pod == f"{KEY.namespace}/a"


async def test_pods_that_are_gone_or_not_ready_are_forgotten_and_not_polled():
    async with engine([WORSE]) as (engines, requests):
        poller = EnginePoller(engines, lambda: 0.0)
        poller.follow(KEY, [serving("a"), serving("gone")])
        await poller.poll_degradations()
        assert len(poller.degraded([serving("a"), serving("gone")])) == 2
        left = [serving("a", is_ready=False), serving("b", address=None)]
        poller.follow(KEY, left)
        await poller.poll_degradations()
        assert poller.degraded([*left, serving("gone")]) == ()
        poller.follow(KEY, [serving("a")])
        poller.forget(KEY)
        await poller.poll_degradations()
    assert len(requests) == 2


async def test_many_engines_take_turns():
    pods = [serving(f"p{number:03}") for number in range(MAX_PODS + 10)]
    _, _, requests = await polled(pods, [FINE], 1)
    assert len(requests) == MAX_PODS
    poller, _, requests = await polled(pods, [WORSE], 2)
    assert len(requests) == 2 * MAX_PODS
    assert len(poller.degraded(pods)) == MAX_PODS + 10


async def test_a_pod_keeps_its_turn_when_its_resource_is_reconciled_again():
    pods = [serving(f"p{number:03}") for number in range(MAX_PODS + 1)]
    async with engine([WORSE]) as (engines, _):
        poller = EnginePoller(engines, lambda: 0.0)
        for _ in range(2):
            poller.follow(KEY, pods)
            await poller.poll_degradations()
    assert len(poller.degraded(pods)) == MAX_PODS + 1


async def test_a_pod_that_ends_while_it_is_polled_stays_forgotten():
    woken: list[Key] = []
    async with engine([WORSE]) as (engines, _):
        poller = EnginePoller(engines, lambda: 0.0, woken.append)
        poller.follow(KEY, [serving("a")])
        polling = asyncio.create_task(poller.poll_degradations())
        await asyncio.sleep(0)  # the request is on its way
        poller.follow(KEY, ())
        await polling
    assert woken == []
    assert poller.degraded([serving("a")]) == ()


async def lead_and_lose(poller, begin):
    """Lead while `begin` runs, then lose the Lease."""
    polling = asyncio.create_task(poller.forever(3600))
    await asyncio.sleep(0)
    await begin()
    polling.cancel()
    await asyncio.wait([polling])


async def test_a_new_term_as_leader_begins_without_pods():
    async with engine([WORSE]) as (engines, requests):
        poller = EnginePoller(engines, lambda: 0.0)

        async def begin():
            poller.follow(KEY, [serving("a")])

        await lead_and_lose(poller, begin)
        await poller.poll_degradations()
    assert requests == []


async def test_a_new_term_as_leader_begins_without_the_readings_of_the_last(client):
    """Another leader has stored later ones: these would count as a restart of the engine."""
    poller = EnginePoller(EngineClient(client, port=1), lambda: 0.0)

    async def begin():
        poller.look(KEY, "uid", Look(0.0, (pod(),)), lambda: 7.0)
        await poller.complete(KEY)

    await lead_and_lose(poller, begin)
    assert poller.take(KEY) is None
    assert poller.since_s(KEY) == math.inf


async def test_a_look_ends_when_this_process_leads_no_more(client, silent_port):
    port, connected = silent_port
    woken: list[Key] = []
    poller = EnginePoller(EngineClient(client, port=port), lambda: 0.0, woken.append)

    async def begin():
        poller.look(KEY, "uid", Look(0.0, (pod(),)), lambda: 7.0)
        await connected.wait()

    await lead_and_lose(poller, begin)
    assert not poller.is_looking(KEY)
    assert woken == []
