"""The one place that chooses and wires the parts of an engine."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import torch

from specdecode_api.boot import EngineBoot, SpeculationBoot
from specdecode_api.report import Reason
from specdecode_api.speculation import Policy, not_yet_available
from specdecode_engine.attention import Attention, check_attention, choose_attention
from specdecode_engine.captures import (
    Captures,
    Mode,
    capture_all,
    captured_sizes,
    check_mode,
    choose_mode,
    make_states,
    plan_captures,
)
from specdecode_engine.depth.decision import DepthPolicy
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.drafters import DraftLimits, check_fit, load_draft
from specdecode_engine.forward.checkpoint import Checkpoint, OpenStore
from specdecode_engine.forward.kv_pool import KvPool
from specdecode_engine.forward.linears import Linears
from specdecode_engine.forward.llama import Llama
from specdecode_engine.forward.model_config import LlamaConfig
from specdecode_engine.forward.passes import PassFunction
from specdecode_engine.forward.target_pass import TargetPass
from specdecode_engine.graph_plan.passes import PassKind
from specdecode_engine.graph_plan.report import GraphReport
from specdecode_engine.host import (
    available_bytes,
    choose_device,
    default_threads,
    device_name,
    keep_to,
)
from specdecode_engine.loop import EngineCore
from specdecode_engine.policies import depth_table, make_policy
from specdecode_engine.profiling import profile_rounds
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.timing import Stopwatch
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.sizes import Loaded, draft_shapes, kv_dtype, plan_limits
from specdecode_engine.slots import SlotTable
from specdecode_engine.table_file import load_table
from specdecode_kernels import native

log = logging.getLogger(__name__)

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
}


class CannotServe(Exception):
    """The boot file asks for something that this engine cannot do; the message says what."""

    reason: ClassVar[Reason] = Reason.CANNOT_SERVE


def build_core(
    boot: EngineBoot,
    *,
    progress: bool = False,
    poison: bool = False,
    pool_tokens: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    open_store: OpenStore = Checkpoint.open,
) -> EngineCore:
    """Load the checkpoints and wire an engine core.

    Args:
        progress: show bars while loading.
        poison: fill unwritten KV with NaN, so that a read of it shows; for tests.
        pool_tokens: give the cache just the pages for one request of this many tokens; for tests.
        clock: seconds, monotonic.
        open_store: where the tensors of target and STANDALONE draft come from; for benchmarks of
            sizes that nobody wants to store.

    Raises:
        AttentionUnavailable, BadTable, CannotServe, CheckpointError, GraphsUnavailable,
        NotEnoughMemory, RuntimeError: with what to change.
    """
    design = _design(boot, progress, pool_tokens, open_store)
    parts = _wire(design, poison, clock, progress)
    depth = _weigh(design, parts, clock, progress)
    limits, drafter = design.limits, parts.drafter
    lookahead = drafter.lookahead if drafter else 0
    cache = PrefixCache(limits.page_size, lookahead, is_on=boot.memory.prefix_cache)
    scheduler = Scheduler(limits, depth, cache)
    eos = frozenset(design.loaded.target.config.eos_token_ids)
    stopwatch = Stopwatch(design.loaded.device, clock)
    facts = _facts(design, parts.states.report())
    return EngineCore(parts, scheduler, design.shapes, eos, stopwatch, facts)


@dataclass(frozen=True, slots=True)
class Design:
    """Everything that is decided before anything but the weights is allocated."""

    boot: EngineBoot  # its table read
    loaded: Loaded
    attention: Attention
    mode: Mode
    shapes: dict[int, DraftShape]
    captured_sizes: tuple[int, ...]
    depth: DepthPolicy
    captures: Captures
    limits: Limits


def _design(
    boot: EngineBoot, progress: bool, pool_tokens: int | None, open_store: OpenStore
) -> Design:
    _refuse_unavailable(boot.speculation)
    boot = boot.model_copy(update={"speculation": _with_table(boot.speculation)})
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
    limits = plan_limits(boot, loaded, pool_tokens, free, captures.num_bytes)
    shapes = draft_shapes(boot.speculation)
    return Design(boot, loaded, attention, mode, shapes, sizes, depth, captures, limits)


def _wire(design: Design, poison: bool, clock: Callable[[], float], progress: bool) -> Parts:
    """Allocate the caches and tables, capture the passes, and put the parts together."""
    loaded, limits, attention = design.loaded, design.limits, design.attention
    table = SlotTable(
        slots=limits.max_running + 1,
        width=limits.longest_sequence + limits.reserve_tokens + 1,
        pages_per_slot=limits.pages_per_sequence,
        page_size=limits.page_size,
        device=loaded.device,
    )
    sampler = Sampler(limits.max_running + 1, loaded.target.config.vocab_size, loaded.device)
    pool = _pool(loaded, limits, attention, poison)
    running, widest = limits.max_running, DraftLimits.over(design.shapes.values())
    functions: dict[PassKind, PassFunction] = {
        PassKind.VERIFY: TargetPass(loaded.target, pool, loaded.capture)
    }
    if loaded.draft is not None:
        assert attention.draft is not None
        draft_pool = loaded.draft.make_pool(
            limits, loaded.kv_dtype, attention.draft.backend, poison
        )
        functions |= loaded.draft.make_passes(draft_pool, running, widest)
    states = make_states(design.captures, functions, design.shapes, loaded, limits, clock)
    drafter = None
    if loaded.draft is not None:
        drafter = loaded.draft.make_drafter(draft_pool, table, sampler, states, running, widest)
    capture_all(states, progress)
    return Parts(loaded.target, pool, table, sampler, states, drafter)


def _weigh(design: Design, parts: Parts, clock: Callable[[], float], progress: bool) -> DepthPolicy:
    """Give policy goodput what rounds cost here; the others do not ask."""
    speculation, depth = design.boot.speculation, design.depth
    if speculation.policy is not Policy.GOODPUT or parts.drafter is None:
        return depth
    costs = profile_rounds(
        parts, design.limits, design.shapes, depth, speculation.profile_seconds, clock, progress
    )
    parts.states.forget_rounds()
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
        "graphs_reason": design.mode.reason,
        "captured_pairs": graphs.pairs,
    }


def _missing_kernels(loaded: Loaded) -> dict[str, object]:
    """Say why a type that has kernels for a CPU runs without them."""
    if loaded.device.type != "cpu" or loaded.dtype not in native.TYPES:
        return {}
    why = native.obstacle(loaded.dtype)
    return {} if why is None else {"cpu_kernels_missing": why}


def _with_table(speculation: SpeculationBoot) -> SpeculationBoot:
    """Read the table once, so that sizes, shapes and policy follow from the same one."""
    table = load_table(speculation)
    for said in table.warnings:
        log.warning("speculation table: %s", said)
    return speculation.with_table(table.entries)


def _refuse_unavailable(speculation: SpeculationBoot) -> None:
    reasons = not_yet_available(speculation.algorithm, speculation.policy, speculation.topk)
    if reasons:
        raise CannotServe("speculation: " + "; ".join(reasons))


def _load(boot: EngineBoot, progress: bool, open_store: OpenStore) -> Loaded:
    check_fit(boot)
    device = choose_device(boot.device)
    wanted = boot.model.dtype
    # A CPU computes half-width floats slowly and nothing is saved there: auto means float32.
    is_float32 = wanted == "auto" and device.type == "cpu"
    dtype = torch.float32 if is_float32 else _DTYPES.get(wanted)
    check_attention(boot, device, dtype)
    linears = _choose_linears(boot, device, dtype)
    target = Llama.load(
        Path(boot.model.path),
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
    return Loaded(target, draft, device, target.dtype, kv_dtype(boot, target.dtype), kept)


def _choose_linears(boot: EngineBoot, device: torch.device, dtype: torch.dtype | None) -> Linears:
    """Choose by the type that weights will have; without any word on it they are not packed."""
    known = dtype or LlamaConfig.load(Path(boot.model.path)).dtype
    return Linears() if known is None else Linears.choose(device, known)


def _pool(loaded: Loaded, limits: Limits, attention: Attention, poison: bool) -> KvPool:
    config = loaded.target.config
    return KvPool(
        layers=config.num_hidden_layers,
        pages=limits.pages,
        page_size=limits.page_size,
        kv_heads=config.decoder.num_key_value_heads,
        head_dim=config.decoder.head_dim,
        dtype=loaded.kv_dtype,
        device=loaded.device,
        attention=attention.target.backend,
        poison=poison,
    )
