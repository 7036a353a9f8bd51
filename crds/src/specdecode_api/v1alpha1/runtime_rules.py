"""Rules of a spec with another runtime that concern several fields."""

from collections.abc import Callable
from typing import Any, Final

from specdecode_api.rules import Rule, or_default
from specdecode_api.v1alpha1.runtimes import IS_VLLM, field_rules

_ALGORITHM: Final = or_default("speculation.algorithm", "NONE")
_ENTRIES: Final = "self.speculation.adaptive.batchSizes"
_HAS_TABLE: Final = (
    "(has(self.speculation) && has(self.speculation.adaptive) && "
    f"has({_ENTRIES}) && size({_ENTRIES}) > 0)"
)
_PARTS: Final = ("tensor", "pipeline", "data")
WORLD_SIZE: Final = " * ".join(or_default(f"parallelism.{part}", 1) for part in _PARTS)
"""GPUs of an engine."""
_HAS_ALL_ONE: Final = " && ".join(f"{or_default(f'parallelism.{part}', 1)} == 1" for part in _PARTS)
_ALL_FIXED: Final = f"{_ENTRIES}.all(e, size(e.candidateSteps) == 1 && !has(e.verifyTokens))"
_BATCH: Final = or_default("engine.scheduler.maxRunningRequests", 64)
_IS_REACHED: Final = f"(e.from <= {_BATCH} || {_ENTRIES}.all(o, e.from <= o.from))"
_SOME_DRAFT: Final = f"{_ENTRIES}.exists(e, {_IS_REACHED} && e.candidateSteps.exists(s, s > 0))"
VLLM_STEP_TOKENS: Final = 2048
"""The smallest of vLLM's defaults of `--max-num-batched-tokens`, which depend on the device."""
_CHUNK: Final = "engine.scheduler.chunkedPrefillTokens"
_HAS_CHUNK: Final = " && ".join(
    f"has(self.{part})" for part in ("engine", "engine.scheduler", _CHUNK)
)
_GRAPHS: Final = "self.engine.graphs"


def _drafts_something(spec: Any) -> bool:
    """Whether an entry that batches reach has a draft step; the first is for smaller ones too."""
    entries = spec.speculation.adaptive.batch_sizes
    if not entries:
        return True
    first = min(entry.from_ for entry in entries)
    end = max(first, spec.engine.scheduler.max_running_requests)
    return any(max(entry.candidate_steps) for entry in entries if entry.from_ <= end)


def _holds_a_batch(spec: Any) -> bool:
    scheduler = spec.engine.scheduler
    is_set = "chunked_prefill_tokens" in scheduler.model_fields_set
    tokens = scheduler.chunked_prefill_tokens if is_set else VLLM_STEP_TOKENS
    return bool(tokens >= scheduler.max_running_requests)


def _has_suffix_tree(spec: Any) -> bool:
    wanted = spec.speculation
    return wanted.algorithm == "NGRAM" and (wanted.ngram is None or wanted.ngram.source == "Suffix")


def _with_vllm(
    cel: str, holds: Callable[[Any], bool], message: str, field: str, *, is_missing: bool = False
) -> Rule[Any]:
    return Rule(
        cel=f"!({IS_VLLM}) || {cel}",
        holds=lambda it: it.engine.runtime != "VLLM" or holds(it),
        message=f"runtime VLLM {message}",
        field=field,
        reason="FieldValueRequired" if is_missing else "FieldValueInvalid",
    )


RUNTIME_RULES: Final[tuple[Rule[Any], ...]] = (
    *field_rules(),
    _with_vllm(
        "has(self.router)",
        lambda it: it.router is not None,
        "needs routers, because the port of vLLM can change the engine and leaves /tokenize "
        "without a key: add router: {}",
        "router",
        is_missing=True,
    ),
    _with_vllm(
        f"{or_default('rollout.mode', 'Recommend')} == 'Manual'",
        lambda it: it.rollout.mode == "Manual",
        "has no recommended tables yet: set rollout.mode to Manual",
        "rollout",
    ),
    _with_vllm(
        f"{or_default('rollout.editPolicy', 'Immediate')} == 'Immediate'",
        lambda it: it.rollout.edit_policy == "Immediate",
        "has no trials yet: set rollout.editPolicy to Immediate",
        "rollout",
    ),
    _with_vllm(
        f"{or_default('lifecycle.stepTimeout', '5m')} == '5m'",
        lambda it: it.lifecycle.step_timeout == "5m",
        "has no limit of a step: remove lifecycle.stepTimeout",
        "lifecycle",
    ),
    _with_vllm(
        f"!{_HAS_TABLE} || {_ALL_FIXED}",
        lambda it: all(
            len(entry.candidate_steps) == 1 and entry.verify_tokens is None
            for entry in it.speculation.adaptive.batch_sizes
        ),
        "has one number of draft tokens for a range of batch sizes: give each entry of "
        "speculation.adaptive.batchSizes one of candidateSteps and no verifyTokens",
        "speculation",
    ),
    _with_vllm(
        f"!{_HAS_TABLE} || {_SOME_DRAFT}",
        _drafts_something,
        "drafts nothing by this table up to maxRunningRequests: give an entry of "
        "speculation.adaptive.batchSizes that it reaches more draft steps than 0, or set algorithm "
        "to NONE",
        "speculation",
    ),
    _with_vllm(
        f"!{_HAS_TABLE} || !has(self.speculation.numSteps)",
        lambda it: not it.speculation.adaptive.batch_sizes or it.speculation.num_steps is None,
        "takes draft steps from speculation.adaptive.batchSizes from the first step on: remove "
        "speculation.numSteps, or the table",
        "speculation",
    ),
    _with_vllm(
        f"{_ALGORITHM} == 'NONE' || {or_default('speculation.numSteps', 3)} > 0",
        lambda it: it.speculation.algorithm == "NONE" or it.speculation.num_steps != 0,
        "needs a draft token: set speculation.numSteps to 1 or more, or algorithm to NONE",
        "speculation",
    ),
    _with_vllm(
        f"!{_HAS_TABLE} || {or_default('parallelism.data', 1)} == 1",
        lambda it: not it.speculation.adaptive.batch_sizes or it.parallelism.data == 1,
        "ignores a table with data parallelism: set parallelism.data to 1 and raise replicas, or "
        "remove speculation.adaptive.batchSizes",
        "parallelism",
    ),
    _with_vllm(
        f"({_HAS_CHUNK} ? self.{_CHUNK} >= {_BATCH} : {_BATCH} <= {VLLM_STEP_TOKENS})",
        _holds_a_batch,
        "computes a token of each running request in a step: set "
        "engine.scheduler.chunkedPrefillTokens to at least maxRunningRequests (it counts as "
        f"{VLLM_STEP_TOKENS} if it is not set)",
        "engine",
    ),
    _with_vllm(
        f"{_ALGORITHM} != 'NGRAM' || !{or_default('engine.overlap', False)}",
        lambda it: it.speculation.algorithm != "NGRAM" or not it.engine.overlap,
        "schedules no step ahead with NGRAM: remove engine.overlap, or set it to false",
        "engine",
    ),
    _with_vllm(
        f"{_ALGORITHM} != 'NGRAM' || {or_default('speculation.ngram.source', 'Suffix')} != "
        "'Suffix' || has(self.engine.image)",
        lambda it: not _has_suffix_tree(it) or it.engine.image is not None,
        "drafts from suffix trees by Arctic Inference, which vLLM's image lacks: set engine.image "
        "to one with arctic-inference, or speculation.ngram.source to Prompt",
        "engine",
        is_missing=True,
    ),
    _with_vllm(
        f"!has({_GRAPHS}) || !has({_GRAPHS}.batchSizes) || size({_GRAPHS}.batchSizes) > 0",
        lambda it: it.engine.graphs.batch_sizes != [],
        "captures no graph by mode Eager alone: remove engine.graphs.batchSizes and set "
        "engine.graphs.mode to Eager",
        "engine",
    ),
    _with_vllm(
        f"{or_default('serving.reasoningParser', 'Auto')} != 'apertus'",
        lambda it: it.serving.reasoning_parser != "apertus",
        "has no reasoning parser apertus: set serving.reasoningParser to another one, or to None",
        "serving",
    ),
    _with_vllm(
        f"size({or_default('serving.requestLabels', [])}) == 0",
        lambda it: not it.serving.request_labels,
        "counts requests without labels: remove serving.requestLabels",
        "serving",
    ),
    _with_vllm(
        "!has(self.engine.config)",
        lambda it: not it.engine.config,
        "has no boot file: remove engine.config and use engine.extraArgs",
        "engine",
    ),
    _with_vllm(
        f"{or_default('engine.device', 'GPU')} == 'GPU' || has(self.engine.image)",
        lambda it: it.engine.device == "GPU" or it.engine.image is not None,
        "has a default image for GPUs alone: add engine.image with a build for CPUs",
        "engine",
        is_missing=True,
    ),
    _with_vllm(
        f"{or_default('engine.device', 'GPU')} == 'GPU' || ({_HAS_ALL_ONE})",
        lambda it: it.engine.device == "GPU" or it.parallelism.world_size == 1,
        "computes on a CPU without ranks: set tensor, pipeline and data of parallelism to 1",
        "parallelism",
    ),
    Rule(
        cel=f"{IS_VLLM} || ({or_default('parallelism.pipeline', 1)} == 1 && "
        f"{or_default('parallelism.data', 1)} == 1 && "
        f"!{or_default('parallelism.expert', False)})",
        holds=lambda it: (
            it.engine.runtime == "VLLM"
            or (it.parallelism.pipeline, it.parallelism.data, it.parallelism.expert)
            == (1, 1, False)
        ),
        message="runtime Specdecode divides a model by parallelism.tensor alone: set pipeline and "
        "data to 1 and expert to false, raise replicas, or use runtime VLLM",
        field="parallelism",
    ),
    Rule(
        cel=f"{IS_VLLM} || size({or_default('engine.extraArgs', [])}) == 0",
        holds=lambda it: it.engine.runtime == "VLLM" or not it.engine.extra_args,
        message="runtime Specdecode has no extraArgs: use engine.config",
        field="engine",
        reason="FieldValueForbidden",
    ),
    Rule(
        cel=f"{or_default('parallelism.nodes', 1)} == 1",
        holds=lambda it: it.parallelism.nodes == 1,
        message="an engine runs in one pod, and several nodes are not supported: set "
        "parallelism.nodes to 1, and lower tensor, pipeline or data to the GPUs of one node",
        field="parallelism",
    ),
)
"""Rules of a spec about its runtime, with those of single fields."""
