"""The boot file of a resource's engines."""

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from specdecode_api import names
from specdecode_api.boot import (
    AttentionBackendName,
    EngineBoot,
    GraphMode,
    GraphsBoot,
    MemoryBoot,
    ModelBoot,
    NgramBoot,
    ParallelismBoot,
    Quantization,
    ReasoningParserName,
    SchedulingBoot,
    ServerBoot,
    SpeculationBoot,
    SumOrderName,
    TableEntry,
    ToolParserName,
)
from specdecode_api.duration import duration_s
from specdecode_api.quantity import amount, whole_amount
from specdecode_api.speculation import Fallback, default_draft_tokens
from specdecode_api.v1alpha1 import Spec, Speculation
from specdecode_api.v1alpha1.ngram import NgramSpec
from specdecode_operator.owned import api_keys, router_token
from specdecode_operator.owned.engine_config import with_config
from specdecode_operator.owned.models import Mounts

_BACKENDS: Final[Mapping[str, AttentionBackendName]] = {
    "Auto": "auto",
    "Torch": "torch",
    "Triton": "triton",
    "FlashInfer": "flashinfer",
}
_GRAPH_MODES: Final[Mapping[str, GraphMode]] = {
    "Auto": "auto",
    "Cuda": "cuda",
    "Static": "static",
    "Eager": "off",
}
_QUANTIZATIONS: Final[Mapping[str, Quantization]] = {
    "Auto": "auto",
    "None": "none",
    "Int8": "int8",
    "Int4": "int4",
}
_SUM_ORDERS: Final[Mapping[str, SumOrderName]] = {
    "Auto": "auto",
    "Inputs": "inputs",
    "Blocks32": "blocks32",
}
_NOTHING: Mapping[str, TableEntry] = MappingProxyType({})


def boot_file(
    name: str, uid: str, spec: Spec, mounts: Mounts, tuned: Mapping[str, TableEntry] = _NOTHING
) -> EngineBoot:
    """Build the boot file from a spec and the learned table.

    Raises:
        ValueError: the contract rejects the combination.
        ResourceError: the contract rejects `engine.config`.
    """
    boot = EngineBoot(
        model=ModelBoot(
            path=mounts.target_path,
            served_name=spec.model.served_name or name,
            dtype=spec.model.dtype,
            quantization=_QUANTIZATIONS[spec.model.quantization],
            sum_order=_SUM_ORDERS[spec.model.sum_order],
            context_length=spec.model.context_length,
        ),
        speculation=_speculation(spec, mounts, tuned),
        memory=_memory(spec),
        graphs=_graphs(spec),
        scheduling=SchedulingBoot(
            **spec.engine.scheduler.model_dump(), overlap=spec.engine.overlap
        ),
        server=ServerBoot(
            management_port=names.MANAGEMENT_PORT,
            drain_seconds=duration_s(spec.lifecycle.drain_timeout),
            step_timeout_seconds=duration_s(spec.lifecycle.step_timeout),
            api_key_path=api_keys.path(spec),
            router_token_path=router_token.path(spec),
            # Known only to accounts that may read the custom resource or its boot file.
            owner=(uid or None) if spec.serving.api_keys else None,
            request_labels=tuple(spec.serving.request_labels),
            cors_origins=tuple(spec.serving.cors_origins),
            page=spec.serving.page or None,
            response_store_bytes=_response_store_bytes(spec),
            tracing_endpoint=spec.serving.tracing.endpoint if spec.serving.tracing else None,
            tool_parser=_tool_parser(spec),
            reasoning_parser=_reasoning_parser(spec),
        ),
        parallelism=ParallelismBoot(tensor=spec.parallelism.tensor),
        device="cpu" if spec.engine.device == "CPU" else "cuda",
        attention_backend=_BACKENDS[spec.engine.attention_backend],
        threads=threads(spec),
    )
    return with_config(boot, spec.engine.config)


def threads(spec: Spec) -> int | None:
    """Threads of each rank on a CPU: as configured, else its share of the CPU limit.

    An engine that starts a thread per CPU of the node but is limited to two CPUs is throttled.
    """
    if spec.engine.threads is not None:
        return spec.engine.threads
    limit = spec.resources.limits.get("cpu")
    if spec.engine.device != "CPU" or limit is None:
        return None
    return max(1, math.floor(amount(limit) / spec.parallelism.tensor))


def _response_store_bytes(spec: Spec) -> int | None:
    size = spec.serving.responses.store
    return None if size is None else whole_amount(size)


def _tool_parser(spec: Spec) -> ToolParserName:
    chosen = spec.serving.tool_parser
    if chosen == "Auto":
        return "auto"
    return "none" if chosen == "None" else chosen


def _reasoning_parser(spec: Spec) -> ReasoningParserName:
    chosen = spec.serving.reasoning_parser
    if chosen == "Auto":
        return "auto"
    return "none" if chosen == "None" else chosen


def _speculation(spec: Spec, mounts: Mounts, tuned: Mapping[str, TableEntry]) -> SpeculationBoot:
    wanted = spec.speculation
    return SpeculationBoot(
        algorithm=wanted.algorithm,
        draft_path=mounts.draft_path,
        topk=wanted.topk,
        num_steps=wanted.num_steps,
        num_draft_tokens=_num_draft_tokens(wanted),
        fallback=None if wanted.fallback is None else Fallback(wanted.fallback),
        ngram=_ngram(wanted.ngram),
        policy=wanted.adaptive.engine_policy,
        objective=wanted.adaptive.engine_objective,
        max_inter_token_ms=wanted.adaptive.max_inter_token_ms,
        table={
            bound: TableEntry(**entry.model_dump(exclude={"from_"}))
            for bound, entry in wanted.adaptive.table.items()
        },
        tuned=dict(tuned),
    )


def _num_draft_tokens(wanted: Speculation) -> int | None:
    """Return the nodes to verify at start; None if the engine derives them for its draft steps."""
    if wanted.num_draft_tokens is not None or not wanted.num_steps:
        return wanted.num_draft_tokens
    if wanted.adaptive.candidates(wanted.algorithm):
        return None
    return default_draft_tokens(wanted.topk, wanted.num_steps)


def _ngram(wanted: NgramSpec | None) -> NgramBoot:
    if wanted is None:
        return NgramBoot()
    fields = wanted.model_dump()
    return NgramBoot(**fields | {name: fields[name].lower() for name in ("source", "scope")})


def _memory(spec: Spec) -> MemoryBoot:
    cache = spec.engine.kv_cache
    fraction = cache.memory_fraction
    memory = MemoryBoot(
        page_size=spec.page_size,
        kv_cache_bytes=None if cache.size is None else whole_amount(cache.size),
        kv_cache_dtype=cache.dtype,
        prefix_cache=cache.prefix_caching,
    )
    if fraction is None:
        return memory
    return memory.model_copy(update={"kv_cache_fraction": float(fraction)})


def _graphs(spec: Spec) -> GraphsBoot:
    graphs = spec.engine.graphs
    return GraphsBoot(
        mode=_GRAPH_MODES[graphs.mode],
        batch_sizes=None if graphs.batch_sizes is None else tuple(graphs.batch_sizes),
        max_bytes=None if graphs.memory is None else whole_amount(graphs.memory),
        max_seconds=duration_s(graphs.capture_timeout),
    )
