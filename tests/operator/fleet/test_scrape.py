"""Reading metrics of engines over HTTP: an incomplete response is an error and counts nothing."""

import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from prometheus_client.openmetrics.exposition import generate_latest

from specdecode_api import metrics as engine_metrics
from specdecode_engine.stats.prometheus import EngineMetrics, RequestLatency
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_operator.engines.engine_client import MAX_METRICS_BYTES, open_engine_client
from specdecode_operator.fleet import BadScrape, BucketTotals, PositionTotals, exposition
from specdecode_operator.fleet.reading import READ, reading_of
from specdecode_operator.judge.evidence import ArmKey, RequestSums, Stratum

SUMS = (1.0, 2.0, 3.0, 4.0)
KEY, OLD = ArmKey("v1-c", "new"), ArmKey("v1-c", "old")


def registry():
    """What an engine exports that changed its table once."""
    stratum, steps, position = ("8", "greedy", "free", "short", "code"), ("8", "3"), ("8", "1")
    core = CoreSnapshot(
        {
            engine_metrics.core.EMITTED_TOKENS: {(): 120},
            engine_metrics.core.DRAFT_UNFIT: {(): 1},
            **{
                each: {("old", *stratum): value}
                for each, value in zip(engine_metrics.REQUEST_SUMS, SUMS, strict=True)
            },
            engine_metrics.PREEMPTED_REQUESTS: {("old",): 3, ("new",): 1},
            engine_metrics.BUCKET_STEPS: {steps: 5},
            engine_metrics.BUCKET_REQUEST_STEPS: {steps: 40},
            engine_metrics.BUCKET_BUSY_SECONDS: {steps: 0.5},
            engine_metrics.POSITION_REACHED: {position: 10},
            engine_metrics.POSITION_ACCEPTED: {position: 9},
        }
    )
    about = {"config_hash": "v1-c", "table_hash": "new", "device": "CPU"}
    metrics = EngineMetrics(lambda: core, lambda: about)
    watch = RequestLatency(metrics, 0.0)
    for second in (0.3, 0.304):
        watch.observe_tokens(1, second, "new")
    watch.observe_end("stop", 0.5, "new")
    metrics.count_call(0, 0, unfinished=1)
    for status in (500, 500, 503, 400):  # 503 while it drains, 400 is the client's
        metrics.count_error(status)
    return metrics.registry


TEXT = generate_latest(registry()).decode()


@pytest.fixture
def listen():
    """Start servers that answer every request alike; `listen.commands` has the requests."""
    listener = Listener()
    yield listener
    listener.close()


class Listener:
    """Servers that answer every request with the body of the test."""

    def __init__(self):
        self.commands: list[tuple[str, str | None, str]] = []
        self._servers: list[ThreadingHTTPServer] = []

    def __call__(self, body, status=200, length=None):
        asked = self.commands

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                read = self.rfile.read(int(self.headers.get("content-length") or 0))
                asked.append((self.path, self.headers.get("accept"), read.decode()))
                self.send_response(status)
                self.send_header("content-length", str(length or len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET

            def log_message(self, *arguments):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self._servers.append(server)
        return server.server_address[1]

    def close(self):
        for server in self._servers:
            server.shutdown()
            server.server_close()


def pod(name="chat-1", address="127.0.0.1"):
    return {"metadata": {"name": name, "uid": f"uid-{name}"}, "status": {"podIP": address}}


def assert_all_of_it(reading):
    assert reading.key == KEY
    assert reading.start_s > 1.6e9
    assert set(reading.arms) == {KEY, OLD}
    old, new = reading.arms[OLD], reading.arms[KEY]
    assert old.strata == {Stratum(8, "greedy", "free", "short", "code"): RequestSums(*SUMS)}
    assert (old.preempted_requests, new.preempted_requests) == (3, 1)
    assert (new.answered_requests, new.failed_requests) == (1, 2)
    assert sum(new.first_token.counts) == 1
    assert new.first_token.counts[new.first_token.bounds_s.index(0.5)] == 1
    assert new.inter_token.counts[new.inter_token.bounds_s.index(0.005)] == 1
    assert reading.step_totals == {(8, 3): BucketTotals(5, 40, 0.5)}
    assert reading.positions == {(8, 1): PositionTotals(10, 9)}
    assert reading.facts["device"] == "CPU"
    assert reading.emitted_tokens == 120
    assert (old.unfit_drafts, new.unfit_drafts) == (0, 1)


async def test_pods_are_read_whole(listen):
    port = listen(TEXT.encode())
    async with open_engine_client(port) as engines:
        found = await engines.scrape([pod("a"), pod("b"), pod("c", None), pod("d", "no address")])
    assert [reading.pod_uid for reading in found.readings] == ["uid-a", "uid-b"]
    for reading in found.readings:
        assert_all_of_it(reading)
    assert found.failures["c"] == "has no address yet"
    assert "does not answer" in found.failures["d"]
    assert listen.commands[0][:2] == ("/metrics", exposition.ACCEPT)


async def test_metrics_are_parsed_outside_of_the_event_loop(listen, monkeypatch):
    threads, plain = set(), exposition.read

    def read(*arguments):
        threads.add(threading.get_ident())
        return plain(*arguments)

    monkeypatch.setattr(exposition, "read", read)
    port = listen(TEXT.encode())
    async with open_engine_client(port) as engines:
        found = await engines.scrape([pod("a"), pod("b")])
    assert len(found.readings) == 2
    assert threading.get_ident() not in threads


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ({"body": TEXT.encode()[:-6]}, "cannot be read"),  # all but the line that ends it
        ({"body": TEXT.encode()[: len(TEXT) // 2]}, "cannot be read"),
        ({"body": TEXT.encode()[:-6], "length": len(TEXT)}, "does not answer"),
        ({"body": b"{}", "status": 503}, "503"),
        ({"body": b"<html>"}, "cannot be read"),
        ({"body": b"# EOF\n"}, "is it an engine"),
        ({"body": b"#" * (MAX_METRICS_BYTES + 1)}, "is longer than"),
    ],
)
async def test_what_is_not_whole_is_dropped_whole(answer, expected, listen):
    async with open_engine_client(listen(**answer)) as engines:
        found = await engines.scrape([pod()])
    assert found.readings == ()
    assert expected in found.failures["chat-1"]


def test_a_missing_line_makes_it_no_answer():
    """Whichever sample of a stratum, a histogram or a counter of draft steps is missing."""
    lines = TEXT.splitlines()
    for each in (
        *engine_metrics.REQUEST_SUMS,
        *engine_metrics.BUCKETS,
        *engine_metrics.IDENTITY,
        engine_metrics.core.EMITTED_TOKENS,
        *engine_metrics.LATENCIES[:2],
    ):
        without = list(lines)
        without.remove(next(line for line in lines if line.startswith(each.sample)))
        with pytest.raises(BadScrape):
            reading_of("p", exposition.read("\n".join(without) + "\n", READ))


def test_what_cannot_be_counted_is_refused():
    for number in ("NaN", "-1", "+Inf"):
        bad = re.sub(r"(?m)^(specdecode_request_sum_tokens_total{.*}) .*", rf"\1 {number}", TEXT)
        assert bad != TEXT
        with pytest.raises(BadScrape):
            reading_of("p", exposition.read(bad, READ))


def test_sums_of_the_contract_are_those_that_are_judged():
    assert tuple(RequestSums.__dataclass_fields__) == engine_metrics.SUMS
    assert len(Stratum._fields) == len(engine_metrics.STRATUM)
