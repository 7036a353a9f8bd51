"""The metrics parser, compared with prometheus_client's own parsers."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client import generate_latest as write_text
from prometheus_client.openmetrics.exposition import generate_latest as write_openmetrics
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families as parse_text

from specdecode_api import metrics
from specdecode_engine.stats.prometheus import EngineMetrics, RequestLatency
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_operator.fleet import BadScrape, exposition
from specdecode_operator.fleet.reading import READ, reading_of


class Everything:
    """Contains every name."""

    def __contains__(self, name):
        return True


ALL = Everything()


def reference(families):
    """Samples as prometheus_client parses them, by name and in order."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def plain(samples):
    return {
        name: [(dict(sample.labels), sample.value) for sample in each]
        for name, each in samples.items()
    }


NAMES = st.from_regex(r"\A[a-z][a-z0-9_]{0,8}[a-z]\Z")
VALUES = st.floats(allow_nan=False) | st.integers(-(10**20), 10**20).map(float)
AMOUNTS = st.floats(0, 1e300)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8) | st.text('\\"\n{},=# aπ', max_size=8)


@st.composite
def registries(draw):
    """A registry with counters, gauges and histograms under any labels; some have exemplars."""
    registry = CollectorRegistry()
    for number in range(draw(st.integers(1, 4))):
        labels = draw(st.lists(NAMES.map("l{}".format), unique=True, max_size=3))
        name = f"m{number}_{draw(NAMES)}"
        for suffix in ("_total", "_sum", "_count", "_bucket", "_created", "_info", "_gsum"):
            name = name.removesuffix(suffix)
        kind = draw(st.sampled_from((Counter, Gauge, Histogram)))
        metric = kind(name, "Help.", labels, registry=registry)
        for _ in range(draw(st.integers(0, 3))):
            child = metric.labels(*(draw(TEXTS) for _ in labels)) if labels else metric
            if kind is Gauge:
                child.set(draw(VALUES))
            elif kind is Counter:
                child.inc(draw(AMOUNTS), draw(st.none() | st.just({"trace": "a# {b"})))
            else:
                child.observe(draw(AMOUNTS), draw(st.none() | st.just({"trace": "a, b=c"})))
    return registry


@settings(deadline=None)
@given(registries())
def test_every_sample_equals_that_of_the_reference(registry):
    text = write_openmetrics(registry).decode()
    assert plain(exposition.read(text, ALL)) == reference(parse_openmetrics(text))
    text = write_text(registry).decode()
    assert plain(exposition.read_lines(text, ALL)) == reference(parse_text(text))


@settings(deadline=None)
@given(registries(), st.data())
def test_a_damaged_text_gives_the_samples_of_the_reference_or_an_error(registry, data):
    text = write_openmetrics(registry).decode()
    at = int(data.draw(st.floats(0, 1, exclude_max=True)) * len(text))  # its length has times in it
    size = data.draw(st.integers(0, 3))
    damaged = text[:at] + data.draw(st.text('{}", \\n#=1eN_a+\n', max_size=2)) + text[at + size :]
    try:
        found = plain(exposition.read(damaged, ALL))
    except BadScrape:
        return
    try:
        expected = reference(parse_openmetrics(damaged))
    except (ValueError, KeyError, IndexError):
        return  # the reference checks also what no sample of ours depends on: help texts, types
    assert found == expected


@settings(deadline=None)
@given(registries(), st.data())
def test_only_the_wanted_names_are_returned(registry, data):
    text = write_openmetrics(registry).decode()
    whole = plain(exposition.read(text, ALL))
    wanted = data.draw(st.sets(st.sampled_from([*whole, "other"])))
    part = plain(exposition.read(text, wanted))
    assert part == {name: each for name, each in whole.items() if name in wanted}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cut off"),
        ("a 1\n", "cut off"),
        ("a 1\n# EOF", "cut off"),
        ("a\n# EOF\n", "'a' is not a sample"),
        ("a one\n# EOF\n", "not a sample"),
        ("a 1_0\n# EOF\n", "not a sample"),
        ('a{b="1} 1\n# EOF\n', "not a sample"),
        ('a{b="\\t"} 1\n# EOF\n', "not a sample"),
        ('a{b="1"}\n# EOF\n', "not a sample"),
        ('a{b="1",b="2"} 1\n# EOF\n', "repeats a label"),
        ('a{b="1"} 1\na{b="1"} 2\n# EOF\n', "there twice"),
        ("<html>\n# EOF\n", "not a sample"),
    ],
)
def test_an_invalid_text_is_refused(text, why):
    with pytest.raises(BadScrape, match=why):
        exposition.read(text, ALL)


def busy_engine(samples=1200):
    """What an engine exports after a day of mixed traffic: `samples` samples or a few more."""
    tables, draw = ("0011223344", "5566778899"), random.Random(1)
    strata = [
        (str(bucket), sampling, grammar, prompt, "")
        for bucket in metrics.BATCH_BUCKETS
        for sampling in ("greedy", "sampled")
        for grammar in ("free", "constrained")
        for prompt in ("short", "medium", "long")
    ]
    cells = [(str(bucket), str(steps)) for bucket in metrics.BATCH_BUCKETS for steps in range(8)]
    others = len(metrics.BUCKETS) * len(cells) + 200
    kept = [(tables[0], *each) for each in strata[: (samples - others) // len(metrics.SUMS)]]
    values: dict[metrics.MetricSpec, dict[tuple[str, ...], float]] = {
        metrics.core.EMITTED_TOKENS: {(): 1e9},
        **{each: {at: draw.expovariate(1e-6) for at in kept} for each in metrics.REQUEST_SUMS},
        **{each: {at: draw.expovariate(1e-6) for at in cells} for each in metrics.BUCKETS},
    }
    about = {"config_hash": "v1-c", "table_hash": tables[0], "device": "CUDA"}
    engine = EngineMetrics(lambda: CoreSnapshot(values), lambda: about)
    for table in tables:
        watch = RequestLatency(engine, 0.0)
        watch.observe_tokens(1, 0.2, table)
        watch.observe_tokens(1, 0.21, table)
        watch.observe_end("stop", 0.5, table)
    return write_openmetrics(engine.registry).decode()


def test_a_busy_engine_is_parsed_as_by_the_reference():
    text = busy_engine()
    assert len(text) > 80_000
    found = exposition.read(text, READ)
    expected = reference(parse_openmetrics(text))
    assert plain(found) == {name: each for name, each in expected.items() if name in READ}
    assert reading_of("p", found).step_totals
