"""A CUDA graph of one forward, which the host launches with one call, and its stand-in on a CPU.

With the stand-in, planning, padding, sharing of buffers and swapping are the same code without a
GPU.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import torch

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.shapes import ForwardShape
from specdecode_engine.graphs.buffers import GraphBuffers
from specdecode_engine.model.forward import DecodeFunction, ForwardOutputs
from specdecode_engine.ranks import ALONE, Ranks

WARM_UPS = 2
"""Runs before a capture: libraries choose algorithms and allocate workspaces in the first ones."""


@dataclass(frozen=True, slots=True, eq=False)
class CaptureStream:
    """One stream and one memory pool for all captures, so that graphs share memory.

    Memory freed on a stream is reused on that stream only, hence one stream for all of them.
    """

    device: torch.device
    stream: "torch.cuda.Stream"
    pool: "torch.cuda._POOL_HANDLE"
    ranks: Ranks = ALONE  # which all capture the same graphs

    @classmethod
    def open(cls, device: torch.device, ranks: Ranks = ALONE) -> "CaptureStream":
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return cls(device, stream, torch.cuda.graph_pool_handle(), ranks)

    def free_bytes(self) -> int:
        """Return the least free memory of all ranks' devices, with no allocator caching any."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        return self.ranks.least(int(free))

    def check(self) -> None:
        """Raise the device's error if it accepts no work any more."""
        torch.cuda.synchronize(self.device)


class CudaGraph:
    """Captures a forward when it is made and replays it from then on.

    The graph sees page tables at their full width and reads lengths on the device, so one graph
    serves every length. It is captured on padding: warming up writes to page 0 only.
    """

    def __init__(
        self,
        shape: ForwardShape,
        function: DecodeFunction,
        buffers: GraphBuffers,
        where: CaptureStream,
    ) -> None:
        self.shape = shape
        self._buffers = buffers
        buffers.inputs.clear(shape)
        static = buffers.view(shape)
        self._graph = _capture(where, lambda: buffers.outputs.store(shape, function(static)))

    def run(self, inputs: DecodeInputs) -> ForwardOutputs:
        """Copy in and pad, replay, return views of the batch's own rows."""
        self._buffers.inputs.load(self.shape, inputs)
        self._graph.replay()
        return self._buffers.outputs.view(self.shape, inputs.batch_size)


def _capture(where: CaptureStream, work: Callable[[], None]) -> "torch.cuda.CUDAGraph":
    """Warm up, then capture, both on the capture stream.

    `torch.cuda.graph` would collect garbage before every one of hundreds of captures.
    """
    current = torch.cuda.current_stream(where.device)
    where.stream.wait_stream(current)
    try:
        with torch.cuda.stream(where.stream):
            for _ in range(WARM_UPS):
                work()
            torch.cuda.synchronize(where.device)
            with _no_collection():
                return _record(where, work)
    finally:
        # Also after a failure: warming up wrote to memory that eager steps use on their stream.
        current.wait_stream(where.stream)


def _record(where: CaptureStream, work: Callable[[], None]) -> "torch.cuda.CUDAGraph":
    graph = torch.cuda.CUDAGraph()
    try:
        # A beginning that fails has already routed allocations to the pool.
        graph.capture_begin(pool=where.pool, capture_error_mode="thread_local")
        work()
    except BaseException:
        # Ending a failed capture fails too; the first error is the one to report.
        with suppress(RuntimeError):
            _end(graph, where)
        raise
    _end(graph, where)
    return graph


def _end(graph: "torch.cuda.CUDAGraph", where: CaptureStream) -> None:
    try:
        graph.capture_end()
    except RuntimeError:
        # torch 2.11 raises before it stops routing allocations to the pool; the allocator would
        # then count a capture as underway forever and refuse to empty its cache.
        index = where.device.index
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(
                torch.cuda.current_device() if index is None else index, where.pool
            )
        raise


@contextmanager
def _no_collection() -> Iterator[None]:
    """Disable garbage collection: destroying objects on the device would break a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class StaticGraph:
    """Runs the eager forward on the buffers of a graph; once on padding only when it is made.

    Page tables are cut to the pages in use, since torch attention gathers all that it gets.
    """

    def __init__(
        self, shape: ForwardShape, function: DecodeFunction, buffers: GraphBuffers
    ) -> None:
        self.shape = shape
        self._function = function
        self._buffers = buffers
        buffers.inputs.clear(shape)
        self._run(buffers.view(shape, longest=0))

    def run(self, inputs: DecodeInputs) -> ForwardOutputs:
        """Copy in and pad, compute, return views of the batch's own rows."""
        self._buffers.inputs.load(self.shape, inputs)
        self._run(self._buffers.view(self.shape, inputs.longest))
        return self._buffers.outputs.view(self.shape, inputs.batch_size)

    def _run(self, inputs: DecodeInputs) -> None:
        self._buffers.outputs.store(self.shape, self._function(inputs))
