"""Decode steps from a step change of the acceptance until the depth is nearly the new best."""

import statistics
from collections.abc import Iterable, Sequence
from itertools import groupby

from bench.simulation.policy.policies import Build
from bench.simulation.policy.profiles import Profile
from bench.simulation.policy.scenarios import Scenario, flips
from bench.simulation.policy.world import Trace, World

NEARLY = 0.95  # of the best rate
SETTLED = 5  # decode steps in a row
BATCH_SIZES = (4, 64)


def measure_adaptation(
    build: Build, profile: Profile, seeds: Iterable[int]
) -> dict[str, float | None]:
    """Median decode steps by batch size and direction; None where a change needs no other depth.

    A change that is not followed before the next counts with all of its decode steps.
    """
    delays: dict[str, list[int]] = {}
    for size in BATCH_SIZES:
        scenario = Scenario(f"steps b{size}", flips(2400, 300, size))
        for seed in seeds:
            tally = World(profile, scenario, seed).run(build(profile, seed))
            parts = [list(part) for _, part in groupby(tally.traces, _segment)]
            for number, part in enumerate(parts[1:], 1):
                if not _is_near(parts[number - 1][-1].num_steps, part[0]):
                    name = f"b{size} {'falls' if number % 2 else 'rises'}"
                    delays.setdefault(name, []).append(_delay(part))
    names = [f"b{size} {way}" for size in BATCH_SIZES for way in ("falls", "rises")]
    return {name: statistics.median(delays[name]) if name in delays else None for name in names}


def _segment(trace: Trace) -> int:
    return trace.moment.segment


def _is_near(steps: int, trace: Trace) -> bool:
    return trace.moment.rates[steps] >= NEARLY * trace.moment.best


def _delay(part: Sequence[Trace]) -> int:
    """Find the first of `SETTLED` near decode steps in a row, probes aside."""
    run = 0
    for number, trace in enumerate(part):
        if not trace.is_probe:
            run = run + 1 if _is_near(trace.num_steps, trace) else 0
        if run == SETTLED:
            return number + 1 - SETTLED
    return len(part)
