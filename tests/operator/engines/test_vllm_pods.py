"""Polling pods of vLLM on the port of their API: metrics as recorded, health and version."""

import json
import threading
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from specdecode_api import names
from specdecode_operator.engines.engine_client import open_engine_client
from specdecode_operator.engines.vllm_version import REASON, version_degradations

OPERATOR = Path(__file__).parents[1]
RECORDED = (OPERATOR / "fleet" / "vllm-0.32.0-metrics.txt").read_text()
API_SERVERS = (
    OPERATOR / "runtimes" / "recorded" / "vllm-0.32.0-api-servers-metrics.txt"
).read_text()
STARTED_AT = "2026-11-30T08:00:00Z"


@pytest.fixture
def vllm():
    """A server that answers as vLLM 0.32.0 was recorded; `version` may be changed."""

    class Handler(BaseHTTPRequestHandler):
        version = "0.32.0+cpu"
        text = RECORDED + "process_start_time_seconds 1795863200.5\n"
        paths: list[str] = []  # noqa: RUF012

        def do_GET(self):
            Handler.paths.append(self.path)
            body = Handler.text
            if self.path == names.PATH_VERSION:
                body = json.dumps({"version": Handler.version})
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1], Handler
    server.shutdown()
    server.server_close()


POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {
        "name": "chat-1",
        "uid": "u-1",
        "labels": {names.LABEL_RUNTIME: "VLLM"},
        "annotations": {names.ANNOTATION_CONFIG_HASH: "v1-abc"},
    },
    "status": {"podIP": "127.0.0.1"},
}


async def open_and(port, ask):
    async with open_engine_client(1, port) as engines:
        return await ask(engines)


async def test_metrics_are_read_on_the_port_of_the_api(vllm):
    port, handler = vllm
    scraped = await open_and(port, lambda engines: engines.scrape([POD]))
    assert scraped.failures == {}
    (reading,) = scraped.readings
    assert (reading.pod_uid, reading.key.config_hash) == ("u-1", "v1-abc")
    assert (reading.emitted_tokens, reading.request_steps) == (903, 801)
    assert handler.paths == [names.PATH_METRICS]


async def test_a_pod_of_several_api_servers_starts_with_its_container(vllm, monkeypatch):
    port, handler = vllm
    monkeypatch.setattr(handler, "text", API_SERVERS)
    running = {"name": names.ENGINE_CONTAINER, "state": {"running": {"startedAt": STARTED_AT}}}
    status = {"podIP": "127.0.0.1", "containerStatuses": [{"name": "x"}, running]}
    pod = POD | {"status": status}
    scraped = await open_and(port, lambda engines: engines.scrape([pod]))
    (reading,) = scraped.readings
    assert reading.start_s == datetime.fromisoformat(STARTED_AT).timestamp()


async def test_a_version_outside_the_range_is_reported_with_both(vllm):
    port, handler = vllm
    assert await open_and(port, lambda engines: engines.degraded(POD)) == ()
    handler.version = "0.40.1"
    (found,) = await open_and(port, lambda engines: engines.degraded(POD))
    assert found.reason == REASON
    assert "version 0.40.1; 0.32 and 0.33 are supported" in found.message


@pytest.mark.parametrize(
    "body",
    [b"", b"[]", b'{"version": null}', b'{"v": "0.32.0"}', b"[" * 60_000, b'{"version": "\xff"}'],
    ids=["empty", "list", "null", "other key", "deep", "not UTF-8"],
)
def test_a_response_without_a_version_is_reported(body):
    (found,) = version_degradations(body)
    assert "are supported" in found.message
