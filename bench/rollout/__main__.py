"""`python -m rollout --seed N [--quick]`: a row for each case and, last, one line of JSON."""

import argparse
import json
import sys
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor

from rollout.cells import CASES, EQUAL_CASE, Outcome, Task, cell, run_task, wilson
from rollout.months import TRIALS, try_for_months
from rollout.worlds import WORLDS
from specdecode_operator.judge.judgement import Verdict

PODS = (1, 2, 4, 8)
FULL, QUICK = (500, 100), (10, 2)
"""Trials of equal arms and of each other case, in each cell."""


def main() -> int:
    """Run the matrix."""
    parser = argparse.ArgumentParser(prog="rollout", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=int, nargs=2, metavar=("EQUAL", "OTHER"))
    options = parser.parse_args()
    runs, other_runs = options.runs or (QUICK if options.quick else FULL)
    tasks = [
        Task(world, pods, case, options.seed, runs if case is EQUAL_CASE else other_runs)
        for pods in PODS
        for world in WORLDS
        for case in CASES
    ]
    found: dict[tuple[str, int], dict[str, Outcome]] = defaultdict(dict)
    with ProcessPoolExecutor(options.processes) as pool:
        for task, outcome in zip(tasks, pool.map(run_task, tasks), strict=True):
            found[task.world.name, task.pods][task.case.name] = outcome
            print(_row(task, outcome), flush=True)
    for has_budget in (True, False):
        loop = try_for_months(40 if options.quick else 200, options.seed, has_budget)
        name = "alpha budget" if has_budget else "no budget"
        print(f"{TRIALS} equal candidates in a row, {name}: any promoted in {loop.any_wrong:.1%}")
    print(json.dumps(_result(found)))
    return 0


def _row(task: Task, outcome: Outcome) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(outcome.reasons.items()))
    head = f"{task.world.name:12} {task.pods} pods  {task.case.name:12} n={outcome.runs:<4}"
    return f"{head} {outcome.minutes:4.0f} min {outcome.requests:7.0f} requests  {counts}"


def _result(found: dict[tuple[str, int], dict[str, Outcome]]) -> dict[str, object]:
    worlds = {
        world.name: {
            "pods": {str(pods): cell(world, pods, found[world.name, pods]) for pods in PODS}
        }
        for world in WORLDS
    }
    equal = [outcomes["equal"] for outcomes in found.values()]
    runs = sum(outcome.runs for outcome in equal)
    pooled = {"n": float(runs)}
    for name, verdict in (
        ("false_rollback", Verdict.ROLL_BACK),
        ("false_promote", Verdict.PROMOTE),
    ):
        count = sum(outcome.verdicts.get(verdict.value, 0) for outcome in equal)
        pooled |= {name: round(count / runs, 5), f"{name}_upper": round(wilson(count, runs), 5)}
    return {"worlds": worlds, "pooled": pooled}


if __name__ == "__main__":
    sys.exit(main())
