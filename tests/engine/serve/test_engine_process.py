"""The engine in a process of its own, over real HTTP: it dies, it hangs, its server dies."""

import asyncio
import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from specdecode_api.report import TerminationMessage, TerminationReason
from specdecode_engine.frames import LENGTH_BYTES, take_frames
from specdecode_engine.serve.engine.child import Ping
from specdecode_engine.serve.engine.engine_process import (
    DEATHS_SECONDS,
    MAX_DEATHS,
    Channel,
    RestartLimit,
)
from tests.engine.serve.conftest import EXAMPLES, wait_until
from tests.engine.serve.echo_process import EchoProcess
from tests.engine.serve.own_process import (
    BODY,
    Engine,
    engine_of,
    has_ended,
    metric,
    running_engine,
)

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A server whose engine dies `MAX_DEATHS` times in the tests that share it."""
    yield from running_engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    yield from running_engine(tmp_path)


@pytest.fixture
def start(start_process: Callable[..., EchoProcess]) -> Callable[..., EchoProcess]:
    """Start a server whose engine is an echo core in a process of its own."""

    def run(step_seconds: float = 0.05, **options: Any) -> EchoProcess:
        return start_process(step_seconds, engine_process="on", **options)

    return run


def test_a_waiting_request_that_a_client_gives_up_is_not_submitted_again(engine: Engine) -> None:
    os.kill(engine_of(engine.process.pid), signal.SIGSTOP)
    with pytest.raises(httpx.TimeoutException):
        httpx.post(engine.url + "/v1/completions", json=BODY | {"max_tokens": 9}, timeout=0.5)
    engine.kill_engine()
    wait_until(engine.is_ready, 120)
    engine.text(max_tokens=1)
    assert engine.metric("specdecode_running_requests") == 0
    assert engine.metric("specdecode_emitted_tokens_total") == 0


def test_table_and_draft_in_force_survive_the_engine(own_engine: Engine, tmp_path: Path) -> None:
    engine = own_engine
    table = {"table": {"1": {"candidate_steps": [1, 3]}}}
    answer = httpx.put(engine.url + "/speculation/table", json=table, timeout=10)
    assert answer.status_code == 200, answer.text
    draft = shutil.copytree(EXAMPLES / "draft", tmp_path / "draft")
    body = {"path": str(draft)}
    answer = httpx.put(engine.url + "/speculation/draft", json=body, timeout=30)
    assert answer.json()["path"] == str(draft), answer.text
    before = httpx.get(engine.url + "/server_info", timeout=10).json()
    expected = engine.text(max_tokens=30)
    engine.kill_engine()
    wait_until(engine.is_ready, 120)
    after = httpx.get(engine.url + "/server_info", timeout=10).json()
    for key in ("speculation_table", "speculation_draft", "facts", "resume_id"):
        assert after[key] == before[key]
    assert [one["candidate_steps"] for one in after["snapshot"]["ranges"]] == [[1, 3]]
    assert engine.text(max_tokens=30) == expected
    shutil.rmtree(draft)
    engine.kill_engine()
    wait_until(engine.is_ready, 120)
    draft_after = httpx.get(engine.url + "/speculation/draft", timeout=10).json()
    assert draft_after["path"] == str(EXAMPLES / "draft")
    assert str(draft) in draft_after["latest_refusal"]
    assert engine.text(max_tokens=30) == expected


def test_grammars_are_compiled_in_the_engine_process_also_after_a_restart(engine: Engine) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
    messages = [{"role": "user", "content": "a number"}]
    body = {"messages": messages, "response_format": form, "max_tokens": 60, "temperature": 0}

    def answer() -> str:
        response = httpx.post(engine.url + "/v1/chat/completions", json=body, timeout=120)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["message"]["content"])

    before = answer()
    engine.kill_engine()
    wait_until(engine.is_ready, 120)
    assert answer() == before
    assert re.match(r'\s*\{\s*"n"\s*:', before)


def test_the_engine_ends_when_its_server_is_killed(start: Callable[..., EchoProcess]) -> None:
    server = start(step_seconds=600.0)
    engine = engine_of(server.process.pid)
    with pytest.raises(httpx.TimeoutException):  # it is inside a step
        httpx.post(server.url + "/v1/completions", json={"prompt": "fox"}, timeout=0.3)
    server.process.kill()
    server.process.wait()
    wait_until(lambda: has_ended(engine))


def test_sigterm_finishes_the_running_stream_and_leaves_no_process(
    start: Callable[..., EchoProcess],
) -> None:
    server = start()
    engine = engine_of(server.process.pid)
    body = {"prompt": "the fox", "max_tokens": 20, "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=20) as answer:
        lines = answer.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        rest = list(lines)
    assert rest[-2] == "data: [DONE]"
    assert server.process.wait(60) == 0
    assert has_ended(engine)


def test_a_second_sigterm_ends_a_step_that_does_not(start: Callable[..., EchoProcess]) -> None:
    server = start(step_seconds=600.0)
    engine = engine_of(server.process.pid)
    body = {"prompt": "the fox", "stream": True}
    with httpx.stream("POST", server.url + "/v1/completions", json=body, timeout=30) as answer:
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: not server.is_ready())  # else both signals could be one
        server.process.send_signal(signal.SIGTERM)
        assert "stopped before" in answer.read().decode()
    assert server.process.wait(60) == 0
    assert has_ended(engine)


def test_a_step_that_does_not_end_is_ended_with_its_process(
    start: Callable[..., EchoProcess],
) -> None:
    """A request that did so three times gets an error, and not a fourth engine."""
    server = start(step_seconds=600.0, step_timeout_seconds=0.5)
    first = engine_of(server.process.pid)

    def is_late() -> bool:
        assert httpx.get(server.url + "/live", timeout=10).status_code == 200
        return bool(answer.done())

    with ThreadPoolExecutor(1) as pool:
        answer: Any = pool.submit(
            httpx.post, server.url + "/v1/completions", json={"prompt": "fox"}, timeout=60
        )
        wait_until(is_late, 120)
    assert answer.result().status_code == 500
    assert "the limit is 0.5 s" in answer.result().json()["error"]["message"]
    wait_until(server.is_ready, 60)
    assert has_ended(first)
    assert metric(server.url, 'specdecode_engine_failures_total{reason="StepTimedOut"}') == 3


@pytest.mark.parametrize(
    ("load", "reason", "text"),
    [
        ("die_at_start", TerminationReason.ENGINE_FAILED, f"died {MAX_DEATHS + 1} times"),
        ("fail_at_start", TerminationReason.ENGINE_FAILED, "no weights in this folder"),
    ],
)
def test_an_engine_that_cannot_start_ends_the_server_with_the_reason(
    start: Callable[..., EchoProcess],
    tmp_path: Path,
    load: str,
    reason: TerminationReason,
    text: str,
) -> None:
    words = tmp_path / "words"
    environment = {"SPECDECODE_TERMINATION_MESSAGE_PATH": str(words)}
    server = start(environment=environment, is_ready=False, load=load)
    assert server.process.wait(60) == 1
    message = TerminationMessage.decode(words.read_text())
    assert message is not None
    assert message.reason == reason
    assert text in message.message


def test_a_process_may_start_again_a_few_times_within_the_limit() -> None:
    limit = RestartLimit()
    allowed = [limit.allows(float(at)) for at in range(MAX_DEATHS + 1)]
    assert allowed == [True] * MAX_DEATHS + [False]
    assert limit.allows(DEATHS_SECONDS + 1.5)
    assert not limit.allows(DEATHS_SECONDS + 2)


def test_a_message_to_an_engine_whose_channel_is_closing_is_lost() -> None:
    """A request that arrives between an engine's death and the next engine waits for that."""

    async def send_late() -> None:
        own, other = socket.socketpair()
        with other:
            channel = Channel(lambda message: None)
            loop = asyncio.get_running_loop()
            await loop.create_unix_connection(lambda: channel, sock=own)
            channel.close()
            channel.send(Ping())
            await channel.closed
            channel.send(Ping())
            other.setblocking(False)
            assert other.recv(1) == b"", "nothing was sent"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # that of the server
        runner.run(send_late())


def test_frames_are_taken_whole_however_they_are_split() -> None:
    frames = [b"", b"a", bytes(1000)]
    sent = b"".join(len(each).to_bytes(LENGTH_BYTES, "big") + each for each in frames)
    for size in (1, 7, 8, 9, 500, len(sent)):
        received, taken = bytearray(), []
        for at in range(0, len(sent), size):
            received += sent[at : at + size]
            taken += list(take_frames(received))
        assert (taken, bytes(received)) == (frames, b"")
