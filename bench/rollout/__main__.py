"""`python -m rollout --seed N [--quick]`: a row for each case and, last, one line of JSON."""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from rollout.cells import CASES, EQUAL_CASE, PODS, Kind, Outcome, Task, cell, run_task, wilson
from rollout.months import TRIALS, try_for_months
from rollout.worlds import WORLDS
from specdecode_operator.judge.judgement import Verdict

FULL, QUICK = (500, 100), (10, 2)
"""Trials of equal arms and of each other case, in each cell."""


def main() -> int:
    """Run the matrix."""
    parser = argparse.ArgumentParser(prog="rollout", description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=int, nargs=2, metavar=("EQUAL", "OTHER"))
    parser.add_argument("--kinds", type=Kind, nargs="+", choices=list(Kind), default=list(Kind))
    options = parser.parse_args()
    runs, other_runs = options.runs or (QUICK if options.quick else FULL)
    tasks = [
        Task(kind, world, pods, case, options.seed, runs if case is EQUAL_CASE else other_runs)
        for kind in options.kinds
        for pods in PODS[kind]
        for world in WORLDS
        for case in CASES
    ]
    found: dict[tuple[Kind, str, int], dict[str, Outcome]] = defaultdict(dict)
    with ProcessPoolExecutor(options.processes) as pool:
        for task, outcome in zip(tasks, pool.map(run_task, tasks), strict=True):
            found[task.kind, task.world.name, task.pods][task.case.name] = outcome
            print(_row(task, outcome), flush=True)
    for has_budget in (True, False):
        loop = try_for_months(40 if options.quick else 200, options.seed, has_budget)
        name = "alpha budget" if has_budget else "no budget"
        print(f"{TRIALS} equal candidates in a row, {name}: any promoted in {loop.any_wrong:.1%}")
    print(json.dumps(_result(found)))
    return 0


def _row(task: Task, outcome: Outcome) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(outcome.reasons.items()))
    head = f"{task.kind:13} {task.world.name:10} {task.pods:2} pods  {task.case.name:10}"
    head += f" n={outcome.runs:<4}"
    return f"{head} {outcome.minutes:4.0f} min {outcome.requests:7.0f} requests  {counts}"


def _result(
    found: Mapping[tuple[Kind, str, int], Mapping[str, Outcome]],
) -> dict[str, object]:
    """`worlds`: arms in turns on the same pods; other arrangements under their own names."""
    cells: dict[str, Any] = {}
    for (kind, name, pods), outcomes in found.items():
        world = next(world for world in WORLDS if world.name == name)
        of_kind = cells.setdefault("worlds" if kind is Kind.TURNS else kind.value, {})
        by_pods = of_kind.setdefault(name, {"pods": {}})["pods"]
        by_pods[str(pods)] = cell(kind, world, pods, outcomes)
    equal = [outcomes["equal"] for outcomes in found.values()]
    runs = sum(outcome.runs for outcome in equal)
    pooled = {"n": float(runs)}
    for name, verdict in (
        ("false_rollback", Verdict.ROLL_BACK),
        ("false_promote", Verdict.PROMOTE),
    ):
        count = sum(outcome.verdicts.get(verdict.value, 0) for outcome in equal)
        pooled |= {name: round(count / runs, 5), f"{name}_upper": round(wilson(count, runs), 5)}
    return cells | {"pooled": pooled}


if __name__ == "__main__":
    sys.exit(main())
