"""The part `spec.engine.config`: a merge patch of the boot file, for what has no field of its own.

It reaches every setting of an engine. The boot file's schema checks it; settings that the custom
resource has a field for, or that the operator decides, are refused with the field to use.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from pydantic import ValidationError

from specdecode_api.boot import EngineBoot
from specdecode_api.validation_errors import validation_errors
from specdecode_operator.objects.merge_patch import merge_patch
from specdecode_operator.objects.resource import ResourceError

PLACE: Final = "engine.config"

_OPERATORS: Final = "it is set by the operator"

OWNED: Final[Mapping[tuple[str, ...], str]] = {
    ("version",): _OPERATORS,
    ("config_hash",): _OPERATORS,
    ("model", "path"): "use model.uri",
    ("model", "served_name"): "use model.servedName",
    ("model", "dtype"): "use model.dtype",
    ("model", "quantization"): "use model.quantization",
    ("model", "sum_order"): "use model.sumOrder",
    ("model", "context_length"): "use model.contextLength",
    ("speculation", "algorithm"): "use speculation.algorithm",
    ("speculation", "draft_path"): "use speculation.draft.uri",
    ("speculation", "topk"): "use speculation.topk",
    ("speculation", "num_steps"): "use speculation.numSteps",
    ("speculation", "num_draft_tokens"): "use speculation.numDraftTokens",
    ("speculation", "fallback"): "use speculation.fallback",
    ("speculation", "ngram"): "use speculation.ngram",
    ("speculation", "policy"): "use speculation.adaptive.policy",
    ("speculation", "objective"): "use speculation.adaptive.objective",
    ("speculation", "max_inter_token_ms"): "use speculation.adaptive.maxInterTokenMs",
    ("speculation", "table"): "use speculation.adaptive.batchSizes",
    ("speculation", "table_path"): "use speculation.adaptive.batchSizes",
    ("speculation", "tuned"): _OPERATORS,
    ("memory", "page_size"): "use pageSize",
    ("memory", "kv_cache_bytes"): "use engine.kvCache.size",
    ("memory", "kv_cache_fraction"): "use engine.kvCache.memoryFraction",
    ("memory", "kv_cache_dtype"): "use engine.kvCache.dtype",
    ("memory", "prefix_cache"): "use engine.kvCache.prefixCaching",
    ("graphs", "mode"): "use engine.graphs.mode",
    ("graphs", "batch_sizes"): "use engine.graphs.batchSizes",
    ("graphs", "max_bytes"): "use engine.graphs.memory",
    ("graphs", "max_seconds"): "use engine.graphs.captureTimeout",
    ("scheduling", "max_running_requests"): "use engine.scheduler.maxRunningRequests",
    ("scheduling", "max_queued_requests"): "use engine.scheduler.maxQueuedRequests",
    ("scheduling", "chunked_prefill_tokens"): "use engine.scheduler.chunkedPrefillTokens",
    ("scheduling", "overlap"): "use engine.overlap",
    ("server", "host"): _OPERATORS,
    ("server", "port"): _OPERATORS,
    ("server", "management_port"): _OPERATORS,
    ("server", "management_host"): _OPERATORS,
    ("server", "drain_socket"): _OPERATORS,
    ("server", "drain_seconds"): "use lifecycle.drainTimeout",
    ("server", "step_timeout_seconds"): "use lifecycle.stepTimeout",
    ("server", "api_key_path"): "use serving.apiKeys",
    ("server", "router_token_path"): _OPERATORS,
    ("server", "owner"): _OPERATORS,
    ("server", "request_labels"): "use serving.requestLabels",
    ("server", "cors_origins"): "use serving.corsOrigins",
    ("server", "page"): "use serving.page",
    ("server", "response_store_bytes"): "use serving.responses.store",
    ("server", "tracing_endpoint"): "use serving.tracing.endpoint",
    ("server", "tool_parser"): "use serving.toolParser",
    ("server", "reasoning_parser"): "use serving.reasoningParser",
    ("parallelism", "tensor"): "use parallelism.tensor",
    ("device",): "use engine.device",
    ("attention_backend",): "use engine.attentionBackend",
    ("threads",): "use engine.threads",
}
"""Settings of the boot file that a patch may not contain, each with the remedy."""


def with_config(boot: EngineBoot, config: Mapping[str, Any]) -> EngineBoot:
    """Return the boot file with a merge patch (RFC 7386); null restores a default.

    Raises:
        ResourceError: with every error: path, value and remedy.
    """
    if not config:
        return boot
    if refused := tuple(_refusals(config, ())):
        raise ResourceError(*refused)
    try:
        return EngineBoot.model_validate(merge_patch(boot.model_dump(mode="json"), config))
    except ValidationError as error:
        sentences = validation_errors(error, EngineBoot)
        raise ResourceError(*(f"{PLACE}.{each}" for each in sentences)) from None


def _refusals(config: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for name, value in config.items():
        inner = (*path, str(name))
        if inner in OWNED:
            yield f"{PLACE}.{'.'.join(inner)}: cannot be set here; {OWNED[inner]}"
        elif isinstance(value, Mapping):
            yield from _refusals(value, inner)
        elif value is None and any(path[: len(inner)] == inner for path in OWNED):
            yield (
                f"{PLACE}.{'.'.join(inner)}: null also resets settings that cannot be set here; "
                "set the setting itself to null"
            )
