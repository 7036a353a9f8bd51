"""What the machine allows: a copy, reading, a matrix product, an empty launch."""

from collections.abc import Iterator

import torch

from bench.gpu.context import Context
from bench.gpu.limits import Floors
from bench.gpu.record import Row


def measure(context: Context) -> Iterator[Row]:
    """Measure all and leave them for the other sections."""
    device, scale = context.device, context.scale
    copied, read = _memory_per_s(context)
    yield Row("copy of memory, read and written", copied / 1e9, "GB/s")
    yield Row("reading of memory, a sum", read / 1e9, "GB/s")
    size = scale.gemm
    left, right = torch.randn(2, size, size, device=device).to(torch.bfloat16)
    multiplied = 2 * size**3 / (context.time_us(lambda: left @ right) * 1e-6)
    yield Row(f"bf16 product of {size}", multiplied / 1e12, "TFLOP/s")
    one = torch.zeros(1, device=device)
    launch_us = context.time_us(lambda: one.add_(1))
    yield Row("one launch in a graph", launch_us, "µs")
    context.known_floors = Floors(max(copied, read), multiplied, launch_us)


def _memory_per_s(context: Context) -> tuple[float, float]:
    """Return the bytes per second of a copy, and of reading alone."""
    source = torch.randn(context.scale.copy_bytes // 4, device=context.device)
    target = torch.empty_like(source)
    copy_us = context.time_us(lambda: target.copy_(source))
    read_us = context.time_us(source.sum)
    return 2 * source.nbytes / (copy_us * 1e-6), source.nbytes / (read_us * 1e-6)
