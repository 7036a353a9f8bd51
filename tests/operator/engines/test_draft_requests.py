"""Requests that engines exchange their draft, against the routes that real engines have."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from specdecode_api import names
from specdecode_engine.serve.management import DraftOffer
from specdecode_operator.engines.draft_requests import PERIOD_S, RETRY_S, DraftRequests
from specdecode_operator.engines.engine_client import open_engine_client
from specdecode_operator.objects.observed import Key
from specdecode_operator.updates.draft_exchange import PodState, WantedDraft

KEY = Key("default", "chat")
OLD, NEW = "/models/old", "/models/new"
WANTED = WantedDraft(NEW, "v1-new", "v1-old")


def pod(uid="uid-1", address="127.0.0.1"):
    return {"kind": "Pod", "metadata": {"name": "chat-1", "uid": uid}, "status": {"podIP": address}}


@dataclass
class Engine:
    """Answers as `serve/management.py` does."""

    refuses: bool = False
    is_slow: bool = False
    is_old: bool = False
    path: str = OLD
    config_hash: str | None = "v1-old"
    changing_to: str | None = None
    refused_path: str | None = None
    owners: list[str | None] = field(default_factory=list)
    puts: int = 0
    port: int = 0

    async def get(self, _request):
        if self.is_old:
            raise web.HTTPNotFound
        return web.json_response(self.describe())

    async def put(self, request):
        self.puts += 1
        self.owners.append(request.headers.get(names.HEADER_OWNER))
        offer = DraftOffer.model_validate_json(await request.text())
        if self.refuses:
            self.refused_path = offer.path
            return web.json_response({"error": {"message": "lacks fc.weight"}}, status=409)
        if self.is_slow:
            self.changing_to = offer.path
            return web.json_response(self.describe(), status=202)
        self.path, self.config_hash = offer.path, offer.config_hash
        self.changing_to = self.refused_path = None
        return web.json_response(self.describe())

    def describe(self):
        return {
            "algorithm": "EAGLE3",
            "path": self.path,
            "config_hash": self.config_hash,
            "source": "start",
            "changing_to": self.changing_to,
            "refused_path": self.refused_path,
            "refused_needs_restart": False,
            "latest_refusal": "lacks fc.weight" if self.refused_path else None,
        }


@asynccontextmanager
async def serving(engine):
    application = web.Application()
    application.router.add_get(names.PATH_DRAFT, engine.get)
    application.router.add_put(names.PATH_DRAFT, engine.put)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    engine.port = runner.addresses[0][1]
    yield
    await runner.cleanup()


@dataclass
class Asked:
    """An operator with one engine, and a clock that the test moves."""

    asking: DraftRequests
    woken: list[Key]
    now: list[float]

    def ask(self, found=None):
        return self.asking.ask(KEY, "uid", [pod()] if found is None else found, WANTED)

    async def answered(self):
        wait_s = self.ask()
        await self.asking.complete(KEY)
        return wait_s, WANTED.state(self.asking.answers(KEY)["uid-1"])


@pytest.fixture
async def engine():
    made = Engine()
    async with serving(made):
        yield made


@pytest.fixture
async def asked(engine):
    now, woken = [100.0], list[Key]()
    async with open_engine_client(engine.port) as engines:
        yield Asked(DraftRequests(engines, lambda: now[0], woken.append), woken, now)


async def test_an_engine_is_asked_once_and_its_answer_wakes_the_resource(engine, asked):
    assert await asked.answered() == (PERIOD_S, PodState.EXCHANGED)
    assert (engine.path, engine.config_hash) == (NEW, "v1-new")
    assert (asked.woken, engine.owners) == ([KEY], ["uid"])
    asked.now[0] += 10 * RETRY_S
    assert asked.ask() is None
    assert engine.puts == 1


async def test_a_leader_that_stops_keeps_no_answer(asked):
    await asked.answered()
    asked.asking.stop()
    assert asked.asking.answers(KEY) == {}


async def test_an_engine_that_reads_is_followed_without_another_request(engine, asked):
    engine.is_slow = True
    assert await asked.answered() == (PERIOD_S, PodState.READING)
    assert asked.ask() == PERIOD_S, "the period is not over"
    asked.now[0] += PERIOD_S
    assert await asked.answered() == (PERIOD_S, PodState.READING)
    assert asked.asking.answers(KEY)["uid-1"].waited_s == PERIOD_S
    assert engine.puts == 1
    engine.path, engine.config_hash, engine.changing_to = NEW, "v1-new", None
    asked.now[0] += PERIOD_S
    assert (await asked.answered())[1] is PodState.EXCHANGED


async def test_an_engine_that_refuses_is_asked_again_every_minute(engine, asked):
    engine.refuses = True
    assert (await asked.answered())[1] is PodState.REFUSED
    assert "lacks fc.weight" in asked.asking.answers(KEY)["uid-1"].error
    assert asked.ask() == RETRY_S
    asked.now[0] += RETRY_S / 2
    assert asked.ask() == RETRY_S / 2
    assert engine.puts == 1
    engine.refuses = False
    asked.now[0] += RETRY_S / 2
    assert (await asked.answered())[1] is PodState.EXCHANGED
    assert engine.puts == 2


async def test_an_engine_without_an_answer_is_asked_again(asked):
    asked.ask([pod(address=None)])
    await asked.asking.complete(KEY)
    answer = asked.asking.answers(KEY)["uid-1"]
    assert (answer.report, answer.error) == (None, "does not answer")
    assert WANTED.state(answer) is PodState.WAITING
    asked.now[0] += PERIOD_S
    assert (await asked.answered())[1] is PodState.EXCHANGED


async def test_an_engine_that_never_answers_is_asked_less_and_less(engine, asked):
    """An engine of an older release has no such route."""
    engine.is_old = True
    pauses_s = []
    for _ in range(8):
        await asked.answered()
        pauses_s.append(max(asked.ask(), PERIOD_S))
        asked.now[0] += pauses_s[-1]
    assert pauses_s == [2.0, 4.0, 8.0, 16.0, 32.0, RETRY_S, RETRY_S, RETRY_S]
    assert len(asked.woken) == 1
    engine.is_old = False
    assert (await asked.answered())[1] is PodState.EXCHANGED


async def test_another_wanted_draft_is_not_delayed_by_earlier_failures(engine, asked):
    engine.is_old = True
    for _ in range(4):
        await asked.answered()
        asked.now[0] += RETRY_S
    await asked.answered()
    engine.is_old = False
    asked.now[0] += PERIOD_S
    other = WantedDraft("/models/other", "v1-other", "v1-old")
    asked.asking.ask(KEY, "uid", [pod()], other)
    await asked.asking.complete(KEY)
    assert engine.path == "/models/other"


async def test_pods_that_are_gone_and_forgotten_resources_have_no_answers(engine, asked):
    await asked.answered()
    assert asked.ask([]) is None
    assert asked.asking.answers(KEY) == {}
    engine.path = OLD
    asked.now[0] += PERIOD_S
    asked.ask()
    asked.asking.forget(KEY)
    await asyncio.sleep(0)
    assert asked.asking.answers(KEY) == {}
    assert asked.woken == [KEY]
