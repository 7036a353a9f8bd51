"""The contract of series: names that do not clash, buckets that cover, a name for every table."""

import pytest

from specdecode_api import metrics
from specdecode_api.metrics import MetricType, batch_bucket, prompt_length, table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry, read_table


def entries(document):
    return read_table(document, Policy.EMA).entries


def test_no_two_series_have_a_sample_in_common():
    ends = {MetricType.COUNTER: ["_total", "_created"], MetricType.GAUGE: [""],
            MetricType.HISTOGRAM: ["_bucket", "_sum", "_count", "_created"]}  # fmt: skip
    names = [each.family + end for each in metrics.ENGINE for end in ends[each.type]]
    assert len(set(names)) == len(names)
    assert all(each.help.endswith(".") for each in metrics.ENGINE)


def test_bands_hold_every_batch_size():
    for size in range(1, 2000):
        bucket = batch_bucket(size)
        assert bucket in metrics.BATCH_BUCKETS
        assert bucket <= size
        assert size < 2 * bucket or bucket == metrics.BATCH_BUCKETS[-1]


@pytest.mark.parametrize(
    ("tokens", "length"), [(1, "short"), (255, "short"), (256, "medium"), (2047, "medium"),
                         (2048, "long"), (100_000, "long")]
)  # fmt: skip
def test_prompts_are_short_medium_or_long(tokens, length):
    assert prompt_length(tokens) == length


def test_a_table_is_called_the_same_however_it_is_written():
    ours = entries({"1": {"candidate_steps": [3, 1]}, "8": {"candidate_steps": [0, 1]}})
    theirs = entries({"batchSizes": [{"from": 8, "candidateSteps": [1, 0], "emaAlpha": 0.2},
                                     {"from": 1, "candidateSteps": [1, 3]}]})  # fmt: skip
    assert table_hash(Policy.EMA, ours) == table_hash(Policy.EMA, theirs)
    assert len(table_hash(Policy.EMA, ours)) == metrics.TABLE_HASH_DIGITS


def test_whatever_decides_differently_is_called_differently():
    plain = {"1": TableEntry(candidate_steps=(1, 3))}
    others = [
        table_hash(Policy.GOODPUT, plain),
        table_hash(Policy.EMA, {"2": plain["1"]}),
        table_hash(Policy.EMA, {"1": TableEntry(candidate_steps=(1,))}),
        table_hash(Policy.EMA, {"1": TableEntry(candidate_steps=(1, 3), ema_alpha=0.3)}),
        table_hash(Policy.EMA, {}),
        table_hash(Policy.EMA, plain),
    ]
    assert len(set(others)) == len(others)


def test_the_name_of_a_table_stays_from_release_to_release():
    table = {"1": TableEntry(candidate_steps=(1, 3)), "8": TableEntry(candidate_steps=(0,))}
    assert table_hash(Policy.GOODPUT, table) == "568ee30e7e"
