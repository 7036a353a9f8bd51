"""Asking pods how far they are, against the server that the engine's image runs in them."""

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from specdecode_api.report import ModelReport, ModelRole, Progress
from specdecode_engine.fetch.progress import answering
from specdecode_operator.engines.engine_client import MAX_REPORT_BYTES, open_engine_client

REPORT = Progress(models=(ModelReport(role=ModelRole.TARGET, uri="hf://a/b", bytes_done=7),))


def pod(name="chat-1", address="127.0.0.1", state=None):
    fetch = {"name": "fetch", "state": state or {"running": {}}}
    status = {"podIP": address, "initContainerStatuses": [fetch]}
    return {"kind": "Pod", "metadata": {"name": name}, "status": status}


async def test_a_pod_that_fetches_is_asked():
    with answering(0, lambda: REPORT) as port:
        async with open_engine_client(port) as engines:
            assert await engines.progress([pod()]) == {"chat-1": REPORT}


async def test_pods_that_do_not_fetch_are_left_alone():
    asked = []

    def progress():
        asked.append(1)
        return REPORT

    others = [
        pod("done", state={"terminated": {"exitCode": 0}}),
        pod("no-address", address=None),
        {"kind": "Pod", "metadata": {"name": "new"}},
    ]
    with answering(0, progress) as port:
        async with open_engine_client(port) as engines:
            assert await engines.progress(others) == {}
    assert asked == []


async def test_one_that_does_not_answer_hides_no_other():
    with answering(0, lambda: REPORT) as port:
        async with open_engine_client(port) as engines:
            found = await engines.progress(
                [pod("a", "127.0.0.1"), pod("b", "not an address"), pod("c", "::1")]
            )
    assert found == {"a": REPORT}


@pytest.fixture
def other_server():
    """Something else listens on the port: it answers as the test specifies."""
    servers = []

    def listen(status, body, **head):
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                self.send_response(status)
                for key, value in head.items():
                    self.send_header(key, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        servers.append(server)
        return server.server_address[1]

    yield listen
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "body", "head"),
    [
        (404, b"{}", {}),
        (200, b"no json", {}),
        (200, b'{"models": [{"role": "queen"}]}', {}),
        (200, b" " * (MAX_REPORT_BYTES + 1) + REPORT.model_dump_json().encode(), {}),
        (302, b"", {"Location": "/progress"}),
    ],
)
async def test_a_response_of_another_server_is_ignored(status, body, head, other_server):
    async with open_engine_client(other_server(status, body, **head)) as engines:
        assert await engines.progress([pod()]) == {}
