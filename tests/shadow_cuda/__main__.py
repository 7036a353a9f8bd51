"""Runs every engine of the shadow suite and every mutant; the last line is JSON.

Exit status 1 where a limit is missed; each miss is named with its place.
"""

import argparse
import json
import logging
import tempfile
import time
from collections import Counter
from pathlib import Path

import torch

from tests.shadow_cuda.suite.cases import CASES, LAUNCH_CASES, ShadowCase
from tests.shadow_cuda.suite.engines import StepKind
from tests.shadow_cuda.suite.mutants import MUTANTS, caught_by
from tests.shadow_cuda.suite.outcome import Bench, Outcome
from tests.shadow_cuda.suite.report import MAX_WAITS, Launches, Report

ATTENTION = ("auto", "triton")


def main() -> int:
    """Run the suite."""
    parser = argparse.ArgumentParser(
        allow_abbrev=False, prog="make test-shadow", description=__doc__
    )
    parser.add_argument("--only", default="", help="run the cases whose name contains this alone")
    parser.add_argument("--attention", choices=ATTENTION, help="run under this backend alone")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.WARNING)
    backends = (options.attention,) if options.attention else ATTENTION
    with tempfile.TemporaryDirectory() as folder:
        report = _run(Bench(Path(folder)), backends, options.only)
    misses = report.misses()
    for miss in misses:
        print(f"MISSED {miss}")
    print(json.dumps(report.figures()))
    return 1 if misses else 0


def _run(bench: Bench, backends: tuple[str, ...], only: str) -> Report:
    cases = [case for case in CASES if only in case.name]
    outcomes = [_timed(bench, case, attention) for attention in backends for case in cases]
    launches = [
        count_launches(bench, figure, attention)
        for figure in LAUNCH_CASES
        for attention in backends
    ]
    worst = {one.figure: one for one in sorted(launches, key=lambda one: one.number)}
    mutants = {}
    for mutant in MUTANTS if not only else ():
        mutants[mutant.name] = caught_by(mutant, bench)
        print(f"mutant {mutant.name}: {mutants[mutant.name] or 'SURVIVED'}", flush=True)
    return Report(outcomes, [worst[figure] for figure in LAUNCH_CASES], mutants, is_whole=not only)


def _timed(bench: Bench, case: ShadowCase, attention: str) -> Outcome:
    started = time.monotonic()
    outcome = bench.outcome(case, attention)
    waits = " ".join(f"{kind}={outcome.max_waits(kind)}" for kind in MAX_WAITS)
    waits += f", {len(outcome.compiles_after_start)} compiled after start"
    state = "ok" if not outcome.violations else "VIOLATED"
    seconds = time.monotonic() - started
    print(f"{attention} {case.name}: {state}, {seconds:.1f} s, waits {waits}", flush=True)
    return outcome


def count_launches(bench: Bench, figure: str, attention: str) -> Launches:
    """Count the launches of the steady step that launches most."""
    case = LAUNCH_CASES[figure]
    kind = StepKind.TREE if case.topk > 1 else StepKind.GREEDY
    outcome = bench.run(case, attention, logs_launches=True)
    steps = [step for step in outcome.steps if step.kind is kind]
    if outcome.violations or not steps:
        raise AssertionError(f"{case.name}: {outcome.violations or 'no step was steady'}")
    worst = max(steps, key=lambda step: step.launches)
    places = Counter(f"{wait.file}:{wait.line}" for wait in worst.launched)
    return Launches(figure, worst.launches, places)


if __name__ == "__main__":
    raise SystemExit(main())
