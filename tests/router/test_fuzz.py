"""Drawn requests: none reaches a management path, an internal header or field of an engine."""

import contextlib
import http.client
import json
import random
import re
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from bench.router.programs import TARGET, TOKEN, RouterProgram
from specdecode_api import names
from specdecode_api.internal_api import (
    HEADER_TOKEN,
    INTERNAL_HEADER_PREFIX,
    PATH_ENGINE,
    PATH_GENERATE,
    QUERY_RESPONSE_KEY,
)
from tests.router.test_router import EchoEngine

REQUESTS = 400
SEEDS = (1, 2)
PUBLIC = (
    "/v1/speculation",
    "/v1/models",
    "/tokenize",
    "/detokenize",
    "/openapi.json",
    "/tokenizer_info",
    "/model_info",
)
POLL = f"{PATH_ENGINE}?{QUERY_RESPONSE_KEY}=1"
GENERATION = ("/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages")
MANAGEMENT = (
    PATH_GENERATE, PATH_ENGINE, names.PATH_METRICS, names.PATH_READY, names.PATH_LIVE,
    names.PATH_SERVER_INFO, "/speculation/table", "/speculation/draft", "/degraded",
)  # fmt: skip
JOINTS = (
    "",
    "/..",
    "/../..",
    "/.",
    "//",
    "/%2e%2e",
    "/%252e%252e",
    "\\..",
    ";",
    "%2f",
    "%00",
    "?a=",
)
HEADERS = (
    HEADER_TOKEN, HEADER_TOKEN.upper(), "X-Specdecode-Router-Seed", "x-specdecode-router-",
    "X_Specdecode_Router_Token", names.HEADER_OWNER, "X-Forwarded-Path", "X-Original-URL",
    "X-HTTP-Method-Override", "X-Session-Id",
)  # fmt: skip
TEXT = {"prompt": "a fox", "input": "a fox", "messages": [{"role": "user", "content": "a fox"}]}
FIELDS = {
    "resume": [{"ids": [1, 2], "sent_characters": 3, "finished": None}], "resume_id": "x",
    "path": PATH_ENGINE, "id": "mine", "created": 1, "sent_events": 9, "owner": "mine",
}  # fmt: skip


class RecordingRelay:
    """Passes connections on to a port, and keeps what was sent there."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self.sent: list[bytearray] = []
        self._sockets = [self._server]
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: Any) -> None:
        self._threads.append(threading.Thread(target=work, args=arguments))
        self._threads[-1].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._server.accept()
                engine = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += client, engine
                self.sent.append(bytearray())
                self._start(self._copy, client, engine, self.sent[-1])
                self._start(self._copy, engine, client, bytearray())

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
        with contextlib.suppress(OSError):  # the other side is gone
            while data := source.recv(65536):
                kept += data
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._sockets:
            with contextlib.suppress(OSError):  # not connected any more
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)
        for each in self._sockets:
            each.close()


@pytest.fixture(scope="module")
def relayed(token_file: Path) -> Iterator[tuple[RecordingRelay, RouterProgram]]:
    engine = EchoEngine(token_file, TARGET).wait_ready()
    relay = RecordingRelay(int(engine.address.rpartition(":")[2]))
    router = RouterProgram(token_file, [relay.address])
    yield relay, router.wait_ready(1)
    router.close()
    relay.close()
    engine.close()


def draw_request(draw: random.Random) -> tuple[str, str, dict[str, str], bytes]:
    base = draw.choice((*PUBLIC, *GENERATION, *MANAGEMENT, ""))
    path = base + draw.choice(JOINTS) + draw.choice((*MANAGEMENT, "", "", ""))
    path = draw.choice((path, path, draw.choice((*PUBLIC, *GENERATION))))
    headers = {name: draw.choice((TOKEN, "mine", "0", "")) for name in draw.sample(HEADERS, 3)}
    fields = dict(draw.sample(sorted(FIELDS.items()), 2))
    text = {"messages": TEXT["messages"]} if path.startswith("/v1/messages") else TEXT
    body = json.dumps({**text, "max_tokens": 2, **fields}).encode()
    envelope = {"path": GENERATION[0], "id": "mine", "created": 1, "seed": 1}
    prefix = json.dumps(envelope).encode() + b"\n" if draw.random() < 0.2 else b""
    method = draw.choice(("GET", "POST", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"))
    return method, path or "/", headers, prefix + body


def send(
    router: RouterProgram, method: str, path: str, headers: dict[str, str], body: bytes
) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", router.port, timeout=60)
    try:
        connection.putrequest(method, path)
        given = headers | {"Content-Type": "application/json", "Content-Length": str(len(body))}
        for name, value in given.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_no_drawn_request_reaches_a_management_path_or_an_internal_header(relayed, seed):
    relay, router = relayed
    draw = random.Random(seed)
    statuses: dict[int, int] = {}
    for _ in range(REQUESTS // len(SEEDS)):
        method, path, headers, body = draw_request(draw)
        status = send(router, method, path, headers, body)
        statuses[status] = statuses.get(status, 0) + 1
        plain = path.partition("?")[0]
        if plain != "/" and not plain.startswith((*PUBLIC, *GENERATION)):
            assert status in (400, 404, 405), (method, path, status)
    assert statuses[200] > 5, statuses
    assert statuses[404] > 50, statuses
    assert 500 not in statuses, statuses
    assert_clean(b"".join(bytes(each) for each in relay.sent))


def assert_clean(sent: bytes) -> None:
    """Every request of a router has one of two paths, and its own token alone."""
    heads = re.findall(
        rb"(?:GET|POST|PUT|DELETE|PATCH|HEAD|OPTIONS) \S+ HTTP/1.1\r\n.*?\r\n\r\n", sent, re.S
    )
    assert len(heads) > 5
    for head in heads:
        first, *lines = head.decode("latin-1").strip().split("\r\n")
        method, path, _ = first.split(" ")
        assert (method, path) in (("POST", PATH_GENERATE), ("GET", POLL)), first
        found = [tuple(line.split(": ", 1)) for line in lines]
        own = [
            (name, value)
            for name, value in found
            if name.lower().startswith(INTERNAL_HEADER_PREFIX)
        ]
        assert own == [(HEADER_TOKEN, TOKEN)], found
        assert names.HEADER_OWNER.lower() not in {name.lower() for name, _ in found}
