"""What a failed capture leaves of the allocator; the captures themselves need a GPU."""

import gc

import pytest
import torch

from specdecode_engine.graphs import cuda_graph
from specdecode_engine.graphs.cuda_graph import CaptureStream

POOL = (0, 7)


class Allocator:
    """Follows torch 2.11: `capture_end` raises before allocations stop going to the pool."""

    def __init__(self, ends: bool) -> None:
        self.ends = ends
        self.pools: list[object] = []

    def capture_begin(self, pool: object, capture_error_mode: str) -> None:
        assert capture_error_mode == "thread_local"
        self.pools.append(pool)

    def capture_end(self) -> None:
        if not self.ends:
            raise RuntimeError("capture was invalidated")
        self.pools.clear()

    def end_allocate(self, device: int, pool: object) -> None:
        if (device, pool) != (0, POOL) or pool not in self.pools:
            raise RuntimeError("not currently recording to mempool_id")
        self.pools.remove(pool)


def record(monkeypatch: pytest.MonkeyPatch, allocator: Allocator, work) -> object:
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: allocator)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", allocator.end_allocate, raising=False)
    where = CaptureStream(torch.device("cuda", 0), None, POOL)  # type: ignore[arg-type]
    return cuda_graph._record(where, work)


def test_a_capture_that_cannot_end_stops_routing_allocations_to_its_pool(monkeypatch) -> None:
    allocator = Allocator(ends=False)
    with pytest.raises(RuntimeError, match="capture was invalidated"):
        record(monkeypatch, allocator, lambda: None)
    assert allocator.pools == []


def test_a_forward_that_fails_under_capture_is_the_error_that_is_raised(monkeypatch) -> None:
    for ends in (True, False):
        allocator = Allocator(ends)
        with pytest.raises(ZeroDivisionError):
            record(monkeypatch, allocator, lambda: 1 // 0)
        assert allocator.pools == []


def test_a_capture_that_succeeds_is_ended_once(monkeypatch) -> None:
    allocator = Allocator(ends=True)
    assert record(monkeypatch, allocator, lambda: None) is allocator
    assert allocator.pools == []


def test_the_garbage_collector_is_back_after_a_failure() -> None:
    assert gc.isenabled()
    seen = []

    def fail() -> None:
        with cuda_graph._no_collection():
            seen.append(gc.isenabled())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert seen == [False]
    assert gc.isenabled()
