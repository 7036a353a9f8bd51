"""Captures planned pairs one forward at a time, the largest first, and measures time and memory."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from specdecode_engine.batch.decode_inputs import DecodeInputs
from specdecode_engine.batch.shapes import ForwardKind, ForwardShape
from specdecode_engine.graphs.buffers import GraphBuffers
from specdecode_engine.graphs.cuda_graph import CaptureStream, CudaGraph, StaticGraph
from specdecode_engine.graphs.plan import (
    Budget,
    CaptureDecision,
    GraphKey,
    GraphPlan,
    GraphSetReport,
)
from specdecode_engine.model.forward import DecodeFunction, ForwardOutputs

log = logging.getLogger(__name__)


class ForwardGraph(Protocol):
    """One forward of one `ForwardShape`, captured."""

    def run(self, inputs: DecodeInputs) -> ForwardOutputs:
        """Run a batch of at most that size; the outputs are overwritten by later runs.

        Nothing is allocated but views of the outputs.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class GraphSet:
    """The graphs of a step of one num_steps on up to `batch_size` requests."""

    batch_size: int
    graphs: Mapping[ForwardShape, ForwardGraph]

    def rows_of(self, kind: ForwardKind, wanted: int) -> int:
        """Return the fewest rows of a captured forward of a kind that suffice; else `wanted`."""
        rows = [one.rows for one in self.graphs if one.kind is kind]
        return min((count for count in rows if count >= wanted), default=wanted)


class GraphCapturer:
    """Owns the buffers that all graphs share, and the graphs.

    Args:
        plan: what the buffers were sized for.
        dropped: decisions on pairs for which they were not.
        stream: where CUDA graphs are captured; without one, graphs are static and take no memory
            besides the buffers.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        functions: Mapping[ForwardKind, DecodeFunction],
        plan: GraphPlan,
        dropped: Iterable[CaptureDecision],
        buffers: GraphBuffers,
        budget: Budget,
        stream: CaptureStream | None,
        clock: Callable[[], float],
    ) -> None:
        self.failure = ""
        self._functions = functions
        self._buffers = buffers
        self._budget = budget
        self._stream = stream
        self._clock = clock
        self._graphs: dict[ForwardShape, ForwardGraph] = {}
        self._captured: dict[GraphKey, GraphSet] = {}
        self._pending = dict(plan.pairs)
        self._pending_reason = "is not captured yet"
        self._refused = {one.key: one for one in dropped}
        self._reports: dict[int, GraphSetReport] = {}  # by num_steps
        for num_steps in sorted({key.num_steps for key in (*plan.pairs, *self._refused)}):
            self._reports[num_steps] = GraphSetReport(num_steps)

    @property
    def shared_bytes(self) -> int:
        """Bytes of the input and output buffers, which all graphs share."""
        return self._buffers.num_bytes

    @property
    def pending_pairs(self) -> int:
        return len(self._pending)

    def is_pending(self, key: GraphKey) -> bool:
        return key in self._pending

    def decisions(self) -> tuple[CaptureDecision, ...]:
        """Every pair without graphs and the reason."""
        pending = [CaptureDecision(key, self._pending_reason, True) for key in self._pending]
        return (*pending, *sorted(self._refused.values(), key=lambda one: one.key))

    def reports(self) -> tuple[GraphSetReport, ...]:
        return tuple(self._reports.values())

    def has_start_time(self) -> bool:
        """Whether seconds of the budget are left; else the pending pairs wait for idle steps."""
        spent_s = sum(one.seconds for one in self.reports())
        max_s = self._budget.max_seconds
        if max_s is None or spent_s < max_s:
            return True
        self._pending_reason = (
            f"is captured when the engine is idle: graphs.max_seconds {max_s:g} were spent at start"
        )
        return False

    def replan(self, plan: GraphPlan) -> None:
        """Replace the plan: newly reachable pairs become pending if the buffers are large enough.

        What was captured stays. Buffers keep the size that the first table needed.
        """
        self._pending = {}
        self._pending_reason = "is captured when the engine is idle: it is new in the table"
        for key, forwards in plan.pairs.items():
            self._reports.setdefault(key.num_steps, GraphSetReport(key.num_steps))
            if key in self._captured or key in self._refused:
                continue
            if self.failure:
                self._refuse(key, f"runs eagerly: {self.failure}")
            elif not all(map(self._buffers.holds, forwards)):
                self._refuse(key, "runs eagerly until a restart: it is new in the table")
            else:
                self._pending[key] = forwards

    def capture_next(self) -> tuple[GraphKey, GraphSet] | None:
        """Capture one forward of the largest pending pair; return the pair once it is complete.

        Without memory the pair runs eagerly; after any other error all that are pending do, and
        what was captured stays in use.

        Raises:
            RuntimeError: the device accepts no work any more, so nothing can run eagerly either.
            Exception: capturing failed on this rank, and may have succeeded on others.
        """
        key = next(iter(self._pending), None)
        if key is None or self._is_out_of_bytes():
            return None
        forwards = self._pending[key]
        missing = [shape for shape in forwards if shape not in self._graphs]
        try:
            if missing:
                self._capture(missing[0], key.num_steps)
        except Exception as error:
            if self._stream is not None and self._stream.ranks.size > 1:
                raise
            self._run_eagerly(key, missing[0], error)
            return None
        if len(missing) > 1:
            return None
        del self._pending[key]
        graph_set = GraphSet(key.batch_size, {shape: self._graphs[shape] for shape in forwards})
        self._captured[key] = graph_set
        report = self._reports[key.num_steps]
        complete = tuple(sorted({*report.batch_sizes, key.batch_size}))
        self._reports[key.num_steps] = replace(report, batch_sizes=complete)
        return key, graph_set

    def _capture(self, shape: ForwardShape, num_steps: int) -> None:
        function, stream, num_bytes = self._functions[shape.kind], self._stream, 0
        started_s = self._clock()
        if stream is None:
            self._graphs[shape] = StaticGraph(shape, function, self._buffers)
        else:
            free = stream.free_bytes()
            self._graphs[shape] = CudaGraph(shape, function, self._buffers, stream)
            num_bytes = max(free - stream.free_bytes(), 0)
        report, seconds = self._reports[num_steps], self._clock() - started_s
        self._reports[num_steps] = replace(
            report,
            graphs=report.graphs + 1,
            seconds=report.seconds + seconds,
            num_bytes=report.num_bytes + num_bytes,
        )

    def _run_eagerly(self, key: GraphKey, shape: ForwardShape, error: Exception) -> None:
        """Refuse a pair of which capturing one forward failed, and perhaps all that are pending."""
        if isinstance(error, torch.OutOfMemoryError):
            self._refuse(key, f"runs eagerly: capturing it ran out of memory ({error})")
            log.warning("%s", self._refused[key])
            if not self._pending and not self._captured:
                self.failure = f"capturing ran out of memory: {error}"
            return
        self.failure = f"capturing failed: {type(error).__name__}: {error}"
        log.warning("CUDA graphs: capturing %s failed", shape, exc_info=True)
        self._refuse_pending(self.failure)
        self._drop_incomplete()

    def _drop_incomplete(self) -> None:
        """Free the graphs of pairs that will not be completed, and check the device."""
        self._graphs = {s: g for one in self._captured.values() for s, g in one.graphs.items()}
        if self._stream is not None:
            self._stream.check()

    def _is_out_of_bytes(self) -> bool:
        """Whether the measured bytes have reached the budget; then all that are pending stay eager.

        The last graph may exceed the budget by its own size: it is known only once it exists.
        """
        spent = self.shared_bytes + sum(one.num_bytes for one in self.reports())
        if self._stream is None or self._budget.max_bytes is None or spent < self._budget.max_bytes:
            return False
        mib = self._budget.max_bytes / 2**20
        self._refuse_pending(f"{mib:.1f} MiB of graphs.max_bytes are spent; raise it")
        return True

    def _refuse_pending(self, reason: str) -> None:
        log.warning("CUDA graphs: %d pairs run eagerly: %s", len(self._pending), reason)
        for key in tuple(self._pending):
            self._refuse(key, f"runs eagerly: {reason}")

    def _refuse(self, key: GraphKey, reason: str) -> None:
        self._pending.pop(key, None)
        self._refused[key] = CaptureDecision(key, reason)
