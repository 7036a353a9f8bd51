"""Makes runners, each pass once, and measures what that takes."""

import gc
from collections.abc import Callable, Iterable, Mapping

import torch

from specdecode_engine.forward.passes import PassFunction
from specdecode_engine.graph_plan.costs import Cost, CostModel
from specdecode_engine.graph_plan.passes import PassKind, PassShape
from specdecode_engine.graphs.cuda_runner import CaptureSite, CudaRunner
from specdecode_engine.graphs.inputs import InputBuffers
from specdecode_engine.graphs.outputs import OutputBuffers
from specdecode_engine.graphs.runner import Runner
from specdecode_engine.graphs.static_runner import StaticRunner


class Recorder:
    """Owns the buffers that all runners share, and the runners.

    Args:
        shapes: every pass that may ever be recorded; the buffers are sized for them.
        pages: entries of a page table.
        site: where CUDA graphs are captured; without one, runners are static.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        functions: Mapping[PassKind, PassFunction],
        shapes: Iterable[PassShape],
        model: CostModel,
        pages: int,
        page_size: int,
        dtype: torch.dtype,
        device: torch.device,
        site: CaptureSite | None,
        clock: Callable[[], float],
    ) -> None:
        known = list(shapes)
        self._functions = functions
        self._model = model
        self._inputs = InputBuffers(known, model.widths, pages, page_size, dtype, device)
        self._outputs = OutputBuffers(known, model.widths, dtype, device)
        self._site = site
        self._clock = clock
        self._runners: dict[PassShape, Runner] = {}
        self._seconds = 0.0

    @property
    def shared_bytes(self) -> int:
        """Bytes of the inputs and outputs that all runners share."""
        return self._inputs.num_bytes + self._outputs.num_bytes

    @property
    def runners(self) -> Mapping[PassShape, Runner]:
        """Every runner there is."""
        return self._runners

    def cost_of(self, shape: PassShape) -> Cost:
        """Expect what the passes so far took on average, or what is usual before the first."""
        usual = self._model.of_pass(shape)
        if not self._runners:
            return usual
        return Cost(usual.num_bytes, self._seconds / len(self._runners))

    def holds(self, shape: PassShape) -> bool:
        """Whether the buffers are large enough for a pass."""
        return self._inputs.holds(shape) and self._outputs.holds(shape)

    def record(self, shapes: Iterable[PassShape]) -> Cost:
        """Make the runners that are missing, the largest first; return what that took.

        Static runners are counted with the bytes that graphs would take: a budget can be tried out.

        Raises:
            torch.OutOfMemoryError: those made so far are kept.
        """
        missing = [shape for shape in shapes if shape not in self._runners]
        started_s, free = self._clock(), self._free_bytes()
        for shape in sorted(missing, key=lambda shape: shape.total_rows, reverse=True):
            self._runners[shape] = self._make(shape)
        seconds = self._clock() - started_s
        self._seconds += seconds
        if self._site is None:
            return Cost(sum(self._model.of_pass(one).num_bytes for one in missing), seconds)
        return Cost(max(free - self._free_bytes(), 0), seconds)

    def tidy(self) -> None:
        """Give back what the allocator keeps, so that free memory says what captures take."""
        if self._site is not None:
            gc.collect()
            torch.cuda.empty_cache()

    def _make(self, shape: PassShape) -> Runner:
        function = self._functions[shape.kind]
        if self._site is None:
            return StaticRunner(shape, function, self._inputs, self._outputs)
        return CudaRunner(shape, function, self._inputs, self._outputs, self._site)

    def _free_bytes(self) -> int:
        """Free memory of the device; 0 without graphs, whose runners keep nothing."""
        if self._site is None:
            return 0
        torch.cuda.synchronize(self._site.device)
        free, _ = torch.cuda.mem_get_info(self._site.device)
        return int(free)
