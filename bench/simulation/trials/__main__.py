"""`python -m bench.simulation.trials --seed N`: a row for each task and, last, one line of JSON.

Trials of equal arms come first, of all cells in parts, then the other cases. With `--keep FILE`
results are kept in a file of JSON lines, and a run that was stopped continues there; with
`--report` nothing runs, and the result of what the file contains is written.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench.simulation.trials import kept
from bench.simulation.trials.cells import (
    CASES,
    EQUAL_CASE,
    NOTHING,
    PODS,
    Kind,
    Outcome,
    Task,
    cell,
    run_task,
    wilson,
)
from bench.simulation.trials.months import TRIALS, try_for_months
from bench.simulation.trials.worlds import WORLDS
from specdecode_operator.judge.judgement import Verdict

FULL, QUICK = (500, 100), (10, 2)
"""Trials of equal arms and of each other case, in each cell."""
PARTS = 5
"""Parts that the trials of a cell are run in."""

Found = dict[Task, Outcome]


def main() -> int:
    """Run the matrix, or what is missing of it."""
    options = _parse_options()
    runs = options.runs or (QUICK if options.quick else FULL)
    tasks = [
        task
        for task in in_order(options.kinds, options.seed, runs)
        if task.case.name in options.cases
    ]
    found: Found = kept.read(options.keep) if options.keep else {}
    if not options.report:
        with ProcessPoolExecutor(options.processes) as pool:
            waiting = {pool.submit(run_task, task): task for task in tasks if task not in found}
            for future in as_completed(waiting):
                task, outcome = waiting[future], future.result()
                found[task] = outcome
                if options.keep:
                    kept.append(options.keep, task, outcome)
                print(_row(task, outcome), flush=True)
        if EQUAL_CASE.name in options.cases:
            _print_months(options.seed, options.quick)
    print(json.dumps(result(found)))
    return 0


def in_order(kinds: list[Kind], seed: int, runs: tuple[int, int]) -> Iterator[Task]:
    """Tasks, false verdicts first; all cells advance together."""
    for kind in kinds:
        for is_equal, count in zip((True, False), runs, strict=True):
            cases = [case for case in CASES if (case is EQUAL_CASE) is is_equal]
            for first, part in _parts(count):
                for pods in PODS[kind]:
                    for world in WORLDS:
                        for case in cases:
                            yield Task(kind, world, pods, case, seed, part, first)


def _parts(count: int) -> Iterator[tuple[int, int]]:
    """First number and length of each part."""
    borders = [count * part // PARTS for part in range(PARTS + 1)]
    for start, end in pairwise(borders):
        if start < end:
            yield start, end - start


def _parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="bench.simulation.trials", description=__doc__
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--runs", type=int, nargs=2, metavar=("EQUAL", "OTHER"))
    parser.add_argument("--kinds", type=Kind, nargs="+", choices=list(Kind), default=list(Kind))
    names = [case.name for case in CASES]
    parser.add_argument("--cases", nargs="+", choices=names, default=names)
    parser.add_argument("--keep", type=Path, metavar="FILE")
    parser.add_argument("--report", action="store_true")
    options = parser.parse_args()
    if options.report and not (options.keep and options.keep.exists()):
        parser.error(f"--report needs --keep with a file of an earlier run, not {options.keep}")
    return options


def _print_months(seed: int, is_quick: bool) -> None:
    for has_budget in (True, False):
        loop = try_for_months(40 if is_quick else 200, seed, has_budget)
        name = "alpha budget" if has_budget else "no budget"
        print(f"{TRIALS} equal candidates in a row, {name}: any promoted in {loop.any_wrong:.1%}")


def _row(task: Task, outcome: Outcome) -> str:
    counts = ", ".join(f"{name} {count}" for name, count in sorted(outcome.reasons.items()))
    head = f"{task.kind:13} {task.world.name:10} {task.pods:2} pods  {task.case.name:10}"
    return f"{head} {task.first:3} to {task.first + task.runs - 1:3}  {counts}"


def result(found: Mapping[Task, Outcome]) -> dict[str, object]:
    """`worlds`: arms in turns on the same pods; other arrangements under their own names.

    Trials of all seeds together. `pooled`: equal arms of all cells of an arrangement.
    """
    by_case: dict[tuple[Kind, str, int], dict[str, Outcome]] = {}
    for task, outcome in found.items():
        of_cell = by_case.setdefault((task.kind, task.world.name, task.pods), {})
        of_cell[task.case.name] = of_cell.get(task.case.name, NOTHING) + outcome
    cells: dict[str, Any] = {}
    for (kind, name, pods), outcomes in by_case.items():
        of_kind = cells.setdefault(_name(kind), {})
        by_pods = of_kind.setdefault(name, {"pods": {}})["pods"]
        by_pods[str(pods)] = cell(kind, kept.WORLD_OF[name], pods, outcomes)
    pooled = {_name(kind): _pooled(found, kind) for kind in Kind}
    seeds = sorted({task.seed for task in found})
    return cells | {"pooled": pooled, "seeds": seeds, "code": kept.code_digest()}


def _name(kind: Kind) -> str:
    return "worlds" if kind is Kind.TURNS else kind.value


def _pooled(found: Mapping[Task, Outcome], kind: Kind) -> dict[str, float] | None:
    equal = NOTHING
    for task, outcome in found.items():
        if task.kind is kind and task.case is EQUAL_CASE:
            equal += outcome
    if not equal.runs:
        return None
    figures: dict[str, float] = {"n": equal.runs}
    for name, verdict in (
        ("false_rollback", Verdict.ROLL_BACK),
        ("false_promote", Verdict.PROMOTE),
    ):
        count = equal.count(verdict)
        figures[name] = round(count / equal.runs, 5)
        figures[f"{name}_upper"] = round(wilson(count, equal.runs), 5)
    return figures


if __name__ == "__main__":
    sys.exit(main())
