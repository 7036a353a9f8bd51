"""Runs every test suite, prints the time that each takes, and fails if any fails.

Suites that need no node run in three lanes at a time: those that compute leave a quarter of two
cores idle, and those of the cluster mostly wait for other processes. The longest begin first, and
a lane that ends makes room for the next, so that all end at about the same time, with cached
programs and images or without. The suites on the node judge live traffic, so they run alone, after
all lanes. What the cluster suites need is prepared here, once, and reused: tools, node and images.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCALNODE = (sys.executable, "-m", "localnode")
PYTEST = (sys.executable, "-m", "pytest", "-q")
LOSSLESS = (sys.executable, "-m", "checks.lossless", "--cases", "60", "--seed", "1")
FUZZ = (sys.executable, "-m", "checks.fuzz", "--seconds", "60", "--no-stall")
UNIT = "not apiserver and not node"
SERVE = "tests/engine/serve"
# Where the tests with these marks are: to collect all others takes a minute of processor time.
API_SERVER_FOLDERS = ("charts", "cluster", "crds", "examples", "operator/apiserver", "scripts")
NODE_FOLDERS = ("cluster", "e2e")

_printing = threading.Lock()


@dataclass(frozen=True, slots=True)
class Suite:
    """One command of the run; if a preparation fails, the rest of its lane cannot run."""

    name: str
    command: tuple[str, ...]
    is_preparation: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Duration and exit status of a suite; the status is None if the suite did not run.

    `cpu_seconds` is the processor time of the suite's process and of all processes that it, or one
    of them, has waited for. `failures` are the lines in which pytest names a failed test, or the
    last line of a failed command that names none.
    """

    suite: Suite
    seconds: float
    cpu_seconds: float
    status: int | None
    failures: tuple[str, ...] = ()

    @property
    def blocks(self) -> bool:
        """Whether what comes after the suite cannot run."""
        return self.suite.is_preparation and self.status != 0


def _marked(mark: str, folders: Sequence[str]) -> tuple[str, ...]:
    return (*PYTEST, "-m", mark, *(f"tests/{folder}" for folder in folders))


ENGINE_LANE = (Suite("unit: engine", (*PYTEST, "-m", UNIT, "tests/engine", f"--ignore={SERVE}")),)
SERVE_LANE = (Suite("unit: serve", (*PYTEST, "-m", UNIT, SERVE)),)
LOSSLESS_LANES = (
    (Suite("lossless", LOSSLESS),),
    (Suite("lossless in bfloat16", (*LOSSLESS, "--dtype", "bfloat16")),),
    (Suite("lossless on two ranks", (*LOSSLESS, "--cases", "20", "--tensor-parallel-size", "2")),),
)
OTHERS_LANE = (
    Suite("unit: all others", (*PYTEST, "-m", UNIT, "--ignore=tests/engine")),
    Suite("fuzz", FUZZ),
)
CLUSTER_LANE = (
    Suite("cluster tools", (*LOCALNODE, "tools"), is_preparation=True),
    Suite("API server", _marked("apiserver", API_SERVER_FOLDERS)),
    Suite("node up", (*LOCALNODE, "up"), is_preparation=True),
    Suite("images", (*LOCALNODE, "images"), is_preparation=True),
)
LANES = (ENGINE_LANE, OTHERS_LANE, CLUSTER_LANE, SERVE_LANE, *LOSSLESS_LANES)
LANES_AT_A_TIME = 3
NODE_LANE = (Suite("node", _marked("node", NODE_FOLDERS)),)


def run_lane(suites: Sequence[Suite], *, is_prepared: bool = True) -> list[Result]:
    """Run suites one after another; after a failed preparation, the rest is not run."""
    results: list[Result] = []
    for suite in suites:
        result = run(suite) if is_prepared else Result(suite, 0.0, 0.0, None)
        results.append(result)
        is_prepared &= not result.blocks
    return results


def run(suite: Suite) -> Result:
    """Run one suite and print its lines as they come, each with the suite's name."""
    _print(suite, " ".join(suite.command[1:]))
    started = time.monotonic()
    with subprocess.Popen(
        suite.command,
        cwd=ROOT,
        env=_environment(),
        text=True,
        errors="replace",
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        assert process.stdout is not None
        named, last = [], ""
        for line in process.stdout:
            last = line.rstrip("\n")
            _print(suite, last)
            if last.startswith(("FAILED ", "ERROR ")):
                named.append(last)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    cpu_seconds = usage.ru_utime + usage.ru_stime
    failures = tuple(named or [last]) if process.returncode else ()
    return Result(suite, time.monotonic() - started, cpu_seconds, process.returncode, failures)


def _print(suite: Suite, line: str) -> None:
    with _printing:
        print(f"[{suite.name}] {line}", flush=True)


def _environment() -> dict[str, str]:
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("cluster", "."))
    return {**os.environ, "PYTHONPATH": paths}


def main() -> int:
    """Run all suites; a failed suite does not keep the others from running."""
    started = time.monotonic()
    with ThreadPoolExecutor(LANES_AT_A_TIME) as lanes:
        results = [result for lane in lanes.map(run_lane, LANES) for result in lane]
    results += run_lane(NODE_LANE, is_prepared=not any(result.blocks for result in results))
    print(f"\n{'suite':21} {'seconds':>7} {'CPU':>7}  result")
    for each in results:
        row = f"{each.suite.name:21} {each.seconds:7.1f} {each.cpu_seconds:7.1f}"
        print(f"{row}  {_verdict(each)}")
        print(*(f"  {failure}\n" for failure in each.failures), sep="", end="")
    failed = [each.suite.name for each in results if each.status != 0]
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed in {_minutes(started)} min")
    print(json.dumps({"failed": failed, **_times(results)}))
    return 1 if failed else 0


def _times(results: Sequence[Result]) -> dict[str, dict[str, float]]:
    return {
        "seconds": {each.suite.name: round(each.seconds, 1) for each in results},
        "cpu_seconds": {each.suite.name: round(each.cpu_seconds, 1) for each in results},
    }


def _verdict(result: Result) -> str:
    if result.status is None:
        return "not run"
    return "failed" if result.status else "passed"


def _minutes(started: float) -> str:
    return f"{(time.monotonic() - started) / 60:.1f}"


if __name__ == "__main__":
    sys.exit(main())
