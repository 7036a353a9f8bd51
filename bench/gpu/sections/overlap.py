"""G7: what launching a step ahead brings, and how long the device waits, with one request."""

from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.sections.trace import trace_steps
from bench.gpu.steps import Load, time_steps
from bench.gpu.stopwatch import covered, extent
from bench.gpu.targets import IDLE_SHARE, OVERLAP_GAIN
from specdecode_engine.engine import EngineCore


def measure(context: Context) -> Iterator[Row]:
    """Compare two engines that differ in nothing else, then trace the one that overlaps."""
    context.release()
    scale = context.scale
    steps, load = scale.depths[-2], Load(1, scale.short_prompt_tokens, scale.timed_steps)
    core = context.engines.without_overlap(steps)
    waits = time_steps(core, load, steps, context.clock, context.sync)
    del core
    context.release()
    core = context.engines.with_overlap(steps)
    ahead = time_steps(core, load, steps, context.clock, context.sync)
    gain = waits.wall_s / ahead.wall_s - 1
    peers = {"waiting": 1e3 * waits.wall_s}
    yield Row(f"step with overlap, depth {steps}", 1e3 * ahead.wall_s, "ms", peers=peers)
    yield Row("gain of overlap", gain, "", target=OVERLAP_GAIN)
    yield _idle(core, load, steps, context)


def _idle(core: EngineCore, load: Load, steps: int, context: Context) -> Row:
    """Share of the time between the first kernel and the last in which none ran."""
    spans = trace_steps(core, load, steps, context)
    if not spans:
        return Row("device idle", None, "", note="no kernel was traced on a device")
    wall_us = extent(spans)
    idle = 1 - covered(spans) / wall_us
    note = f"{len(spans)} kernels in {wall_us / 1e3:.1f} ms, traced"
    return Row("device idle", idle, "", target=IDLE_SHARE, note=note)
