"""`python -m bench.simulation.policy --seed N [--seeds N] [--only NAME] [--quick] [--plots]`.

Prints a table and, last, one line of JSON.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace

from tqdm import tqdm

from bench.simulation.policy.adaptation import measure_adaptation
from bench.simulation.policy.comparison import FULL as FULL_COMPARISON
from bench.simulation.policy.comparison import QUICK as QUICK_COMPARISON
from bench.simulation.policy.comparison import Extent as ComparisonExtent
from bench.simulation.policy.comparison import compare
from bench.simulation.policy.figures import detail, run_all, spread, summarize
from bench.simulation.policy.latency import measure_latency
from bench.simulation.policy.machines import all_machines
from bench.simulation.policy.policies import GOODPUT, RIVALS, all_policies
from bench.simulation.policy.profiles import all_profiles
from bench.simulation.policy.scenarios import all_scenarios
from bench.simulation.policy.timing import measure_decision

DECISION_SIZES = {"decision_us": 1, "decision_us_b64": 64, "decision_us_b256": 256}
SPREAD = ("mean_regret_of_seeds", "mean_regret_se", "worst_regret_of_seeds", "worst_regret_se")

Figures = dict[str, dict[str, object]]


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is run: decode steps of a scenario, seeds of learners, seeds of step changes."""

    length: int
    seeds: int
    steps: int


# A change costs the same number of decode steps for any load, so shorter loads give other figures.
FULL, QUICK = Extent(2800, 3, 3), Extent(2800, 1, 1)


def main() -> int:
    """Run every policy on every machine."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.simulation.policy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, help="seeds of each figure, from --seed on")
    parser.add_argument("--only", default="", help="only the policies whose name begins so")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--plots", action="store_true", help="also write docs/controller/*.png")
    options = parser.parse_args()
    extent = QUICK if options.quick else FULL
    if options.seeds:
        extent = replace(extent, seeds=options.seeds)
    profiles = _measure_all(extent, options.seed, options.only)
    machines: dict[str, dict[str, object]] = {}
    if GOODPUT.startswith(options.only):
        size = QUICK_COMPARISON if options.quick else FULL_COMPARISON
        machines = _compare_all(size, options.seed)
    build, profile = all_policies()[GOODPUT], all_profiles()[0]
    decision_us = {
        name: round(measure_decision(build, profile, size), 1)
        for name, size in DECISION_SIZES.items()
    }
    for name, figures in profiles.items():
        _print_table(name, figures)
    for name, compared in machines.items():
        _print_machine(name, compared)
    if options.plots:
        from bench.simulation.policy.plots import write_plots  # matplotlib is there for this alone

        write_plots(options.seed)
    result = {"default": GOODPUT, **decision_us, "profiles": profiles, "machines": machines}
    print(json.dumps(result))
    return 0


def _compare_all(extent: ComparisonExtent, seed: int) -> dict[str, dict[str, object]]:
    """Compare on every machine, each in a process of its own."""
    machines = all_machines()
    with ProcessPoolExecutor() as pool:
        runs = [pool.submit(compare, place, extent, seed) for place in range(len(machines))]
        results = tqdm(zip(machines, runs, strict=True), desc="machines", total=len(runs))
        return {machine.name: run.result() for machine, run in results}


def _print_machine(name: str, figures: Mapping[str, object]) -> None:
    """Tokens per second relative to no speculation, by policy and concurrency."""
    columns = figures["by_concurrency"]
    assert isinstance(columns, dict)
    print(f"\n{name:32}" + "".join(f"{slots:>7}" for slots in columns))
    for row in next(iter(columns.values())):
        print(f"{row:32}" + "".join(f"{column[row]:7.2f}" for column in columns.values()))
    print({key: value for key, value in figures.items() if not isinstance(value, dict)})


def _measure_all(extent: Extent, seed: int, only: str) -> dict[str, Figures]:
    """Figures by machine; each is simulated in a process of its own."""
    with ProcessPoolExecutor() as pool:
        runs = {
            profile.name: pool.submit(_measure, place, extent, seed, only)
            for place, profile in enumerate(all_profiles())
        }
        return {name: run.result() for name, run in runs.items()}


def _measure(place: int, extent: Extent, seed: int, only: str) -> Figures:
    """Figures of every policy on one machine; those that learn nothing need one seed."""
    profile = all_profiles()[place]  # which cannot be sent to a process: it holds functions
    figures: Figures = {}
    scenarios = all_scenarios(extent.length)
    policies = {name: build for name, build in all_policies().items() if name.startswith(only)}
    for name, build in tqdm(policies.items(), desc=profile.name, position=place):
        learns = not name.startswith(("static", "clairvoyant"))
        seeds = range(seed, seed + (extent.seeds if learns else 1))
        outcomes = run_all(build, profile, scenarios, seeds)
        figures[name] = {**_rounded(summarize(outcomes)), **_rounded(spread(outcomes))}
        if name == GOODPUT or name in RIVALS:
            steps = range(seed, seed + extent.steps)
            figures[name]["adaptation_steps"] = measure_adaptation(build, profile, steps)
        if name == GOODPUT:
            latency = measure_latency(profile, scenarios, seeds)
            figures[name]["latency"] = {limit: _rounded(latency[limit]) for limit in latency}
            by_scenario = detail(outcomes)
            figures[name]["scenarios"] = {key: _rounded(by_scenario[key]) for key in by_scenario}
    return figures


def _rounded(figures: Mapping[str, float]) -> dict[str, object]:
    return {name: round(value, 5) for name, value in figures.items()}


def _print_table(profile: str, figures: Figures) -> None:
    """Shares in percent, over all scenarios and, in brackets, over the seven plain ones."""
    print(f"\n{profile:28} {'mean':>6} {'worst':>6}   (plain)      {'loss':>5} {'switches':>9}")
    keys = ("mean_regret", "worst_regret", "plain_mean_regret", "plain_worst_regret")
    for name, row in figures.items():
        mean, worst, plain, plain_worst = (100 * _number(row[key]) for key in keys)
        loss = 100 * _number(row["loss_to_no_speculation"])
        switches = _number(row["switches_per_1000"])
        print(
            f"{name:28} {mean:6.2f} {worst:6.2f} ({plain:5.2f} {plain_worst:5.2f})"
            f" {loss:6.2f} {switches:9.1f}"
        )
    for name, row in figures.items():
        if _number(row["mean_regret_se"]):
            mean, error, worst, worst_error = (100 * _number(row[key]) for key in SPREAD)
            print(f"{name:28} {mean:6.2f} ± {error:.2f}, worst {worst:6.2f} ± {worst_error:.2f}")
    if GOODPUT in figures:
        print(f"steps to follow a step change: {figures[GOODPUT]['adaptation_steps']}")
        print(f"limits in times of plain decoding: {figures[GOODPUT]['latency']}")


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


if __name__ == "__main__":
    sys.exit(main())
