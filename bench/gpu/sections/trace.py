"""What a step consists of: the kernels that take most of it, and the time in which none runs."""

from collections import defaultdict
from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.record import Row
from bench.gpu.steps import WARM_UP_STEPS, Load, decoding_under
from bench.gpu.stopwatch import BusySpan, busy_spans, covered, extent
from specdecode_engine.engine import EngineCore
from specdecode_engine.startup.profiling import FixedSteps

STEPS = 6
KERNELS = 14
NAME_CHARS = 70


def measure(context: Context) -> Iterator[Row]:
    """Trace plain steps and steps with drafts, of the smallest and the largest batch."""
    scale = context.scale
    for batch in (scale.batches[0], scale.batches[-1]):
        for steps in (0, scale.depths[-2], scale.depths[-1]):
            load = Load(batch, scale.prompt_tokens, STEPS)
            spans = trace_steps(context.engines.adaptive(), load, steps, context)
            yield from _rows(f"depth {steps}, batch {batch}", spans)


def trace_steps(core: EngineCore, load: Load, steps: int, context: Context) -> list[BusySpan]:
    """List the kernels and copies of `load.timed_steps` steps with `steps` draft steps."""
    with decoding_under(core, load, FixedSteps(steps)):
        for _ in range(WARM_UP_STEPS):
            core.step()

        def work() -> None:
            for _ in range(load.timed_steps):
                core.step()

        context.sync()
        return busy_spans(work, context.device)


def _rows(name: str, spans: list[BusySpan]) -> Iterator[Row]:
    """Yield times of one step; tracing makes the gaps between kernels longer than they are."""
    if not spans:
        yield Row(f"{name}: kernels", None, "µs", note="no kernel was traced on a device")
        return
    note = f"{len(spans) / STEPS:.0f} kernels and copies, traced in {extent(spans) / STEPS:.0f} µs"
    yield Row(f"{name}: a kernel runs", covered(spans) / STEPS, "µs", note=note)
    times: dict[str, list[float]] = defaultdict(list)
    for one in spans:
        times[one.name[:NAME_CHARS]].append(one.end - one.start)
    for kernel, us in sorted(times.items(), key=lambda each: -sum(each[1]))[:KERNELS]:
        note = f"{len(us) / STEPS:.0f} of {sum(us) / len(us):.2f} µs"
        yield Row(f"{name}: {kernel}", sum(us) / STEPS, "µs", note=note)
