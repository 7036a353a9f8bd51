"""Clients that send too slowly, too much or nothing: they are answered or closed, and no others."""

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPResponse

import httpx
import pytest

from specdecode_engine.serve import server
from specdecode_engine.serve.openai.service import max_body_bytes
from specdecode_server import connection

PATH = "/v1/completions"
POST = f"POST {PATH} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n".encode()
HEADERS_TIMEOUT = "request_headers_timeout_seconds"
BODY_TIMEOUT = "request_body_timeout_seconds"
GOOD = json.dumps({"model": "echo", "prompt": "the fox"}).encode()


@contextmanager
def connected(running) -> Iterator[socket.socket]:
    with socket.create_connection(running.address, timeout=20) as sock:
        yield sock


def read_response(sock: socket.socket, method: str = "POST") -> tuple[int, str]:
    """Return status and code of the error in the next response."""
    response = HTTPResponse(sock, method=method)
    response.begin()
    body = json.loads(response.read())
    return response.status, body.get("error", {}).get("code", "")


def is_closed(sock: socket.socket) -> bool:
    """Wait for the end of the connection; false if it sends anything else."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def send_until_closed(sock: socket.socket, piece: bytes, most: int) -> int:
    """Send pieces until the other end has closed; return the bytes that were sent."""
    sent = 0
    with suppress(ConnectionError):
        while sent < most:
            sock.sendall(piece)
            sent += len(piece)
    return sent


@pytest.mark.parametrize(
    ("start", "drop", "setting"),
    [
        (b"POST /v1/comp", b"l", HEADERS_TIMEOUT),
        (POST + b"x-slow: ", b"y", HEADERS_TIMEOUT),
        (POST + b"content-length: 5000\r\n\r\n{", b" ", BODY_TIMEOUT),
        (POST + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n", b"", BODY_TIMEOUT),
    ],
)
def test_a_request_that_is_sent_in_drops_is_ended_by_408(
    start_server, start: bytes, drop: bytes, setting: str
) -> None:
    running = start_server(options={setting: 0.5})
    with connected(running) as sock:
        sock.sendall(start)
        has_ended = threading.Event()

        def dribble() -> None:
            with suppress(OSError):
                while not has_ended.wait(0.05):
                    sock.sendall(drop)

        thread = threading.Thread(target=dribble)
        thread.start()
        status, code = read_response(sock)
        has_ended.set()
        thread.join()
        assert (status, code) == (408, "request_timeout")
        assert is_closed(sock)
    assert running.post(PATH, content=GOOD).status_code == 200


def test_a_connection_without_a_request_is_closed(
    start_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "KEEP_ALIVE_SECONDS", 0.3)
    with connected(start_server()) as sock:
        assert is_closed(sock)


def test_many_half_sent_requests_are_all_closed(start_server) -> None:
    running = start_server(options={HEADERS_TIMEOUT: 0.5})
    socks = [socket.create_connection(running.address, timeout=20) for _ in range(200)]
    for sock in socks:
        sock.sendall(POST)
    for sock in socks:
        assert read_response(sock)[0] == 408
        assert is_closed(sock)
        sock.close()


@pytest.mark.parametrize(
    "head",
    [
        b"GET /v1/models?" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: localhost\r\n\r\n",
        POST + b"x-large: " + b"a" * 100_000 + b"\r\n\r\n",
        POST + b"".join(b"x-%d: %s\r\n" % (n, b"a" * 1000) for n in range(100)) + b"\r\n",
        POST + b"x-endless: " + b"a" * 2_000_000,
        b"GET /" + b"a" * 2_000_000,
    ],
)
def test_headers_and_urls_have_a_limit(echo_server, head: bytes) -> None:
    with connected(echo_server) as sock:
        with suppress(ConnectionError):
            sock.sendall(head)
        with suppress(ConnectionResetError):
            assert read_response(sock) == (431, "headers_too_large")
        assert is_closed(sock)


def test_headers_of_60_kilobytes_are_accepted(echo_server) -> None:
    headers = {f"x-{n}": "a" * 1000 for n in range(60)}
    assert httpx.get(f"{echo_server.url}/v1/models", headers=headers).status_code == 200


@pytest.mark.parametrize("endless", [b"x: y\r\nx-trailer: ", b"5;name="])
def test_trailers_and_chunk_extensions_have_a_limit(echo_server, endless: bytes) -> None:
    before = b"0\r\n" if endless.startswith(b"x") else b""
    with connected(echo_server) as sock:
        sock.sendall(POST + b"transfer-encoding: chunked\r\n\r\n" + before + endless)
        assert send_until_closed(sock, b"a" * 10_000, 64 * 2**20) < 16 * 2**20


def test_invalid_http_has_the_form_of_other_errors(echo_server) -> None:
    with connected(echo_server) as sock:
        sock.sendall(b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n")
        assert read_response(sock) == (400, "invalid_http")
        assert is_closed(sock)


def test_a_body_with_a_larger_length_is_refused_unread(echo_server) -> None:
    with connected(echo_server) as sock:
        sock.sendall(POST + b"content-length: 1000000000\r\n\r\n")
        assert read_response(sock) == (413, "body_too_large")


def test_a_chunked_body_is_cut_at_the_limit(echo_server) -> None:
    limit = echo_server.service.max_body_bytes
    chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
    with connected(echo_server) as sock:
        sock.sendall(POST + b"transfer-encoding: chunked\r\n\r\n")
        sent = 0
        while sent <= limit:
            sock.sendall(chunk)
            sent += 0x8000
        assert read_response(sock) == (413, "body_too_large")


def test_a_connection_can_be_used_after_a_refused_body(echo_server) -> None:
    size = echo_server.service.max_body_bytes + 1
    with connected(echo_server) as sock:
        sock.sendall(POST + b"content-length: %d\r\n\r\n" % size)
        assert read_response(sock)[0] == 413
        sock.sendall(b" " * size)
        sock.sendall(POST + b"content-length: %d\r\n\r\n" % len(GOOD) + GOOD)
        assert read_response(sock)[0] == 200


def test_a_client_that_waits_for_100_continue_is_refused_and_closed(echo_server) -> None:
    head = POST + b"expect: 100-continue\r\ncontent-length: 1000000000\r\n\r\n"
    with connected(echo_server) as sock:
        sock.sendall(head)
        assert read_response(sock) == (413, "body_too_large")
        assert is_closed(sock)


def test_a_refused_body_is_not_read_forever(start_server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_DISCARDED_BYTES", 2**20)
    with connected(start_server()) as sock:
        sock.sendall(POST + b"content-length: 1000000000\r\n\r\n")
        assert read_response(sock)[0] == 413
        assert send_until_closed(sock, b" " * 2**16, 200 * 2**20) < 100 * 2**20


def test_a_running_stream_outlives_the_half_request_after_it(start_server) -> None:
    running = start_server(step_seconds=0.1, tokens_per_step=1, options={HEADERS_TIMEOUT: 0.2})
    body = json.dumps({"prompt": "the fox", "max_tokens": 10, "stream": True}).encode()
    with connected(running) as sock:
        sock.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body + b"GET /v1")
        received = b""
        while b"[DONE]" not in received:
            part = sock.recv(65536)
            assert part, received
            received += part
        assert len(re.findall(rb"data: \{", received)) >= 10


@pytest.mark.parametrize("most", [connection.MAX_PIPELINED, 5000])
def test_requests_that_wait_on_one_connection_have_a_limit(start_server, most: int) -> None:
    """Else thousands are parsed and kept for each that is answered."""
    running = start_server(step_seconds=0.1, tokens_per_step=1)
    with connected(running) as sock:
        body = json.dumps({"prompt": "a b", "max_tokens": 8, "ignore_eos": True}).encode()
        sock.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body)
        sock.sendall(b"GET /version HTTP/1.1\r\nhost: localhost\r\n\r\n" * most)
        if most > connection.MAX_PIPELINED:
            assert is_closed(sock)
            return
        received = b""
        while received.count(b"HTTP/1.1 200 OK") < 1 + most:
            piece = sock.recv(65536)
            assert piece
            received += piece


def test_an_offer_of_another_protocol_is_ignored(echo_server) -> None:
    """Java's client offers HTTP/2 with its first request."""
    offer = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
    with connected(echo_server) as sock:
        request = POST + offer + b"content-length: %d\r\n\r\n" % len(GOOD) + GOOD
        for _ in range(2):
            sock.sendall(request)
            assert read_response(sock) == (200, "")


def test_an_invalid_request_after_a_running_stream_writes_nothing_into_it(start_server) -> None:
    running = start_server(step_seconds=0.05, tokens_per_step=1)
    body = json.dumps({"prompt": "a b", "max_tokens": 40, "ignore_eos": True, "stream": True})
    with connected(running) as sock:
        stream = POST + b"content-length: %d\r\n\r\n" % len(body) + body.encode()
        sock.sendall(stream + stream)
        received = sock.recv(1000)
        sock.sendall(b"no HTTP\r\n\r\n")
        with suppress(ConnectionResetError):
            while piece := sock.recv(1000):
                received += piece
    assert received.startswith(b"HTTP/1.1 200 OK")
    assert received.count(b"HTTP/1.1 ") == 1


def test_the_limit_of_a_body_follows_from_context_and_vocabulary(start_server, echo_server) -> None:
    assert max_body_bytes(512, 8, None) == 2**16 + 8 * 512 * 8
    assert max_body_bytes(131_072, 128, None) == 2**22
    assert max_body_bytes(131_072, 128, 2**23) == 2**23
    limit = echo_server.service.max_body_bytes
    assert limit == 2**16 + 8 * 512 * echo_server.service.text.longest_token_bytes
    for size, status in ((limit, 200), (limit + 1, 413)):
        content = GOOD + b" " * (size - len(GOOD))
        answer = echo_server.post(PATH, content=content)
        assert answer.status_code == status
        if status == 413:
            assert f"has {size} bytes; at most {limit} " in answer.json()["error"]["message"]


@pytest.mark.parametrize("depth", [150, 1000, 10_000])
def test_json_that_is_too_deep_is_refused_by_its_depth(echo_server, depth: int) -> None:
    schema = '{"a":' * depth + "1" + "}" * depth
    body = f'{{"prompt": "the fox", "unknown": {schema}}}'
    answer = echo_server.post(PATH, content=body)
    if depth == 150:
        assert answer.status_code == 200
    else:
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "json_too_deep")
        assert "at most 200 are accepted" in error["message"]


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (
            b"POST /nothing HTTP/1.1\r\nhost: localhost\r\n"
            b"connection: close\r\ncontent-length: 9999",
            404,
        ),
        (POST + b"connection: close\r\ncontent-length: 99999999", 413),
        (b"CONNECT * HTTP/1.1\r\nhost: localhost\r\nconnection: close", 404),
        (b"X" * 40 + b" / HTTP/1.1\r\nhost: localhost", 400),
    ],
)
def test_a_client_that_still_sends_reads_the_response_before_a_connection_ends(
    echo_server, head: bytes, status: int
) -> None:
    with connected(echo_server) as sock:
        sock.sendall(head + b"\r\n\r\n{")
        sock.recv(1, socket.MSG_PEEK)  # the server has answered, and ended its side or both
        for _ in range(3):
            sock.sendall(b" " * 1000)
        assert read_response(sock)[0] == status
        assert sock.recv(1) == b"", "a reset, which would lose the response of other clients"


def test_a_client_that_sends_on_after_the_response_is_closed(
    start_server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "DISCARD_SECONDS", 0.3)
    with connected(start_server()) as sock:
        sock.sendall(POST + b"connection: close\r\ncontent-length: 99999999\r\n\r\n")
        assert read_response(sock)[0] == 413
        sent = 0
        with suppress(ConnectionError):
            while sent < 10**9:
                sock.sendall(b" " * 100)
                sent += 100
        assert sent < 10**9
