"""Sections of docs/from-vllm-and-sglang.md: the comparison, endpoints and metrics.

The rows are those of `checks.peer_server`. `scripts.flag_table` writes the page.
"""

from collections.abc import Iterable

from checks.harness.page_table import markdown_table
from checks.peer_server.comparison import Claim, Comparison, Topic
from checks.peer_server.table import Endpoint, Endpoints, MetricRow, Verdict
from specdecode_api.peer_flags import Peer

COMPARISON = (
    "## What is better here\n\n"
    "Of the peers, a file of their package shows each entry; of specdecode, the page or result "
    "that is linked. Their programs for Kubernetes and their routers are packages of their own, "
    "and not compared.\n\n"
)
MISSING = "\n## What is missing here\n\n"
ENDPOINTS = (
    "\n## Endpoints\n\n"
    "Every route of the HTTP servers of both. A path works, something else serves its "
    "purpose, or it is missing. [The API](api.md) lists the paths of an engine. "
    "`make peer-server` reads the routes and metrics from the wheels and fails where one has no "
    "row; it also finds what the comparison names in their sources.\n\n"
    "### Paths that work\n\n"
)
OTHERS = "\n### Other paths\n\n"
NO_PATHS = "\n### Missing paths\n\n"
METRICS = (
    "\n## Metrics\n\n"
    "Names are those that Prometheus has; `_bucket`, `_sum` and `_count` of histograms are left "
    "out, and `*` stands for every name that begins so. Names that a library adds (`http_…` of "
    "vLLM) and those of `/v1/loads` of SGLang are not listed. Series here have no `model_name`: "
    "the labels of a pod name the resource. [Metrics](metrics.md) describes ours.\n\n"
)
NO_METRICS = "\n### Missing metrics\n\n"


def comparison(rows: Comparison) -> str:
    """Return what is better and what is missing here."""
    return "".join([COMPARISON, _topics(rows.better), MISSING, _topics(rows.missing)])


def _topics(rows: Iterable[Topic]) -> str:
    cells = (
        (row.topic, *(_claim(row.claims.get(peer)) for peer in Peer), row.here) for row in rows
    )
    return markdown_table(("", "vLLM", "SGLang", "here"), cells)


def _claim(claim: Claim | None) -> str:
    return "" if claim is None else f"{claim.text} (`{claim.source}`)"


def endpoints(rows: Endpoints) -> str:
    """Return the section of endpoints."""
    return "".join(
        [
            ENDPOINTS,
            _paths(rows.of(Verdict.WORKS), "differs"),
            OTHERS,
            _paths(rows.of(Verdict.OTHER), "use"),
            NO_PATHS,
            _paths(rows.of(Verdict.MISSING), "why"),
        ]
    )


def _paths(rows: Iterable[Endpoint], title: str) -> str:
    """Return a table; paths with the same text share a row."""
    groups = dict[str, list[Endpoint]]()
    for row in rows:
        groups.setdefault(row.text or row.path, []).append(row)
    cells = ((*(_named(group, peer) for peer in Peer), group[0].text) for group in groups.values())
    return markdown_table(("vLLM", "SGLang", title), cells)


def _named(rows: Iterable[Endpoint], peer: Peer) -> str:
    return ", ".join(
        f"`{', '.join(sorted(row.methods[peer]))} {row.path}`"
        for row in rows
        if peer in row.methods
    )


def metrics(rows: Iterable[MetricRow]) -> str:
    """Return the section of metrics."""
    there, none = ([row for row in rows if bool(row.here) is has] for has in (True, False))
    return "".join(
        [
            METRICS,
            markdown_table(
                ("vLLM", "SGLang", "here", "differs"),
                ((*_theirs(row), _code(row.here), row.text) for row in there),
            ),
            NO_METRICS,
            markdown_table(("vLLM", "SGLang", "why"), ((*_theirs(row), row.text) for row in none)),
        ]
    )


def _theirs(row: MetricRow) -> tuple[str, ...]:
    return tuple(_code(row.of(peer)) for peer in Peer)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
