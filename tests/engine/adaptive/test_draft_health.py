"""The sequential test of a draft: when it fires, that it rarely errs, and what follows."""

import random

import pytest

from checks.detection.simulation import Traffic, alarms, proposals_until_alarm
from specdecode_engine.adaptive.draft_evidence import ACCEPTANCE, LOWER, FirstPosition
from specdecode_engine.adaptive.draft_health import (
    BUDGET,
    EPOCH_PROPOSALS,
    MIN_PROPOSALS,
    MIN_REQUESTS,
    PROBE_INTERVAL,
    PROBE_STEPS,
    DraftHealth,
    Fitness,
)
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.adaptive.table import BatchRange, RangeTable

DRAFTS = Decision(3, 1, 0, Reason.STATIC)
TABLE = RangeTable([BatchRange(1, (0, 2, 5)), BatchRange(9, (3,)), BatchRange(33, (0,))])


def unfit_draft() -> DraftHealth:
    health = DraftHealth()
    assert health.observe(DRAFTS, FirstPosition(MIN_PROPOSALS, 0, MIN_REQUESTS), 0.01)
    assert health.is_unfit
    return health


def plain_steps(health: DraftHealth, count: int, seconds: float = 0.01) -> None:
    for _ in range(count):
        decision = health.decide(TABLE, 1, has_probe=False)
        assert decision == Decision(0, 1, 0, Reason.UNFIT)
        health.observe(decision, FirstPosition(), seconds)


@pytest.mark.parametrize(
    ("proposed", "requests", "is_unfit"),
    [
        (MIN_PROPOSALS, MIN_REQUESTS, True),
        (MIN_PROPOSALS - 1, MIN_REQUESTS, False),
        (5 * MIN_PROPOSALS, MIN_REQUESTS - 1, False),
    ],
)
def test_a_draft_is_unfit_from_enough_proposals_in_enough_requests_on(proposed, requests, is_unfit):
    health = DraftHealth()
    health.observe(DRAFTS, FirstPosition(proposed, 0, requests), 0.01)
    assert health.is_unfit is is_unfit


def test_the_bounds_are_those_of_the_likelihood_ratio():
    for proposed in range(1, 120):
        ratios = [((1 - q) / (1 - ACCEPTANCE)) ** proposed for q in LOWER]
        expected = sum(ratios) / len(ratios) >= 1 / 0.05
        assert FirstPosition(proposed).is_below(0.05) is expected
    assert FirstPosition(200, 0, 20).is_below(0.005)
    assert not FirstPosition(200, 9, 20).is_below(0.01)
    assert FirstPosition(200, 60, 20).is_above(0.01)
    assert not FirstPosition(200, 12, 20).is_above(0.01)


@pytest.mark.parametrize("acceptance", [0.0, 0.01, 0.02, 0.03])
def test_a_draft_of_low_acceptance_is_found(acceptance):
    delays = [
        proposals_until_alarm(Traffic(acceptance), 8000, random.Random(seed)) for seed in range(10)
    ]
    assert None not in delays


@pytest.mark.parametrize(
    "traffic",
    [Traffic(0.10), Traffic(0.15), Traffic(0.3), Traffic(0.10, 5.0), Traffic(0.10, length=2)],
)
def test_false_alarms_are_rarer_than_one_in_a_hundred_lives(traffic):
    """All 1,000 runs of `make bench-detection` are longer; an alarm comes early or never."""
    assert alarms(traffic, 100, 1000) == 0


def test_the_limit_itself_is_called_unfit_in_at_most_one_life_of_a_hundred():
    assert alarms(Traffic(0.05), 200, 2000) <= 5  # 2 expected at most


def test_error_is_spent_over_epochs():
    """After an epoch the same evidence has to be stronger."""
    health = DraftHealth()
    good = FirstPosition(EPOCH_PROPOSALS, EPOCH_PROPOSALS // 2, 100)
    for _ in range(20):
        health.observe(DRAFTS, good, 0.01)
    assert health.fitness is Fitness.FIT
    health.observe(DRAFTS, FirstPosition(MIN_PROPOSALS, 0, MIN_REQUESTS), 0.01)
    assert health.fitness is Fitness.FIT
    health.observe(DRAFTS, FirstPosition(MIN_PROPOSALS, 0, MIN_REQUESTS), 0.01)
    assert health.is_unfit


def test_probes_take_no_more_time_than_their_budget():
    health = unfit_draft()
    plain_s = probe_s = 0.0
    for _ in range(40_000):
        if has_probe := health.is_probe_due:
            health.begin_probe()
        decision = health.decide(TABLE, 1, has_probe=True)
        assert has_probe <= (decision.reason is Reason.UNFIT_PROBE)
        seconds = 0.05 if decision.num_steps else 0.01
        if decision.num_steps:
            probe_s += seconds
        else:
            plain_s += seconds
        assert not health.observe(decision, FirstPosition(1, 0), seconds)
    assert health.report().probes > 3
    assert probe_s <= BUDGET * (plain_s + probe_s) + PROBE_STEPS * 0.05


@pytest.mark.parametrize(("batch_size", "num_steps"), [(1, 2), (9, 3), (40, 0)])
def test_a_probe_drafts_as_little_as_its_range_allows(batch_size, num_steps):
    health = unfit_draft()
    plain_steps(health, PROBE_INTERVAL)
    assert health.is_probe_due
    health.begin_probe()
    assert not health.is_probe_due
    decision = health.decide(TABLE, batch_size, has_probe=True)
    assert (decision.num_steps, decision.reason) == (num_steps, Reason.UNFIT_PROBE)


def test_a_draft_that_fits_after_all_is_used_again():
    health = unfit_draft()
    plain_steps(health, PROBE_INTERVAL)
    health.begin_probe()
    changes = [
        health.observe(health.decide(TABLE, 1, has_probe=True), FirstPosition(1, 1), 0.02)
        for _ in range(PROBE_STEPS)
    ]
    assert changes.count(True) == 1
    assert health.fitness is Fitness.UNKNOWN
    assert not health.is_probe_due


def test_nothing_is_known_at_first():
    assert "not known yet" in DraftHealth().report().description


def test_the_report_names_evidence_and_causes():
    text = unfit_draft().report().description
    assert "accepted 0 of 200 first draft tokens in 20 requests" in text
    assert "below 5% at 99% confidence" in text
    assert "RoPE" in text
