"""G6: what capturing took and takes, and what swapping states costs the host."""

import time
from collections.abc import Iterator

from gpu_bench.context import Context
from gpu_bench.record import Row
from gpu_bench.targets import CAPTURE_S, GRAPH_MIB, SWAP_US

SWAPS = 1000


def measure(context: Context) -> Iterator[Row]:
    """Read the engine's own report, then swap back and forth between two depths."""
    core = context.engines.adaptive()
    states, report = core.parts.states, core.parts.states.report()
    passes = sum(tier.passes for tier in report.tiers)
    pass_bytes = sum(tier.num_bytes for tier in report.tiers)
    note = f"{passes} passes of {report.pairs} pairs, {len(report.refused)} refused"
    if passes:
        yield Row("capture of a pass", report.seconds / passes, "s", target=CAPTURE_S, note=note)
        mib = pass_bytes / passes / 2**20
        yield Row("memory of a pass", mib, "MiB", target=GRAPH_MIB)
    yield Row("shared inputs and outputs", report.shared_bytes / 2**20, "MiB")
    depths = (context.scale.depths[0], context.scale.depths[-1])
    for steps in depths:
        states.activate(steps, 1)  # what was put off is captured now
    started_s = time.perf_counter()
    for number in range(SWAPS):
        states.activate(depths[number % 2], 1)
    swap_us = 1e6 * (time.perf_counter() - started_s) / SWAPS
    yield Row("swap to another depth, host", swap_us, "µs", target=SWAP_US)
