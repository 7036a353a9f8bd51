"""A CUDA graph of one pass: the host launches it with one call instead of hundreds."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import torch

from specdecode_engine.forward.passes import PassFunction, PassInputs, PassOutputs
from specdecode_engine.graph_plan.passes import PassShape
from specdecode_engine.graphs.inputs import InputBuffers
from specdecode_engine.graphs.outputs import OutputBuffers

WARM_UPS = 2
"""Runs before a capture: libraries choose algorithms and allocate workspaces in the first ones."""


@dataclass(frozen=True, slots=True, eq=False)
class CaptureSite:
    """Where all graphs are captured: one stream and one memory pool, so that they share memory.

    Memory freed on a stream is reused on that stream only, hence one stream for all of them.
    """

    device: torch.device
    stream: "torch.cuda.Stream"
    pool: "torch.cuda._POOL_HANDLE"

    @classmethod
    def open(cls, device: torch.device) -> "CaptureSite":
        """Make a stream and a pool on the device."""
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        return cls(device, stream, torch.cuda.graph_pool_handle())


class CudaRunner:
    """Captures a pass when it is made and replays it ever after.

    The graph sees page tables at their full width and reads lengths on the device, so one graph
    serves every length. It is captured on padding: warming up writes to page 0 only.
    """

    def __init__(
        self,
        shape: PassShape,
        function: PassFunction,
        inputs: InputBuffers,
        outputs: OutputBuffers,
        site: CaptureSite,
    ) -> None:
        self.shape = shape
        self._inputs = inputs
        self._outputs = outputs
        inputs.clear()
        static = inputs.view(shape)
        self._graph = _capture(site, lambda: outputs.store(shape, function(static)))

    def run(self, inputs: PassInputs) -> PassOutputs:
        """Copy in, pad, replay, show the batch's own rows."""
        self._inputs.load(self.shape, inputs)
        self._graph.replay()
        return self._outputs.view(self.shape, inputs.batch_size)


def _capture(site: CaptureSite, work: Callable[[], None]) -> "torch.cuda.CUDAGraph":
    """Warm up, then record, both on the site's stream.

    `torch.cuda.graph` would collect garbage and empty the allocator's cache before every one of
    hundreds of captures; whoever captures many does so once.
    """
    current = torch.cuda.current_stream(site.device)
    site.stream.wait_stream(current)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(site.stream):
        for _ in range(WARM_UPS):
            work()
        torch.cuda.synchronize(site.device)
        graph.capture_begin(pool=site.pool, capture_error_mode="thread_local")
        try:
            work()
        except BaseException:
            # Ending a capture that failed complains too; what it failed of is the news.
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        graph.capture_end()
    current.wait_stream(site.stream)
    return graph
