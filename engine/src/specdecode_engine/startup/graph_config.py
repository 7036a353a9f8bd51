"""Plans the CUDA graphs of an engine within their memory budget, and captures them."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.graphs.buffers import BufferSpec, GraphBuffers
from specdecode_engine.graphs.cache import NO_PLAN, GraphCache
from specdecode_engine.graphs.capturer import GraphCapturer
from specdecode_engine.graphs.cuda_graph import CaptureStream
from specdecode_engine.graphs.plan import Budget, CaptureDecision, GraphPlan, GraphSpace
from specdecode_engine.model.forward import DecodeFunction
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.startup.config import CUDA, OFF, EngineConfig, GraphsUnavailable
from specdecode_kernels import Backend

log = logging.getLogger(__name__)

_DEFAULT_SHARE = 10
"""A tenth of the memory after the weights: tens of MiB for each of about a hundred pairs."""


@dataclass(frozen=True, slots=True)
class GraphConfig:
    """What to capture, before anything is allocated."""

    mode: str
    space: GraphSpace
    reachable: GraphPlan
    plan: GraphPlan  # the reachable pairs whose buffers fit the budget
    dropped: tuple[CaptureDecision, ...]  # the others
    spec: BufferSpec
    budget: Budget

    @property
    def reserved_bytes(self) -> int:
        """Upper bound of their memory: the buffers, and on a GPU the whole budget."""
        buffers = self.spec.num_bytes(self.plan.forwards())
        if self.mode != CUDA or not self.plan.pairs:
            return buffers
        return max(buffers, self.budget.max_bytes or 0)


def plan_graphs(config: EngineConfig, policy: AdaptivePolicy, available_bytes: int) -> GraphConfig:
    """Compute the pairs that the policy can reach and those whose buffers fit the budget.

    Args:
        available_bytes: free memory after the weights.
    """
    boot, sizes = config.boot, config.sizes
    running = boot.scheduling.max_running_requests
    space = GraphSpace(
        sizes.shapes,
        config.graph_batch_sizes,
        running,
        config.draft_forwards,
        has_plain=config.method.may_find_nothing,
    )
    reachable = space.plan(policy) if space.sizes else NO_PLAN
    pages = -(-(config.context_length + sizes.reserve_tokens) // boot.memory.page_size)
    page_size = boot.memory.page_size
    spec = BufferSpec(config.widths, pages, page_size, config.dtype, sizes.topk)
    max_bytes = boot.graphs.max_bytes
    if max_bytes is None:
        max_bytes = available_bytes // _DEFAULT_SHARE
    plan, dropped = reachable.fit(spec.num_bytes, max_bytes)
    budget = Budget(max_bytes, boot.graphs.max_seconds)
    return GraphConfig(config.graph_mode.name, space, reachable, plan, dropped, spec, budget)


def make_graphs(
    config: GraphConfig,
    functions: Mapping[ForwardKind, DecodeFunction],
    pages_per_sequence: int,
    device: torch.device,
    ops: Backend,
    clock: Callable[[], float],
    ranks: Ranks = ALONE,
) -> GraphCache:
    """Allocate the buffers that graphs share; nothing is captured yet."""
    if config.mode == OFF:
        return GraphCache(functions)
    # The pool may be too small for the longest request of the context that was planned for.
    spec = replace(config.spec, pages=pages_per_sequence)
    try:
        buffers = GraphBuffers(spec, config.plan.forwards(), device, ops)
        stream = CaptureStream.open(device, ranks) if config.mode == CUDA else None
    except RuntimeError as error:
        if ranks.size > 1:
            raise
        log.warning("CUDA graphs: preparing failed", exc_info=True)
        return GraphCache(functions, failure=f"preparing failed: {type(error).__name__}: {error}")
    capturer = GraphCapturer(
        functions, config.plan, config.dropped, buffers, config.budget, stream, clock
    )
    return GraphCache(functions, config.space, config.reachable, capturer, config.mode)


def capture_all(graphs: GraphCache, wanted: str, progress: ShowProgress | None) -> None:
    """Capture the plan and log its time and memory.

    Args:
        wanted: graphs.mode of the boot file; auto runs eagerly what cannot be captured.

    Raises:
        GraphsUnavailable: capturing failed and the mode was requested explicitly.
    """
    graphs.capture_all(progress)
    report = graphs.report()
    if report.failure and wanted != "auto":
        raise GraphsUnavailable(
            f"graphs.mode {wanted}: {report.failure}; use graphs.mode auto or off "
            "(--disable-cuda-graph), or another attention_backend"
        )
    for line in report.lines():
        log.info("graphs (%s): %s", report.mode, line)
