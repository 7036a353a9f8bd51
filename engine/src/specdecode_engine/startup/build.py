"""Chooses and wires the parts of an engine."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from specdecode_api.boot import EngineBoot, SpeculationBoot
from specdecode_api.report import TerminationReason
from specdecode_api.speculation import Policy, not_yet_available
from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.shapes import DraftShape, ForwardKind
from specdecode_engine.engine import EngineCore
from specdecode_engine.graphs.report import GraphReport
from specdecode_engine.model.checkpoint import Checkpoint, OpenStore
from specdecode_engine.model.forward import ForwardFunction
from specdecode_engine.model.kv_cache import KVCache
from specdecode_engine.model.linears import Linears
from specdecode_engine.model.llama import Llama, stored_dtype
from specdecode_engine.model.target_forward import TargetForward
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Limits, Scheduler
from specdecode_engine.startup.attention import (
    KernelChoices,
    choose_attention,
    choose_target_backend,
)
from specdecode_engine.startup.device import (
    available_bytes,
    choose_device,
    default_threads,
    device_name,
    keep_to,
)
from specdecode_engine.startup.graph_config import (
    GraphConfig,
    Mode,
    capture_all,
    captured_sizes,
    check_mode,
    choose_mode,
    make_graphs,
    plan_captures,
)
from specdecode_engine.startup.models import DraftLimits, check_fit, load_draft
from specdecode_engine.startup.policies import depth_table, make_policy
from specdecode_engine.startup.profiling import profile_rounds
from specdecode_engine.startup.sizes import Loaded, draft_shapes, kv_dtype, plan_limits
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.timing import Stopwatch
from specdecode_kernels import cpu

log = logging.getLogger(__name__)

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class CannotServe(Exception):
    """The boot file requests something unsupported; the message names it."""

    reason: ClassVar[TerminationReason] = TerminationReason.CANNOT_SERVE


def build_core(
    boot: EngineBoot,
    *,
    progress: bool = False,
    clock: Callable[[], float] = time.monotonic,
    open_store: OpenStore = Checkpoint.open,
) -> EngineCore:
    """Load the checkpoints and wire an engine core.

    Args:
        progress: show bars while loading.
        clock: seconds, monotonic.
        open_store: opens the tensors of the target and of a STANDALONE draft; benchmarks replace
            it for models that are not stored.

    Raises:
        AttentionUnavailable, TableError, CannotServe, CheckpointError, GraphsUnavailable,
        NotEnoughMemory, RuntimeError: the message contains the remedy.
    """
    design = _design(boot, progress, open_store)
    parts = _wire(design, clock, progress)
    depth = _weigh(design, parts, clock, progress)
    limits, drafter = design.limits, parts.drafter
    lookahead = drafter.lookahead if drafter else 0
    cache = PrefixCache(limits.page_size, lookahead, is_on=boot.memory.prefix_cache)
    scheduler = Scheduler(limits, depth, cache)
    eos = frozenset(design.loaded.target.config.eos_token_ids)
    stopwatch = Stopwatch(design.loaded.device, clock)
    facts = _facts(design, parts.graphs.report())
    return EngineCore(parts, scheduler, design.shapes, eos, stopwatch, facts)


@dataclass(frozen=True, slots=True)
class Design:
    """All decisions made before anything but the weights is allocated."""

    boot: EngineBoot
    loaded: Loaded
    attention: KernelChoices
    mode: Mode
    shapes: dict[int, DraftShape]
    captured_sizes: tuple[int, ...]
    depth: AdaptivePolicy
    captures: GraphConfig
    limits: Limits


def _design(boot: EngineBoot, progress: bool, open_store: OpenStore) -> Design:
    _refuse_unavailable(boot.speculation)
    threads = default_threads() if boot.cpu_affinity is None else keep_to(boot.cpu_affinity)
    torch.set_num_threads(boot.threads or threads)
    check_mode(boot.graphs.mode, choose_device(boot.device))
    loaded = _load(boot, progress, open_store)
    attention = choose_attention(boot, loaded)
    mode = choose_mode(boot.graphs.mode, loaded.device, attention.backends)
    log.info("graphs: %s, %s", mode.name, mode.reason)
    sizes = captured_sizes(boot, mode.name)
    table = depth_table(boot.speculation.entries, boot.speculation.policy)
    depth = make_policy(boot.speculation, table, sizes)
    free = available_bytes(loaded.device)
    captures = plan_captures(boot, loaded, depth, sizes, mode.name, free)
    limits = plan_limits(boot, loaded, free, captures.reserved_bytes)
    shapes = draft_shapes(boot.speculation)
    return Design(boot, loaded, attention, mode, shapes, sizes, depth, captures, limits)


def _wire(design: Design, clock: Callable[[], float], progress: bool) -> ModelContext:
    """Allocate the caches and tables, capture graphs, and put the parts together."""
    loaded, limits, attention = design.loaded, design.limits, design.attention
    table = RequestTable(
        slots=limits.max_running + 1,
        width=limits.longest_sequence + limits.reserve_tokens + 1,
        pages_per_slot=limits.pages_per_sequence,
        page_size=limits.page_size,
        device=loaded.device,
    )
    ops = attention.target.backend
    vocab = loaded.target.config.vocab_size
    sampler = Sampler(limits.max_running + 1, vocab, loaded.device, ops)
    pool = _pool(loaded, limits, attention)
    running, widest = limits.max_running, DraftLimits.over(design.shapes.values())
    functions: dict[ForwardKind, ForwardFunction] = {
        ForwardKind.VERIFY: TargetForward(loaded.target, pool, loaded.aux_spec)
    }
    if loaded.draft is not None:
        assert attention.draft is not None
        draft_pool = loaded.draft.make_pool(limits, loaded.kv_dtype, attention.draft.backend)
        functions |= loaded.draft.make_passes(draft_pool, running, widest)
    graphs = make_graphs(design.captures, functions, loaded, limits, clock)
    drafter = None
    if loaded.draft is not None:
        drafter = loaded.draft.make_drafter(draft_pool, table, sampler, graphs, running, widest)
    capture_all(graphs, design.boot.graphs.mode, progress)
    return ModelContext(ops, loaded.target, pool, table, sampler, graphs, drafter, loaded.aux_spec)


def _weigh(
    design: Design, parts: ModelContext, clock: Callable[[], float], progress: bool
) -> AdaptivePolicy:
    """Return the policy; goodput gets the measured cost of steps on this machine."""
    speculation, depth = design.boot.speculation, design.depth
    if speculation.policy is not Policy.GOODPUT or parts.drafter is None:
        return depth
    costs = profile_rounds(
        parts, design.limits, design.shapes, depth, speculation.profile_seconds, clock, progress
    )
    parts.graphs.reset_counts()
    return make_policy(speculation, depth.table, design.captured_sizes, costs)


def _facts(design: Design, graphs: GraphReport) -> dict[str, object]:
    loaded, limits = design.loaded, design.limits
    return {
        "device": str(loaded.device),
        "device_name": device_name(loaded.device),
        "dtype": str(loaded.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(loaded.kv_dtype).removeprefix("torch."),
        **design.attention.facts(),
        **loaded.linears.facts(),
        **_missing_kernels(loaded),
        "threads": torch.get_num_threads(),
        "max_draft_tokens": limits.max_draft_tokens,
        "kv_pages": limits.pages,
        "longest_sequence": limits.longest_sequence,
        "overlap": limits.lag_tokens > 0,
        "graphs": graphs.mode,
        "graphs_reason": graphs.failure or design.mode.reason,
        "captured_pairs": graphs.pairs,
    }


def _missing_kernels(loaded: Loaded) -> dict[str, object]:
    """Return why the C kernels do not run, for a data type that they support."""
    if loaded.device.type != "cpu" or loaded.dtype not in cpu.TYPES:
        return {}
    why = cpu.unsupported_reason(loaded.dtype)
    return {} if why is None else {"cpu_kernels_missing": why}


def _refuse_unavailable(speculation: SpeculationBoot) -> None:
    reasons = not_yet_available(speculation.algorithm, speculation.policy, speculation.topk)
    if reasons:
        raise CannotServe("speculation: " + "; ".join(reasons))


def _load(boot: EngineBoot, progress: bool, open_store: OpenStore) -> Loaded:
    check_fit(boot)
    device = choose_device(boot.device)
    wanted = boot.model.dtype
    # A CPU computes 16-bit floats slowly: auto means float32.
    is_float32 = wanted == "auto" and device.type == "cpu"
    folder = Path(boot.model.path)
    dtype = torch.float32 if is_float32 else _DTYPES.get(wanted)
    dtype = dtype or stored_dtype(folder, open_store)
    kernels = choose_target_backend(boot, device, dtype)
    linears = Linears.of(kernels)
    target = Llama.load(
        folder,
        dtype=dtype,
        device=device,
        context_length=boot.model.context_length,
        progress=progress,
        open_store=open_store,
        linears=linears,
    )
    trained = target.config.rope.trained_positions
    if target.context_length > trained:
        raise CannotServe(
            f"model.context_length {target.context_length} is more than the {trained} positions "
            f"that {boot.model.path} was trained for; lower it"
        )
    draft = load_draft(boot, target, device, progress, open_store, linears)
    kept = linears.report()
    log.info("linear maps: %s (%s)", kept.name, kept.reason)
    return Loaded(target, draft, device, target.dtype, kv_dtype(boot, target.dtype), kept, kernels)


def _pool(loaded: Loaded, limits: Limits, attention: KernelChoices) -> KVCache:
    config = loaded.target.config
    return KVCache(
        layers=config.num_hidden_layers,
        pages=limits.pages,
        page_size=limits.page_size,
        kv_heads=config.decoder.num_key_value_heads,
        head_dim=config.decoder.head_dim,
        dtype=loaded.kv_dtype,
        device=loaded.device,
        ops=attention.target.backend,
    )
