"""Snapshots of the core's figures: taken for readers, not by steps, and soon or not at all."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from specdecode_api.metrics.core import EMITTED_TOKENS, RUNNING_REQUESTS
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.serve.engine import async_engine
from specdecode_engine.serve.engine.async_engine import SNAPSHOT_WAIT_SECONDS, AsyncEngine
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.serve.engine.engine_host import in_thread
from tests.engine.serve.echo_core import EchoCore

FIELDS = {"model": "echo", "prompt": "the quick brown fox"}
SAMPLE = "specdecode_emitted_tokens_total "


class CountingCore(EchoCore):
    """Counts its snapshots; a step does not end while `may_step` is cleared."""

    snapshots = 0

    def __init__(self, **options):
        super().__init__(**options)
        self.may_step = threading.Event()
        self.may_step.set()

    def step(self):
        assert self.may_step.wait(60)
        return super().step()

    def snapshot(self):
        self.snapshots += 1
        return super().snapshot()


@pytest.fixture
def core():
    return CountingCore(tokens_per_step=3)


@pytest.fixture
def server(core, start_server, model_folder):
    return start_server(lambda _: LoadedEngine(core, model_folder))


def emitted(server):
    lines = server.get("/metrics").text.splitlines()
    return next(float(line.removeprefix(SAMPLE)) for line in lines if line.startswith(SAMPLE))


def test_a_request_takes_no_snapshot(server, core):
    before = core.snapshots
    server.client.completions.create(**FIELDS, max_tokens=60)
    assert core.snapshots == before


def test_a_scrape_right_after_an_answer_counts_all_of_its_tokens(server):
    total = 0
    for max_tokens in range(1, 30):
        server.client.completions.create(**FIELDS, max_tokens=max_tokens)
        total += max_tokens
        assert emitted(server) == total


def test_the_real_core_counts_an_answer_before_the_next_scrape(built_server):
    for max_tokens in (1, 2, 7):
        before = emitted(built_server)
        options = {"max_tokens": max_tokens, "extra_body": {"ignore_eos": True}}
        built_server.client.completions.create(**FIELDS, **options)
        # The first token is the prefill's.
        assert emitted(built_server) - before == max_tokens - 1


def test_a_scrape_in_a_long_step_returns_the_last_figures(server, core, eventually):
    server.client.completions.create(**FIELDS, max_tokens=12)
    assert emitted(server) == 12
    core.may_step.clear()  # every reader below is answered while the step still runs
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.client.completions.create, **FIELDS, max_tokens=3)
        try:
            eventually(lambda: server.service.engine.step_seconds() > 0)
            assert emitted(server) == 12
            info = server.get("/server_info").json()
            assert info["snapshot_age_seconds"] >= SNAPSHOT_WAIT_SECONDS
            assert server.get("/degraded").status_code == 200
            assert server.get("/live").status_code == 200
            assert not asked.done()
        finally:
            core.may_step.set()
        asked.result()
    assert emitted(server) == 15


async def test_readers_that_wait_together_share_one_snapshot(core, model_folder):
    is_ready = asyncio.Event()

    async def prepare(started):
        is_ready.set()

    load = in_thread(lambda _: LoadedEngine(core, model_folder), time.monotonic)
    engine = AsyncEngine(load, prepare, lambda error: None)
    engine.start()
    await is_ready.wait()
    core._step_seconds = 0.2
    params = SamplingParams(seed=0, max_tokens=3, temperature=0.0, ignore_eos=True)
    async with engine.stream((Request("1", (1, 2, 3), params),)) as outputs:
        before = core.snapshots
        found = await asyncio.gather(*(engine.refresh_snapshot() for _ in range(50)))
        assert core.snapshots - before == 1
        assert {id(snapshot) for snapshot in found} == {id(engine.snapshot)}
        async for _ in outputs:
            pass
    assert (await engine.refresh_snapshot())[EMITTED_TOKENS] == 3
    assert core.snapshots - before == 2
    assert await engine.close(5)


def test_nobody_waits_for_a_snapshot_before_the_engine_is_loaded(
    start_server, model_folder, core, eventually, monkeypatch
):
    may_load = threading.Event()
    # A reader that waited for a snapshot would meet the timeout of its own request.
    monkeypatch.setattr(async_engine, "SNAPSHOT_WAIT_SECONDS", 60)

    def load(progress):
        assert may_load.wait(60)
        return LoadedEngine(core, model_folder)

    server = start_server(load, is_ready=False)
    try:
        eventually(lambda: server.get("/live").status_code == 200)
        assert emitted(server) == 0
        assert server.snapshot()[RUNNING_REQUESTS] == 0
    finally:
        may_load.set()
    server.wait_ready()


def test_the_figures_after_the_end_are_the_final_ones(server):
    server.client.completions.create(**FIELDS, max_tokens=20)
    server.stop()
    assert server.exit_code.result(20) == 0
    assert server.service.engine.snapshot[EMITTED_TOKENS] == 20


def test_the_figures_of_a_failed_engine_are_the_final_ones(start_server, model_folder):
    core = CountingCore(tokens_per_step=3, failing_step=5)
    server = start_server(lambda _: LoadedEngine(core, model_folder))
    answer = server.post("/v1/completions", json=FIELDS | {"max_tokens": 60})
    assert answer.status_code == 500
    assert server.exit_code.result(20) == 1
    assert server.service.engine.snapshot[EMITTED_TOKENS] == 12
