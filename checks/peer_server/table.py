"""The rows of endpoints.toml and metrics.toml: what each endpoint and metric of a peer is here."""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

from specdecode_api.peer_flags import Peer

FOLDER = Path(__file__).parent


class Verdict(StrEnum):
    """What an endpoint of a peer is here."""

    WORKS = "works"  # the same path; the text names what differs
    OTHER = "other"  # the text names what to use
    MISSING = "missing"  # the text names the reason and a remedy


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A path of a peer; `methods` has those of each peer that serves it."""

    path: str
    methods: Mapping[Peer, frozenset[str]]
    verdict: Verdict
    text: str  # Markdown; empty if nothing differs


@dataclass(frozen=True, slots=True)
class Endpoints:
    """All endpoints, and the versions whose they are."""

    versions: Mapping[Peer, str]
    rows: tuple[Endpoint, ...]

    def of(self, verdict: Verdict) -> list[Endpoint]:
        return [row for row in self.rows if row.verdict is verdict]


@dataclass(frozen=True, slots=True)
class MetricRow:
    """Metrics of peers with one meaning.

    Attributes:
        theirs: names as Prometheus has them; one that ends with `*` stands for every such begin.
        here: our metrics; empty if there are none.
        text: what differs, or why there are none, in Markdown.
    """

    theirs: tuple[str, ...]
    here: tuple[str, ...]
    text: str

    def of(self, peer: Peer) -> list[str]:
        """Return the names of one peer."""
        return [name for name in self.theirs if name.startswith(f"{peer}:")]


def matches(pattern: str, name: str) -> bool:
    """Return whether a name of a row is that of a metric, or its begin."""
    is_begin = pattern.endswith("*")
    return name.startswith(pattern[:-1]) if is_begin else name == pattern


@cache
def read_endpoints() -> Endpoints:
    """Read the endpoints of this package."""
    document = _read("endpoints.toml")
    versions = {Peer(name): version for name, version in document["versions"].items()}
    rows = _endpoints(document["endpoints"], document["reasons"])
    return Endpoints(versions, tuple(rows))


@cache
def read_metric_rows() -> tuple[MetricRow, ...]:
    """Read the metrics of this package."""
    return tuple(
        MetricRow(
            theirs=tuple(row["theirs"]),
            here=tuple(row.get("here", ())),
            text=row["missing"] if "missing" in row else row.get("note", ""),
        )
        for row in _read("metrics.toml")["metrics"]
    )


def _read(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / name).read_text(encoding="utf-8"))


def _endpoints(
    rows: Mapping[str, Mapping[str, Any]], reasons: Mapping[str, str]
) -> Iterator[Endpoint]:
    for path, row in rows.items():
        verdict = next(each for each in Verdict if each in row)
        text = row[verdict]
        yield Endpoint(
            path=path,
            methods={peer: frozenset(row[peer]) for peer in Peer if peer in row},
            verdict=verdict,
            text=reasons[text] if verdict is Verdict.MISSING else text,
        )
