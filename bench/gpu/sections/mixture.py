"""Decoding of a mixture of experts against reading the experts that its rows choose."""

from collections.abc import Iterator

from bench.gpu.context import Context
from bench.gpu.limits import mixture_seconds
from bench.gpu.record import Row
from bench.gpu.steps import Load, time_steps
from bench.gpu.targets import DECODE_SHARE


def measure(context: Context) -> Iterator[Row]:
    """Time plain steps by batch size; random routers choose about evenly."""
    context.release()
    core, scale = context.engines.of_mixture(), context.scale
    size = scale.mixture_model
    for batch in scale.batches:
        load = Load(batch, scale.prompt_tokens, scale.timed_steps)
        took = time_steps(core, load, 0, context.clock, context.sync)
        floor_s = mixture_seconds(size, scale.mixture, context.floors, batch, took.kv_tokens)
        note = f"{took.tokens_per_s:.0f} tokens/s, {1e3 * took.wall_s:.3f} ms with the host"
        name = f"decode, {scale.mixture.experts} experts, batch {batch}"
        yield Row.of_time(name, 1e3 * took.device_s, "ms", 1e3 * floor_s, DECODE_SHARE, note)
