"""Runs every suite in order, prints the time each took, and fails if any failed.

Suites that need the cluster prepare it themselves: the tools, the node and the images are made
here, once, and reused. The node is stopped at the end only if it was not running before.
"""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCALNODE = (sys.executable, "-m", "localnode")


@dataclass(frozen=True, slots=True)
class Suite:
    """One command of the run."""

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """How a suite went."""

    name: str
    seconds: float
    status: int


def suites() -> tuple[Suite, ...]:
    """List the suites in the order in which they run, cheap ones first."""
    pytest = (sys.executable, "-m", "pytest", "-q")
    lossless = (sys.executable, "-m", "lossless", "--cases", "60", "--seed", "1")
    return (
        Suite("unit", (*pytest, "-m", "not apiserver and not node")),
        Suite("lossless", lossless),
        Suite("lossless in bfloat16", (*lossless, "--dtype", "bfloat16")),
        Suite("cluster tools", (*LOCALNODE, "tools")),
        Suite("API server", (*pytest, "-m", "apiserver")),
        Suite("node up", (*LOCALNODE, "up")),
        Suite("images", (*LOCALNODE, "images")),
        Suite("node", (*pytest, "-m", "node")),
    )


def run(suite: Suite, environment: dict[str, str]) -> Result:
    """Run one suite in the foreground."""
    print(f"\n== {suite.name}: {' '.join(suite.command[1:])}", flush=True)
    started = time.monotonic()
    status = subprocess.run(suite.command, cwd=ROOT, env=environment, check=False).returncode
    return Result(suite.name, time.monotonic() - started, status)


def main() -> int:
    """Run all suites; a failed preparation step ends the run, a failed test suite does not."""
    paths = os.pathsep.join(str(ROOT / folder) for folder in ("cluster", "bench", "."))
    environment = {**os.environ, "PYTHONPATH": paths}
    results = []
    for suite in suites():
        results.append(run(suite, environment))
        if results[-1].status and suite.command[: len(LOCALNODE)] == LOCALNODE:
            break
    print("\nsuite           seconds  result")
    for result in results:
        print(f"{result.name:15} {result.seconds:7.1f}  {'failed' if result.status else 'passed'}")
    failed = [result.name for result in results if result.status]
    print(json.dumps({"failed": failed, "seconds": {r.name: round(r.seconds, 1) for r in results}}))
    print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
