"""Keys of clients, wherever they are sent: not in logs, responses, metrics, facts or traces."""

import itertools
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from bench.router.programs import EngineProgram, RouterProgram, wait_until
from tests.engine.serve.openai.test_tracing import Receiver

MARK = "sk-canary"
KEYS = [f"{MARK}-{number:02}-5c1e77b0" for number in range(20)]
VALID = KEYS[:4]
MESSAGES = [{"role": "user", "content": "a fox"}]
BODIES: dict[str, dict[str, object]] = {
    "/v1/completions": {"prompt": "a fox", "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "a fox", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/tokenize": {"prompt": "a fox"},
}


class Guarded:
    """A router in front of an engine with keys, both with traces, and all that they answered."""

    def __init__(self, folder: Path, token_file: Path, receiver: Receiver) -> None:
        (folder / "keys").write_text("\n".join(VALID[:2]))
        flags = ("--api-key-file", str(folder / "keys"), "--api-key", *VALID[2:])
        self.engine = EngineProgram(token_file, *flags, "--otlp-traces-endpoint", receiver.url)
        self.engine.wait_ready()
        self.router = RouterProgram(token_file, [self.engine], "--log-level", "DEBUG")
        self.router.wait_ready(1)
        self.receiver, self.shown = receiver, list[str]()
        self.client = httpx.Client(timeout=60)

    def send(self, method: str, url: str, **given: object) -> int:
        """Send a request to router and engine; return the router's status."""
        for base in (self.engine.url, self.router.url):
            response = self.client.request(method, base + url, **given)  # type: ignore[arg-type]
            self.shown += [response.text, str(response.headers), response.reason_phrase]
        return response.status_code

    def send_raw(self, data: bytes) -> None:
        """Send bytes that may not be HTTP, to both."""
        for port in (self.engine.port, self.router.port):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                pieces = iter(lambda: connection.recv(65536), b"")
                self.shown.append(b"".join(pieces).decode(errors="replace"))

    def facts(self) -> list[str]:
        """What anyone may read of them."""
        ours = f"http://{self.engine.address}", self.engine.url, self.router.management_url
        paths = "/metrics", "/server_info", "/speculation/table", "/speculation/draft", "/live"
        return [httpx.get(base + path, timeout=60).text for base in ours for path in paths]

    def close(self) -> None:
        self.client.close()
        self.router.close()
        self.engine.close()


@pytest.fixture
def guarded(tmp_path: Path, token_file: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Guarded]:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
    receiver = Receiver()
    running = Guarded(tmp_path, token_file, receiver)
    yield running
    running.close()
    receiver.close()


def headers_with(key: str) -> Iterator[dict[str, str]]:
    """A key where clients send it, and where they do by mistake."""
    yield {"authorization": f"Bearer {key}"}
    yield {"x-api-key": key}
    yield {"authorization": f"Basic {key}"}
    yield {"authorization": key, "x-api-key": key}
    for name in ("api-key", "cookie", "x-session-id", "proxy-authorization", "x-request-timeout"):
        yield {name: key, "authorization": f"Bearer {key}"}


def test_no_key_of_a_client_is_shown_anywhere(guarded: Guarded) -> None:
    statuses = set()
    allowed = {"authorization": f"Bearer {VALID[0]}"}
    as_json = allowed | {"content-type": "application/json"}
    for key, (path, body) in zip(KEYS, itertools.cycle(BODIES.items()), strict=False):
        for headers in headers_with(key):
            statuses.add(guarded.send("POST", path, json=body, headers=headers))
            statuses.add(guarded.send("GET", "/v1/models", headers=headers))
        statuses.add(guarded.send("POST", f"{path}?api_key={key}", json=body, headers=allowed))
        statuses.add(guarded.send("POST", path, json=body | {"api_key": key}, headers=allowed))
        statuses.add(guarded.send("POST", path, content=f'{{"api_key": "{key}"', headers=as_json))
        guarded.send_raw(f"POST {path} HTTP/1.1\r\nx-api-key {key}\r\n\r\n".encode())
        guarded.send_raw(f"{key} {path}\r\n\r\n".encode())
    assert {200, 400, 401} <= statuses
    guarded.shown += guarded.facts()
    wait_until(lambda: bool(guarded.receiver.spans), what="a span")
    guarded.engine.kill()
    late, body = allowed | {"x-specdecode-timeout": "1"}, BODIES["/v1/completions"]
    gone = httpx.post(guarded.router.url + "/v1/completions", json=body, headers=late, timeout=60)
    assert gone.status_code in (502, 503)
    guarded.shown += [gone.text, str(gone.headers)]
    spans = "".join(map(str, guarded.receiver.spans))
    logs = guarded.engine.text + guarded.router.text
    for place, text in {"answers": json.dumps(guarded.shown), "spans": spans, "logs": logs}.items():
        assert MARK not in text, (place, text[max(text.find(MARK) - 300, 0) :][:600])
