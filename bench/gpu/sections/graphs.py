"""G6: what capturing took and takes, and what switching num_steps costs the host."""

import time
from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.targets import CAPTURE_S, GRAPH_MIB, SWAP_US

SWAPS = 1000


def measure(context: Context) -> Iterator[Row]:
    """Read the engine's own report, then switch back and forth between two num_steps."""
    core = context.engines.adaptive()
    while core.idle_step():  # captures what is pending
        pass
    cache, report = core.context.graphs, core.context.graphs.report()
    graphs = sum(one.graphs for one in report.sets)
    note = f"{graphs} graphs of {report.pairs} pairs, {len(report.refused)} refused"
    if graphs:
        yield Row("capture of a graph", report.seconds / graphs, "s", target=CAPTURE_S, note=note)
        mib = sum(one.num_bytes for one in report.sets) / graphs / 2**20
        yield Row("memory of a graph", mib, "MiB", target=GRAPH_MIB)
    yield Row("shared input and output buffers", report.shared_bytes / 2**20, "MiB")
    depths = (context.scale.depths[0], context.scale.depths[-1])
    started_s = time.perf_counter()
    for number in range(SWAPS):
        cache.activate(depths[number % 2], 1)
    swap_us = 1e6 * (time.perf_counter() - started_s) / SWAPS
    yield Row("switch to another num_steps, host", swap_us, "µs", target=SWAP_US)
