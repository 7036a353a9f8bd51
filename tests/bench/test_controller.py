"""The simulator: rivals behave as published, and goodput meets what it promises on a small run."""

import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from bench.simulation.policy.adaptation import measure_adaptation
from bench.simulation.policy.comparison import (
    BUDGET,
    MOST_PROMPT_ROWS,
    MOST_ROWS,
    Extent,
    compare,
    policy_of,
)
from bench.simulation.policy.figures import run_all, spread, summarize
from bench.simulation.policy.latency import measure_latency
from bench.simulation.policy.loads import load
from bench.simulation.policy.machines import PUBLISHED, all_machines, vl52362
from bench.simulation.policy.policies import GOODPUT, RIVALS, all_policies
from bench.simulation.policy.profiles import Profile, all_profiles, cpu_82m, h100_dense_8b
from bench.simulation.policy.report import DOCS, RESULTS, included
from bench.simulation.policy.rivals.ema_slot import EmaSlot
from bench.simulation.policy.scenarios import Scenario, all_scenarios
from bench.simulation.policy.service import Costs, Service
from bench.simulation.policy.timing import measure_decision
from bench.simulation.policy.traffic import all_traffic
from bench.simulation.policy.world import Tally, World

ROOT = Path(__file__).resolve().parents[2]
SHORT = {scenario.name: scenario for scenario in all_scenarios(700)}
SOME = [SHORT[name] for name in ("steady .8 b4", "flips 300 b4", "ladder .7", "boundary 7-8")]
# Longer, because no budget applies to the first few steps.
SOME += [scenario for scenario in all_scenarios(1400) if scenario.name == "hopeless b64"]


def run(policy: str, profile: Profile, scenario: Scenario, seed: int = 1) -> Tally:
    return World(profile, scenario, seed).run(all_policies()[policy](profile, seed))


def switches(tally: Tally) -> int:
    depths = [trace.num_steps for trace in tally.traces]
    return sum(one != other for one, other in pairwise(depths))


def test_costs_are_those_that_were_published_and_measured() -> None:
    h100, cpu = h100_dense_8b(), cpu_82m()
    assert h100.seconds(1, 0, 0) == pytest.approx(6.186e-3 + 21.01e-6)
    assert h100.seconds(4, 7, 2048) == pytest.approx(
        6.186e-3 + 32 * 21.01e-6 + 7 * 0.3e-3 + 2048 * 39.26e-9
    )
    assert cpu.seconds(8, 0, 0) == pytest.approx(9.8e-3)
    assert cpu.seconds(8, 1, 0) == pytest.approx(13.2e-3 + 0.57e-3 * 9.8 / 7.5)


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda profile: profile.name)
def test_no_step_is_cheaper_for_being_deeper_or_fuller(profile: Profile) -> None:
    for size in (1, 2, 8, 64):
        row = [profile.seconds(size, steps, 0) for steps in range(8)]
        assert row == sorted(row)
        assert profile.seconds(2 * size, 3, 0) >= row[3]


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda profile: profile.name)
def test_nothing_beats_the_clairvoyant_where_nothing_changes(profile: Profile) -> None:
    for scenario in (SHORT["steady .8 b4"], SHORT["mixed b16"]):
        assert run("clairvoyant", profile, scenario).regret == pytest.approx(0.0, abs=1e-9)
        for policy in (GOODPUT, "ema v1", "static 3"):
            assert run(policy, profile, scenario).regret >= -1e-9


def test_the_same_seed_gives_the_same_run() -> None:
    scenario = SHORT["ladder and flips"]
    one, other = (run(GOODPUT, cpu_82m(), scenario, seed=5) for _ in range(2))
    assert one == other
    assert run(GOODPUT, cpu_82m(), scenario, seed=6) != one


@pytest.mark.parametrize(
    ("current", "down_hysteresis", "accepted", "reached"),
    [(3, -0.25, 3, 7), (3, -0.25, 0, 1), (7, -0.25, 5, 7), (1, -0.25, 1, 3)],
)
def test_the_mean_of_accepted_drafts_moves_by_its_published_thresholds(
    current: int, down_hysteresis: float, accepted: int, reached: int
) -> None:
    slot = EmaSlot((1, 3, 7), down_hysteresis, current)
    for _ in range(14):
        slot.update([accepted])
    assert slot.current == current  # warm-up of ten, then every fifth
    slot.update([accepted])
    assert slot.current == reached


def test_a_censored_mean_never_rises_from_three_at_a_rate_of_point_eight() -> None:
    tally = run("ema v1", h100_dense_8b(), SHORT["steady .8 b4"])
    assert tally.regret == pytest.approx(0.15, abs=0.02)


def test_zero_step_probes_without_a_pause_flap_at_every_evaluation() -> None:
    scenario = Scenario("steady .25 b40", (load(1000, 40, 0.25),))
    tally = run("ema zero-step", h100_dense_8b(), scenario)
    per_thousand = 1000 * switches(tally) / len(tally.traces)
    assert per_thousand == pytest.approx(198, abs=10)


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda profile: profile.name)
def test_goodput_loses_little_and_half_of_what_any_rival_does(profile: Profile) -> None:
    policies = all_policies()
    own = summarize(run_all(policies[GOODPUT], profile, SOME, [1]))
    rivals = [summarize(run_all(policies[name], profile, SOME, [1])) for name in RIVALS]
    assert own["mean_regret"] <= 0.04
    assert own["worst_regret"] <= 0.10
    assert own["loss_to_no_speculation"] <= 0.01
    assert own["switches_per_1000"] <= 15
    assert own["mean_regret"] <= 0.5 * min(rival["mean_regret"] for rival in rivals)


@pytest.mark.parametrize("profile", all_profiles(), ids=lambda profile: profile.name)
def test_a_wrong_table_costs_little_more(profile: Profile) -> None:
    policies = all_policies()
    right = summarize(run_all(policies[GOODPUT], profile, SOME, [1]))
    wrong = summarize(run_all(policies["goodput, costs off by 20 %"], profile, SOME, [1]))
    assert wrong["mean_regret"] <= right["mean_regret"] + 0.02


def test_step_changes_are_followed_within_the_promised_steps() -> None:
    delays = measure_adaptation(all_policies()[GOODPUT], h100_dense_8b(), [1])
    assert {name: delay is not None for name, delay in delays.items()} == dict.fromkeys(
        delays, True
    )
    assert max(delays["b4 falls"] or 0, delays["b4 rises"] or 0) <= 20
    assert max(delays["b64 falls"] or 0, delays["b64 rises"] or 0) <= 6


def test_a_decision_takes_microseconds() -> None:
    limits_us = {1: 100, 64: 100, 256: 300}  # of which a fifth is taken on a free core
    for size, limit_us in limits_us.items():
        assert measure_decision(all_policies()[GOODPUT], h100_dense_8b(), size) < limit_us


@pytest.mark.parametrize("machine", all_machines(), ids=lambda machine: machine.name)
def test_no_step_of_a_machine_is_cheaper_for_having_more_rows(machine: Profile) -> None:
    times = [machine.target_s(rows) for rows in range(1, 4096)]
    assert times == sorted(times)
    for size in (1, 64):
        row = [machine.drafting_s(size, steps) for steps in range(8)]
        assert row == sorted(row)


def test_the_published_columns_are_fitted_within_five_percent() -> None:
    machine, emitted = vl52362(), 4.7
    columns = PUBLISHED.concurrency, PUBLISHED.none, PUBLISHED.fixed_7
    for size, none, fixed in zip(*columns, strict=True):
        assert size / machine.seconds(size, 0, 0) == pytest.approx(none, rel=0.05)
        assert size * emitted / machine.seconds(size, 7, 0) == pytest.approx(fixed, rel=0.05)


@pytest.mark.parametrize("policy", [GOODPUT, BUDGET])
def test_nothing_beats_the_best_rows_for_each_request(policy: str) -> None:
    machine = all_machines()[1]
    costs = Costs(machine, MOST_ROWS + MOST_PROMPT_ROWS)
    for traffic in all_traffic(4, 60):
        served = Service(policy_of(policy, machine, 1), traffic, costs, 1).served
        assert 0.0 < served.of_best <= 1.0 + 1e-9
        assert served.batch_of_best <= 1.0 + 1e-9
        assert served.to_none >= served.to_best_fixed


def test_no_choice_for_the_batch_beats_the_best_depth_of_each_step() -> None:
    costs = Costs(all_machines()[1], MOST_ROWS + MOST_PROMPT_ROWS)
    for traffic in all_traffic(4, 60):
        served = Service(policy_of(GOODPUT, costs.profile, 1), traffic, costs, 1).served
        assert served.of_best <= served.batch_of_best + 1e-9
        if traffic.name.startswith("alike"):
            assert served.batch_of_best == pytest.approx(1.0)


def test_a_comparison_contains_every_figure() -> None:
    figures = compare(4, Extent((2,), 48, 96), seed=1)
    promised = {"vs_best_fixed", "vs_none", "regret_mean", "regret_worst", "mixed_bound"}
    promised |= {"wrong_cost_vs_best_fixed", "wrong_cost_vs_none"}
    promised |= {"regret_bound_mean", "regret_bound_worst"}
    assert promised <= set(figures)
    by_load = figures["regret_by_load"]
    assert isinstance(by_load, dict)
    assert set(by_load) == {traffic.name for traffic in all_traffic(2, 48)}
    assert all(row["regret"] >= row["bound"] - 1e-4 for row in by_load.values())
    columns = figures["by_concurrency"]
    assert isinstance(columns, dict)
    assert {GOODPUT, BUDGET, "fixed 7", "best rows per request"} <= set(columns[2])
    published = figures["published"]
    assert isinstance(published, dict)
    assert tuple(published) == PUBLISHED.concurrency


def test_the_standard_error_of_seeds_is_that_of_their_means() -> None:
    outcomes = run_all(all_policies()["ema v1"], cpu_82m(), SOME[:2], [1, 2])
    by_seed = [[outcome.regret for outcome in outcomes if outcome.seed == seed] for seed in (1, 2)]
    means, worst = [sum(row) / 2 for row in by_seed], [max(row) for row in by_seed]
    figures = spread(outcomes)
    assert figures["mean_regret_of_seeds"] == pytest.approx(sum(means) / 2)
    assert figures["mean_regret_se"] == pytest.approx(abs(means[0] - means[1]) / 2)
    assert figures["worst_regret_of_seeds"] == pytest.approx(sum(worst) / 2)
    assert spread(outcomes[:1])["worst_regret_se"] == 0.0


@pytest.mark.parametrize("name", ["steady .8 b4", "ladder and flips", "bursts 1-64"])
def test_99_of_100_gaps_are_within_a_limit_that_plain_decoding_keeps(name: str) -> None:
    (scenario,) = (one for one in all_scenarios(1500) if one.name == name)
    figures = measure_latency(cpu_82m(), [scenario], [1])
    for row in figures.values():
        assert row["within"] >= 0.99
        assert row["unreachable"] == 0.0
    assert figures["3"]["rate_to_best_within"] > 0.9


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.name)
def test_docs_include_the_figures_of_the_results(page: Path) -> None:
    text = page.read_text()
    assert included(text, json.loads(RESULTS.read_text())) == text
    assert "<!-- controller: regret -->" in text


def test_the_last_line_is_json_with_every_policy_on_every_machine() -> None:
    script = (
        "import sys, bench.simulation.policy.__main__ as main, dataclasses\n"
        "main.QUICK = dataclasses.replace(main.QUICK, length=40, steps=0)\n"
        "sys.argv = ['controller', '--seed', '3', '--quick']\n"
        "small = {'least_steps': 24, 'concurrency': (2,)}\n"
        "main.QUICK_COMPARISON = dataclasses.replace(main.QUICK_COMPARISON, **small)\n"
        "main.main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["default"] == GOODPUT
    assert all(result[f"decision_us{size}"] > 0 for size in ("", "_b64", "_b256"))
    assert set(result["machines"]) == {machine.name for machine in all_machines()}
    assert set(result["profiles"]) == {"h100_dense_8b", "cpu_82m", "moe"}
    for policies in result["profiles"].values():
        assert set(policies) == set(all_policies())
        for figures in policies.values():
            assert {
                "mean_regret",
                "worst_regret",
                "loss_to_no_speculation",
                "switches_per_1000",
            } <= set(figures)
