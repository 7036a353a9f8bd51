"""The bench of a long trial, small: simulated time, real engines' text over HTTP, a whole trial."""

from bench.operator.long_trial import KIB, long_trial
from bench.operator.trial_engines import STRATA

MOST_OBJECT_KIB = 64


async def test_a_trial_runs_to_its_end_within_its_sizes():
    figures = await long_trial(300.0)
    assert len(STRATA) == 40
    looks, pairs = figures["trial_looks"], figures["trial_pairs"]
    assert looks is not None
    assert pairs is not None
    assert looks > pairs >= 2
    largest, written = figures["trial_largest_object_kib"], figures["trial_written_mib"]
    assert largest is not None
    assert written is not None
    assert 1 < largest <= MOST_OBJECT_KIB
    assert largest <= written * KIB
