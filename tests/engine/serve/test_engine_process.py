"""The engine in a process of its own, over real HTTP: it dies, it hangs, its server dies."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvloop

from specdecode_api.report import TerminationMessage, TerminationReason
from specdecode_engine.drain_socket import UNDRAIN, DrainClient
from specdecode_engine.frames import LENGTH_BYTES, take_frames
from specdecode_engine.serve.engine.child import Ping
from specdecode_engine.serve.engine.engine_process import (
    DEATHS_SECONDS,
    MAX_DEATHS,
    Channel,
    RestartLimit,
)
from tests.engine.serve.conftest import EXAMPLES, RunningServer, wait_until
from tests.engine.serve.echo_process import EchoProcess

BODY = {"prompt": "the quick brown fox", "temperature": 0, "ignore_eos": True}
SLICE_SECONDS = 0.005
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def engine_of(pid: int) -> int:
    """The process of a server's engine; a server with grammars has further children."""
    found = [one for one in children_of(pid) if b"engine.child" in command_of(one)]
    assert len(found) == 1, found
    return found[0]


def command_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or is left for its parent to read the exit status."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


class Engine:
    """A server of the example models, started by the program's own flags."""

    def __init__(self, log: Path, port: int) -> None:
        self.drain_socket = log.with_suffix(".sock")
        flags = {
            "model-path": EXAMPLES / "target", "served-model-name": "echo", "dtype": "float32",
            "speculative-algorithm": "STANDALONE", "speculative-adaptive-policy": "ema",
            "speculative-draft-model-path": EXAMPLES / "draft", "kv-cache-bytes": 64 * 2**20,
            "max-running-requests": 2, "threads": 1, "device": "cpu", "host": "127.0.0.1",
            "port": port, "engine-process": "on", "drain-socket": self.drain_socket,
        }  # fmt: skip
        words = [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        self.url = f"http://127.0.0.1:{port}"
        self._log = log.open("wb")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "specdecode_engine", *words],
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def is_ready(self) -> bool:
        assert self.process.poll() is None, Path(self._log.name).read_text(errors="replace")
        with suppress(httpx.TransportError):
            return httpx.get(self.url + "/ready", timeout=10).status_code == 200
        return False

    def text(self, **fields: Any) -> str:
        response = httpx.post(f"{self.url}/v1/completions", json=BODY | fields, timeout=120)
        assert response.status_code == 200, response.text
        return str(response.json()["choices"][0]["text"])

    def kill_engine(self) -> None:
        os.kill(engine_of(self.process.pid), signal.SIGKILL)
        wait_until(lambda: httpx.get(self.url + "/ready", timeout=10).status_code == 503)

    def running_requests(self) -> int:
        with DrainClient(self.drain_socket) as client:
            return int(client.send(UNDRAIN)["running_requests"])

    def metric(self, sample: str) -> float:
        return metric(self.url, sample)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(30)
        self._log.close()


def metric(url: str, sample: str) -> float:
    lines = httpx.get(url + "/metrics", timeout=10).text.splitlines()
    return float(next((one.split()[-1] for one in lines if one.startswith(sample + " ")), "0"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A server whose engine dies `MAX_DEATHS` times in the tests that share it."""
    yield from running_engine(tmp_path_factory.mktemp("engine"))


@pytest.fixture
def own_engine(tmp_path: Path) -> Iterator[Engine]:
    yield from running_engine(tmp_path)


def running_engine(folder: Path) -> Iterator[Engine]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    running = Engine(folder / "log.txt", port)
    try:
        wait_until(running.is_ready, 120)
        yield running
    finally:
        running.close()


@pytest.fixture
def start(start_process: Callable[..., EchoProcess]) -> Callable[..., EchoProcess]:
    """Start a server whose engine is an echo core in a process of its own."""

    def run(step_seconds: float = 0.05, **options: Any) -> EchoProcess:
        return start_process(step_seconds, engine_process="on", **options)

    return run


def read_stream(url: str, path: str, body: dict[str, Any], begun: list[str]) -> list[str]:
    """Return the lines of a stream; its name is in `begun` once it has a token."""
    lines: list[str] = []
    with httpx.stream("POST", url + path, json=body | {"stream": True}, timeout=120) as response:
        assert response.status_code == 200
        for line in response.iter_lines():
            lines.append(line)
            if '"choices":' in line or '"delta":' in line:  # every response has a "text"
                begun.append(path)
    return [line for line in lines if line]


def stopped_streams(
    engine: Engine, pool: ThreadPoolExecutor, bodies: dict[str, dict[str, Any]]
) -> list[Future[list[str]]]:
    """Begin streams and stop the engine: it runs in slices, or one could end before both begin."""
    process, begun = engine_of(engine.process.pid), list[str]()
    streams = [pool.submit(read_stream, engine.url, *each, begun) for each in bodies.items()]
    ends_s = time.monotonic() + 60
    while set(begun) != set(bodies):
        assert time.monotonic() < ends_s
        os.kill(process, signal.SIGCONT)
        time.sleep(SLICE_SECONDS)
        os.kill(process, signal.SIGSTOP)
        assert httpx.get(engine.url + "/live", timeout=10).status_code == 200
    return streams


def test_a_killed_engine_ends_open_streams_and_finishes_waiting_requests(
    engine: Engine, built_server: RunningServer
) -> None:
    plain = built_server.post("/v1/completions", json=BODY | {"max_tokens": 40})
    expected = plain.json()["choices"][0]["text"]
    assert engine.text(max_tokens=40) == expected
    before, server = engine_of(engine.process.pid), engine.process.pid
    started_s = engine.metric("specdecode_process_start_time_seconds")
    bodies = {
        "/v1/completions": BODY | {"max_tokens": 1900},
        "/v1/responses": {"input": "hello", "max_output_tokens": 1900, "ignore_eos": True},
    }
    with ThreadPoolExecutor(16) as pool:
        streams = stopped_streams(engine, pool, bodies)
        waiting = [pool.submit(engine.text, max_tokens=40) for _ in range(6)]
        whole = pool.submit(
            httpx.post, engine.url + "/v1/completions", json=BODY | {"max_tokens": 3}, timeout=60
        )
        wait_until(lambda: engine.running_requests() == len(streams) + len(waiting) + 1)
        engine.kill_engine()
        assert httpx.get(engine.url + "/live", timeout=10).status_code == 200
        refused = httpx.post(engine.url + "/v1/completions", json=BODY, timeout=10)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        wait_until(engine.is_ready, 120)
        assert [each.result(120) for each in waiting] == [expected] * 6
        assert whole.result(120).status_code == 200
        completion, response = (each.result(120) for each in streams)
    error = json.loads(completion[-1].removeprefix("data: "))["error"]
    assert error["code"] == "engine_failed"
    assert "killed by SIGKILL" in error["message"]
    failed = json.loads(response[-1].removeprefix("data: "))
    assert response[-2] == f"event: {failed['type']}"
    assert "killed by SIGKILL" in response[-1]
    assert (engine.process.pid, engine.process.poll()) == (server, None)
    assert engine_of(server) != before
    assert has_ended(before)
    assert engine.metric('specdecode_engine_failures_total{reason="EngineFailed"}') == 1
    assert engine.metric("specdecode_process_start_time_seconds") > started_s


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
    """A request that did so twice gets an error, and not a third engine."""
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
    assert metric(server.url, 'specdecode_engine_failures_total{reason="StepTimedOut"}') == 2


def test_an_error_in_a_step_starts_the_engine_again(start: Callable[..., EchoProcess]) -> None:
    server = start(core={"failing_step": 4})
    body = {"prompt": "the quick brown fox", "max_tokens": 9}
    answer = httpx.post(server.url + "/v1/completions", json=body, timeout=30)
    assert answer.status_code == 500
    assert "RuntimeError in the engine core" in answer.json()["error"]["message"]
    wait_until(server.is_ready, 60)
    short = httpx.post(server.url + "/v1/completions", json=body | {"max_tokens": 3}, timeout=30)
    assert short.status_code == 200


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
