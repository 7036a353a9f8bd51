"""Times a call: on a GPU replayed in a graph with cold caches, on a CPU by the host's clock."""

import statistics
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

REPEATS, DRY_REPEATS = 50, 1
WARM_UPS = 3
FLUSHED_BYTES = 256 << 20
"""More than any second-level cache holds."""


def time_us(call: Callable[[], object], device: torch.device) -> float:
    """Take the median of several calls, in microseconds."""
    return _in_graph_us(call, device) if device.type == "cuda" else _on_host_us(call)


def _in_graph_us(call: Callable[[], object], device: torch.device) -> float:
    """Replay a captured call; before each replay other memory is written, so caches are cold."""
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device=device)
    spans = []
    for _ in range(REPEATS):
        flushed.zero_()
        began, ended = _event(), _event()
        began.record()
        graph.replay()
        ended.record()
        spans.append((began, ended))
    torch.cuda.synchronize(device)
    return 1e3 * statistics.median(float(a.elapsed_time(b)) for a, b in spans)


def _event() -> "torch.cuda.Event":
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _on_host_us(call: Callable[[], object]) -> float:
    spans = []
    for _ in range(DRY_REPEATS):
        started_s = time.perf_counter()
        call()
        spans.append(time.perf_counter() - started_s)
    return 1e6 * statistics.median(spans)


def busy_spans(work: Callable[[], object], device: torch.device) -> list[tuple[float, float]]:
    """List when kernels of `work` began and ended on the device, in microseconds; none on a CPU."""
    if device.type != "cuda":
        work()
        return []
    with profile(activities=[ProfilerActivity.CUDA]) as traced:
        work()
        torch.cuda.synchronize(device)
    events = (event for event in traced.events() or () if event.device_type.name == "CUDA")
    return [(float(e.time_range.start), float(e.time_range.end)) for e in events]


def covered(spans: list[tuple[float, float]]) -> float:
    """Length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
