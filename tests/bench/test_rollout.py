"""The simulated trials: what they count, and that the judge keeps its promises in nasty worlds."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rollout.cells import CASES, Outcome, cell, wilson
from rollout.months import try_for_months
from rollout.traffic import REQUESTS_PER_S, run_turns
from rollout.trials import looks, run_trial
from rollout.worlds import BROKEN, EQUAL, GAIN_10, HOURS_S, LOSS_10, WORLDS
from specdecode_operator.judge.evidence import Role
from specdecode_operator.judge.guard import Guard
from specdecode_operator.judge.judge import judge_turns
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.trial_evidence import ROLES, row_of

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {world.name: world for world in WORLDS}
CELL_KEYS = {
    "arrangement", "n", "false_rollback", "false_promote", "cannot_tell", "loss_3pct_found",
    "gain_5pct_promoted", "equal_edit_promoted", "broken_requests",
}  # fmt: skip


def trial(world="steady", candidate=EQUAL, pods=1, seed=1):
    return run_turns(BY_NAME[world], candidate, pods, np.random.default_rng(seed))


def test_a_trial_counts_the_requests_of_its_world_in_both_roles():
    seen = trial(pods=2)
    requests = [
        sum(row_of(counts, role).first_tokens for counts in seen.evidence.pairs) for role in ROLES
    ]
    expected = REQUESTS_PER_S * HOURS_S * 60 / 70  # without washouts
    assert requests == pytest.approx([expected, expected], rel=0.05)
    assert seen.ends_s[-1] >= HOURS_S
    assert np.all(np.diff(seen.ends_s) >= 15.0)


@pytest.mark.parametrize(("candidate", "ratio"), [(EQUAL, 1.0), (LOSS_10, 1.1), (GAIN_10, 0.9)])
def test_a_candidate_costs_what_its_name_states(candidate, ratio):
    seen = trial(candidate=candidate, pods=4)
    time = {role: [0, 0] for role in Role}
    for counts in seen.evidence.pairs:
        for role in ROLES:
            for index in range(len(seen.evidence.strata)):
                start = 20 + 4 * (2 * index + ROLES.index(role))
                _, tokens, decode_us, _ = counts[start : start + 4]
                time[role][0] += decode_us
                time[role][1] += tokens
    old, new = (time[role][0] / time[role][1] for role in ROLES)
    assert new / old == pytest.approx(ratio, abs=0.04)  # larger batches add to a loss


@pytest.mark.parametrize("world", BY_NAME)
def test_a_broken_draft_is_found_early_in_every_world(world):
    ends = [run_trial(trial(world, BROKEN, 2, seed), Guard()) for seed in range(3)]
    assert {end.verdict for end in ends} == {Verdict.ROLL_BACK}
    assert min(end.elapsed_s for end in ends) < 300.0


@pytest.mark.parametrize("world", ["bursts", "mix", "ar1"])
def test_equal_arms_survive_load_that_changes_within_pairs(world):
    ends = [run_trial(trial(world, EQUAL, 1, seed), Guard()) for seed in range(6)]
    assert sum(end.verdict in (Verdict.ROLL_BACK, Verdict.PROMOTE) for end in ends) <= 1


def test_looks_that_are_skipped_would_not_have_ended_the_trial():
    seen, guard = trial(candidate=LOSS_10), Guard()
    asked = set(looks(seen, guard))
    end = run_trial(seen, guard)
    for pairs in range(1, 45):
        if pairs in asked or seen.ends_s[2 * pairs - 1] >= end.elapsed_s:
            continue
        evidence = replace(seen.evidence, pairs=seen.evidence.pairs[:pairs])
        found = judge_turns(evidence, guard, float(seen.ends_s[2 * pairs - 1]))
        assert found.verdict is Verdict.CONTINUE


def test_a_cell_reports_shares_with_their_upper_bounds():
    found = {
        case.name: Outcome(100, {case.right.value: 90, "Inconclusive": 10}, {}, 30.0, 80.0)
        for case in CASES
    }
    figures = cell(BY_NAME["mix"], 4, found)
    assert figures.keys() > CELL_KEYS
    assert figures["arrangement"] == "crossover"
    assert (figures["loss_10pct_found"], figures["cannot_tell"]) == (0.9, 0.1)
    assert wilson(0, 500) == pytest.approx(0.0076, abs=1e-4)
    assert wilson(10, 500) == pytest.approx(0.0365, abs=1e-3)


def test_months_of_equal_candidates_stay_within_the_alpha_budget():
    assert try_for_months(20, 1, has_budget=True).any_wrong <= 0.15
    assert try_for_months(20, 1, has_budget=False).any_wrong > 0.1


def test_the_last_line_is_the_result():
    result = subprocess.run(
        [sys.executable, "-m", "rollout", "--quick", "--runs", "1", "1"],
        env=os.environ | {"PYTHONPATH": str(ROOT / "bench")},
        capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    worlds = json.loads(result.stdout.splitlines()[-1])["worlds"]
    assert worlds.keys() == BY_NAME.keys()
    for world in worlds.values():
        assert world["pods"].keys() == {"1", "2", "4", "8"}
        assert all(figures.keys() > CELL_KEYS for figures in world["pods"].values())
