"""What a policy comes to on one machine, over all scenarios and seeds."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean, stdev

from bench.simulation.policy.policies import Build
from bench.simulation.policy.profiles import Profile
from bench.simulation.policy.scenarios import Scenario
from bench.simulation.policy.world import Tally, World

SETTLING = 0.25  # share of the steps that steady scenarios may learn in


@dataclass(frozen=True, slots=True)
class Outcome:
    """One scenario with one seed; shares, and switches per 1000 steps where it is steady."""

    scenario: Scenario
    seed: int
    regret: float
    loss: float
    switches: float | None
    probes: float


def run_all(
    build: Build, profile: Profile, scenarios: Iterable[Scenario], seeds: Iterable[int]
) -> list[Outcome]:
    """Run a policy through everything."""
    return [
        _outcome(scenario, seed, World(profile, scenario, seed).run(build(profile, seed)))
        for scenario in scenarios
        for seed in seeds
    ]


def summarize(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The figures that the last line prints."""
    plain = [outcome.regret for outcome in outcomes if outcome.scenario.is_plain]
    switches = _by_scenario(outcomes, [outcome.switches for outcome in outcomes])
    return {
        "mean_regret": _mean([outcome.regret for outcome in outcomes]),
        "worst_regret": max(outcome.regret for outcome in outcomes),
        "plain_mean_regret": _mean(plain),
        "plain_worst_regret": max(plain),
        "loss_to_no_speculation": max(outcome.loss for outcome in outcomes),
        "switches_per_1000": max(switches.values()),
    }


def spread(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """Mean and worst regret over the scenarios of each seed: means over seeds, standard errors."""
    by_seed: dict[int, list[float]] = {}
    for outcome in outcomes:
        by_seed.setdefault(outcome.seed, []).append(outcome.regret)
    means = [mean(regrets) for regrets in by_seed.values()]
    worst = [max(regrets) for regrets in by_seed.values()]
    return {
        "mean_regret_of_seeds": mean(means),
        "mean_regret_se": _standard_error(means),
        "worst_regret_of_seeds": mean(worst),
        "worst_regret_se": _standard_error(worst),
    }


def detail(outcomes: Sequence[Outcome]) -> dict[str, dict[str, float]]:
    """Regret and loss by scenario, means and worst over seeds, and switches where it is steady."""
    regrets = _by_scenario(outcomes, [outcome.regret for outcome in outcomes])
    probes = _by_scenario(outcomes, [outcome.probes for outcome in outcomes])
    worst: dict[str, float] = {}
    losses: dict[str, float] = {}
    for outcome in outcomes:
        name = outcome.scenario.name
        worst[name] = max(worst.get(name, outcome.regret), outcome.regret)
        losses[name] = max(losses.get(name, 0.0), outcome.loss)
    switches = _by_scenario(outcomes, [outcome.switches for outcome in outcomes])
    return {
        name: {
            "mean_regret": regrets[name],
            "worst_regret": worst[name],
            "loss_to_no_speculation": losses[name],
            "probes_per_1000": probes[name],
            **({"switches_per_1000": switches[name]} if name in switches else {}),
        }
        for name in regrets
    }


def _outcome(scenario: Scenario, seed: int, tally: Tally) -> Outcome:
    depths = [trace.num_steps for trace in tally.traces]
    late = depths[int(SETTLING * len(depths)) :]
    switches = sum(one != other for one, other in pairwise(late))
    per_thousand = 1000.0 * switches / len(late) if scenario.is_steady else None
    probes = 1000.0 * sum(trace.is_probe for trace in tally.traces) / len(depths)
    return Outcome(scenario, seed, tally.regret, tally.loss_to_plain, per_thousand, probes)


def _by_scenario(outcomes: Sequence[Outcome], values: Sequence[float | None]) -> dict[str, float]:
    groups: dict[str, list[float]] = {}
    for outcome, value in zip(outcomes, values, strict=True):
        if value is not None:
            groups.setdefault(outcome.scenario.name, []).append(value)
    return {name: _mean(group) for name, group in groups.items()}


def _standard_error(values: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 for one value."""
    return float(stdev(values) / len(values) ** 0.5) if len(values) > 1 else 0.0


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
