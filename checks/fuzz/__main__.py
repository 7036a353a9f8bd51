"""`python -m checks.fuzz [--seconds 300] [--seed N]`: fuzz an engine; the last line is JSON.

The line before it has the longest stalls, with the requests that were under way.
The exit status is 1 if a request was answered with 5xx, the engine ended, a stream was disturbed
or, unless `--no-stall` is given, something took longer than without fuzzing by more than 200 ms
and three times the longest gap without fuzzing.
"""

import argparse
import asyncio
import gc
import json
import os
import secrets
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checks.fuzz.served import ServedEngine, serve_example
from checks.fuzz.stalls import SentRequest, describe_stall
from checks.fuzz.streams import STREAMS
from checks.fuzz.watch import PhaseTimes, Watch

MAX_STALL_MS = 200.0
MAX_STALL_GAPS = 3.0
"""A chunk of a prompt adds 1.5 decode steps to a step, and on slow machines that is longer."""
QUIET_SHARE = 0.15
MIN_QUIET_SECONDS = 6.0
ALL_STREAMS_SECONDS = 120.0
ATTACK_EXTRA_SECONDS = 300.0
"""For the start of the attacking process and its last replies: it has the lowest priority."""
SHOWN = 10


@dataclass(frozen=True, slots=True)
class FuzzResult:
    """Counts of the attack, and what the watcher measured in both phases."""

    attack: dict[str, Any]
    quiet: PhaseTimes
    fuzzed: PhaseTimes
    process_deaths: int
    disturbed: tuple[str, ...]
    refused_streams: int
    ended_streams: int
    attack_start_s: float

    @property
    def stall_ms(self) -> float:
        """The largest of /health latency and of gaps beyond the largest without fuzzing."""
        beyond_s = self.fuzzed.gap_s - self.quiet.gap_s
        return round(1000 * max(self.fuzzed.health_s, beyond_s), 1)

    @property
    def max_stall_ms(self) -> float:
        """The longest stall that passes."""
        return max(MAX_STALL_MS, MAX_STALL_GAPS * 1000 * self.quiet.gap_s)

    def summary(self) -> dict[str, object]:
        """The figures of the last line."""
        return {
            "requests": self.attack["requests"],
            "status_5xx": self.attack["status_5xx"],
            "process_deaths": self.process_deaths,
            "longest_stall_ms": self.stall_ms,
            "streams_disturbed": len(self.disturbed),
            "status_503": self.attack["status_503"],
            "unanswered": self.attack["unanswered"],
            "given_up": self.attack["given_up"],
            "streams": self.ended_streams,
            "streams_refused": self.refused_streams,
            "machine_stall_ms": round(1000 * self.fuzzed.machine_s, 1),
            "watcher_delay_ms": round(1000 * self.fuzzed.own_delay_s, 1),
            "quiet_gap_ms": round(1000 * self.quiet.gap_s, 1),
            "quiet_health_ms": round(1000 * self.quiet.health_s, 1),
            "quiet_machine_ms": round(1000 * self.quiet.machine_s, 1),
        }

    def stalls(self) -> list[dict[str, object]]:
        """The longest stalls, as JSON."""
        sent = [SentRequest(**each) for each in self.attack["sent"]]
        machine, start_s = self.fuzzed.machine_waits, self.attack_start_s
        waits = self.fuzzed.longest_waits()
        return [describe_stall(wait, sent, machine, start_s) for wait in waits]

    def has_passed(self, checks_stall: bool) -> bool:
        bad = ("status_5xx", "process_deaths", "streams_disturbed", "unanswered")
        figures = self.summary()
        is_in_time = self.stall_ms <= self.max_stall_ms or not checks_stall
        return is_in_time and bool(figures["requests"]) and not any(figures[name] for name in bad)


async def fuzz(engine: ServedEngine, seed: int, seconds: float, only: list[str]) -> FuzzResult:
    """Run the streams alone, then next to the attack."""
    watch = Watch(engine.port)
    watching = asyncio.create_task(watch.run())
    # Twice each: the first texts are those to compare with, the second show that they can be.
    await watch.wait_ended(STREAMS, ALL_STREAMS_SECONDS)
    watch.begin_phase()
    quiet_s = max(MIN_QUIET_SECONDS, seconds * QUIET_SHARE)
    ends_s = time.monotonic() + quiet_s
    await watch.wait_ended(2 * STREAMS, ALL_STREAMS_SECONDS)
    await asyncio.sleep(max(0.0, ends_s - time.monotonic()))
    quiet = watch.begin_phase()
    print(f"without fuzzing: gap {1000 * quiet.gap_s:.0f} ms", file=sys.stderr, flush=True)
    attack_start_s = time.monotonic()
    attack = await _attack(engine, seed, seconds - quiet_s, only)
    fuzzed = watch.begin_phase()
    watch.is_over = True
    await watching
    return FuzzResult(
        attack,
        quiet,
        fuzzed,
        int(engine.has_ended()),
        tuple(watch.disturbed),
        watch.refused,
        watch.ended,
        attack_start_s,
    )


async def _attack(
    engine: ServedEngine, seed: int, seconds: float, only: list[str]
) -> dict[str, Any]:
    command = (
        sys.executable,
        "-m",
        "checks.fuzz.attack",
        str(engine.port),
        str(seed),
        str(seconds),
    )
    paths = os.pathsep.join(path for path in sys.path if path)
    process = await asyncio.create_subprocess_exec(
        *command, *only, stdout=asyncio.subprocess.PIPE, env=os.environ | {"PYTHONPATH": paths}
    )
    async with asyncio.timeout(seconds + ATTACK_EXTRA_SECONDS):
        output, _ = await process.communicate()
    found: dict[str, Any] = json.loads(output.splitlines()[-1])
    return found


def main() -> int:
    """Fuzz with the given or a fresh seed; print failures and figures."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300.0)
    parser.add_argument("--seed", type=int, help="a fresh one if absent; it is printed")
    parser.add_argument("--only", nargs="+", default=[], metavar="INDEX", help="only these")
    parser.add_argument("--no-stall", action="store_true", help="do not fail for stalls")
    options = parser.parse_args()
    seed = secrets.randbits(32) if options.seed is None else options.seed
    print(f"fuzz: seed {seed}", file=sys.stderr, flush=True)
    gc.freeze()  # a collection of all modules would delay the measurement
    with tempfile.TemporaryDirectory() as folder, serve_example(Path(folder)) as engine:
        result = asyncio.run(fuzz(engine, seed, options.seconds, options.only))
    for line in result.disturbed[:SHOWN]:
        print(line, file=sys.stderr)
    if in_flight := result.attack["in_flight"]:
        print(f"running when the engine ended: {in_flight}", file=sys.stderr)
    print(f"statuses: {result.attack['statuses']}; kinds: {result.attack['kinds']}")
    print(json.dumps({"longest_stalls": result.stalls()}))
    print(json.dumps({"seed": seed, **result.summary()}))
    return 0 if result.has_passed(not options.no_stall) else 1


if __name__ == "__main__":
    sys.exit(main())
