"""A connection that has ended is freed at once: collecting thousands would stop all streams."""

import gc
import json
import socket
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from specdecode_server.connection import LimitedProtocol
from tests.engine.serve.conftest import RunningServer

HEAD = b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
SECONDS = 20.0


def post(**fields: object) -> bytes:
    body = json.dumps({"prompt": "the fox", "max_tokens": 4} | fields).encode()
    return HEAD + b"content-length: %d\r\n\r\n" % len(body) + body


def wait_for(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.01)


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[weakref.ref[Any]]]:
    """Every connection and request since, without garbage collection."""
    found = list[weakref.ref[Any]]()
    made, start = LimitedProtocol.connection_made, LimitedProtocol._start_asgi_task

    def note_connection(self: LimitedProtocol, transport: Any) -> None:
        found.append(weakref.ref(self))
        made(self, transport)

    def note_request(self: LimitedProtocol, cycle: Any, app: Any) -> None:
        found.append(weakref.ref(cycle))
        start(self, cycle, app)

    monkeypatch.setattr(LimitedProtocol, "connection_made", note_connection)
    monkeypatch.setattr(LimitedProtocol, "_start_asgi_task", note_request)
    gc.collect()
    gc.disable()
    yield found
    gc.enable()


@pytest.mark.parametrize(
    ("sent", "last", "requests"),
    [
        pytest.param(post(), b"}", 1, id="whole"),
        pytest.param(post(stream=True), b"[DONE]", 1, id="stream"),
        pytest.param(post(stream=True, max_tokens=200), b"data", 1, id="left"),
        pytest.param(post() * 3, b'"usage"', 3, id="three at once"),
        pytest.param(post(temperature=-1), b"}", 1, id="refused"),
        pytest.param(HEAD + b"content-length: 99999999\r\n\r\n{", b"}", 1, id="too large"),
        pytest.param(b"no HTTP\r\n\r\n", b"}", 0, id="invalid"),
        pytest.param(HEAD, b"", 0, id="half a head"),
    ],
)
def test_a_connection_that_has_ended_is_freed_at_once(
    start_server: Any, kept: list[weakref.ref[Any]], sent: bytes, last: bytes, requests: int
) -> None:
    running: RunningServer = start_server(step_seconds=0.01, tokens_per_step=1)
    kept.clear()  # of the requests that waited for the start
    with socket.create_connection(running.address, timeout=SECONDS) as sock:
        sock.sendall(sent)
        received = b""
        while received.count(last) < max(1, requests):
            piece = sock.recv(65536)
            assert piece, received
            received += piece
        wait_for(lambda: len(kept) >= 1 + requests)
    wait_for(lambda: not any(each() for each in kept))
    assert len(kept) == 1 + requests
