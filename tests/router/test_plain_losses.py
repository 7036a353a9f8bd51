"""What a router does when an engine of vLLM is lost, fails or refuses a request."""

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.types import Message

from bench.router.programs import wait_until
from specdecode_api import names
from specdecode_router.client_request import ClientRequest, ClientResponse
from specdecode_router.engines import EnginePool
from specdecode_router.metrics import RouterMetrics
from specdecode_router.plain import attempt
from specdecode_router.plain.poll import count_requests, read_plain_state
from specdecode_router.plain.relay import PlainRelay
from specdecode_router.poller import Poller
from specdecode_router.routing.prefix_table import PrefixTable
from specdecode_router.routing.prompt_blocks import cut_prompt
from specdecode_router.settings import EngineAddress
from specdecode_router.upstream import EngineLost, open_session
from tests.router.recorded_engine import (
    BODY,
    COMPLETIONS,
    DONE,
    EVENTS,
    METRICS,
    PlainRouter,
    RecordedEngine,
)

LONG = BODY | {"prompt": "the quick brown fox " * 100}
"""More than a block: the router remembers which engine has answered it."""

Engines = tuple[RecordedEngine, RecordedEngine]


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[PlainRouter, Engines]]:
    """A router and its engines, which no test of it loses."""
    engines = RecordedEngine("one"), RecordedEngine("two")
    addresses = [each.address for each in engines]
    router = PlainRouter(addresses, "--max-body-bytes", str(6 * 2**20))
    router.wait_ready(2)
    yield router, engines
    for each in (router, *engines):
        each.close()


@pytest.fixture
def shared(pair: tuple[PlainRouter, Engines]) -> tuple[PlainRouter, Engines]:
    for each in pair[1]:
        each.behave()
    return pair


def post(router: PlainRouter, body: dict[str, Any], path: str = COMPLETIONS) -> httpx.Response:
    return httpx.post(router.url + path, json=body, timeout=60)


def engine_info(router: PlainRouter, engine: RecordedEngine) -> dict[str, Any]:
    """What the router knows of an engine."""
    known = httpx.get(f"{router.management_url}/server_info", timeout=10).json()["engines"]
    return next(each for each in known if each["address"] == engine.address)


def order(two: Engines, router: PlainRouter) -> Engines:
    """The engine that will get `LONG`, and the other one."""
    first = post(router, LONG).json()["from"]
    return two if first == two[0].name else (two[1], two[0])


def test_calls_of_an_engine_that_answers_nothing_end(two, start):
    router = start()
    first, other = order(two, router)
    first.is_running.clear()
    with ThreadPoolExecutor() as threads:
        streamed = threads.submit(post, router, LONG | {"stream": True})
        whole = threads.submit(post, router, LONG)
        try:
            assert whole.result().json()["from"] == other.name
            content = streamed.result(60).content
        finally:
            first.is_running.set()
    assert first.paths.count(COMPLETIONS) == 3, "a call did not meet the engine that is silent"
    assert content.startswith(EVENTS)
    last = content.strip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "engine_lost"
    assert router.metric("specdecode_router_attempts_total", result="stalled") == 2


def test_a_connection_that_is_silent_is_probed(shared):
    router, two = shared
    first, _ = order(two, router)
    port = f"{int(first.address.rpartition(':')[2]):04X}"
    with ThreadPoolExecutor() as threads:
        first.is_running.clear()
        answer = threads.submit(post, router, LONG)
        try:
            wait_until(lambda: port in probed_ports(), what="a timer of TCP keepalive")
        finally:
            first.is_running.set()
        assert answer.result().status_code == 200


def probed_ports() -> list[str]:
    """Remote ports, in hexadecimal, of connections whose timer is that of keepalive probes."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [row[2].rpartition(":")[2] for row in rows if row[5].startswith("02:")]


def test_a_stream_without_an_event_is_generated_elsewhere(shared):
    router, two = shared
    first, other = order(two, router)
    first.cuts_before_events = True
    streamed = post(router, LONG | {"stream": True})
    assert (streamed.status_code, streamed.content) == (200, EVENTS + DONE)
    assert len(first.paths) == 2
    assert len(other.paths) == 1


def test_short_requests_are_tried_elsewhere_after_500(shared):
    router, two = shared
    for shut_down, serving in (two, two[::-1]):
        shut_down.is_shutting_down, serving.is_shutting_down = True, False
        for path in ("/tokenize", "/detokenize", "/v1/messages/count_tokens"):
            answer = post(router, BODY, path)
            assert (answer.status_code, answer.json()) == (200, {"from": serving.name})
    two[0].is_shutting_down = True
    two[1].is_shutting_down = True
    assert post(router, BODY, "/tokenize").status_code == 500


def test_requests_that_fail_everywhere_open_no_breaker(shared):
    router, two = shared
    for each in two:
        each.refusals = {"bad": 500, "unsupported": 501}
    failures = [engine_info(router, each)["failures"] for each in two]
    url, impatient = router.url + COMPLETIONS, {names.HEADER_TIMEOUT: "0"}
    for status, prompt in ((500, "bad"), (501, "unsupported")):
        for _ in range(6):
            body = BODY | {"prompt": prompt}
            assert httpx.post(url, json=body, headers=impatient).status_code == status
    assert sum(len(each.paths) for each in two) == 6 * 2 + 6, "501 was tried elsewhere"
    assert httpx.post(url, json=BODY, headers=impatient).status_code == 200
    after = [engine_info(router, each)["failures"] for each in two]
    assert all(new <= old for new, old in zip(after, failures, strict=True))


def test_an_engine_that_fails_what_another_answers_is_left(shared):
    router, two = shared
    first, other = order(two, router)
    first.is_shutting_down = True
    assert post(router, LONG).json()["from"] == other.name
    assert engine_info(router, first)["failures"] == 1
    assert engine_info(router, other)["failures"] == 0


def test_a_body_has_the_limit_of_the_router(shared):
    router, _ = shared
    image = BODY | {"image": "A" * 5 * 2**20}
    for path in (COMPLETIONS, "/tokenize"):
        assert post(router, image, path).status_code == 200
        refused = post(router, image | {"image": "A" * 6 * 2**20}, path)
        assert refused.status_code == 413
        assert "raise --max-body-bytes of the router" in refused.json()["error"]["message"]


def test_requests_of_other_routers_count_as_load(shared):
    router, two = shared
    first, other = order(two, router)
    assert post(router, LONG).json()["from"] == first.name
    first.running_requests = 50
    wait_until(lambda: engine_info(router, first)["other_requests"] == 50, what="a poll")
    assert post(router, LONG).json()["from"] == other.name


def test_requests_are_counted_over_engine_cores():
    recorded = METRICS.read_bytes()
    assert count_requests(recorded) == 0
    samples = (
        b'vllm:num_requests_running{engine="0",model_name="}"} 3.0\n'
        b'vllm:num_requests_running{engine="1",model_name="m"} 2.0\n'
        b'vllm:num_requests_waiting{engine="0",model_name="m"} 4.0 1700000000000\n'
        b'vllm:num_requests_waiting_by_reason{engine="0",reason="capacity"} 4.0\n'
    )
    assert count_requests(samples) == 9
    for bad in (b"NaN", b"-1", b"+Inf", b"1e300", b"x", b""):
        assert count_requests(b"vllm:num_requests_running{} " + bad) == 0


async def relayed(engines: Engines, work: Callable[[PlainRelay, EnginePool], Any]) -> None:
    """Run `work` with a relay of this process that has found both engines ready."""
    pool, table = EnginePool(asyncio.get_running_loop().time), PrefixTable()
    addresses = [EngineAddress("127.0.0.1", int(each.address[10:])) for each in engines]
    pool.update({address: (str(address), "") for address in addresses})
    async with open_session() as session:
        for engine in pool.engines.values():
            pool.report(engine, await read_plain_state(session, engine.address))
        relay = PlainRelay(pool, table, session, RouterMetrics(pool, table), 2, set())
        async with asyncio.timeout(60):
            await work(relay, pool)


@pytest.mark.parametrize("refusal", [None, 400, 503])
def test_a_stream_that_has_only_begun_is_generated_elsewhere(two, refusal, monkeypatch):
    """The client has headers if the first event takes long; a refusal is an event then."""
    monkeypatch.setattr(attempt, "KEEP_ALIVE_SECONDS", 0.01)
    body = json.dumps(BODY | {"stream": True}).encode()
    sent: list[Message] = []
    for each in two:
        each.cuts_before_events = True
        each.may_cut.clear()

    async def send(message: Message) -> None:
        sent.append(message)
        if message["type"] == "http.response.start":
            first, other = two if two[0].paths else two[::-1]
            other.cuts_before_events = False
            other.refusals = {} if refusal is None else {BODY["prompt"]: refusal}
            first.may_cut.set()

    async def run(relay: PlainRelay, pool: EnginePool) -> None:
        request = ClientRequest(
            "/v1/completions", {}, body, cut_prompt(body), None, pool.clock(), 0.5
        )
        await relay.respond(request, ClientResponse(send))

    asyncio.run(relayed(two, run))
    content = b"".join(each.get("body", b"") for each in sent)
    assert [each.get("status") for each in sent if "status" in each] == [200]
    if refusal is None:
        assert content == EVENTS + DONE
    else:
        error = json.loads(content.strip().removeprefix(b"data: "))["error"]
        assert error["code"] == "engine_lost"
        assert str(refusal) in error["message"]


def test_an_attempt_may_be_given_up_after_its_end(two):
    """Its error may still be on its way to a slow client when the next check finds it silent."""

    async def run(relay: PlainRelay, pool: EnginePool) -> None:
        engine, body = next(iter(pool.engines.values())), json.dumps(BODY).encode()
        request = ClientRequest("/v1/completions", {}, body, cut_prompt(body), None, 0, 0)
        response = ClientResponse(_no_client)
        tried = attempt.PlainAttempt(engine, request, response, lambda: None, pool.clock)
        two[0].is_running.clear()
        running = asyncio.create_task(tried.run(relay.session))
        await _until(lambda: bool(two[0].paths))
        tried.give_up()
        with pytest.raises(EngineLost, match="no answer to polls"):
            await running
        tried.give_up()

    asyncio.run(relayed(two, run))


async def _no_client(message: Message) -> None:
    raise AssertionError(message)


def test_a_removed_engine_is_polled_while_it_computes(two):
    async def run(relay: PlainRelay, pool: EnginePool) -> None:
        engine = next(iter(pool.engines.values()))
        poller = Poller(pool, partial(read_plain_state, relay.session), polls_removed=True)
        polling = asyncio.create_task(poller.run())
        with engine.count_request():
            await _until(lambda: two[0].polls >= 2)
            pool.update({})
            polls = two[0].polls
            await _until(lambda: two[0].polls >= polls + 2)
            assert engine.reason == "removed"
            num_tasks = len(asyncio.all_tasks())
        await _until(lambda: len(asyncio.all_tasks()) == num_tasks - 1)
        polling.cancel()

    asyncio.run(relayed(two, run))


async def _until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.02)
