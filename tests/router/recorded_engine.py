"""Servers that answer as engines of vLLM 0.32.0 were recorded, and routers in front of them."""

import json
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from bench.router.programs import Program, RouterProgram, unused_ports
from specdecode_api import names

COMPLETIONS = "/v1/completions"
BODY = {"prompt": "the quick brown fox", "max_tokens": 4}
EVENTS = b'data: {"choices": [{"text": "a"}]}\n\n'
DONE = b"data: [DONE]\n\n"
SHUTTING_DOWN = {"error": {"message": "cannot schedule new futures after shutdown", "code": 500}}
METRICS = Path(__file__).parents[1] / "operator/runtimes/recorded/vllm-0.32.0-metrics.txt"


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
    """An engine whose health is good while it shuts down.

    `refusals` are the statuses of prompts. Where `cuts_streams` or `cuts_before_events`, the
    connection of a stream ends too early, of the latter once `may_cut` is set. Without `is_running`
    it answers nothing, as a stopped process.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_running, self.may_cut = threading.Event(), threading.Event()
        self.polls = 0
        self.behave()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(self))
        self.address = f"127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def behave(self) -> None:
        """Answer everything from now on, and forget what was asked."""
        self.is_shutting_down = self.cuts_streams = self.cuts_before_events = False
        self.refusals: dict[str, int] = {}
        self.running_requests = 0
        self.is_running.set()
        self.may_cut.set()
        self.paths: list[str] = []
        self.headers: list[dict[str, str]] = []

    def metrics(self) -> str:
        """The recorded metrics, with `running_requests`."""
        count = rf"\g<1> {self.running_requests}.0"
        return re.sub(r"(?m)^(vllm:num_requests_running{.*}) 0.0$", count, METRICS.read_text())

    def close(self) -> None:
        self.is_running.set()
        self.may_cut.set()
        self._server.shutdown()
        self._server.server_close()


def _handler(engine: RecordedEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            engine.is_running.wait()
            if self.path == names.PATH_METRICS:
                self.write(200, "text/plain; version=0.0.4", engine.metrics().encode())
                return
            engine.polls += self.path == names.PATH_HEALTH
            known = self.path in (names.PATH_HEALTH, "/v1/models")
            self.answer(200 if known else 404, {"data": [{"id": engine.name}]})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            engine.paths.append(self.path)
            engine.headers.append({key.lower(): text for key, text in self.headers.items()})
            status = engine.refusals.get(body.get("prompt", ""), 200)
            if engine.is_shutting_down:
                self.answer(500, SHUTTING_DOWN)
            elif status != 200:
                self.answer(status, {"error": {"message": "refused", "code": status}})
            elif body.get("stream"):
                self.stream()
            else:
                engine.is_running.wait()
                self.answer(200, {"from": engine.name})

        def answer(self, status: int, document: dict[str, Any]) -> None:
            self.write(status, "application/json", json.dumps(document).encode())

        def write(self, status: int, content_type: str, data: bytes) -> None:
            self.send_response(status)
            self.send_header("content-type", content_type)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def stream(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/event-stream; charset=utf-8")
            self.send_header("transfer-encoding", "chunked")
            self.end_headers()
            self.close_connection = engine.cuts_streams or engine.cuts_before_events
            if engine.cuts_before_events:
                self.wfile.flush()
                engine.may_cut.wait()
                return
            self.write_chunk(EVENTS)
            engine.is_running.wait()
            if not engine.cuts_streams:
                self.write_chunk(DONE)
                self.write_chunk(b"")

        def write_chunk(self, data: bytes) -> None:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    return Handler
