"""Builds an engine: loads its checkpoints, plans its memory and wires its context."""

import logging
import math
import os
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import Policy
from specdecode_engine.adaptive.draft_health import DraftHealth
from specdecode_engine.adaptive.draft_rest import DraftRest
from specdecode_engine.adaptive.draft_source import DraftSources
from specdecode_engine.adaptive.policy import AdaptivePolicy
from specdecode_engine.batch.request_table import RequestTable
from specdecode_engine.batch.rotary_tables import RotaryOffsets
from specdecode_engine.batch.shapes import ForwardKind
from specdecode_engine.batch.staging import StagingBuffer
from specdecode_engine.engine import EngineCore
from specdecode_engine.model.adapters.pool import AdapterPool
from specdecode_engine.model.checkpoint.checkpoint import OpenStore
from specdecode_engine.model.checkpoint.quantized.weight import KV_CACHE
from specdecode_engine.model.forward import (
    DecodeForward,
    DecodeFunction,
    TargetForward,
    VerifyLayout,
)
from specdecode_engine.model.kv.delta_states import DeltaStates
from specdecode_engine.model.kv.kv_cache import KVCache, WindowPool
from specdecode_engine.model.routed_experts import RoutedExperts, RoutedShape
from specdecode_engine.model.target.config import NO_HIDDEN_STATES
from specdecode_engine.model.target.language_model import LanguageModel
from specdecode_engine.process.start_progress import ShowProgress
from specdecode_engine.ranks import ALONE, Ranks, shared_clock
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.limits import Limits
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.speculate.ngram.proposer import FullProposer
from specdecode_engine.startup.adapter_changes import AdapterChanges
from specdecode_engine.startup.config import CannotServe, EngineConfig, resolve
from specdecode_engine.startup.device import available_bytes, default_threads, keep_to, total_bytes
from specdecode_engine.startup.draft_methods.registry import draft_facts
from specdecode_engine.startup.draft_staging import DraftStaging
from specdecode_engine.startup.facts import gather_facts
from specdecode_engine.startup.graph_config import (
    GraphConfig,
    capture_all,
    make_graphs,
    plan_graphs,
)
from specdecode_engine.startup.kernels import compile_kernels, watch_compiles
from specdecode_engine.startup.memory import DeviceMemory, plan_limits
from specdecode_engine.startup.models import LoadedModels, load_models
from specdecode_engine.startup.profiling import profile_steps
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.timing import Stopwatch
from specdecode_kernels import FLOAT8

log = logging.getLogger(__name__)


def build_core(
    boot: EngineBoot,
    *,
    progress: ShowProgress | None = None,
    clock: Callable[[], float] = time.monotonic,
    open_store: OpenStore | None = None,
    on_weights: Callable[[], None] = lambda: None,
    ranks: Ranks = ALONE,
) -> EngineCore:
    """Resolve the boot file and build an engine core; see `resolve` and `build`."""
    config = resolve(boot, open_store, ranks)
    return build(
        config, progress=progress, clock=clock, open_store=open_store, on_weights=on_weights
    )


def build(
    config: EngineConfig,
    *,
    progress: ShowProgress | None = None,
    clock: Callable[[], float] = time.monotonic,
    open_store: OpenStore | None = None,
    on_weights: Callable[[], None] = lambda: None,
    tests_draft: bool = True,
) -> EngineCore:
    """Load the checkpoints and wire an engine core.

    Args:
        progress: is called with what is loaded, captured and measured; None shows no bars.
        clock: seconds, monotonic.
        open_store: opens the tensors of the target and of a STANDALONE draft; benchmarks replace
            it for models that are not stored.
        on_weights: called when all weights are loaded, before steps are timed.
        tests_draft: whether a draft that does not fit the target is detected; tests and benchmarks
            draft with random weights.

    Raises:
        CheckpointError, GraphsUnavailable, NotEnoughMemory, RuntimeError: the message contains the
            remedy.
    """
    use_threads(config.boot, config.ranks.size)
    _log_choices(config)
    device = DeviceMemory(
        *(_share_of_rank(config, each) for each in (total_bytes, available_bytes))
    )
    models = load_models(config, progress, open_store)
    on_weights()
    free, policy = _share_of_rank(config, available_bytes), config.make_policy()
    graph_config = plan_graphs(config, policy, free)
    routed = _routed_shape(config, models.target)
    limits = _plan_limits(config, models, free, graph_config, routed, device)
    limits = replace(limits, rotary_limits=models.rotary_limits)
    now = shared_clock(config.ranks, clock)
    context = _wire(config, models, limits, graph_config, routed, now)
    compile_kernels(config, progress=progress)
    capture_all(context.graphs, config.boot.graphs.mode, progress)
    policy = _with_measured_costs(config, context, limits, policy, clock, progress)
    watch_compiles(config)
    core = EngineCore(
        context,
        _scheduler(config, limits, policy, context, tests_draft),
        config.sizes.shapes,
        frozenset(config.target.eos_token_ids),
        Stopwatch(config.device, clock, ranks=config.ranks),
        gather_facts(config, models, limits, routed, context.graphs.report()),
    )
    exchange = core.begin_draft_exchange, core.finish_draft_exchange
    core.stage_draft = DraftStaging(config, models, open_store, *exchange)
    core.most_draft_steps = config.most_draft_steps
    if models.adapters is not None:
        core.scheduler.adapter_digests = models.adapters.digests
        core.change_adapters = AdapterChanges(models.adapters, core.scheduler)
    return core


def _plan_limits(
    config: EngineConfig,
    models: LoadedModels,
    free: int,
    graph_config: GraphConfig,
    routed: RoutedShape | None,
    device: DeviceMemory,
) -> Limits:
    """Fit the KV cache into what the loaded models leave."""
    return plan_limits(
        config,
        *models.weight_bytes,
        free,
        graph_config.reserved_bytes,
        routed_token_bytes=0 if routed is None else routed.token_bytes,
        exchange_bytes=models.exchange_bytes if config.exchanges_drafts_on_cpu else 0,
        device=device,
    )


def use_threads(boot: EngineBoot, processes: int = 1) -> None:
    """Set the number of threads, and pin this one to the configured processors.

    Args:
        processes: that share the processors.
    """
    threads = (
        default_threads(processes) if boot.cpu_affinity is None else keep_to(boot.cpu_affinity)
    )
    processors = len(os.sched_getaffinity(0))
    if boot.threads is not None and boot.threads > processors:
        log.warning(
            "threads is %d, and the engine may use %d processors: threads that wait for each other "
            "slow every step down; lower it (--threads, engine.threads) or leave it out",
            boot.threads,
            processors,
        )
    torch.set_num_threads(boot.threads or threads)


def _share_of_rank(config: EngineConfig, measure: Callable[[torch.device], int]) -> int:
    """Return the memory that each rank has at least; on a CPU they share one."""
    found = config.ranks.least(measure(config.device))
    return found // config.ranks.size if config.device.type == "cpu" else found


def _scheduler(
    config: EngineConfig,
    limits: Limits,
    policy: AdaptivePolicy,
    context: ModelContext,
    tests_draft: bool,
) -> Scheduler:
    """Make the scheduler; only a draft model can be one for another target, and is tested."""
    drafter = context.drafter
    lookahead = drafter.lookahead if drafter else 0
    cache = PrefixCache(limits.page_size, lookahead, is_on=config.boot.memory.prefix_cache)
    is_tested = tests_draft and config.draft is not None
    health = DraftHealth() if is_tested else None
    has_fallback = config.boot.speculation.fallback is not None
    kept = math.inf if config.aux_spec.is_empty else config.method.kept_rows
    # Rows of window pages that were given back cannot be computed any more.
    is_late = drafter is not None and drafter.computes_late and limits.window is None
    rest = DraftRest(kept, computes_late=is_late)
    drafting = Drafting(policy, health, rest, has_fallback=has_fallback)
    return Scheduler(limits, drafting, cache)


def _log_choices(config: EngineConfig) -> None:
    for name, choice in config.kernels.items():
        log.info("attention of the %s: %s (%s)", name, choice.backend.attention, choice.reason)
    log.info("graphs: %s, %s", config.graph_mode.name, config.graph_mode.reason)
    if config.device.type == "cpu":
        log.info("order of sums: %s", config.kernels["target"].backend.sum_order)
    for name, model in (("target", config.target), ("draft", config.draft)):
        quantization = model and model.quantization
        if quantization:
            dtype = config.dtype
            log.info(
                "checkpoint of the %s: %s, computed in %s", name, quantization.description, dtype
            )
            for what in quantization.unused:
                if config.kv_dtype != FLOAT8 or not what.startswith(KV_CACHE):
                    log.info("quantization of %s of the %s is not applied", what, name)
    if warning := draft_facts(config.boot, config.draft, config.target).get("draft_warning"):
        log.warning("%s", warning)


def _wire(
    config: EngineConfig,
    models: LoadedModels,
    limits: Limits,
    graph_config: GraphConfig,
    routed_shape: RoutedShape | None,
    clock: Callable[[], float],
) -> ModelContext:
    """Allocate caches, tables and the buffers of graphs, and put the parts together."""
    ops = config.kernels["target"].backend
    table = RequestTable(
        num_rows=limits.max_running + 1,
        width=limits.longest_sequence + limits.reserve_tokens + 1,
        pages_per_request=limits.pages_per_sequence,
        page_size=limits.page_size,
        staging=StagingBuffer(config.device),
        ops=ops,
        paged=0 if limits.window is None else limits.pages,
    )
    has_windows = limits.window is not None
    windows = WindowPool(table.window_pages, limits.window_pages) if has_windows else None
    sampler = Sampler(config.target.vocab_size, table.staging, ops, table.tokens_at)
    sampler.grammars.clock = clock
    pool = KVCache(
        config.target.layer_map,
        pages=limits.pages,
        page_size=limits.page_size,
        dtype=config.kv_dtype,
        device=config.device,
        ops=ops,
        scales=models.kv_scales,
        windows=windows,
    )
    verify = _target_forward(config, models, limits, table, pool, routed_shape)
    rotary = RotaryOffsets(models.target.rotary_limits, table.num_rows, config.device)
    functions = _target_forwards(verify, VerifyLayout(table, rotary))
    wiring = None
    if config.draft_plan is not None and models.draft is not None:
        wiring = config.method.wire(config.draft_plan, models.draft, limits, table, pool)
        functions |= wiring.functions
    pages = limits.pages_per_sequence
    graphs = make_graphs(graph_config, functions, pages, config.device, ops, clock, config.ranks)
    return ModelContext(
        ops,
        models.target,
        pool,
        table,
        rotary,
        sampler,
        graphs,
        None if wiring is None else wiring.make(sampler, graphs),
        config.aux_spec,
        config.text_method.make_proposer(config.boot),
        verify.routed,
        verify.states,
        config.ranks,
        _draft_sources(config),
        verify.adapters,
    )


def _target_forward(
    config: EngineConfig,
    models: LoadedModels,
    limits: Limits,
    table: RequestTable,
    pool: KVCache,
    routed_shape: RoutedShape | None,
) -> TargetForward:
    """Allocate what the forward of the target writes next to its keys and values."""
    return TargetForward(
        models.target,
        pool,
        config.aux_spec,
        _routed_experts(models.target, routed_shape, limits),
        _delta_states(config, models.target, limits, table),
        None if models.adapters is None else AdapterPool(models.adapters, table.num_rows),
    )


def _routed_experts(
    target: LanguageModel, shape: RoutedShape | None, limits: Limits
) -> RoutedExperts | None:
    """Allocate the ids of the experts of all cached tokens; None where they are not returned."""
    rows = limits.pages * limits.page_size
    return None if shape is None else RoutedExperts(target, shape, rows, limits.page_size)


def _delta_states(
    config: EngineConfig, target: LanguageModel, limits: Limits, table: RequestTable
) -> DeltaStates | None:
    """Allocate the states of the recurrent layers; None where there are none."""
    params = target.delta_params
    if params is None:
        return None
    sizes = table.num_rows, limits.cached_states or 0, limits.max_draft_tokens
    return DeltaStates(params, *sizes, config.dtype, config.kernels["target"].backend)


def _draft_sources(config: EngineConfig) -> DraftSources | None:
    if config.boot.speculation.fallback is None:
        return None
    return DraftSources(drafts_blocks=config.method.drafts_blocks)


def _target_forwards(
    verify: TargetForward, layout: VerifyLayout
) -> dict[ForwardKind, DecodeFunction]:
    plain = replace(verify, aux_spec=NO_HIDDEN_STATES)
    return {
        ForwardKind.VERIFY: DecodeForward(layout, verify),
        ForwardKind.PLAIN: DecodeForward(layout, plain),
    }


def _routed_shape(config: EngineConfig, target: LanguageModel) -> RoutedShape | None:
    """Return what is kept of the experts of each token; None where they are not returned."""
    if not config.boot.model.return_routed_experts:
        return None
    shape = RoutedShape.of(target)
    if shape is None:
        raise CannotServe(
            f"model.return_routed_experts is set, and {config.boot.model.path} has no layers with "
            "experts; set it to false, or leave out --enable-return-routed-experts"
        )
    return shape


def _with_measured_costs(
    config: EngineConfig,
    context: ModelContext,
    limits: Limits,
    policy: AdaptivePolicy,
    clock: Callable[[], float],
    progress: ShowProgress | None,
) -> AdaptivePolicy:
    """Return the policy; goodput gets the measured cost of steps on this machine."""
    speculation = config.boot.speculation
    has_draft = context.drafter is not None or context.proposer is not None
    if speculation.policy is not Policy.GOODPUT or not has_draft:
        return policy
    sources = context.sources
    if context.drafter is not None:
        context = replace(context, proposer=None, sources=None)
    elif context.proposer is not None:  # nothing would match in synthetic requests
        context = replace(context, proposer=FullProposer())
    seconds = speculation.profile_seconds
    costs = profile_steps(context, limits, config.sizes.shapes, policy, seconds, clock, progress)
    context.graphs.reset_counts()
    if sources is not None:
        sources.start_from(costs)
    return config.make_policy(costs)
