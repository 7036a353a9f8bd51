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
_SOME_DRAFT: Final = f"{_ENTRIES}.exists(e, e.candidateSteps.exists(s, s > 0))"


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
        lambda it: (
            not it.speculation.adaptive.batch_sizes
            or any(max(entry.candidate_steps) for entry in it.speculation.adaptive.batch_sizes)
        ),
        "drafts nothing by this table: give an entry of speculation.adaptive.batchSizes more draft "
        "steps than 0, or set algorithm to NONE",
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
