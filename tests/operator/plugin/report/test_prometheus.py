"""The history of a page from a real Prometheus, whose data is a day of two engines."""

import http.server
import socket
import subprocess
import threading
import time

import httpx
import pytest

from specdecode_operator.plugin.errors import PluginError
from specdecode_operator.plugin.report.prometheus import read_history
from specdecode_operator.plugin.report.promql import QueryRange, periods

SCRAPE_S = 60


@pytest.fixture(scope="session")
def prometheus(debian_program, tmp_path_factory):
    """URL of a Prometheus with a day of two engines, and the time at which its data ends."""
    folder = tmp_path_factory.mktemp("prometheus")
    end_s = int(time.time()) // SCRAPE_S * SCRAPE_S
    (folder / "metrics").write_text(exposition(end_s - 25 * 3600, end_s))
    promtool = debian_program("/usr/bin/promtool")
    words = [promtool, "tsdb", "create-blocks-from", "openmetrics", "metrics", "data"]
    subprocess.run(words, cwd=folder, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("global: {}\n")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                debian_program("/usr/bin/prometheus"), "--config.file=prometheus.yml",
                "--storage.tsdb.path=data", f"--web.listen-address={address}",
                "--storage.tsdb.retention.time=30d",
            ],
            cwd=folder, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        await_ready(f"http://{address}", server, folder / "log")
        yield f"http://{address}", end_s
    finally:
        server.terminate()
        server.wait(30)


def await_ready(url, server, log):
    deadline = time.monotonic() + 60
    while True:
        assert server.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        try:
            if httpx.get(f"{url}/-/ready").status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)  # a poll of a process that starts


def exposition(start_s, end_s):
    """Two engines of `chat` with 50 tokens and 20 request steps a second each; one of another."""
    counters = {
        "specdecode_emitted_tokens_total": [("", 50)],
        "specdecode_request_steps_total": [("", 20)],
        "specdecode_bucket_steps_total": [
            (',batch_bucket="1",num_steps="0"', 1), (',batch_bucket="1",num_steps="4"', 3),
            (',batch_bucket="8",num_steps="2"', 2),
        ],
        "specdecode_position_reached_total": [
            (',batch_bucket="1",position="1"', 8), (',batch_bucket="1",position="2"', 4),
        ],
        "specdecode_position_accepted_total": [
            (',batch_bucket="1",position="1"', 4), (',batch_bucket="1",position="2"', 3),
        ],
    }  # fmt: skip
    lines = []
    for name, series in counters.items():
        lines.append(f"# TYPE {name.removesuffix('_total')} counter")
        for pod, deployment in (("a", "chat"), ("b", "chat"), ("c", "other")):
            for labels, rate in series:
                place = (
                    f'{name}{{namespace="default",deployment="{deployment}",pod="{pod}"{labels}}}'
                )
                lines += [
                    f"{place} {rate * (at - start_s)} {at}"
                    for at in range(start_s, end_s + 1, SCRAPE_S)
                ]
    return "\n".join([*lines, "# EOF\n"])


async def test_a_day_of_two_engines_is_added_up(prometheus):
    url, end_s = prometheus
    history, totals = await read_history(f"{url}/", "default", "chat", periods(end_s, 86_400))
    assert history is not None
    assert history.source == f"Prometheus at {url}"
    assert len(history.ends) == 48
    assert history.tokens_per_s == pytest.approx((100.0,) * 48)
    assert history.accept_length == pytest.approx((2.5,) * 48)
    assert history.draft_steps[1] == pytest.approx((3.0,) * 48)
    assert history.mean_draft_steps == pytest.approx({1: 3.0, 8: 2.0})
    assert totals is not None
    first, second = totals.positions[1, 1], totals.positions[1, 2]
    assert first.accepted / first.reached == pytest.approx(0.5)
    assert second.accepted / second.reached == pytest.approx(0.75)
    assert first.reached == pytest.approx(2 * 8 * 86_400, rel=0.01)


async def test_a_resource_that_prometheus_does_not_know_has_no_history(prometheus):
    url, end_s = prometheus
    assert await read_history(url, "default", "nobody", periods(end_s, 3600)) == (None, None)


async def test_a_query_that_prometheus_rejects_is_an_error_with_its_reason(prometheus):
    url, end_s = prometheus
    wanted = QueryRange(end_s, 0, 1)
    with pytest.raises(PluginError, match="query_range: status 400, invalid parameter") as raised:
        await read_history(url, "default", "chat", wanted)
    assert url in str(raised.value)
    assert "leave out --prometheus" in str(raised.value)


async def test_a_path_that_is_not_prometheus_is_an_error_with_its_status(prometheus):
    url, end_s = prometheus
    with pytest.raises(PluginError, match=r"/elsewhere/api/v1/query_range: status 404"):
        await read_history(f"{url}/elsewhere", "default", "chat", periods(end_s, 3600))


async def test_a_server_that_does_not_listen_is_an_error_without_the_password():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        url = f"http://me:hidden@127.0.0.1:{port}"
        with pytest.raises(PluginError, match=r"no response: ") as raised:
            await read_history(url, "default", "chat", periods(1e9, 3600))
    assert f"http://127.0.0.1:{port}/api/v1/query_range" in str(raised.value)
    assert "hidden" not in str(raised.value)


class Website(http.server.BaseHTTPRequestHandler):
    """A server that answers every request with a page."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>Log in</html>")

    def log_message(self, *_):
        """Log nothing."""


async def test_a_website_is_not_prometheus():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Website) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_address[1]}"
            with pytest.raises(PluginError, match="the response cannot be read: "):
                await read_history(url, "default", "chat", periods(1e9, 3600))
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("url", ["", "prometheus:9090", "ftp://host", "http://", "http://host:x"])
async def test_what_is_not_a_url_is_an_error(url):
    with pytest.raises(PluginError, match="is not the URL of a server"):
        await read_history(url, "default", "chat", periods(1e9, 3600))
