"""Configures CUDA graphs from the boot file: mode, batch sizes and memory budget."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.report import TerminationReason
from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.batch.shapes import ForwardKind, ForwardWidths
from specdecode_engine.graphs.buffers import BufferSpec, GraphBuffers
from specdecode_engine.graphs.cache import NO_PLAN, GraphCache
from specdecode_engine.graphs.capturer import GraphCapturer
from specdecode_engine.graphs.cuda_graph import CaptureStream
from specdecode_engine.graphs.plan import Budget, CaptureDecision, GraphPlan, GraphSpace
from specdecode_engine.graphs.reach import batch_sizes
from specdecode_engine.model.forward import ForwardFunction
from specdecode_engine.schedule.scheduler import Limits
from specdecode_engine.startup.models import DraftLimits
from specdecode_engine.startup.sizes import Loaded, draft_shapes, reserve_tokens
from specdecode_kernels import Backend

log = logging.getLogger(__name__)

OFF, STATIC, CUDA = "off", "static", "cuda"

_DEFAULT_SHARE = 10
"""A tenth of the memory after the weights: tens of MiB for each of about a hundred pairs."""


class GraphsUnavailable(Exception):
    """The boot file requires CUDA graphs and there are none; the message contains the remedy."""

    reason: ClassVar[TerminationReason] = TerminationReason.CANNOT_SERVE


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


class Mode(NamedTuple):
    """off, static or cuda, and the reason."""

    name: str
    reason: str


def check_mode(wanted: str, device: torch.device) -> None:
    """Reject a mode that the device does not support, before anything is loaded.

    Raises:
        GraphsUnavailable: CUDA graphs were requested and the engine runs on a CPU.
    """
    if wanted == CUDA and device.type != "cuda":
        raise GraphsUnavailable(
            f"graphs.mode cuda needs a GPU, and the engine runs on {device}; use auto or off, or "
            "static to try out a plan"
        )


def choose_mode(wanted: str, device: torch.device, backends: Iterable[Backend]) -> Mode:
    """Resolve graphs.mode; auto captures where that is safe and faster.

    Raises:
        GraphsUnavailable: mode is cuda, and the device or a backend does not support it.
    """
    check_mode(wanted, device)
    supports = [backend.graph_support for backend in backends]
    limitation = next((one.limitation for one in supports if one.limitation is not None), None)
    if wanted == CUDA and not all(one.is_possible for one in supports):
        raise GraphsUnavailable(
            f"graphs.mode cuda does not work with this attention_backend: {limitation}; use auto "
            "or off, or attention_backend triton"
        )
    if wanted != "auto":
        is_costly = wanted == CUDA and limitation is not None
        return Mode(wanted, "was asked for" + (f", although {limitation}" if is_costly else ""))
    if device.type != "cuda":
        return Mode(OFF, f"there are no CUDA graphs on {device}")
    if limitation is not None:
        return Mode(OFF, limitation)
    return Mode(CUDA, "attention reads lengths on the device")


def captured_sizes(boot: EngineBoot, mode: str) -> tuple[int, ...]:
    """List the batch sizes that decode steps are padded to, ascending; none where mode is off."""
    if mode == OFF:
        return ()
    return batch_sizes(boot.scheduling.max_running_requests, boot.graphs.batch_sizes)


def plan_captures(
    boot: EngineBoot,
    loaded: Loaded,
    policy: AdaptivePolicy,
    sizes: tuple[int, ...],
    mode: str,
    available_bytes: int,
) -> GraphConfig:
    """Compute the pairs that the policy can reach and those whose buffers fit the budget.

    Args:
        sizes: see `captured_sizes`.
        available_bytes: free memory after the weights.
    """
    shapes = draft_shapes(boot.speculation)
    window = DraftLimits.over(shapes.values()).round_rows if loaded.draft else None
    space = GraphSpace(shapes, sizes, boot.scheduling.max_running_requests, window)
    reachable = space.plan(policy) if sizes else NO_PLAN
    most = boot.graphs.max_bytes
    max_bytes = available_bytes // _DEFAULT_SHARE if most is None else most
    spec = _buffer_spec(boot, loaded)
    plan, dropped = reachable.fit(spec.num_bytes, max_bytes)
    budget = Budget(max_bytes, boot.graphs.max_seconds)
    return GraphConfig(mode, space, reachable, plan, dropped, spec, budget)


def make_graphs(
    config: GraphConfig,
    functions: Mapping[ForwardKind, ForwardFunction],
    loaded: Loaded,
    limits: Limits,
    clock: Callable[[], float],
) -> GraphCache:
    """Allocate the buffers that graphs share; nothing is captured yet."""
    if config.mode == OFF:
        return GraphCache(functions)
    # The pool may be too small for the longest request of the context that was planned for.
    spec = replace(config.spec, pages=limits.pages_per_sequence)
    buffers = GraphBuffers(spec, config.plan.forwards(), loaded.device)
    stream = CaptureStream.open(loaded.device) if config.mode == CUDA else None
    capturer = GraphCapturer(
        functions, config.plan, config.dropped, buffers, config.budget, stream, clock
    )
    return GraphCache(functions, config.space, config.reachable, capturer, config.mode)


def capture_all(graphs: GraphCache, wanted: str, progress: bool) -> None:
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
            f"graphs.mode {wanted}: {report.failure}; use auto or off, or another attention_backend"
        )
    for line in report.lines():
        log.info("graphs (%s): %s", report.mode, line)


def _buffer_spec(boot: EngineBoot, loaded: Loaded) -> BufferSpec:
    features = loaded.draft.catch_up.hidden_in if loaded.draft else 0
    widths = loaded.draft.widths() if loaded.draft else {}
    vocabulary = loaded.target.config.vocab_size
    widths[ForwardKind.VERIFY] = ForwardWidths(logits=vocabulary, hidden_out=features)
    rows = loaded.target.context_length + reserve_tokens(boot, loaded.device)
    pages = -(-rows // boot.memory.page_size)
    return BufferSpec(widths, pages, boot.memory.page_size, loaded.dtype)
