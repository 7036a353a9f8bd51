"""Each request counts once, where it ran most, under the table that decided all its steps."""

import random

import pytest
from prometheus_client import generate_latest

from specdecode_api import metrics as engine_metrics
from specdecode_engine.batch.request import FinishReason, Output, Request, SamplingParams
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.stats.per_table import PerTableStats
from specdecode_engine.stats.prometheus import EngineMetrics, RequestLatency
from specdecode_engine.stats.snapshot import CoreSnapshot

SUMS = list(engine_metrics.SUMS)


def sequence(name="r", temperature=0.0, prompt=3, label=""):
    sampling = SamplingParams(seed=0, max_tokens=100, temperature=temperature)
    return Sequence.of(Request(name, (1,) * prompt, sampling, label=label))


def decode(per_table, sequences, table="a", tokens=2, seconds=0.5, batch_size=None, ends=None):
    """Run one step; all sequences end in it for the reason `ends`."""
    outputs = [(each, Output(each.request.request_id, (7,) * tokens, finish_reason=ends))
               for each in sequences]  # fmt: skip
    per_table.note(table, batch_size or len(sequences), outputs, seconds)


def sums_of(per_table, table="a"):
    return {labels: dict(zip(SUMS, sums, strict=True))
            for labels, sums in per_table.tables[table].strata.items()}  # fmt: skip


def test_a_request_counts_once_with_what_it_did_in_its_main_band():
    per_table, one = PerTableStats("a"), sequence()
    for size in (1, 4, 5, 7, 9):
        decode(per_table, [one], batch_size=size)
    assert sums_of(per_table) == {}, "it has not left yet"
    decode(per_table, [one], batch_size=6, tokens=1, seconds=0.25, ends=FinishReason.STOP)
    assert sums_of(per_table) == {
        ("4", "greedy", "free", "short", ""): {
            "requests": 1, "tokens": 7, "steps": 4, "seconds": 1.75,
        }
    }  # fmt: skip


def test_the_sums_are_those_of_the_requests():
    chance, per_table, truth = random.Random(5), PerTableStats("a"), []
    for number in range(40):
        one, tokens, steps, seconds = sequence(str(number)), 0, chance.randint(1, 9), 0.0
        for place in range(steps):
            drawn, took = chance.randint(1, 4), chance.random()
            tokens, seconds = tokens + drawn, seconds + took
            end = FinishReason.LENGTH if place == steps - 1 else None
            decode(per_table, [one], tokens=drawn, seconds=took, ends=end)
        truth.append((tokens, steps, seconds))
    (found,) = sums_of(per_table).values()
    assert found["requests"] == 40
    assert found["tokens"] == sum(t for t, _, _ in truth)
    assert found["steps"] == sum(r for _, r, _ in truth)
    assert found["seconds"] == pytest.approx(sum(s for _, _, s in truth))


def test_requests_are_distinguished_by_how_they_were_sent():
    per_table = PerTableStats("a")
    odd = [sequence("1", temperature=0.7), sequence("2", prompt=3000), sequence("3", label="code")]
    decode(per_table, odd, ends=FinishReason.STOP)
    assert set(sums_of(per_table)) == {
        ("2", "sampled", "free", "short", ""),
        ("2", "greedy", "free", "long", ""),
        ("2", "greedy", "free", "short", "code"),
    }


def test_a_request_under_two_tables_counts_for_neither():
    per_table, one, other = PerTableStats("a"), sequence("1"), sequence("2")
    decode(per_table, [one])
    per_table.use("b")
    decode(per_table, [one, other], table="b", ends=FinishReason.STOP)
    assert per_table.mixed_requests == 1
    assert sums_of(per_table, "a") == {}
    assert [sums["requests"] for sums in sums_of(per_table, "b").values()] == [1]


def test_one_whose_client_left_counts_and_one_that_failed_does_not():
    per_table, left, failed, unborn = (
        PerTableStats("a"),
        sequence("1"),
        sequence("2"),
        sequence("3"),
    )
    decode(per_table, [left])
    per_table.close(left)
    per_table.close(unborn)
    decode(per_table, [failed], ends=FinishReason.ERROR)
    assert [sums["requests"] for sums in sums_of(per_table).values()] == [1]


def test_series_are_bounded_by_tables_and_strata():
    per_table = PerTableStats("0")
    for number in range(10):
        per_table.use(str(number))
    assert list(per_table.tables) == ["6", "7", "8", "9"]
    per_table.use("7")
    per_table.use("10")
    assert list(per_table.tables) == ["8", "9", "7", "10"], "the one not used for longest gave way"
    for number in range(engine_metrics.MAX_STRATA + 3):
        one = sequence(str(number), label=str(number))
        decode(per_table, [one], table="10", ends=FinishReason.STOP)
    assert len(per_table.tables["10"].strata) == engine_metrics.MAX_STRATA
    assert per_table.unsorted_requests == 3
    one = sequence("late")
    decode(per_table, [one], table="8")
    for number in range(20, 24):
        per_table.use(str(number))
    per_table.close(one)
    assert per_table.unsorted_requests == 4, "its table is no longer reported"


def test_retractions_are_charged_to_the_table_in_force():
    per_table = PerTableStats("a")
    per_table.count_preemptions(2)
    per_table.use("b")
    per_table.count_preemptions(5)
    assert [table.preempted for table in per_table.tables.values()] == [2, 3]


def test_latencies_of_the_last_tables_are_reported_and_none_ever_falls():
    metrics = EngineMetrics(CoreSnapshot, lambda: {"table_hash": "t9"})
    shown: dict[tuple[str, str], float] = {}
    for number in range(10):
        watch = RequestLatency(metrics, 0.0)
        for second in (1.0, 2.0):
            watch.observe_tokens(2, second, f"t{number}")
        watch.observe_end("stop", 3.0, f"t{number}")
        metrics.count_error(500)
        before, shown = shown, tables_of(metrics)
        assert all(shown[key] >= value for key, value in before.items() if key in shown)
        assert len({table for _, table in shown}) <= engine_metrics.MAX_TABLES
    assert {table for _, table in shown} == {"t6", "t7", "t8", "t9"}


def tables_of(metrics):
    return {
        (sample.name, sample.labels["table"]): sample.value
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("table") and sample.name.endswith("_count")
    }


def test_every_series_of_the_contract_is_exported_and_no_other():
    families = {family.name: family for family in EngineMetrics(CoreSnapshot).registry.collect()}
    assert families.keys() == {each.family for each in engine_metrics.ENGINE}
    text = generate_latest(EngineMetrics(CoreSnapshot).registry).decode()
    for each in engine_metrics.ENGINE:
        assert f"# HELP {each.family}" in text
        assert families[each.family].type == each.type
