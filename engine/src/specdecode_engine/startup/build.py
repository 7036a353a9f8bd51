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
from specdecode_engine.graphs.plan import GraphReport
from specdecode_engine.model.checkpoint import OpenStore
from specdecode_engine.model.config import NO_HIDDEN_STATES
from specdecode_engine.model.forward import (
    DecodeForward,
    DecodeFunction,
    TargetForward,
    VerifyLayout,
)
from specdecode_engine.model.implementations import implementation_of
from specdecode_engine.model.kv_cache import KVCache, WindowPool
from specdecode_engine.model.language_model import LanguageModel
from specdecode_engine.model.routed_experts import RoutedExperts, RoutedShape
from specdecode_engine.sampling.sampler import Sampler
from specdecode_engine.schedule.drafting import Drafting
from specdecode_engine.schedule.prefix_cache import PrefixCache
from specdecode_engine.schedule.scheduler import Limits, Scheduler
from specdecode_engine.speculate.ngram.proposer import FullProposer
from specdecode_engine.startup.config import (
    CUDA,
    OFF,
    CannotServe,
    EngineConfig,
    resolve,
)
from specdecode_engine.startup.device import (
    available_bytes,
    default_threads,
    device_name,
    keep_to,
)
from specdecode_engine.startup.draft_methods.registry import draft_facts
from specdecode_engine.startup.draft_staging import DraftStaging
from specdecode_engine.startup.graph_config import (
    GraphConfig,
    capture_all,
    make_graphs,
    plan_graphs,
)
from specdecode_engine.startup.kernels import compile_kernels, watch_compiles
from specdecode_engine.startup.memory import plan_limits
from specdecode_engine.startup.models import LoadedModels, load_models
from specdecode_engine.startup.profiling import profile_steps
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.timing import Stopwatch
from specdecode_kernels import cpu
from specdecode_kernels.choice import DRAFT_FORWARDS, TARGET_FORWARDS

log = logging.getLogger(__name__)


def build_core(
    boot: EngineBoot,
    *,
    progress: bool = False,
    clock: Callable[[], float] = time.monotonic,
    open_store: OpenStore | None = None,
    on_weights: Callable[[], None] = lambda: None,
) -> EngineCore:
    """Resolve the boot file and build an engine core; see `resolve` and `build`."""
    config = resolve(boot, open_store)
    return build(
        config, progress=progress, clock=clock, open_store=open_store, on_weights=on_weights
    )


def build(
    config: EngineConfig,
    *,
    progress: bool = False,
    clock: Callable[[], float] = time.monotonic,
    open_store: OpenStore | None = None,
    on_weights: Callable[[], None] = lambda: None,
    tests_draft: bool = True,
) -> EngineCore:
    """Load the checkpoints and wire an engine core.

    Args:
        progress: show bars while loading.
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
    boot = config.boot
    use_threads(boot)
    _log_choices(config)
    models = load_models(config, progress, open_store)
    on_weights()
    free = available_bytes(config.device)
    policy = config.make_policy()
    graph_config = plan_graphs(config, policy, free)
    routed = _routed_shape(config, models.target)
    limits = plan_limits(
        config,
        *models.weight_bytes,
        free,
        graph_config.reserved_bytes,
        routed_token_bytes=0 if routed is None else routed.token_bytes,
        exchange_bytes=models.exchange_bytes if config.device.type == "cpu" else 0,
    )
    limits = replace(limits, rotary_limits=models.rotary_limits)
    context = _wire(config, models, limits, graph_config, routed, clock)
    compile_kernels(config, progress=progress)
    capture_all(context.graphs, boot.graphs.mode, progress)
    policy = _with_measured_costs(config, context, limits, policy, clock, progress)
    watch_compiles(config)
    core = EngineCore(
        context,
        _scheduler(config, limits, policy, context, tests_draft),
        config.sizes.shapes,
        frozenset(config.target.eos_token_ids),
        Stopwatch(config.device, clock),
        _facts(config, models, limits, routed, context.graphs.report()),
    )
    exchange = core.begin_draft_exchange, core.finish_draft_exchange
    core.stage_draft = DraftStaging(config, models, open_store, *exchange)
    core.most_draft_steps = config.most_draft_steps
    return core


def use_threads(boot: EngineBoot) -> None:
    """Set the number of threads, and pin this one to the configured processors."""
    threads = default_threads() if boot.cpu_affinity is None else keep_to(boot.cpu_affinity)
    processors = len(os.sched_getaffinity(0))
    if boot.threads is not None and boot.threads > processors:
        log.warning(
            "threads is %d, and the engine may use %d processors: threads that wait for each other "
            "slow every step down; lower it (--threads, engine.threads) or leave it out",
            boot.threads,
            processors,
        )
    torch.set_num_threads(boot.threads or threads)


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
    for name, model in (("target", config.target), ("draft", config.draft)):
        quantization = model and model.quantization
        if quantization:
            dtype = config.dtype
            log.info(
                "checkpoint of the %s: %s, computed in %s", name, quantization.description, dtype
            )
            for what in quantization.unused:
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
    pool = KVCache(
        config.target.layer_map,
        pages=limits.pages,
        page_size=limits.page_size,
        dtype=config.kv_dtype,
        device=config.device,
        ops=ops,
        windows=windows,
    )
    rows, routed = limits.pages * limits.page_size, None
    if routed_shape is not None:
        routed = RoutedExperts(models.target, routed_shape, rows, limits.page_size)
    verify = TargetForward(models.target, pool, config.aux_spec, routed)
    rotary = RotaryOffsets(models.target.rotary_limits, table.num_rows, config.device)
    functions = _target_forwards(verify, VerifyLayout(table, rotary))
    wiring = None
    if config.draft_plan is not None and models.draft is not None:
        wiring = config.method.wire(config.draft_plan, models.draft, limits, table, pool)
        functions |= wiring.functions
    graphs = make_graphs(
        graph_config, functions, limits.pages_per_sequence, config.device, ops, clock
    )
    drafter = None if wiring is None else wiring.make(sampler, graphs)
    return ModelContext(
        ops,
        models.target,
        pool,
        table,
        rotary,
        sampler,
        graphs,
        drafter,
        config.aux_spec,
        config.text_method.make_proposer(config.boot),
        routed,
        _draft_sources(config),
    )


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
    progress: bool,
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


def _facts(
    config: EngineConfig,
    models: LoadedModels,
    limits: Limits,
    routed: RoutedShape | None,
    graphs: GraphReport,
) -> dict[str, object]:
    fallback, kernels = config.boot.speculation.fallback, dict[str, object]()
    for name, choice in config.kernels.items():
        kernels[f"{name}_attention"] = choice.backend.attention
        kernels[f"{name}_attention_reason"] = choice.reason
        forwards = TARGET_FORWARDS if name == "target" else DRAFT_FORWARDS
        in_graphs = graphs.mode == CUDA and not graphs.failure
        by_forward = choice.attention_by_forward(forwards, in_graphs=in_graphs)
        kernels[f"{name}_attention_by_forward"] = by_forward
    return {
        "device": str(config.device),
        "device_name": device_name(config.device),
        "model_implementation": implementation_of(config.target),
        **_skipped_tensors(models.target),
        **_quantizations(config),
        "model_quantization": config.boot.model.quantization,
        **draft_facts(config.boot, config.draft, config.target),
        "dtype": str(config.dtype).removeprefix("torch."),
        "kv_cache_dtype": str(config.kv_dtype).removeprefix("torch."),
        **kernels,
        **models.linears.facts(),
        **_cpu_kernels(config),
        "threads": torch.get_num_threads(),
        **({} if fallback is None else {"fallback": str(fallback)}),
        "num_steps_at_start": config.boot.speculation.num_steps,
        "max_draft_tokens": limits.max_draft_tokens,
        "kv_pages": limits.pages,
        "kv_window_pages": limits.window_pages,
        "kv_cache_bytes": limits.kv_bytes,
        **({} if routed is None else {"routed_experts": routed.facts()}),
        "longest_sequence": limits.longest_sequence,
        "overlap": limits.lag_tokens > 0,
        "graphs": OFF if graphs.failure and not graphs.pairs else graphs.mode,
        "graphs_reason": graphs.failure or config.graph_mode.reason,
        "captured_pairs": graphs.pairs,
    }


def _quantizations(config: EngineConfig) -> dict[str, object]:
    """Return the formats in which weights are stored."""
    parts = (("quantization", config.target), ("draft_quantization", config.draft))
    found = {name: model and model.quantization for name, model in parts}
    return {name: one.description for name, one in found.items() if one}


def _skipped_tensors(target: LanguageModel) -> dict[str, object]:
    """Return how many tensors of other kinds of input the checkpoint has."""
    names = target.skipped_tensors
    return {"skipped_tensors": len(names)} if names else {}


def _cpu_kernels(config: EngineConfig) -> dict[str, object]:
    """Return which C kernels run and how they are tuned, or why none do, for a type of theirs."""
    if config.device.type != "cpu":
        return {}
    numerics: dict[str, object] = {"cpu_numerics": cpu.numerics(config.dtype)}
    if config.dtype not in cpu.TYPES:
        return numerics
    why = cpu.unsupported_reason(config.dtype)
    if why is not None:
        return numerics | {"cpu_kernels_missing": why}
    return numerics | {"cpu_kernel_tuning": cpu.tuning_facts(config.dtype)}
