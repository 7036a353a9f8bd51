"""The registry of an engine: how a snapshot becomes series."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram, generate_latest

from specdecode_api.metrics import FIRST_TOKEN_SECONDS, VERIFY_ROWS
from specdecode_engine.stats.prometheus import EngineMetrics, LatencyHistogram
from specdecode_engine.stats.snapshot import CoreSnapshot, Values


def samples_of(snapshot: CoreSnapshot) -> dict[tuple[str, str], float]:
    registry = EngineMetrics(lambda: snapshot).registry
    return {
        (sample.name.removeprefix("specdecode_verify_rows"), sample.labels.get("le", "")): (
            sample.value
        )
        for family in registry.collect()
        if family.name == VERIFY_ROWS.family
        for sample in family.samples
    }


def test_counts_by_value_become_a_cumulative_histogram():
    counts: Values = {("1",): 5.0, ("4",): 2.0, ("5",): 1.0, ("200",): 3.0}
    found = samples_of(CoreSnapshot({VERIFY_ROWS: counts}))
    below = [value for (name, _), value in found.items() if name == "_bucket"]
    assert below == [5, 5, 5, 7, 8, 8, 8, 8, 8, 8, 8, 8, 11]
    assert found["_bucket", "6.0"] == 8
    assert found["_bucket", "+Inf"] == found["_count", ""] == 11
    assert found["_sum", ""] == 5 + 8 + 5 + 600


def test_a_histogram_without_observations_has_all_buckets():
    found = samples_of(CoreSnapshot())
    assert len(found) == len(VERIFY_ROWS.bounds) + 1 + 2
    assert set(found.values()) == {0}


def test_the_document_of_a_snapshot_has_the_counts_by_value():
    shown = CoreSnapshot({VERIFY_ROWS: {("4",): 2.0}}).document()
    assert shown["verify_rows_bucket"] == {"4": 2.0}


SECONDS = st.sampled_from([0.0, *FIRST_TOKEN_SECONDS.bounds, 1e9]) | st.floats(0, 100)


@given(
    observed=st.lists(st.tuples(st.sampled_from(["a", 'b"', ""]), SECONDS, st.integers(1, 3))),
)
def test_latencies_are_exported_as_the_library_exports_them(observed):
    spec, ours, theirs = FIRST_TOKEN_SECONDS, CollectorRegistry(), CollectorRegistry()
    histogram = LatencyHistogram(spec)
    ours.register(histogram)
    expected = Histogram(spec.family, spec.help, spec.labels, buckets=spec.bounds, registry=theirs)
    for table, seconds, count in observed:
        histogram.observe(table, seconds, count)
        for _ in range(count):
            expected.labels(table).observe(seconds)
    assert exported(ours) == pytest.approx(exported(theirs))  # sums are added up otherwise


def exported(registry: CollectorRegistry) -> dict[str, float]:
    """The value of each line."""
    lines = generate_latest(registry).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name: float(value) for name, value in pairs if "_created{" not in name}
