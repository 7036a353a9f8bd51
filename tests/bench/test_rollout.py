"""The fleet simulator: what it counts, and that the judge errs less than its rivals."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rollout import rules
from rollout.arrangements import SLOTS, crossover, side_by_side, switchback
from rollout.counters import in_turns_by_ledger
from rollout.figures import try_all
from rollout.fleet import ACCEPT, run_fleet
from rollout.months import try_for_months
from rollout.scenarios import BROKEN, EQUAL, GAIN, LOSS, all_scenarios
from rollout.scrape import accumulate, arms, pair_of_blocks
from rollout.ways import reported
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.pooled import pool, request_count
from specdecode_operator.judge.ratio import log_ratio, seconds_per_token

ROOT = Path(__file__).resolve().parents[2]
STEADY, MIX_SHIFT, LOAD_DRIFT, SLOW_POD = all_scenarios()
KEYS = {
    "false_rollback",
    "false_promotion",
    "promoted_gain5",
    "caught_loss5",
    "median_requests",
    "broken_draft_requests",
    "regret_requests",
}


def fleet(scenario=STEADY, candidate=EQUAL, arrangement=None, seed=1):
    return run_fleet(
        scenario, candidate, arrangement or side_by_side(), np.random.default_rng(seed)
    )


def test_counts_are_those_of_the_fleet_described():
    seen = fleet()
    total = seen.sums.sum(axis=(0, 1, 2))
    assert total[0] == pytest.approx(4 * 7200, rel=0.05)
    mean_accept = float(ACCEPT @ np.array([0.5, 0.3, 0.2]))
    assert total[1] / total[2] == pytest.approx(mean_accept, rel=0.03)
    assert seen.first_token.sum() == total[0]
    assert seen.inter_token.sum() == total[1]


@pytest.mark.parametrize(("candidate", "cost"), [(EQUAL, 1.0), (GAIN, 0.95), (LOSS, 1.05)])
def test_a_candidate_costs_what_it_says(candidate, cost):
    ratios = []
    for seed in range(4):
        sums = fleet(candidate=candidate, arrangement=side_by_side(8, 8), seed=seed).sums
        old, new = sums[:, :8].sum(axis=(0, 1, 2)), sums[:, 8:].sum(axis=(0, 1, 2))
        ratios.append((new[3] / new[1]) / (old[3] / old[1]))
    # Slightly more than the configured cost: longer requests make batches larger.
    assert np.mean(ratios) == pytest.approx(cost, abs=0.015)


def test_evidence_is_all_that_was_counted():
    seen = fleet()
    old, new = (pool(pods.values()) for pods in arms(accumulate(seen), SLOTS))
    assert request_count(old) + request_count(new) == seen.sums[..., 0].sum()
    assert (old.pods, new.pods) == (2, 2)
    assert old.failed_requests == seen.failed[:, :2].sum()
    assert log_ratio(seconds_per_token(next(iter(old.strata.values())))) is not None


def test_blocks_leave_out_the_washout_and_know_when_they_are_finished():
    seen = fleet(arrangement=crossover(5))
    blocks = list(pair_of_blocks(seen, 1, 16))
    assert len(blocks) == 4
    assert all(block.is_finished for block in blocks)
    kept = seen.sums[[9, 10, 11, 13, 14, 15], ..., 0].sum()
    assert sum(request_count(block.evidence) for block in blocks) == kept
    assert [block.is_finished for block in pair_of_blocks(seen, 1, 14)] == [
        True,
        True,
        False,
        False,
    ]
    assert len(list(pair_of_blocks(fleet(arrangement=switchback(5)), 0, 16))) == 2


def test_a_slow_pod_is_slower_and_a_drift_drifts():
    speed = fleet(SLOW_POD, arrangement=side_by_side(2, 2), seed=3).sums.sum(axis=(0, 2))
    per_token = speed[:, 3] / speed[:, 1]
    assert per_token.max() / np.median(per_token) > 1.1
    requests = fleet(LOAD_DRIFT).requests.sum(axis=1)
    assert np.quantile(requests, 0.95) / np.quantile(requests, 0.05) > 2.0


def test_a_broken_draft_is_caught_within_a_hundred_requests():
    for seed in range(3):
        seen = fleet(candidate=BROKEN, arrangement=crossover(seed), seed=seed)
        end = rules.in_turns(seen)
        assert (end.verdict, end.reason) == (Verdict.ROLL_BACK, "AcceptLengthFell")
        assert (seen.requests * seen.arrangement.candidate)[: end.slot].sum() <= 100


def test_ours_errs_less_than_its_rivals_with_equal_arms_and_finds_what_differs():
    figures = try_all(SLOW_POD, reported(), seed=2, runs=6)
    ours = figures["ours"]
    assert ours.false_rollback == ours.false_promotion == 0.0
    assert ours.promoted_gain5 == ours.caught_loss5 == ours.caught_broken == 1.0
    for name in ("threshold", "peeking_z"):
        rival = figures[name]
        assert rival.false_rollback + rival.false_promotion > 0.5
        assert ours.regret_requests < rival.regret_requests


@pytest.mark.parametrize(
    ("candidate", "verdicts"),
    [(GAIN, {Verdict.PROMOTE}), (EQUAL, {Verdict.INCONCLUSIVE}), (LOSS, {Verdict.ROLL_BACK})],
)
def test_restarts_change_no_verdict_when_the_ledger_counts(candidate, verdicts):
    for seed in range(2):
        seen = fleet(candidate=candidate, arrangement=crossover(seed), seed=seed)
        # Each pod's process restarts three times in the first half hour.
        seen.restarts[[5, 31, 66], :] = 1
        assert {in_turns_by_ledger(seen).verdict} == verdicts


def test_the_ledger_counts_what_the_fleet_did():
    for candidate in (GAIN, BROKEN):
        seen = fleet(candidate=candidate, arrangement=crossover(1))
        seen.restarts[:] = 0
        assert in_turns_by_ledger(seen) == rules.in_turns(seen)


def test_without_an_error_budget_luck_promotes_in_the_long_run():
    assert try_for_months(40, 1, has_budget=True).any_wrong <= 0.05
    assert try_for_months(40, 1, has_budget=False).any_wrong > 0.1


def test_the_last_line_is_json_with_every_figure():
    code = (
        "import rollout.__main__ as main; main.QUICK = main.Extent(1, 1, 1); raise SystemExit("
        "main.main())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--seed", "3", "--quick"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert list(result) == ["steady", "mix_shift", "load_drift", "slow_pod"]
    for rows in result.values():
        assert list(rows) == ["ours", "threshold", "peeking_z"]
        assert all(set(figures) == KEYS for figures in rows.values())
