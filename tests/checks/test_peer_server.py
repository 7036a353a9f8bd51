"""Routes and metrics are read from sources of the peers' kinds, and our rows name what exists."""

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute

from checks.peer_flags.declarations import UnreadableSource
from checks.peer_server.__main__ import compare_endpoints, compare_metrics
from checks.peer_server.comparison import Claim, read_comparison
from checks.peer_server.metric_names import read_metrics
from checks.peer_server.routes import read_routes
from checks.peer_server.table import (
    Endpoint,
    MetricRow,
    Verdict,
    matches,
    read_endpoints,
    read_metric_rows,
)
from specdecode_api.metrics import ENGINE, MetricSpec, MetricType
from specdecode_api.metrics.router import ROUTER
from specdecode_api.peer_flags import Peer, read_peer_flags
from specdecode_engine.serve.app import API, MANAGEMENT
from specdecode_engine.serve.page import routes as page

DOCS = Path(__file__).parents[2] / "docs"

ROUTES = """
app = FastAPI(docs_url=None)
if offline:
    app.mount("/static", StaticFiles())

@router.post("/v1/things", dependencies=[])
async def things(): ...

@app.api_route("/both", methods=["GET", "POST"])
@app.get(os.environ.get("ROUTE", "/api/tags"))
async def both(): ...

@app.websocket("/v1/live")
async def live(): ...

other_router.add_api_route("/stop", stop, methods=["POST"])
app.routes.append(Mount("/metrics", make_asgi_app()))
found = sources.get("/no/route")
"""


def test_routes_of_decorators_calls_and_fastapi_are_read() -> None:
    assert read_routes({"peer/app.py": ROUTES}) == {
        "/openapi.json": {"GET"},
        "/redoc": {"GET"},
        "/static": {"GET"},
        "/v1/things": {"POST"},
        "/both": {"GET", "POST"},
        "/api/tags": {"GET"},
        "/v1/live": {"WEBSOCKET"},
        "/stop": {"POST"},
        "/metrics": {"GET"},
    }


def test_a_path_that_is_no_literal_is_not_passed_over() -> None:
    with pytest.raises(UnreadableSource, match=r"peer/app\.py: the path PREFIX \+ '/x'"):
        read_routes({"peer/app.py": "@app.get(PREFIX + '/x')\ndef x(): ..."})


METRICS = """
self.running = self._gauge_cls(name="vllm:num_running", documentation="of vllm:other")
counter_specs = [("vllm:num_drafts", "Drafts.")]
LOADS = "vllm:loads"
self.parsed = Counter("vllm:parsed_total", "Calls.")
self.times = Histogram(name="sglang:times_seconds")
logger.info("vllm: started")
"""


def test_metrics_are_read_with_their_types_and_suffixes() -> None:
    assert read_metrics({"peer/metrics.py": METRICS}) == {
        "vllm:num_running": MetricType.GAUGE,
        "vllm:num_drafts_total": MetricType.COUNTER,
        "vllm:loads": None,
        "vllm:parsed_total": MetricType.COUNTER,
        "sglang:times_seconds": MetricType.HISTOGRAM,
    }


def _endpoint(path: str) -> Endpoint:
    return Endpoint(path, {Peer.VLLM: frozenset({"POST"})}, Verdict.WORKS, "")


def test_routes_without_rows_and_rows_without_routes_are_named() -> None:
    table = replace(read_endpoints(), rows=(_endpoint("/a"), _endpoint("/b"), _endpoint("/c")))
    routes = {"/a": frozenset({"POST"}), "/b": frozenset({"GET"}), "/new": frozenset({"GET"})}
    assert list(compare_endpoints(table, {Peer.VLLM: routes})) == [
        "/b: vllm serves it for GET; correct the row",
        "/new of vllm has no row",
        "/c has a row, but vllm 0.33.0 does not serve it",
    ]


def test_metrics_without_rows_and_rows_without_metrics_are_named() -> None:
    rows = (
        MetricRow(("vllm:a",), ("specdecode_running_requests",), ""),
        MetricRow(("vllm:b", "vllm:gone"), ("specdecode_running_requests",), "theirs: a counter"),
        MetricRow(("vllm:kv_*", "vllm:no_*"), (), "there is none"),
    )
    found = {
        "vllm:a": MetricType.COUNTER,
        "vllm:b": MetricType.COUNTER,
        "vllm:kv_x": None,
        "vllm:new": None,
    }
    assert list(compare_metrics(rows, {Peer.VLLM: found})) == [
        "vllm:a is a counter in vllm, ours is none; the note has to name it",
        "vllm:new of vllm has no row",
        "vllm:gone has a row, but no peer has it",
        "vllm:no_* has a row, but no peer has it",
    ]


@pytest.mark.parametrize(
    ("claim", "error"),
    [
        (Claim("", "a.py", has="x = 1"), None),
        (Claim("", "a.py", has="y = 1"), "a.py does not have y = 1"),
        (Claim("", "a.py", lacks="x = 1"), "a.py has x = 1"),
        (Claim("", "b.py", has="x = 1"), "there is no b.py"),
    ],
)
def test_a_claim_is_shown_by_its_source(claim: Claim, error: str | None) -> None:
    assert claim.error({"a.py": "x = 1\n"}) == error


def test_the_versions_are_those_of_the_flags() -> None:
    assert read_endpoints().versions == read_peer_flags().versions


def _shape(path: str) -> str:
    """Return a path with its parameters without names."""
    return re.sub(r"{[^}]*}", "{}", path)


def _served(routers: Iterable[APIRouter]) -> dict[str, set[str]]:
    """Return the methods of every path."""
    found = defaultdict[str, set[str]](set)
    for router in routers:
        for route in router.routes:
            assert isinstance(route, APIRoute)
            found[_shape(route.path)] |= route.methods or set()
    return found


@pytest.mark.parametrize("row", read_endpoints().of(Verdict.WORKS), ids=lambda row: row.path)
def test_a_path_that_works_is_served_by_the_api(row: Endpoint) -> None:
    methods = _served(API)[_shape(row.path)]
    assert methods
    for method in set[str]().union(*row.methods.values()) - methods:
        assert f"not by `{method}`" in row.text


REFUSED = frozenset({"/v1/responses/{response_id}/cancel"})
"""Paths that are served to refuse with a reason."""


@pytest.mark.parametrize("verdict", [Verdict.OTHER, Verdict.MISSING])
def test_no_other_row_has_a_path_of_the_api(verdict: Verdict) -> None:
    served = _served(API)
    for row in read_endpoints().of(verdict):
        methods = set[str]().union(*row.methods.values())
        is_there = bool(methods & served.get(_shape(row.path), set()))
        assert is_there == (row.path in REFUSED), row.path


_CALL = re.compile(r"`(?:(?P<method>[A-Z]+) )?(?P<path>/[\w/]*)`")


def test_the_paths_that_rows_recommend_are_served() -> None:
    served, found = _served((*API, *MANAGEMENT, page.router)), 0
    for row in read_endpoints().rows:
        for match in _CALL.finditer(row.text):
            found += 1
            assert match["path"] in served, row
            assert match["method"] is None or match["method"] in served[match["path"]], row
    assert found > 40


def _names(metrics: Iterable[MetricSpec]) -> set[str]:
    """Return names as rows have them: of counters with their suffix, of histograms without."""
    return {each.sample if each.type is MetricType.COUNTER else each.family for each in metrics}


def test_every_metric_of_ours_in_the_rows_exists() -> None:
    known = _names((*ENGINE, *ROUTER))
    texts = [row.text for row in read_metric_rows()]
    texts += [row.text for row in read_endpoints().rows]
    for name in re.findall(r"specdecode_\w+", " ".join(texts)):
        assert name in known
    for row in read_metric_rows():
        assert set(row.here) <= known
        assert row.here or row.text


def test_a_metric_has_one_row() -> None:
    names = [name for row in read_metric_rows() for name in row.theirs]
    assert len(names) == len(set(names))
    begins = [name for name in names if name.endswith("*")]
    for begin in begins:
        assert sum(matches(each, begin.rstrip("*")) for each in begins) == 1, begin


def _anchors(file: Path) -> set[str]:
    """Return the anchors of the headings of a Markdown file, as GitHub writes them."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}


def test_links_of_the_page_lead_to_headings() -> None:
    document = DOCS / "from-vllm-and-sglang.md"
    links = re.findall(r"\]\(([^)\s]*)#([^)\s]+)\)", document.read_text(encoding="utf-8"))
    assert len(links) > 20
    for file, anchor in links:
        assert anchor in _anchors(DOCS / file if file else document), f"{file}#{anchor}"


def test_every_topic_names_a_page_or_a_result_of_ours() -> None:
    comparison = read_comparison()
    for topic in (*comparison.better, *comparison.missing):
        assert re.search(r"\]\([^)]+\)", topic.here), topic.topic
        for claim in topic.claims.values():
            assert (claim.has is None) != (claim.lacks is None), topic.topic
