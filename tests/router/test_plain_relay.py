"""A router in front of engines of another runtime, through their own API."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from bench.router.programs import Program, RouterProgram, unused_ports, wait_until
from specdecode_api import names
from specdecode_router.discovery import engines_of
from specdecode_router.plain_relay import is_plain_path
from specdecode_router.settings import EngineAddress, EngineRuntime, parse_flags

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "the quick brown fox", "max_tokens": 4}
EVENTS = b'data: {"choices": [{"text": "a"}]}\n\n'
SHUTTING_DOWN = {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}


class PlainRouter(RouterProgram):
    def __init__(self, addresses: list[str], *flags: str) -> None:
        self.port, self.management_port = unused_ports(2)
        self.url = f"http://127.0.0.1:{self.port}"
        self.management_url = f"http://127.0.0.1:{self.management_port}"
        arguments = (
            "--runtime", "vllm", "--engines", ",".join(addresses), "--host", "127.0.0.1",
            "--port", str(self.port), "--management-port", str(self.management_port),
            "--pre-stop", "0", *flags,
        )  # fmt: skip
        Program.__init__(self, "specdecode_router", arguments)


class RecordedEngine:
    """Answers as vLLM 0.32.0 was seen to answer: its health is good while it shuts down."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_shutting_down = False
        self.cuts_streams = False
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []
        engine = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                known = self.path in (names.PATH_HEALTH, "/v1/models")
                self.answer(200 if known else 404, {"data": [{"id": engine.name}]})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                engine.paths.append(self.path)
                engine.headers.append({key.lower(): text for key, text in self.headers.items()})
                if engine.is_shutting_down:
                    self.answer(500, SHUTTING_DOWN)
                elif body.get("stream"):
                    self.stream()
                else:
                    self.answer(200, {"from": engine.name})

            def answer(self, status: int, document: dict[str, Any]) -> None:
                data = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def stream(self) -> None:
                self.send_response(200)
                self.send_header("content-type", "text/event-stream; charset=utf-8")
                self.send_header("transfer-encoding", "chunked")
                self.end_headers()
                self.wfile.write(b"%x\r\n%s\r\n" % (len(EVENTS), EVENTS))
                if engine.cuts_streams:
                    self.wfile.flush()
                    self.close_connection = True
                    return
                self.wfile.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def two() -> Iterator[tuple[RecordedEngine, RecordedEngine]]:
    engines = RecordedEngine("one"), RecordedEngine("two")
    yield engines
    for each in engines:
        each.close()


@pytest.fixture
def start(two: tuple[RecordedEngine, RecordedEngine]) -> Iterator[Callable[..., PlainRouter]]:
    running: list[PlainRouter] = []

    def start_router(*flags: str) -> PlainRouter:
        router = PlainRouter([each.address for each in two], *flags)
        running.append(router)
        router.wait_ready(2)
        return router

    yield start_router
    for each in running:
        each.close()


def test_a_request_goes_elsewhere_if_an_engine_shuts_down(two, start):
    router = start()
    two[0].is_shutting_down = True
    answers = [
        httpx.post(router.url + COMPLETIONS, json=BODY | {"prompt": f"{number} apples"})
        for number in range(12)
    ]
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["from"] for answer in answers} == {"two"}
    assert two[0].paths, "no request met the engine that shuts down"
    two[1].is_shutting_down = True
    wait_until(
        lambda: (
            httpx.post(router.url + COMPLETIONS, json=BODY, headers={names.HEADER_TIMEOUT: "0.5"})
            .json()
            .get("error", {})
            .get("message")
            is not None
        ),
        what="an error",
    )


def test_answers_pass_as_they_are_whole_and_streamed(two, start):
    router = start()
    assert httpx.post(router.url + COMPLETIONS, json=BODY).json()["from"] in ("one", "two")
    streamed = httpx.post(router.url + COMPLETIONS, json=BODY | {"stream": True})
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert streamed.content == EVENTS + b"data: [DONE]\n\n"
    assert httpx.get(f"{router.url}/v1/models").json()["data"][0]["id"] in ("one", "two")
    assert httpx.get(router.url + names.PATH_HEALTH).status_code == 200


def test_a_stream_of_a_lost_engine_ends_with_an_error(two, start):
    router = start()
    for each in two:
        each.cuts_streams = True
    streamed = httpx.post(router.url + COMPLETIONS, json=BODY | {"stream": True})
    assert streamed.content.startswith(EVENTS)
    last = streamed.content.strip().rpartition(b"data: ")[2]
    assert json.loads(last)["error"]["code"] == "engine_lost"


def test_paths_that_change_an_engine_are_not_served(two, start):
    router = start()
    for path in ("/v1/load_lora_adapter", "/load_lora_adapter", "/flush_cache", "/sleep", "/v1/x"):
        assert httpx.post(router.url + path, json={}).status_code == 404
    assert httpx.get(f"{router.url}/metrics").status_code == 404
    assert not any(each.paths for each in two)
    assert not is_plain_path("POST", "/v1/models/../load_lora_adapter")


def test_the_router_checks_keys_and_passes_none_on(two, start, tmp_path: Path):
    keys = tmp_path / "keys"
    keys.write_text("first\nsecond\n")
    router = start("--api-key-file", str(keys))
    for path in (COMPLETIONS, "/tokenize"):
        refused = httpx.post(router.url + path, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (401, "invalid_api_key")
        for key in ("first", "second"):
            bearer = {"authorization": f"Bearer {key}"}
            assert httpx.post(router.url + path, json=BODY, headers=bearer).status_code == 200
    seen = [header for each in two for header in each.headers]
    assert seen
    assert not any("authorization" in each or "x-api-key" in each for each in seen)
    keys.write_text("third\n")
    first = {"authorization": "Bearer first"}
    wait_until(
        lambda: httpx.post(router.url + COMPLETIONS, json=BODY, headers=first).status_code == 401,
        what="the end of the old key",
    )


@pytest.mark.parametrize("conditions", [{"ready": False}, {"ready": True, "terminating": True}])
def test_conditions_of_an_endpoint_take_an_engine_out(conditions):
    """An engine of another runtime does not report that it shuts down."""

    def endpoints(found: dict[str, bool]) -> list[dict[str, Any]]:
        endpoint = {"addresses": ["10.0.0.1"], "conditions": {"serving": True} | found}
        ports = [{"name": "http", "port": 8000}, {"name": "management", "port": 8001}]
        return [{"ports": ports, "endpoints": [endpoint]}]

    vllm = EngineRuntime.VLLM
    assert [*engines_of(endpoints({"ready": True}), "chat", vllm)] == [
        EngineAddress("10.0.0.1", 8000)
    ]
    assert not engines_of(endpoints(conditions), "chat", vllm)
    assert [*engines_of(endpoints(conditions), "chat")] == [EngineAddress("10.0.0.1", 8001)]


@pytest.mark.parametrize(
    ("flags", "remedy"),
    [
        (["--runtime", "vllm", "--token-file", "t"], "know no token; remove it"),
        (["--api-key-file", "k"], "start them with --api-key-file"),
        (["--runtime", "sglang"], "invalid"),
    ],
)
def test_flags_of_the_runtime_are_checked(flags, remedy, capsys):
    with pytest.raises(SystemExit):
        parse_flags(["--engines", "127.0.0.1:1", *flags])
    assert remedy in capsys.readouterr().err
