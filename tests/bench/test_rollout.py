"""The simulated trials: what they count, and that the judge keeps its promises in nasty worlds."""

import json
import os
import re
import secrets
import subprocess
import sys
from dataclasses import astuple, replace
from itertools import pairwise
from math import comb
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from bench.simulation.trials import kept
from bench.simulation.trials.__main__ import in_order, result
from bench.simulation.trials.cells import (
    CASES,
    PODS,
    Kind,
    Outcome,
    Task,
    cell,
    run_task,
    run_trial,
    wilson,
)
from bench.simulation.trials.environment import draw_environment
from bench.simulation.trials.first_pair import alarm_in_first_pair, draw_history, known_at_looks
from bench.simulation.trials.months import try_for_months
from bench.simulation.trials.pods import WINDOW_S, arms_of, early_looks_s, run_on_pods
from bench.simulation.trials.requests import REQUESTS_PER_S, STRATA, draw_arrivals, serve
from bench.simulation.trials.traffic import Timeline, by_restart, in_turns, watch
from bench.simulation.trials.trials import ENDS, Look, judge_at, looks, run_in_turns
from bench.simulation.trials.worlds import (
    BROKEN,
    DISTURBED,
    EQUAL,
    GAIN_10,
    LOSS_10,
    WORLDS,
    draw_world,
)
from specdecode_operator.judge.evidence import RequestSums
from specdecode_operator.judge.guard import Aim, Guard
from specdecode_operator.judge.judgement import Verdict
from specdecode_operator.judge.trial_evidence import ROLES, column_of, row_of

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {world.name: world for world in WORLDS}
CELL_KEYS = {
    "arrangement", "n", "false_rollback", "false_promote", "cannot_tell", "loss_3pct_found",
    "gain_5pct_promoted", "equal_edit_promoted", "broken_requests",
}  # fmt: skip


def seen(world="steady", candidate=EQUAL, pods=1, seed=1):
    """A whole trial in turns."""
    parts = list(watch(BY_NAME[world], candidate, in_turns(pods), np.random.default_rng(seed)))
    assert [part.is_complete for part in parts] == [False] * (len(parts) - 1) + [True]
    return parts[-1]


def ends(world, candidate, pods, seeds):
    return [
        run_in_turns(
            BY_NAME[world], candidate, in_turns(pods), Aim.GAIN, np.random.default_rng(seed)
        )
        for seed in range(seeds)
    ]


def test_a_trial_counts_the_requests_of_its_world_in_both_roles():
    found = seen(pods=2)
    requests = [
        sum(row_of(counts, role).first_tokens for counts in found.evidence.pairs) for role in ROLES
    ]
    expected = REQUESTS_PER_S * 7200.0 * 60 / 70  # without washouts
    assert requests == pytest.approx([expected, expected], rel=0.05)
    assert found.pair_ends_s[-1] >= 7200.0 - 150.0
    probe_turn_s = 0.08 * 60.0 + 0.3 * 10.0
    assert np.all(np.diff(found.pair_ends_s) >= 2.0 * probe_turn_s - 1e-9)
    assert found.served[-1] == pytest.approx(REQUESTS_PER_S * 7200.0, rel=0.05)


def test_a_later_part_of_a_trial_changes_nothing_of_the_earlier_ones():
    parts = list(watch(BY_NAME["bursts"], EQUAL, in_turns(2), np.random.default_rng(3)))
    for before, after in pairwise(parts):
        known = len(before.evidence.pairs)
        assert before.evidence.pairs == after.evidence.pairs[:known]
        assert len(after.evidence.pairs) > known


@pytest.mark.parametrize(("candidate", "ratio"), [(EQUAL, 1.0), (LOSS_10, 1.1), (GAIN_10, 0.9)])
def test_a_candidate_costs_what_its_name_states(candidate, ratio):
    evidence = seen(candidate=candidate, pods=4).evidence
    old, new = (
        sum(sum(column_of(counts, role, "decode_us")) for counts in evidence.pairs)
        / sum(sum(column_of(counts, role, "tokens")) for counts in evidence.pairs)
        for role in ROLES
    )
    assert new / old == pytest.approx(ratio, abs=0.04)  # larger batches add to a loss


@pytest.mark.parametrize("pods", [1, 2, 8])
@pytest.mark.parametrize("world", BY_NAME)
def test_a_broken_draft_is_found_within_100_requests_in_every_world(world, pods):
    found = ends(world, BROKEN, pods, 9)
    assert {end.verdict for end in found} == {Verdict.ROLL_BACK}
    assert median(end.candidate_requests for end in found) <= 100


@pytest.mark.parametrize("world", ["bursts", "mix", "ar1"])
def test_equal_arms_survive_load_that_changes_within_pairs(world):
    found = ends(world, EQUAL, 1, 6)
    assert sum(end.verdict in (Verdict.ROLL_BACK, Verdict.PROMOTE) for end in found) <= 1


def test_a_disturbed_machine_rolls_no_equal_arms_back():
    found = [
        run_in_turns(DISTURBED, EQUAL, in_turns(pods), Aim.GAIN, np.random.default_rng([seed, 5]))
        for pods in (1, 2)
        for seed in range(20)
    ]
    wrong = [end.reason for end in found if end.verdict in (Verdict.ROLL_BACK, Verdict.PROMOTE)]
    assert len(wrong) <= 1, wrong
    assert "HeavyLoss" not in wrong


@pytest.mark.parametrize("kind", Kind)
def test_in_worlds_nobody_chose_equal_arms_get_no_more_verdicts_than_promised(kind):
    """Every run draws other worlds; the bounds are those of a binomial test at 1e-4."""
    seed, trials, guard = secrets.randbits(64), 40, Guard()
    found = []
    for number in range(trials):
        rng = np.random.default_rng([seed, number])
        world, pods = draw_world(rng), PODS[kind][number % len(PODS[kind])]
        end = run_trial(kind, world, EQUAL, pods, Aim.GAIN, rng)
        found.append((end.verdict, end.reason, pods, world))
    for verdict, share in (
        (Verdict.ROLL_BACK, guard.alpha),
        (Verdict.PROMOTE, guard.promote_alpha),
    ):
        wrong = [each for each in found if each[0] is verdict]
        assert at_least(len(wrong), trials, share) > 1e-4, f"seed {seed}: {wrong}"


def at_least(count, trials, share):
    """Probability of `count` or more of `trials`, each with probability `share`."""
    terms = (
        comb(trials, each) * share**each * (1.0 - share) ** (trials - each)
        for each in range(count, trials + 1)
    )
    return sum(terms)


def test_the_binomial_test_bounds_what_it_should():
    assert at_least(0, 40, 0.01) == pytest.approx(1.0)
    assert at_least(4, 40, 0.01) > 1e-4 > at_least(5, 40, 0.01)
    assert at_least(3, 40, 0.004) > 1e-4 > at_least(4, 40, 0.004)


def test_restarts_have_long_blocks_in_which_all_pods_run_one_configuration():
    plan = by_restart(4, start_s=30.0)
    line = Timeline(5, plan)
    lengths = np.diff(line.ends_s, prepend=0.0) - plan.washout_s
    assert lengths.min() >= 300.0
    assert lengths.max() <= 450.0
    is_new = line.runs_candidate()
    assert np.array_equal(is_new.all(axis=1), is_new.any(axis=1))
    assert np.array_equal(is_new[0::2, 0], ~is_new[1::2, 0])


@pytest.mark.parametrize("pods", [1, 4])
def test_by_restart_a_broken_draft_is_found_soon_after_its_first_pod_serves(pods):
    def run(candidate, world):
        rngs = (np.random.default_rng([seed, 8]) for seed in range(9))
        plan = by_restart(pods)
        histories = ((draw_history(BY_NAME[world], plan, rng), rng) for rng in rngs)
        return [
            alarm_in_first_pair(BY_NAME[world], candidate, plan, history, Aim.GAIN, rng)
            for history, rng in histories
        ]

    assert median(end.candidate_requests for end in run(BROKEN, "bursts") if end) <= 60
    assert all(run(BROKEN, "bursts"))
    assert not any(run(EQUAL, "mix"))


@pytest.mark.parametrize("kind", [Kind.RESTART, Kind.SEPARATE_PODS])
def test_a_broken_draft_is_found_within_100_requests_on_pods_that_start_with_it(kind):
    for world in (BY_NAME["mix"], BY_NAME["periodic"]):
        for pods in PODS[kind][::2]:
            rngs = [np.random.default_rng([seed, pods]) for seed in range(15)]
            found = [run_trial(kind, world, BROKEN, pods, Aim.GAIN, rng) for rng in rngs]
            assert {end.verdict for end in found} == {Verdict.ROLL_BACK}
            assert median(end.candidate_requests for end in found) <= 100, (world.name, pods)


def test_separate_pods_find_a_broken_draft_at_once_and_else_need_five_for_each_arm():
    def run(candidate, pods):
        rng = np.random.default_rng(2)
        return run_on_pods(BY_NAME["mix_by_pod"], candidate, pods, Aim.GAIN, rng)

    broken, few, many = run(BROKEN, 2), run(EQUAL, 8), run(GAIN_10, 12)
    assert (broken.reason, few.reason) == ("AcceptLengthFell", "TooFewPods")
    assert broken.elapsed_s < 120.0, "before the warm-up is over"
    assert many.verdict is Verdict.PROMOTE


def test_looks_are_frequent_until_the_candidate_has_answered_enough():
    answered = np.arange(10.0, 60.0, 0.1)  # the two hundredth after 20 s
    found = early_looks_s(10.0, 60.0, answered)
    assert np.diff(found, prepend=10.0)[:8] == pytest.approx([2.5] * 8)
    assert np.diff(found)[8:-1] == pytest.approx(15.0)
    assert found[-1] == 60.0


@pytest.mark.parametrize(
    ("pair_s", "is_measured"),
    [(in_turns(4).pair_s, False), (by_restart(2).pair_s, True), (WINDOW_S, False)],
)
def test_the_periodic_world_has_the_period_of_the_mean_pair(pair_s, is_measured):
    load = draw_environment(
        BY_NAME["periodic"], 1, 40 * pair_s, pair_s, np.random.default_rng(3)
    ).load[:, 0]
    is_high = load > np.sqrt(load.min() * load.max())
    rises_s = np.flatnonzero(np.diff(is_high.astype(int)) == 1) * 5.0
    assert np.diff(rises_s).mean() == pytest.approx(pair_s, rel=0.05)
    if is_measured:
        ends_s = Timeline(7, by_restart(2)).pair_ends_s
        assert np.diff(ends_s).mean() == pytest.approx(pair_s, rel=0.1)


def test_the_mean_pair_is_that_of_the_turns():
    for plan in (in_turns(2), by_restart(4)):
        lengths = np.diff(Timeline(5, plan).pair_ends_s[3:])  # without probes
        assert lengths.mean() == pytest.approx(plan.pair_s, rel=0.1)


def test_results_depend_on_all_code_of_trials_that_the_bench_imports(monkeypatch):
    package = ROOT / "bench" / "simulation" / "trials"
    text = "".join(path.read_text() for path in package.glob("*.py") if path.stem != "kept")
    imported = set(re.findall(r"from specdecode_operator\.trial\.\w+\.(\w+) import", text))
    assert imported == {module.__name__.rpartition(".")[2] for module in kept.TRIAL_MODULES}
    before = kept.code_digest()
    monkeypatch.setattr(kept, "TRIAL_MODULES", kept.TRIAL_MODULES[1:])
    assert kept.code_digest() != before


def served(pods=3, seconds=300.0):
    """Requests of a fleet, with the slot of each; the group is the pod."""
    rng, world = np.random.default_rng(4), BY_NAME["bursts"]
    around = draw_environment(world, pods, seconds, 100.0, rng)
    arrivals = draw_arrivals(around, slice(0, len(around.load)), rng)
    is_new = rng.random(len(arrivals.pod)) < 0.5
    return serve(world, BROKEN, around, arrivals, is_new, arrivals.pod, rng), arrivals.slot


def test_evidence_of_all_pods_at_once_is_that_of_each_pod():
    requests, _ = served()
    for pod, arm in enumerate(arms_of(requests, 3)):
        own = requests.where(requests.group == pod)
        assert arm.answered_requests + arm.failed_requests == len(own.tokens)
        assert arm.failed_requests == own.failed.sum()
        assert sum(arm.first_token.counts) == len(own.tokens)
        assert arm.first_token.sum_s == pytest.approx(own.first_s.sum(dtype=float))
        for index, stratum in enumerate(STRATA):
            here = own.where(own.stratum == index)
            sums = arm.strata.get(stratum, RequestSums())
            expected = [len(here.tokens)]
            expected += [each.sum(dtype=float) for each in (here.tokens, here.steps, here.seconds)]
            assert astuple(sums) == pytest.approx(expected)


def test_a_look_at_a_first_block_knows_all_requests_before_it():
    requests, slot = served()
    looks = 60
    by_slot = replace(requests, group=slot)
    for end, arm in enumerate(known_at_looks(by_slot, looks), 1):
        (expected,) = arms_of(replace(requests.where(slot < end), group=slot[slot < end] * 0), 1)
        assert arm.strata.keys() == expected.strata.keys()
        for stratum, sums in arm.strata.items():
            assert astuple(sums) == pytest.approx(astuple(expected.strata[stratum]))


@pytest.mark.parametrize("candidate", [LOSS_10, EQUAL])
def test_looks_that_are_skipped_would_not_have_ended_the_trial(candidate):
    found, guard = seen(candidate=candidate), Guard()
    asked = list(looks(found, guard))
    due = {each.pairs for each in asked if not each.open}
    skipped = [pairs for pairs in range(1, 41) if pairs not in due]
    assert skipped
    is_over = [judge_at(found, guard, each).verdict in ENDS for each in asked]
    end = asked[is_over.index(True)].pairs
    for pairs in skipped:
        at = Look(float(found.pair_ends_s[pairs - 1]), pairs, 0)
        assert pairs > end or judge_at(found, guard, at).verdict is Verdict.CONTINUE


def test_by_restart_early_pairs_are_looked_at_once_a_minute_while_their_blocks_count():
    plan = by_restart(2)
    *_, found = watch(BY_NAME["steady"], EQUAL, plan, np.random.default_rng(1))
    asked = [each for each in looks(found, Guard()) if each.pairs == 1 and each.open]
    gaps_s = np.diff([each.at_s for each in asked])
    assert len(asked) > 8
    assert set(np.round(gaps_s[gaps_s <= 60.0 + 1e-6], 6)) >= {60.0}
    assert gaps_s.max() < 60.0 + plan.washout_s + 60.0
    requests = [
        sum(sum(column_of(each.open, role, "requests")) for role in ROLES) for each in asked
    ]
    assert requests == sorted(requests)
    pair = found.evidence.pairs[1]
    assert requests[-1] < sum(sum(column_of(pair, role, "requests")) for role in ROLES)


def test_a_cell_reports_shares_with_their_upper_bounds():
    found = {
        case.name: Outcome(
            {case.right.value: 90, "Inconclusive": 10}, {}, (30.0,) * 100, (80,) * 100
        )
        for case in CASES
    }
    figures = cell(Kind.TURNS, BY_NAME["mix"], 4, found)
    assert figures.keys() > CELL_KEYS
    assert figures["arrangement"] == "crossover"
    assert (figures["loss_10pct_found"], figures["cannot_tell"]) == (0.9, 0.1)
    assert wilson(0, 500) == pytest.approx(0.0076, abs=1e-4)
    assert wilson(10, 500) == pytest.approx(0.0365, abs=1e-3)


def test_months_of_equal_candidates_stay_within_the_alpha_budget():
    assert try_for_months(20, 1, has_budget=True).any_wrong <= 0.15
    assert try_for_months(20, 1, has_budget=False).any_wrong > 0.1


def test_a_run_that_was_stopped_continues_with_what_is_missing(tmp_path):
    file = tmp_path / "kept.jsonl"
    tasks = list(in_order([Kind.TURNS], 7, (5, 0)))
    assert len(tasks) == 5 * len(PODS[Kind.TURNS]) * len(WORLDS)
    assert {(task.first, task.runs) for task in tasks} == {(first, 1) for first in range(5)}
    outcomes = {task: run_task(task) for task in tasks[:2]}
    for task, outcome in outcomes.items():
        kept.append(file, task, outcome)
    with file.open("a") as stream:
        stream.write('{"code": "cut off')
    assert kept.read(file) == outcomes
    kept.append(file, tasks[2], outcomes[tasks[0]])
    assert kept.read(file).keys() == set(tasks[:3])
    other = file.read_text().replace(kept.code_digest(), "other")
    file.write_text(other)
    assert kept.read(file) == {}
    file.write_text(other + '{"code": 1}\n')
    with pytest.raises(ValueError, match=f"{file}:4: .*remove the line"):
        kept.read(file)


@pytest.mark.parametrize("kind", Kind)
def test_every_case_is_tried_in_every_arrangement(kind):
    outcomes = [
        run_task(Task(kind, BY_NAME["steady"], PODS[kind][-1], case, 3, 1)) for case in CASES
    ]
    assert [outcome.runs for outcome in outcomes] == [1] * len(CASES)
    assert outcomes[-1].count(CASES[-1].right) == 1, "a broken draft"


def test_figures_of_what_has_not_run_are_missing():
    task = Task(Kind.TURNS, BY_NAME["wave"], 1, CASES[0], 3, 2)
    found = result({task: Outcome({"Inconclusive": 2}, {}, (30.0, 40.0), (9, 9))})
    assert json.loads(json.dumps(found))["pooled"]["worlds"]["n"] == 2
    figures = cell(Kind.TURNS, BY_NAME["wave"], 1, {})
    assert figures["false_rollback"] is None
    assert figures["broken_requests"] is None
    assert figures["cannot_tell"] is None


def test_the_last_line_is_the_result():
    result = subprocess.run(
        [sys.executable, "-m", "bench.simulation.trials", "--quick", "--runs", "1", "0"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=900, check=True,
    )  # fmt: skip
    found = json.loads(result.stdout.splitlines()[-1])
    for kind in Kind:
        worlds = found["worlds" if kind is Kind.TURNS else kind]
        assert worlds.keys() == BY_NAME.keys()
        for world in worlds.values():
            assert world["pods"].keys() == {str(pods) for pods in PODS[kind]}
            assert all(figures.keys() > CELL_KEYS for figures in world["pods"].values())
    too_few = found["separate_pods"]["steady"]["pods"]["8"]
    assert too_few["arrangement"] == "separate pods"
    assert too_few["reasons"] == {"TooFewPods": 1}
