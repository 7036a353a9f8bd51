"""A client that leaves takes its request along."""

import json
import socket
from urllib.parse import urlparse

import httpx
import pytest

from specdecode_api.metrics.core import KV_PAGES, RUNNING_REQUESTS

BODY = {
    "model": "echo",
    "prompt": "the quick brown fox",
    "max_tokens": 200,
    "ignore_eos": True,
    "n": 2,
}
HEAD = "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"


def send_raw(url, body):
    """Post without waiting for the answer."""
    address = urlparse(url)
    sock = socket.create_connection((address.hostname, address.port))
    data = json.dumps(body).encode()
    head = f"{HEAD}content-length: {len(data)}\r\n\r\n"
    sock.sendall(head.encode() + data)
    return sock


def running(server):
    return server.snapshot()[RUNNING_REQUESTS]


@pytest.fixture
def slow(start_server):
    return start_server(step_seconds=0.02, tokens_per_step=1)


def test_leaving_a_stream_aborts_its_requests(slow, eventually):
    url = slow.url + "/v1/completions"
    with httpx.stream("POST", url, json=BODY | {"stream": True}, timeout=10) as answer:
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        eventually(lambda: running(slow) == 2)
    eventually(lambda: running(slow) == 0)
    assert len(slow.core.aborted) == 2
    assert slow.service.lifecycle.running_requests == 0
    aborted = (
        f'requests_total{{finish_reason="abort",table="{slow.service.tables.table_hash}"}} 2.0'
    )
    assert aborted in slow.get("/metrics").text


def test_leaving_before_an_answer_in_one_piece_aborts_its_requests(slow, eventually):
    with send_raw(slow.url, BODY):
        eventually(lambda: running(slow) == 2)
    eventually(lambda: running(slow) == 0)
    assert len(slow.core.aborted) == 2
    assert slow.service.lifecycle.running_requests == 0


def test_leaving_amid_the_request_is_nothing_to_log(slow, eventually, caplog):
    address = urlparse(slow.url)
    with socket.create_connection((address.hostname, address.port)) as sock:
        sock.sendall(f"{HEAD}content-length: 99\r\n\r\n{{".encode())
    assert slow.get("/live").status_code == 200
    error = f'http_errors_total{{status="499",table="{slow.service.tables.table_hash}"}} 1.0'
    eventually(lambda: error in slow.get("/metrics").text)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_leaving_a_stream_with_a_request_after_it_aborts_both(slow, eventually, caplog):
    """The second request waits for the first one's response when the client leaves."""
    address = urlparse(slow.url)
    data = json.dumps(BODY | {"stream": True}).encode()
    request = f"{HEAD}content-length: {len(data)}\r\n\r\n".encode() + data
    with socket.create_connection((address.hostname, address.port)) as sock:
        sock.sendall(request + request)
        assert sock.recv(10).startswith(b"HTTP/1.1 ")
        eventually(lambda: running(slow) == 2)
    eventually(lambda: running(slow) == 0)
    assert len(slow.core.aborted) == 2, "the second request has not begun"
    assert slow.service.lifecycle.running_requests == 0
    assert 'status="500"' not in slow.get("/metrics").text
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_leaving_before_a_whole_answer_with_a_request_after_it_aborts_it(slow, eventually):
    """A server that stops reading while the second one waits does not notice."""
    data = json.dumps(BODY).encode()
    request = f"{HEAD}content-length: {len(data)}\r\n\r\n".encode() + data
    with socket.create_connection(slow.address) as sock:
        sock.sendall(request * 3)
        eventually(lambda: running(slow) == 2)
    eventually(lambda: running(slow) == 0)
    assert len(slow.core.aborted) == 2, "the other two have not begun"


def test_the_real_core_frees_what_a_client_left(built_server, eventually):
    eventually(lambda: running(built_server) == 0)
    free = built_server.snapshot()[KV_PAGES, "free"]
    with send_raw(built_server.url, BODY | {"stream": True}):
        eventually(lambda: running(built_server) == 2)
    eventually(lambda: running(built_server) == 0)
    assert built_server.snapshot()[KV_PAGES, "free"] == free


def test_others_are_not_disturbed(slow):
    url = slow.url + "/v1/completions"
    with httpx.stream("POST", url, json=BODY | {"stream": True}, timeout=10) as answer:
        next(answer.iter_lines())
        with send_raw(slow.url, BODY):
            pass
        text = slow.client.completions.create(model="echo", prompt="the fox", max_tokens=20)
    assert text.usage.completion_tokens == 20


def test_a_stop_string_ends_the_request_in_the_core(slow, eventually):
    answer = slow.client.completions.create(
        model="echo", prompt="the quick brown fox", max_tokens=200, stop="brown"
    )
    assert answer.choices[0].text == "the quick "
    eventually(lambda: len(slow.core.aborted) == 1)
