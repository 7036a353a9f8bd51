"""Loading, draining, stopping, failing: what probes and clients see, and the exit code."""

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import httpx
import openai
import pytest

from specdecode_api.boot import EngineBoot
from specdecode_api.metrics.core import RUNNING_REQUESTS
from specdecode_api.report import Progress, StartProgress
from specdecode_engine.drain_socket import DRAIN, DrainClient
from specdecode_engine.graphs.plan import CAPTURING, GraphReport, GraphSetReport
from specdecode_engine.serve.app import build_app
from specdecode_engine.serve.engine.core import LoadedEngine
from specdecode_engine.serve.openai.service import Service
from tests.engine.serve.echo_core import EchoCore

FIELDS = {"model": "echo", "prompt": "the quick brown fox", "max_tokens": 60}


@pytest.fixture
def pool():
    with ThreadPoolExecutor(4) as executor:
        yield executor


def ask(server, **fields):
    return server.client.completions.create(**(FIELDS | fields))


def read_stream(server, **fields):
    """Return the text of a stream and the error that ended it, if one did."""
    text, error = "", None
    try:
        client = server.connect(is_strict=False)
        for chunk in client.completions.create(**(FIELDS | fields), stream=True):
            text += chunk.choices[0].text
    except openai.APIError as caught:
        error = caught
    return text, error


def wait_running(server, eventually):
    eventually(lambda: server.snapshot()[RUNNING_REQUESTS] > 0)


def test_probes_answer_while_the_model_loads(start_server, model_folder, eventually):
    may_go_on = threading.Event()

    def load(progress):
        progress(StartProgress(stage="weights 2 of 5"))
        assert may_go_on.wait(10)
        return LoadedEngine(EchoCore(), model_folder, {"device": "cpu"})

    server = start_server(load, is_ready=False)
    eventually(lambda: "weights 2 of 5" in server.get("/startup").text)
    assert server.get("/startup").status_code == 503
    assert server.get("/ready").status_code == 503
    assert server.get("/live").status_code == 200
    with pytest.raises(openai.InternalServerError) as caught:
        ask(server)
    assert caught.value.status_code == 503
    assert caught.value.code == "loading"
    may_go_on.set()
    server.wait_ready()
    assert server.get("/startup").status_code == 200
    assert server.get("/server_info").json()["facts"] == {"device": "cpu"}


def test_progress_is_reported_until_the_engine_serves(start_server, model_folder, eventually):
    may_go_on = threading.Event()
    shown = StartProgress(stage="loading secret-folder", done=3, total=5, unit="B")

    def load(progress):
        progress(StartProgress(stage="loading checkpoints"))
        progress(shown)
        assert may_go_on.wait(60)
        return LoadedEngine(EchoCore(), model_folder, {"device": "cpu"})

    server = start_server(load, is_ready=False)
    eventually(lambda: progress_of(server).start == shown)
    with pytest.raises(openai.InternalServerError) as caught:
        ask(server)
    assert "loading checkpoints" in str(caught.value)
    assert "secret-folder" not in str(caught.value)
    may_go_on.set()
    server.wait_ready()
    assert progress_of(server) == Progress()


def progress_of(server):
    return Progress.model_validate_json(server.get("/progress").text)


class CapturingCore(EchoCore):
    """Two of three pairs are captured."""

    def snapshot(self):
        captured = (GraphSetReport(3, (1, 2)),)
        return replace(
            super().snapshot(), graphs=GraphReport("cuda", captured, pending=("3 x 4: no time",))
        )


def test_a_loaded_engine_reports_the_graphs_that_it_still_captures(start_server, model_folder):
    server = start_server(lambda progress: LoadedEngine(CapturingCore(), model_folder))
    expected = StartProgress(stage=CAPTURING, done=2, total=3, unit="pair")
    assert progress_of(server).start == expected


def test_a_failed_load_ends_the_process_with_one_line(start_server, caplog):
    def load(progress):
        raise ValueError("no weights in\nthis folder; name another")

    with caplog.at_level(logging.INFO):
        server = start_server(load, is_ready=False)
        assert server.exit_code.result(10) == 1
    lines = [record for record in caplog.records if record.levelno >= logging.ERROR]
    assert [line.getMessage() for line in lines] == [
        "the engine did not load: ValueError: no weights in this folder; name another"
    ]
    assert lines[0].exc_info is None


def test_stop_lets_running_calls_finish_and_refuses_new_ones(start_server, pool, eventually):
    server = start_server(step_seconds=0.02, tokens_per_step=1)
    stream = pool.submit(read_stream, server)
    whole = pool.submit(ask, server)
    eventually(lambda: server.service.lifecycle.running_requests == 2)
    server.stop()
    eventually(lambda: server.get("/ready").status_code == 503)
    with pytest.raises(openai.InternalServerError) as caught:
        ask(server)
    assert caught.value.status_code == 503
    assert caught.value.code == "draining"
    assert caught.value.response.headers["retry-after"] == "1"
    text, error = stream.result(10)
    assert error is None
    assert text == whole.result(10).choices[0].text
    assert server.exit_code.result(10) == 0


def test_a_draining_pod_answers_on_kept_connections_and_gives_them_up(start_server):
    """A Service balances connections: one that is kept comes back to this pod until it ends."""
    server = start_server()
    body = {key: FIELDS[key] for key in ("prompt", "max_tokens")}
    with httpx.Client(base_url=server.url) as client:
        assert "connection" not in client.post("/v1/completions", json=body).headers
        with DrainClient(server.drain_socket) as drain:
            drain.send(DRAIN)
        for is_stream in (False, True):
            answer = client.post("/v1/completions", json=body | {"stream": is_stream})
            assert (answer.status_code, answer.headers["connection"]) == (200, "close")


def test_a_stopping_pod_closes_idle_connections_before_they_are_used(
    start_server, pool, eventually
):
    """A request that came on one would be refused, though another pod could have answered it."""
    server = start_server(step_seconds=0.02, tokens_per_step=1)
    host, port = server.address
    with closing(HTTPConnection(host, port, timeout=10)) as idle:
        idle.request("GET", "/live")
        assert idle.getresponse().read()
        running = pool.submit(ask, server)
        wait_running(server, eventually)
        server.stop()
        assert idle.sock.recv(1) == b""
        assert not running.done()
    assert running.result(10).choices[0].text


def test_what_outlasts_the_drain_is_cut_off_with_an_error(start_server, pool, eventually):
    server = start_server(step_seconds=0.05, tokens_per_step=1, drain_seconds=0.2)
    stream = pool.submit(read_stream, server)
    whole = pool.submit(ask, server)
    eventually(lambda: server.service.lifecycle.running_requests == 2)
    server.stop()
    assert server.exit_code.result(10) == 0
    _, error = stream.result(10)
    assert "stopped before" in error.message
    with pytest.raises(openai.InternalServerError):
        whole.result(10)
    assert len(server.core.aborted) == 2


def test_a_second_signal_does_not_wait(start_server, pool, eventually):
    server = start_server(step_seconds=0.05, tokens_per_step=1, drain_seconds=60)
    stream = pool.submit(read_stream, server)
    wait_running(server, eventually)
    server.stop()
    server.stop()
    started = time.monotonic()
    assert server.exit_code.result(10) == 0
    assert time.monotonic() - started < 5
    assert stream.result(10)[1] is not None


def test_a_step_that_raises_fails_the_calls_and_ends_the_process(start_server, pool, caplog):
    server = start_server(step_seconds=0.02, tokens_per_step=1, failing_step=20)
    with caplog.at_level(logging.ERROR):
        stream = pool.submit(read_stream, server)
        whole = pool.submit(ask, server)
        assert server.exit_code.result(10) == 1
    with pytest.raises(openai.InternalServerError) as caught:
        whole.result(10)
    assert caught.value.code == "engine_failed"
    text, error = stream.result(10)
    assert text
    assert "RuntimeError" in error.message
    record = next(record for record in caplog.records if "core failed" in record.getMessage())
    assert record.exc_info is not None


@pytest.fixture
async def service(model_folder, request):
    """A service without a server around it: it lives on when its engine has died."""
    core = EchoCore(**request.param)
    boot = EngineBoot.model_validate(
        {"model": {"path": str(model_folder)}, "server": {"step_timeout_seconds": 0.2}}
    )
    service = Service(boot, lambda progress: LoadedEngine(core, model_folder))
    service.engine.start()
    while not service.lifecycle.is_loaded:
        await service.lifecycle.wait_for_change()
    yield service
    await service.engine.close(5)


@pytest.fixture
async def http(service):
    transport = httpx.ASGITransport(build_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


BODY = {"prompt": "the fox", "max_tokens": 3}


@pytest.mark.parametrize("service", [{"failing_step": 1}], indirect=True)
async def test_after_a_failure_live_and_ready_are_false_and_calls_fail_at_once(http):
    assert (await http.get("/live")).status_code == 200
    assert (await http.post("/v1/completions", json=BODY)).status_code == 500
    assert (await http.get("/live")).status_code == 503
    assert (await http.get("/ready")).status_code == 503
    assert (await http.get("/startup")).status_code == 503
    assert (await http.get("/health")).json() == {"status": "unavailable", "reason": "failed"}
    answer = await http.post("/v1/completions", json=BODY)
    assert answer.status_code == 503
    assert answer.json()["error"]["code"] == "engine_failed"


@pytest.mark.parametrize("service", [{"step_seconds": 0.6}], indirect=True)
async def test_a_stuck_step_is_not_live_until_it_ends(http, service, eventually):
    call = asyncio.create_task(http.post("/v1/completions", json=BODY))
    assert (await http.get("/live")).status_code == 200
    await asyncio.to_thread(eventually, lambda: service.dead_reason() is not None)
    assert "step has been running" in (await http.get("/live")).json()["reason"]
    assert (await call).status_code == 200
    assert (await http.get("/live")).status_code == 200


@pytest.mark.parametrize("service", [{}], indirect=True)
async def test_an_idle_engine_is_live(http):
    await asyncio.sleep(0.3)
    assert (await http.get("/live")).status_code == 200


async def test_tokenizer_and_grammars_are_prepared_before_the_first_request(
    model_folder: Path,
) -> None:
    """What is loaded after `on_loaded` would be visited by every collection of all objects."""
    ready: list[tuple[bool, int, bool]] = []

    def note() -> None:
        can_compile = prepared.grammars.refusal is None
        ready.append((can_compile, prepared.text.vocab_size, prepared.lifecycle.is_loaded))

    boot = EngineBoot.model_validate({"model": {"path": str(model_folder)}})
    core = EchoCore(eos_token_ids=[0])
    prepared = Service(boot, lambda _: LoadedEngine(core, model_folder), on_loaded=note)
    prepared.engine.start()
    try:
        while not prepared.lifecycle.is_loaded:
            await prepared.lifecycle.wait_for_change()
    finally:
        await prepared.engine.close(5)
        prepared.grammars.close()
    assert ready == [(True, prepared.text.vocab_size, False)]
