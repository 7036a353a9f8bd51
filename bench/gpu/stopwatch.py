"""Times a call, replayed in a graph with cold caches, and lists the kernels of another."""

import statistics
from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile

WARM_UPS = 3


class BusySpan(NamedTuple):
    """When a kernel or a copy ran on the device, in microseconds of the trace."""

    start: float
    end: float
    name: str = ""


def time_us(
    call: Callable[[], object], device: torch.device, repeats: int, flushed_bytes: int
) -> float:
    """Take the median of several replays of a captured call, in microseconds.

    Before each replay other memory is written, so caches are cold.
    """
    for _ in range(WARM_UPS):
        call()
    torch.cuda.synchronize(device)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    flushed = torch.empty(flushed_bytes, dtype=torch.uint8, device=device)
    spans = []
    for _ in range(repeats):
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


def busy_spans(work: Callable[[], object], device: torch.device) -> list[BusySpan]:
    """List the kernels and copies of `work`; none on a shadow device."""
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as traced:
        work()
        torch.cuda.synchronize(device)
    events = (event for event in traced.events() or () if event.device_type.name == "CUDA")
    return [BusySpan(float(e.time_range.start), float(e.time_range.end), e.name) for e in events]


def covered(spans: Iterable[BusySpan]) -> float:
    """Length of the union of spans."""
    total, reached = 0.0, float("-inf")
    for start, end, _ in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def extent(spans: Collection[BusySpan]) -> float:
    """Time from the first start to the last end."""
    return max(one.end for one in spans) - min(one.start for one in spans)
