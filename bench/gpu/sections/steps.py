"""G2: speculative steps against a verify and its draft forwards at the machine's limit."""

from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.limits import Traffic, step_seconds
from bench.gpu.record import Row
from bench.gpu.steps import Load, time_steps
from bench.gpu.targets import STEP_SHARE


def measure(context: Context) -> Iterator[Row]:
    """Time steps of every depth by batch size."""
    core, scale = context.engines.adaptive(), context.scale
    target = Traffic.of(scale.model, scale.model.layers)
    draft = Traffic.of(scale.model, 1)
    for batch in scale.batches:
        for steps in scale.depths[1:]:
            if not context.has_time(4):
                return
            load = Load(batch, scale.prompt_tokens, scale.timed_steps)
            took = time_steps(core, load, steps, context.clock, context.sync)
            floor_s = step_seconds(target, draft, context.floors, batch, steps, took.kv_tokens)
            note = f"{took.tokens / (took.timed_steps * batch):.2f} tokens per step and request"
            yield Row.of_time(
                f"step, depth {steps}, batch {batch}",
                1e3 * took.device_s, "ms", 1e3 * floor_s, STEP_SHARE, note,
            )  # fmt: skip
