"""`python -m checks.peer_server`: every endpoint and metric of vLLM and SGLang has a row.

What the comparison claims of them is checked too. Sources are read from the wheels of an index,
without an import; `--vllm WHEEL` and `--sglang WHEEL` read files instead.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from checks.peer_flags.wheels import read_sources
from checks.peer_server import metric_names, routes
from checks.peer_server.comparison import read_comparison, unproven
from checks.peer_server.metric_names import Metrics
from checks.peer_server.routes import Routes
from checks.peer_server.table import (
    Endpoints,
    MetricRow,
    matches,
    read_endpoints,
    read_metric_rows,
)
from specdecode_api.command_line import ArgumentParser
from specdecode_api.metrics import ENGINE
from specdecode_api.metrics.form import MetricType
from specdecode_api.peer_flags import Peer


def compare_endpoints(table: Endpoints, declared: Mapping[Peer, Routes]) -> Iterator[str]:
    """Yield routes without a row, rows without a route, and methods that differ."""
    rows = {row.path: row for row in table.rows}
    for peer, found in declared.items():
        for path, methods in sorted(found.items()):
            row = rows.get(path)
            if row is None:
                yield f"{path} of {peer} has no row"
            elif row.methods.get(peer) != methods:
                names = ", ".join(sorted(methods))
                yield f"{path}: {peer} serves it for {names}; correct the row"
        for row in table.rows:
            if peer in row.methods and row.path not in found:
                yield f"{row.path} has a row, but {peer} {table.versions[peer]} does not serve it"


def compare_metrics(rows: tuple[MetricRow, ...], declared: Mapping[Peer, Metrics]) -> Iterator[str]:
    """Yield metrics without a row, rows without a metric, and types that differ without a note."""
    used = set[str]()
    for peer, metrics in declared.items():
        for name, kind in sorted(metrics.items()):
            pattern, row = _row_of(name, rows)
            if row is None:
                yield f"{name} of {peer} has no row"
                continue
            used.add(pattern)
            if kind is not None and _differs_silently(kind, row):
                yield f"{name} is a {kind} in {peer}, ours is none; the note has to name it"
    for row in rows:
        yield from (
            f"{name} has a row, but no peer has it" for name in row.theirs if name not in used
        )


def _row_of(name: str, rows: tuple[MetricRow, ...]) -> tuple[str, MetricRow | None]:
    """Return the longest name of a row that stands for a metric, with its row."""
    found = [(each, row) for row in rows for each in row.theirs if matches(each, name)]
    return max(found, key=lambda pair: len(pair[0].rstrip("*")), default=("", None))


_TYPES = {
    (each.sample if each.type is MetricType.COUNTER else each.family): each.type for each in ENGINE
}


def _differs_silently(kind: MetricType, row: MetricRow) -> bool:
    types = {_TYPES[name] for name in row.here if name in _TYPES}
    return bool(types) and kind not in types and str(kind) not in row.text


@dataclass(frozen=True, slots=True)
class Declared:
    """What the wheel of a peer has."""

    routes: Routes
    metrics: Metrics
    unproven: tuple[str, ...]  # claims of the comparison that it does not show


def _read(peer: Peer, version: str) -> Declared:
    comparison = read_comparison()
    files = tuple({claim.source for _, claim in comparison.claims(peer)})
    return Declared(
        routes=routes.read_routes(read_sources(peer, version, routes.FILES[peer])),
        metrics=metric_names.read_metrics(read_sources(peer, version, metric_names.FILES[peer])),
        unproven=tuple(unproven(comparison, peer, read_sources(peer, version, files))),
    )


def main(arguments: list[str]) -> int:
    """Compare; 1 if anything differs."""
    endpoints = read_endpoints()
    parser = ArgumentParser(
        prog="python -m checks.peer_server", formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    for peer in Peer:
        parser.add_argument(
            f"--{peer}", default=endpoints.versions[peer], help="version, or a wheel"
        )
    versions = vars(parser.parse_args(arguments))
    declared = {peer: _read(peer, versions[peer]) for peer in Peer}
    errors = [
        *compare_endpoints(endpoints, {peer: each.routes for peer, each in declared.items()}),
        *compare_metrics(
            read_metric_rows(), {peer: each.metrics for peer, each in declared.items()}
        ),
        *(error for each in declared.values() for error in each.unproven),
    ]
    for error in errors:
        print(error)
    for peer, each in declared.items():
        counts = f"{len(each.routes)} endpoints, {len(each.metrics)} metrics"
        print(f"{peer} {versions[peer]}: {counts}")
    print("correct checks/peer_server/*.toml" if errors else "every endpoint and metric has a row")
    return int(bool(errors))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
