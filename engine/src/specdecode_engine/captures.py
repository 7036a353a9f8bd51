"""From the boot file to runtime states: what to capture, what it may cost, how it is run."""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.report import Reason
from specdecode_engine.depth.decision import DepthPolicy
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.drafters import DraftLimits
from specdecode_engine.forward.passes import PassFunction
from specdecode_engine.graph_plan.budget import Budget, Ruling, Verdict, rule
from specdecode_engine.graph_plan.costs import CostModel
from specdecode_engine.graph_plan.passes import PassKind, PassShape, PassWidths
from specdecode_engine.graph_plan.plan import GraphPlan, GraphSpace, Pair
from specdecode_engine.graph_plan.sizes import batch_sizes
from specdecode_engine.graphs.cuda_runner import CaptureSite
from specdecode_engine.graphs.library import Library
from specdecode_engine.graphs.recorder import Recorder
from specdecode_engine.graphs.states import RuntimeStates
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.sizes import Loaded, draft_shapes, reserve_tokens
from specdecode_kernels import AttentionBackend

log = logging.getLogger(__name__)

OFF, STATIC, CUDA = "off", "static", "cuda"


class GraphsUnavailable(Exception):
    """The boot file asks for graphs that the device does not have; the message says what to do."""

    reason: ClassVar[Reason] = Reason.CANNOT_SERVE


@dataclass(frozen=True, slots=True)
class Captures:
    """What to capture, before anything is allocated."""

    mode: str
    space: GraphSpace
    plan: GraphPlan
    model: CostModel
    budget: Budget
    refused: Mapping[Pair, Ruling]

    @property
    def shapes(self) -> tuple[PassShape, ...]:
        """Every pass that may come to be captured."""
        pairs = self.plan.pairs.items()
        kept = {pair: passes for pair, passes in pairs if pair not in self.refused}
        return GraphPlan(self.plan.sizes, kept).passes()

    @property
    def num_bytes(self) -> int:
        """Memory that they are expected to take."""
        return self.model.total_bytes(self.shapes)


class Mode(NamedTuple):
    """off, static or cuda, and a sentence that says why."""

    name: str
    reason: str


def check_mode(wanted: str, device: torch.device) -> None:
    """Refuse a mode that the device does not have, before anything is loaded.

    Raises:
        GraphsUnavailable: CUDA graphs were asked for and the engine computes on a CPU.
    """
    if wanted == CUDA and device.type != "cuda":
        raise GraphsUnavailable(
            f"graphs.mode cuda needs a GPU, and the engine computes on {device}; use auto, off, or "
            "static to try a plan out"
        )


def choose_mode(wanted: str, device: torch.device, backends: Iterable[AttentionBackend]) -> Mode:
    """Turn graphs.mode into what is done; auto captures where that is safe and pays.

    Raises:
        GraphsUnavailable: CUDA graphs were asked for, and the device or a backend has none.
    """
    check_mode(wanted, device)
    capturing = [backend.capturing for backend in backends]
    drawback = next((one.drawback for one in capturing if one.drawback is not None), None)
    if wanted == CUDA and not all(one.is_possible for one in capturing):
        raise GraphsUnavailable(
            f"graphs.mode cuda is not for this attention_backend: {drawback}; use auto or off, or "
            "attention_backend triton"
        )
    if wanted != "auto":
        is_costly = wanted == CUDA and drawback is not None
        return Mode(wanted, "was asked for" + (f", although {drawback}" if is_costly else ""))
    if device.type != "cuda":
        return Mode(OFF, f"there are no CUDA graphs on {device}")
    if drawback is not None:
        return Mode(OFF, drawback)
    return Mode(CUDA, "attention reads lengths on the device")


def captured_sizes(boot: EngineBoot, mode: str) -> tuple[int, ...]:
    """List the batch sizes that rounds are padded to, ascending; none where nothing is captured."""
    if mode == OFF:
        return ()
    return batch_sizes(boot.scheduling.max_running_requests, boot.graphs.batch_sizes)


def plan_captures(
    boot: EngineBoot,
    loaded: Loaded,
    depth: DepthPolicy,
    sizes: tuple[int, ...],
    mode: str,
    available_bytes: int,
) -> Captures:
    """Work out what the policy can reach and what of it the budget lets in.

    Args:
        sizes: see `captured_sizes`.
        available_bytes: what is left beside the weights.
    """
    shapes = draft_shapes(boot.speculation)
    model = _cost_model(boot, loaded)
    most = boot.graphs.max_bytes
    budget = Budget(available_bytes // 10 if most is None else most, boot.graphs.max_seconds)
    running = boot.scheduling.max_running_requests
    space = GraphSpace(shapes, sizes, running, _window(loaded, shapes))
    plan = space.plan(depth)
    rulings = rule(plan.pairs, model.of_pass, model.shared_bytes, budget)
    refused = {one.pair: one for one in rulings if one.verdict is Verdict.REFUSED}
    return Captures(mode, space, plan, model, budget, refused)


def make_states(
    captures: Captures,
    functions: Mapping[PassKind, PassFunction],
    shapes: Mapping[int, DraftShape],
    loaded: Loaded,
    limits: Limits,
    clock: Callable[[], float],
) -> RuntimeStates:
    """Allocate the buffers that captured passes share; nothing is captured yet."""
    if captures.mode == OFF:
        return RuntimeStates(functions, shapes)
    site = CaptureSite.open(loaded.device) if captures.mode == CUDA else None
    recorder = Recorder(
        functions,
        captures.shapes,
        captures.model,
        limits.pages_per_sequence,
        limits.page_size,
        loaded.dtype,
        loaded.device,
        site,
        clock,
    )
    refused = dict(captures.refused)
    library = Library(captures.space, captures.plan, refused, captures.budget, recorder)
    return RuntimeStates(functions, shapes, library, captures.mode)


def capture_all(states: RuntimeStates, progress: bool) -> None:
    """Capture what was planned and say in the log what that took."""
    states.capture_all(progress)
    report = states.report()
    for line in report.lines():
        log.info("graphs (%s): %s", report.mode, line)


def _window(loaded: Loaded, shapes: Mapping[int, DraftShape]) -> int | None:
    if loaded.draft is None:
        return None
    return DraftLimits.over(shapes.values()).round_rows


def _cost_model(boot: EngineBoot, loaded: Loaded) -> CostModel:
    config = loaded.target.config
    features = loaded.draft.catch_up.hidden_in if loaded.draft else 0
    widths = loaded.draft.widths() if loaded.draft else {}
    widths[PassKind.VERIFY] = PassWidths(
        layers=config.num_hidden_layers,
        hidden=config.decoder.hidden_size,
        intermediate=config.decoder.intermediate_size,
        logits=config.vocab_size,
        hidden_out=features,
    )
    rows = loaded.target.context_length + reserve_tokens(boot, loaded.device)
    pages = -(-rows // boot.memory.page_size)
    return CostModel(widths, pages, loaded.dtype.itemsize)
