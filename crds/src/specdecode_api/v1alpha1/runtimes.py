"""What each field of a resource is with another runtime: its translation, or why it is refused.

Rules of the API server, docs/runtimes.md and tests follow from these rows; every field of the
sections in `SECTIONS` has one.
"""

import re
from dataclasses import dataclass
from functools import reduce
from typing import Any, Final, Literal

from specdecode_api.rules import Rule, or_default

RuntimeName = Literal["Specdecode", "VLLM"]

SECTIONS: Final = (
    "model",
    "download",
    "pageSize",
    "speculation",
    "engine",
    "parallelism",
    "serving",
)
"""Parts of the spec that describe an engine."""

VLLM_VERSIONS: Final = ("0.32", "0.33")
"""Versions of vLLM that are supported."""

IS_VLLM: Final = f"{or_default('engine.runtime', 'Specdecode')} == 'VLLM'"


@dataclass(frozen=True, slots=True)
class RuntimeField:
    """A field with runtime VLLM.

    `accepts` are the values that are not refused; empty: every value is translated. An optional
    field is refused if it is there, one with a default if it has another value.
    """

    path: str
    becomes: str
    """What it is in vLLM's command line or in the pod; empty: nothing."""
    accepts: tuple[Any, ...] = ()
    default: Any = None
    reason: str = ""
    remedy: str = ""
    part: str = ""
    """A part around the field without which it has an accepted value instead of its default."""

    @property
    def is_refused(self) -> bool:
        """Whether some values are refused."""
        return bool(self.remedy)

    def rule(self) -> Rule[Any]:
        """The rule that refuses the field."""
        value = or_default(self.path, self.default)
        fits = f"!({_has(self.path)})" if self.default is None else self._is_accepted(value)
        if self.part:
            fits = f"!({_has(self.part)}) || {fits}"
        return Rule(
            cel=f"!({IS_VLLM}) || {fits}",
            holds=self._holds,
            message=f"runtime VLLM and {self.path}: {self.reason}; {self.remedy}",
            field=self.path.partition(".")[0],
            reason="FieldValueForbidden",
        )

    def _is_accepted(self, value: str) -> str:
        texts = ", ".join(map(_literal, self.accepts))
        return f"{value} in [{texts}]"

    def _holds(self, spec: Any) -> bool:
        if spec.engine.runtime != "VLLM":
            return True
        found = reduce(_part, self.path.split("."), spec)
        if self.default is None:
            return found is None
        return (self.default if found is None else found) in self.accepts


def _part(value: Any, name: str) -> Any:
    snake = re.sub("([A-Z])", r"_\1", name).lower()
    return None if value is None else getattr(value, snake)


def _has(path: str) -> str:
    parts = path.split(".")
    places = (f"self.{'.'.join(parts[:count])}" for count in range(1, len(parts) + 1))
    return " && ".join(f"has({place})" for place in places)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"'{value}'" if isinstance(value, str) else repr(value)


def _refused(
    path: str,
    reason: str,
    remedy: str,
    *accepts: Any,
    default: Any = None,
    becomes: str = "",
    part: str = "",
) -> RuntimeField:
    return RuntimeField(path, becomes, accepts, default, reason, remedy, part)


_TRIE: Final = "vLLM has no trie"
_NO_TRIE: Final = "remove it, or use source Prompt or Suffix"
_EMA: Final = "of policy Ema, which is refused"

VLLM_FIELDS: Final = (
    RuntimeField("model.uri", "the model; of hf://, which vLLM downloads, also `--revision`"),
    RuntimeField("model.servedName", "`--served-model-name`"),
    RuntimeField("model.dtype", "`--dtype`"),
    _refused(
        "model.quantization",
        "vLLM computes with a checkpoint's own quantization",
        "remove it and name a quantized checkpoint, or add --quantization to engine.extraArgs",
        "Auto",
        default="Auto",
    ),
    _refused(
        "model.sumOrder",
        "vLLM has no choice of the order in which products are added",
        "remove it",
        "Auto",
        default="Auto",
    ),
    RuntimeField("model.contextLength", "`--max-model-len`"),
    RuntimeField("download.cacheClaim", "the volume at `HF_HOME`"),
    RuntimeField("download.cacheSizeLimit", "the limit of the volume at `HF_HOME`"),
    RuntimeField("download.tokenSecret.name", "`HF_TOKEN`, from the Secret"),
    RuntimeField("download.tokenSecret.key", "`HF_TOKEN`, from the Secret"),
    RuntimeField("download.endpoint", "`HF_ENDPOINT`"),
    _refused(
        "pageSize",
        "its attention backends take no smaller pages",
        "use 16, 32, 64, 128 or 256, or remove it",
        *(16, 32, 64, 128, 256),
        default=16,
        becomes="`--block-size`, if it is set",
    ),
    _refused(
        "speculation.algorithm",
        "vLLM has no such method",
        "use EAGLE, EAGLE3, MTP, DFLASH, DSPARK, STANDALONE, NGRAM or NONE",
        *("NONE", "STANDALONE", "EAGLE", "EAGLE3", "DFLASH", "DSPARK", "MTP", "NGRAM"),
        default="NONE",
        becomes="`method` of `--speculative-config`",
    ),
    RuntimeField("speculation.draft.uri", "`model` and `revision` of `--speculative-config`"),
    _refused("speculation.fallback", "vLLM drafts with one method", "remove it"),
    _refused(
        "speculation.ngram.source",
        _TRIE,
        "use Prompt (method ngram) or Suffix",
        *("Prompt", "Suffix"),
        default="Suffix",
        becomes="method `ngram`, or `suffix`, which needs an image with Arctic Inference",
    ),
    RuntimeField("speculation.ngram.scope", "Request: `suffix_decoding_max_cached_requests` 0"),
    RuntimeField(
        "speculation.ngram.maxDepth", "`prompt_lookup_max` or `suffix_decoding_max_tree_depth`"
    ),
    RuntimeField(
        "speculation.ngram.minMatch",
        "`prompt_lookup_min`; 3, or a smaller maxDepth, if it is not set; of Suffix it has no "
        "effect",
    ),
    _refused("speculation.ngram.minBreadth", _TRIE, _NO_TRIE, 1, default=1),
    _refused("speculation.ngram.maxBreadth", _TRIE, _NO_TRIE, 10, default=10),
    _refused("speculation.ngram.match", _TRIE, _NO_TRIE, "BFS", default="BFS"),
    _refused(
        "speculation.ngram.capacity",
        "vLLM limits requests, not nodes",
        "remove it",
        1_000_000,
        default=1_000_000,
    ),
    RuntimeField("speculation.ngram.minTokenProbability", "`suffix_decoding_min_token_prob`"),
    RuntimeField("speculation.ngram.maxSpecFactor", "`suffix_decoding_max_spec_factor`"),
    _refused(
        "speculation.topk",
        "vLLM drafts chains alone",
        "set topk to 1, or use runtime Specdecode",
        1,
        default=1,
    ),
    RuntimeField("speculation.numSteps", "`num_speculative_tokens`; 3 if it is not set"),
    RuntimeField("speculation.numDraftTokens", "nothing: numSteps + 1 of a chain"),
    _refused(
        "speculation.adaptive.policy",
        "vLLM chooses draft steps by a fixed table alone, and the operator learns none for it",
        "set policy to Static, or remove adaptive",
        "Static",
        default="Goodput",
        part="speculation.adaptive",
    ),
    RuntimeField(
        "speculation.adaptive.batchSizes",
        "`num_speculative_tokens_per_batch_size`, from 1 to maxRunningRequests, with the largest "
        "value as `num_speculative_tokens`; one of `candidateSteps` an entry",
    ),
    RuntimeField("speculation.adaptive.batchSizes.[].from", "the first batch size of a range"),
    RuntimeField("speculation.adaptive.batchSizes.[].candidateSteps", "the tokens of a range"),
    RuntimeField(
        "speculation.adaptive.batchSizes.[].verifyTokens", "refused with batchSizes, below"
    ),
    *(
        RuntimeField(f"speculation.adaptive.batchSizes.[].{name}", f"nothing: {_EMA}")
        for name in (
            *("upHysteresis", "downHysteresis", "ceilingCoeff"),
            *("emaAlpha", "updateInterval", "warmupBatches"),
        )
    ),
    RuntimeField("speculation.adaptive.objective", "nothing: of policy Goodput, which is refused"),
    RuntimeField(
        "speculation.adaptive.maxInterTokenMs", "nothing: of policy Goodput, which is refused"
    ),
    RuntimeField("engine.runtime", "the image and the command of the container"),
    RuntimeField("engine.extraArgs", "arguments before those of the operator"),
    RuntimeField("engine.image", "the image; the chart's value vllm.image if it is not set"),
    RuntimeField("engine.imagePullPolicy", "imagePullPolicy"),
    RuntimeField("engine.upgradePolicy", "as with Specdecode, for another value of vllm.image"),
    RuntimeField("engine.device", "GPU: nvidia.com/gpu; CPU: none, with an image for CPUs"),
    _refused(
        "engine.threads",
        "vLLM binds threads by an environment variable",
        "remove it and set VLLM_CPU_OMP_THREADS_BIND in template",
    ),
    RuntimeField("engine.kvCache.size", "`--kv-cache-memory-bytes`"),
    _refused(
        "engine.kvCache.memoryFraction",
        "vLLM's fraction is of all memory of a GPU, not of what is free",
        "remove it, and set engine.kvCache.size or add --gpu-memory-utilization to "
        "engine.extraArgs",
    ),
    RuntimeField("engine.kvCache.dtype", "`--kv-cache-dtype`"),
    RuntimeField("engine.kvCache.prefixCaching", "`--enable-prefix-caching` or its inverse"),
    RuntimeField("engine.scheduler.maxRunningRequests", "`--max-num-seqs`"),
    RuntimeField(
        "engine.scheduler.maxQueuedRequests",
        "`--max-num-queued-reqs`, which also counts running requests: data × maxRunningRequests is "
        "added",
    ),
    RuntimeField(
        "engine.scheduler.chunkedPrefillTokens",
        "`--max-num-batched-tokens`, if it is set; vLLM's default if not; at least "
        "maxRunningRequests",
    ),
    _refused(
        "engine.attentionBackend",
        "vLLM has no backend Torch",
        "use Auto, Triton or FlashInfer, or add --attention-backend to engine.extraArgs",
        *("Auto", "Triton", "FlashInfer"),
        default="Auto",
        becomes="`--attention-backend`",
    ),
    _refused(
        "engine.graphs.mode",
        "vLLM chooses which graphs it captures, or captures none",
        "use Auto or Eager",
        *("Auto", "Eager"),
        default="Auto",
        becomes="`--enforce-eager`",
    ),
    RuntimeField(
        "engine.graphs.batchSizes",
        "`--cudagraph-capture-sizes`; an empty list is refused: use mode Eager",
    ),
    _refused(
        "engine.graphs.memory",
        "vLLM has no limit of graphs' memory",
        "remove it, or set batchSizes",
    ),
    _refused(
        "engine.graphs.captureTimeout",
        "vLLM captures all graphs before it serves",
        "remove it",
        "2m",
        default="2m",
    ),
    RuntimeField(
        "engine.overlap", "`--async-scheduling` or its inverse; true is refused with NGRAM"
    ),
    RuntimeField("engine.config", "refused: the boot file is Specdecode's; use engine.extraArgs"),
    RuntimeField("parallelism.tensor", "`--tensor-parallel-size`"),
    RuntimeField("parallelism.pipeline", "`--pipeline-parallel-size`"),
    RuntimeField("parallelism.data", "`--data-parallel-size`"),
    RuntimeField("parallelism.nodes", "1: several nodes are not supported"),
    RuntimeField("parallelism.expert", "`--enable-expert-parallel`"),
    RuntimeField("serving.apiKeys.secretName", "checked by the routers"),
    RuntimeField("serving.apiKeys.key", "checked by the routers"),
    RuntimeField("serving.requestLabels", "refused: vLLM counts requests without labels"),
    RuntimeField("serving.corsOrigins", "`--cors-origins` of the routers"),
    _refused("serving.page", "vLLM has no page", "remove it", False, default=False),
    _refused("serving.responses.store", "no router finds vLLM's stored responses", "remove it"),
    RuntimeField(
        "serving.toolParser",
        "`--enable-auto-tool-choice --tool-call-parser`; Auto is None, because vLLM detects none",
    ),
    RuntimeField(
        "serving.reasoningParser",
        "`--reasoning-parser`; Auto is None, because vLLM detects none; apertus is refused: "
        "vLLM has no such parser",
    ),
    RuntimeField(
        "serving.tracing.endpoint",
        "`--otlp-traces-endpoint` with /v1/traces at its end, over HTTP "
        "(`OTEL_EXPORTER_OTLP_TRACES_PROTOCOL`)",
    ),
)
"""A row for each field of `SECTIONS`."""

OWNED_ARGUMENTS: Final[dict[str, tuple[str, ...]]] = {
    "model.uri": ("--model", "--revision"),
    "model.servedName": ("--served-model-name",),
    "model.dtype": ("--dtype",),
    "model.contextLength": ("--max-model-len",),
    "download.tokenSecret": ("--hf-token",),
    "download.cacheClaim": ("--download-dir",),
    "pageSize": ("--block-size",),
    "speculation": (
        "--speculative-config",
        "-sc",
        "--spec-method",
        "--spec-model",
        "--spec-tokens",
    ),
    "parallelism": (
        *("--tensor-parallel-size", "-tp", "--pipeline-parallel-size", "-pp"),
        *("--data-parallel-size", "-dp", "--data-parallel-size-local", "-dpl"),
        *("--data-parallel-rank", "-dpn", "--data-parallel-start-rank", "-dpr"),
        *("--data-parallel-external-lb", "-dpe", "--data-parallel-hybrid-lb", "-dph"),
        *("--data-parallel-multi-port-external-lb", "-dpm"),
        *("--prefill-context-parallel-size", "-pcp", "--api-server-count", "-asc"),
        *("--enable-expert-parallel", "-ep", "--nnodes", "-n", "--node-rank", "-r", "--headless"),
    ),
    "engine.kvCache": ("--kv-cache-memory-bytes", "--kv-cache-dtype", "--enable-prefix-caching"),
    "engine.scheduler": ("--max-num-seqs", "--max-num-queued-reqs", "--max-num-batched-tokens"),
    "engine.graphs": ("--enforce-eager", "--cudagraph-capture-sizes"),
    "engine.overlap": ("--async-scheduling",),
    "serving.apiKeys": ("--api-key",),
    "serving.toolParser": ("--enable-auto-tool-choice", "--tool-call-parser"),
    "serving.reasoningParser": ("--reasoning-parser",),
    "serving.tracing": ("--otlp-traces-endpoint",),
    "serving.corsOrigins": ("--allowed-origins",),
    "lifecycle.drainTimeout": ("--shutdown-timeout",),
}
"""Arguments of vLLM that the operator sets, by the field to use instead."""

OPERATORS_ARGUMENTS: Final = (
    "--host",
    "--port",
    "--uds",
    "--config",
    "--root-path",
    "--disable-log-stats",
    "--grpc",
    "--ssl-keyfile",
    "--ssl-certfile",
    "--tokens-only",
)
"""Arguments of vLLM that only the operator may set: probes, routers and metrics depend on them."""


def field_rules() -> tuple[Rule[Any], ...]:
    """Rules of a spec: fields that runtime VLLM has no counterpart of."""
    return tuple(each.rule() for each in VLLM_FIELDS if each.is_refused)
