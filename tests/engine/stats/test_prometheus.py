"""The registry of an engine: how a snapshot becomes series."""

from specdecode_api.metrics import VERIFY_ROWS
from specdecode_engine.stats.prometheus import EngineMetrics
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
