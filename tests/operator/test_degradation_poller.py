"""Engines are asked what is worse: real HTTP, small answers, nobody waits for a silent pod."""

import asyncio
import json
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from specdecode_api import names
from specdecode_api.report import Degradation
from specdecode_operator.degradation_poller import MAX_PODS, DegradationPoller
from specdecode_operator.engine_client import open_engine_client
from specdecode_operator.observed import Key


def pod(name, address="127.0.0.1", is_ready=True):
    labels = {names.LABEL_DEPLOYMENT: "chat"}
    condition = {"type": "Ready", "status": "True" if is_ready else "False"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "n", "uid": f"uid-{name}", "labels": labels},
        "status": {"podIP": address, "conditions": [condition]},
    }


@asynccontextmanager
async def engine(answers):
    """An engine that answers by turns; counts how often it was asked."""
    asked = []

    async def answer(request):
        asked.append(request.path)
        return web.Response(text=answers[min(len(asked), len(answers)) - 1])

    app = web.Application()
    app.router.add_get(names.PATH_DEGRADED, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with open_engine_client(port) as engines:
            yield engines, asked
    finally:
        await runner.cleanup()


WORSE = json.dumps({"degraded": [{"reason": "NeedsRestart", "message": "device"}], "new": 1})
FINE = json.dumps({"degraded": []})


async def visit(pods, answers, times):
    added: list[Key] = []
    async with engine(answers) as (engines, asked):
        poller = DegradationPoller(engines, lambda: pods, added.append)
        for _ in range(times):
            await poller.once()
        return poller, added, asked


def test_a_resource_is_looked_at_when_its_engine_says_something_else():
    pods = [pod("a")]
    poller, added, _ = asyncio.run(visit(pods, [WORSE, WORSE, FINE, FINE], 2))
    assert added == [Key("n", "chat")]
    expected = Degradation(reason="NeedsRestart", message="device")
    assert poller.of(pods) == (("a", expected),)
    poller, added, _ = asyncio.run(visit(pods, [WORSE, WORSE, FINE, FINE], 4))
    assert added == [Key("n", "chat")] * 2
    assert poller.of(pods) == ()


def test_a_healthy_engine_wakes_nobody():
    _, added, asked = asyncio.run(visit([pod("a")], [FINE], 3))
    assert added == []
    assert len(asked) == 3


@pytest.mark.parametrize("answer", ["", "not JSON", '{"degraded": [{"reason": "no reason"}]}'])
def test_an_answer_that_makes_no_sense_changes_nothing(answer):
    poller, added, _ = asyncio.run(visit([pod("a")], [WORSE, answer], 2))
    assert added == [Key("n", "chat")]
    assert poller.of([pod("a")])[0][1].reason == "NeedsRestart"


def test_pods_that_are_gone_or_not_ready_are_forgotten_and_not_asked():
    pods = [pod("a")]

    async def scenario():
        async with engine([WORSE]) as (engines, asked):
            poller = DegradationPoller(engines, lambda: pods, lambda key: None)
            await poller.once()
            pods[:] = [pod("a", is_ready=False), pod("b", address=None)]
            await poller.once()
            return poller, asked

    poller, asked = asyncio.run(scenario())
    assert len(asked) == 1
    assert poller.of(pods) == ()
    assert set(poller.latest) == {"uid-b"}


def test_many_engines_take_turns():
    pods = [pod(f"p{number:03}") for number in range(MAX_PODS + 10)]
    _, _, asked = asyncio.run(visit(pods, [FINE], 1))
    assert len(asked) == MAX_PODS
    poller, _, asked = asyncio.run(visit(pods, [WORSE], 2))
    assert len(asked) == MAX_PODS + 10
    assert len(poller.of(pods)) == MAX_PODS + 10
