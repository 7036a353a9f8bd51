"""G1: plain decoding of the 8B shape against the time that memory and arithmetic allow."""

from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.limits import Traffic
from bench.gpu.record import Row
from bench.gpu.steps import Load, time_steps
from bench.gpu.targets import DECODE_SHARE


def measure(context: Context) -> Iterator[Row]:
    """Time steps of depth 0 by batch size, on the engine that the other sections use too."""
    core, scale = context.engines.adaptive(), context.scale
    traffic = Traffic.of(scale.model, scale.model.layers)
    for batch in scale.batches:
        load = Load(batch, scale.prompt_tokens, scale.timed_steps)
        took = time_steps(core, load, 0, context.clock, context.sync)
        floor_ms = 1e3 * traffic.seconds(context.floors, batch, took.kv_tokens)
        name = f"decode, batch {batch}, context {scale.prompt_tokens}"
        note = f"{took.tokens_per_s:.0f} tokens/s, {1e3 * took.wall_s:.3f} ms with the host"
        yield Row.of_time(name, 1e3 * took.device_s, "ms", floor_ms, DECODE_SHARE, note)
