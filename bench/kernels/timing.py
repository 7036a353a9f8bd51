"""Times a call on a GPU as the engine runs it, in a captured graph, beside a copy of memory."""

import statistics
import sys
from collections.abc import Callable

import torch
import triton

FLUSHED_BYTES = 256 << 20
"""More than any second-level cache holds."""


def demand_gpu() -> torch.device:
    """Answer the device, or end the program with 2."""
    if not torch.cuda.is_available():
        print("this benchmark needs a CUDA device; there is none", file=sys.stderr)
        raise SystemExit(2)
    return torch.device("cuda")


def machine() -> dict[str, object]:
    """Name what the numbers belong to."""
    return {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_gb_per_s": round(copy_bytes_per_s() / 1e9),
    }


def copy_bytes_per_s() -> float:
    """Measure the memory: bytes read and written by a large copy, per second."""
    source = torch.empty(1 << 30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.numel() / (time_us(lambda: target.copy_(source)) * 1e-6)


def time_us(call: Callable[[], object], repeats: int = 50) -> float:
    """Take the median over replays of a captured call, the caches being cold each time."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    spans = []
    for _ in range(repeats):
        flushed.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        graph.replay()
        end.record()
        spans.append((begin, end))
    torch.cuda.synchronize()
    return 1e3 * statistics.median(begin.elapsed_time(end) for begin, end in spans)
