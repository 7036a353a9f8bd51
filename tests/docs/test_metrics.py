"""What docs, alerts and dashboards name is exported, and what is exported is documented."""

import re
import time
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.metrics import MetricWrapperBase

from specdecode_api import metrics
from specdecode_api.metrics import MetricSpec, core, identity, requests, router, speculation
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_operator.cluster.metrics import Metrics
from specdecode_router.engines import EnginePool
from specdecode_router.metrics import RouterMetrics
from specdecode_router.routing.prefix_table import PrefixTable

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = {"counter": "_total", "gauge": "", "histogram": "_bucket"}
PARTS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count", "")}
ROW = re.compile(r"^\| `(specdecode_\w+)` \| (counter|gauge|histogram) \| ([^|]*)\|", re.MULTILINE)
MENTION = re.compile(r"(?<![\w/.:-])specdecode_\w*[a-z](?![\w*/.(-]|_\*|: )")
PACKAGES = ("api", "engine", "kernels", "operator", "router", "server")
OTHERS = {f"specdecode_{name}" for name in PACKAGES} | {"specdecode_io_role"}
TEXTS = ("README.md", "docs/*.md", "docs/runbooks/*.md", "charts/specdecode/**/*.*")

Families = dict[str, tuple[str, frozenset[str] | None]]
"""Type and labels of a metric by its name; labels are None where no series shows them."""


def families_of(registry: CollectorRegistry) -> Families:
    """Read a registry; metrics of the client library know their labels without a series."""
    known = {
        one._name: frozenset(one._labelnames)
        for one in registry._collector_to_names
        if isinstance(one, MetricWrapperBase)
    }
    return {
        one.name: (one.type, known.get(one.name, getattr(one, "_labelnames", None)))
        for one in registry.collect()
    }


@pytest.fixture(scope="module")
def exported() -> dict[str, Families]:
    operator = Metrics("1.0")
    operator.watch_trials(lambda: ())
    routing = RouterMetrics(EnginePool(time.monotonic), PrefixTable())
    return {
        "engine": families_of(EngineMetrics(CoreSnapshot).registry),
        "router": families_of(routing.registry),
        "operator": families_of(operator.registry),
    }


def documented() -> dict[str, tuple[str, frozenset[str]]]:
    """Type and labels in the tables of the docs, by the name of the samples."""
    found = {}
    for name in ("metrics", "operating"):
        for sample, kind, labels in ROW.findall((ROOT / f"docs/{name}.md").read_text("utf-8")):
            assert sample not in found
            found[sample] = kind, frozenset(re.findall(r"`(\w+)`", labels))
    return found


def test_exported_metrics_are_those_documented(exported) -> None:
    rows = documented()
    samples = {
        family + SAMPLE[kind]: (kind, labels)
        for families in exported.values()
        for family, (kind, labels) in families.items()
    }
    assert {name: kind for name, (kind, _) in samples.items()} == {
        name: kind for name, (kind, _) in rows.items()
    }
    for name, (_, labels) in samples.items():
        if labels is not None:
            assert frozenset(labels) == rows[name][1], name


def test_every_defined_metric_is_exported(exported) -> None:
    modules = (core, identity, requests, speculation, router)
    defined = {one.family for module in modules for one in vars(module).values()
               if isinstance(one, MetricSpec)}  # fmt: skip
    listed = {one.family for one in (*metrics.ENGINE, *router.ROUTER)}
    assert defined <= listed
    assert listed == exported["engine"].keys() | exported["router"].keys()


def test_every_metric_that_texts_name_is_exported(exported) -> None:
    names = {
        family + end
        for families in exported.values()
        for family, (kind, _) in families.items()
        for end in PARTS[kind]
    }
    unknown = {}
    for pattern in TEXTS:
        for path in ROOT.glob(pattern):
            found = {*MENTION.findall(path.read_text("utf-8"))} - names - OTHERS
            if found:
                unknown[str(path.relative_to(ROOT))] = sorted(found)
    assert unknown == {}
