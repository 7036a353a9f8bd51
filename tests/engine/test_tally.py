"""Each request counts once, where it ran most, under the table that decided all of its rounds."""

import random

import pytest
from prometheus_client import generate_latest

from specdecode_api import series
from specdecode_engine.metrics import CoreSnapshot, EngineMetrics
from specdecode_engine.request import FinishReason, Output, Request, SamplingParams
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission
from specdecode_engine.tally import Tally

SUMS = list(series.SUMS)


def sequence(name="r", temperature=0.0, prompt=3, label=""):
    sampling = SamplingParams(seed=0, max_tokens=100, temperature=temperature)
    return Sequence.of(Request(name, (1,) * prompt, sampling, label=label))


def decode(tally, sequences, table="a", tokens=2, seconds=0.5, batch_size=None, ends=None):
    """Run one round; all sequences end in it for the reason `ends`."""
    emissions = [Emission(each, (7,) * tokens, 3, tokens - 1) for each in sequences]
    outputs = [Output(e.sequence.request.request_id, e.token_ids, finish_reason=ends)
               for e in emissions]  # fmt: skip
    tally.note(table, batch_size or len(sequences), emissions, outputs, seconds)


def sums_of(tally, table="a"):
    return {labels: dict(zip(SUMS, sums, strict=True))
            for labels, sums in tally.tables[table].strata.items()}  # fmt: skip


def test_a_request_counts_once_with_what_it_did_in_its_main_band():
    tally, one = Tally("a"), sequence()
    for size in (1, 4, 5, 7, 9):
        decode(tally, [one], batch_size=size)
    assert sums_of(tally) == {}, "it has not left yet"
    decode(tally, [one], batch_size=6, tokens=1, seconds=0.25, ends=FinishReason.STOP)
    assert sums_of(tally) == {
        ("4", "greedy", "free", "short", ""): {
            "requests": 1, "tokens": 7, "rounds": 4, "seconds": 1.75, "tokens_squared": 49,
            "rounds_squared": 16, "seconds_squared": 1.75**2, "tokens_rounds": 28,
            "seconds_tokens": 1.75 * 7,
        }
    }  # fmt: skip


def test_the_sums_are_those_of_the_requests():
    chance, tally, truth = random.Random(5), Tally("a"), []
    for number in range(40):
        one, tokens, rounds, seconds = sequence(str(number)), 0, chance.randint(1, 9), 0.0
        for place in range(rounds):
            drawn, took = chance.randint(1, 4), chance.random()
            tokens, seconds = tokens + drawn, seconds + took
            end = FinishReason.LENGTH if place == rounds - 1 else None
            decode(tally, [one], tokens=drawn, seconds=took, ends=end)
        truth.append((tokens, rounds, seconds))
    (found,) = sums_of(tally).values()
    assert found["requests"] == 40
    assert found["tokens"] == sum(t for t, _, _ in truth)
    assert found["seconds_squared"] == pytest.approx(sum(s * s for _, _, s in truth))
    assert found["tokens_rounds"] == sum(t * r for t, r, _ in truth)
    assert found["seconds_tokens"] == pytest.approx(sum(s * t for t, _, s in truth))


def test_requests_are_told_apart_by_how_they_were_asked_for():
    tally = Tally("a")
    odd = [sequence("1", temperature=0.7), sequence("2", prompt=3000), sequence("3", label="code")]
    decode(tally, odd, ends=FinishReason.STOP)
    assert set(sums_of(tally)) == {
        ("2", "sampled", "free", "short", ""),
        ("2", "greedy", "free", "long", ""),
        ("2", "greedy", "free", "short", "code"),
    }


def test_a_request_under_two_tables_counts_for_neither():
    tally, one, other = Tally("a"), sequence("1"), sequence("2")
    decode(tally, [one])
    tally.use("b")
    decode(tally, [one, other], table="b", ends=FinishReason.STOP)
    assert tally.mixed_requests == 1
    assert sums_of(tally, "a") == {}
    assert [sums["requests"] for sums in sums_of(tally, "b").values()] == [1]


def test_one_whose_client_left_counts_and_one_that_failed_does_not():
    tally, left, failed, unborn = Tally("a"), sequence("1"), sequence("2"), sequence("3")
    decode(tally, [left])
    tally.close(left)
    tally.close(unborn)
    decode(tally, [failed], ends=FinishReason.ERROR)
    assert [sums["requests"] for sums in sums_of(tally).values()] == [1]


def test_series_are_bounded_by_tables_and_strata():
    tally = Tally("0")
    for number in range(10):
        tally.use(str(number))
    assert list(tally.tables) == ["6", "7", "8", "9"]
    tally.use("7")
    tally.use("10")
    assert list(tally.tables) == ["8", "9", "7", "10"], "the one not used for longest gave way"
    for number in range(series.MAX_STRATA + 3):
        one = sequence(str(number), label=str(number))
        decode(tally, [one], table="10", ends=FinishReason.STOP)
    assert len(tally.tables["10"].strata) == series.MAX_STRATA
    assert tally.unsorted_requests == 3
    one = sequence("late")
    decode(tally, [one], table="8")
    for number in range(20, 24):
        tally.use(str(number))
    tally.close(one)
    assert tally.unsorted_requests == 4, "its table is no longer told of"


def test_retractions_are_charged_to_the_table_in_force():
    tally = Tally("a")
    tally.note_retractions(2)
    tally.use("b")
    tally.note_retractions(5)
    assert [table.retracted for table in tally.tables.values()] == [2, 3]


def test_latencies_of_the_last_tables_are_told_and_none_ever_falls():
    metrics = EngineMetrics(CoreSnapshot, lambda: {"table_hash": "t9"})
    shown = {}
    for number in range(10):
        watch = metrics.stopwatch(0.0)
        for second in (1.0, 2.0):
            watch.tick(2, second, f"t{number}")
        watch.stop("stop", 3.0, f"t{number}")
        metrics.count_error(500)
        before, shown = shown, tables_of(metrics)
        assert all(shown[key] >= value for key, value in before.items() if key in shown)
        assert len({table for _, table in shown}) <= series.MAX_TABLES
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
    assert families.keys() == {each.family for each in series.ENGINE}
    text = generate_latest(EngineMetrics(CoreSnapshot).registry).decode()
    for each in series.ENGINE:
        assert f"# HELP {each.family}" in text
        assert families[each.family].type == each.kind
