"""Runs the requests of a case on an engine core, checking after every step that nothing leaked."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from checks.lossless.cases import Case, CaseRequest
from checks.lossless.poison import build_poisoned
from checks.lossless.verify_rows import RandomVerifyRows
from specdecode_api.boot import EngineBoot
from specdecode_api.speculation import drafted_tokens
from specdecode_engine.adaptive.draft_source import DraftSources, RequestDrafts
from specdecode_engine.adaptive.policy import Decision, Reason, StaticPolicy
from specdecode_engine.adaptive.table import BatchRange, RangeTable
from specdecode_engine.batch.request import (
    ExpertIds,
    FinishReason,
    Output,
    Request,
    TokenLogprobs,
)
from specdecode_engine.engine import EngineCore
from specdecode_engine.ranks import ALONE, Ranks
from specdecode_engine.schedule.cached_states import CachedStates
from specdecode_engine.schedule.limits import Limits
from specdecode_kernels.cpu.loading import TYPES, load_library, unsupported_reason
from specdecode_kernels.cpu.tuning import Tuning

IDLE_STEPS = 8
"""Before a step without work: enough to capture some of the pairs of num_steps that pend."""
MOST_STEPS = 20_000
RESTLESS = {"update_interval": 1, "warmup_batches": 0}  # policy ema decides at every step


@dataclass(slots=True)
class Answer:
    """What came back for one request."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish_reason: FinishReason | None = None
    routed_experts: ExpertIds | None = None
    cached_tokens: int = 0  # of the prompt

    def take(self, output: Output) -> None:
        """Append one output."""
        self.token_ids += output.token_ids
        self.logprobs += output.logprobs or ()
        self.prompt_logprobs += output.prompt_logprobs or ()
        self.finish_reason = output.finish_reason
        self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
        pieces = self.routed_experts, output.routed_experts
        known = [piece for piece in pieces if piece is not None]
        self.routed_experts = np.concatenate(known) if known else None


@dataclass(frozen=True, slots=True)
class Models:
    """Folders of the checkpoints, types of weights and cache, and who computes attention."""

    target: Path
    drafts: dict[str, Path]
    dtype: str
    attention_backend: str = "auto"
    kv_cache_dtype: str = "auto"
    device: str = "cpu"
    implementation: str = "auto"  # of the target
    returns_experts: bool = False  # of every token, for every request
    speculation: Mapping[str, object] = field(default_factory=dict)  # further keys of boot files
    quantization: str = "auto"  # of weights
    sum_order: str = "auto"  # of linear maps
    ranks: Ranks = ALONE  # among which the target is divided
    adapters: Mapping[str, str] = field(default_factory=dict)  # folders of LoRA adapters


def _verified(case: Case, steps: Sequence[int]) -> int | None:
    """Tokens that an entry of the table verifies; None where the case wants more than it drafts."""
    width = case.num_draft_tokens
    at_start = None if width is None else (case.num_steps, width)
    most = max(drafted_tokens(case.topk, each, at_start) for each in steps)
    return case.verify_tokens if (case.verify_tokens or 0) <= most else None


def build_speculative(case: Case, models: Models) -> EngineCore:
    """Build the engine of a case; unwritten KV is NaN."""
    draft = models.drafts.get(case.algorithm)  # None: the algorithm needs no files of its own
    has_ngram = case.has_fallback or case.algorithm == "NGRAM"
    speculation = {
        "algorithm": case.algorithm,
        "draft_path": None if draft is None else str(draft),
        "num_steps": case.num_steps,
        "topk": case.topk,
        "num_draft_tokens": case.num_draft_tokens,
        "policy": case.policy,
        "profile_seconds": case.profile_seconds,
        "table": {
            str(bound): {
                **RESTLESS,
                "candidate_steps": steps,
                "verify_tokens": _verified(case, steps),
            }
            for bound, steps in case.table
        },
        "fallback": "NGRAM" if case.has_fallback else None,
        **({"ngram": dict(case.ngram)} if has_ngram else {}),
        **models.speculation,
    }
    scheduling = {
        "max_running_requests": case.max_running,
        "chunked_prefill_tokens": case.chunk_tokens,
        "overlap": case.overlap,
    }
    memory: dict[str, object] = {"page_size": case.page_size, "prefix_cache": case.prefix_cache}
    graphs: dict[str, object] = {
        "mode": "cuda" if models.device == "cuda" and case.graphs == "static" else case.graphs,
        "batch_sizes": case.graph_batch_sizes,
        "max_bytes": case.graph_max_bytes,
        "max_seconds": case.graph_max_seconds,
    }
    if not case.adapted:
        models = replace(models, adapters={})
    core = _build(models, speculation, memory, scheduling, case.pool_tokens, graphs)
    if core.scheduler.cached_states is not None:
        core.scheduler.cached_states = _frequent(core.scheduler.limits, case.number)
    if case.switches_num_steps:
        depths = tuple(core.shapes)
        core.scheduler.drafting.policy = RandomNumSteps(depths, case.number, case.verify_tokens)
    if case.draws_verify_rows:
        core.choose_rows = RandomVerifyRows(case.number)
    if case.has_fallback and case.draws_sources:
        core.context = replace(core.context, sources=RandomSources(case.number))
    return core


def build_plain(models: Models) -> EngineCore:
    """Build the engine that every answer is compared with: no draft, one request at a time."""
    memory: dict[str, object] = {"page_size": 16, "prefix_cache": False}
    return _build(models, {}, memory, {"max_running_requests": 1}, None, {"mode": "off"})


def _build(
    models: Models,
    speculation: dict[str, object],
    memory: dict[str, object],
    scheduling: dict[str, int],
    pool_tokens: int | None,
    graphs: dict[str, object],
) -> EngineCore:
    document = {
        "model": {
            "path": str(models.target),
            "dtype": models.dtype,
            "quantization": models.quantization,
            "sum_order": models.sum_order,
            "implementation": models.implementation,
            "return_routed_experts": models.returns_experts,
        },
        "speculation": speculation,
        "memory": memory | {"kv_cache_dtype": models.kv_cache_dtype},
        "scheduling": scheduling,
        "graphs": graphs,
        "device": models.device,
        "attention_backend": models.attention_backend,
        "adapters": {"modules": dict(models.adapters)},
    }
    boot = EngineBoot.model_validate(document)
    return build_poisoned(boot, pool_tokens, models.ranks)


def _frequent(limits: Limits, number: int) -> CachedStates:
    """Return states at shorter distances than texts of cases are long; sometimes few."""
    rng = random.Random(number)
    count = min(rng.choice((1, 2, 100)), limits.cached_states or 0)
    return CachedStates(count, limits.page_size, rng.choice((1, 8, 32)))


class RandomNumSteps(StaticPolicy):
    """Chooses a random depth at every step."""

    def __init__(
        self, depths: tuple[int, ...], seed: int, verify_tokens: int | None = None
    ) -> None:
        entry = BatchRange(1, depths, verify_tokens=verify_tokens)
        super().__init__(depths[0], RangeTable([entry]))
        self._rng = random.Random(seed)

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        """Draw one."""
        num_steps, entry = self._rng.choice(self.table.candidates()), self.table.ranges[0]
        return Decision(num_steps, 1, 0, Reason.STATIC, entry.verify_tokens)


class RandomSources(DraftSources):
    """Prefers what NGRAM found at random, in runs of steps, so that drafts fall behind."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._rng = random.Random(seed)
        self._is_preferred = True

    def choose(
        self, requests: Sequence[RequestDrafts], num_steps: int, kv_tokens: int
    ) -> tuple[bool, ...]:
        """Draw."""
        if self._rng.random() < 0.1:
            self._is_preferred = not self._is_preferred
        if self._rng.random() < 0.1:  # also where NGRAM found nothing for some
            return (False,) * len(requests)
        return tuple(
            one.draft_depth > 0
            and not (one.ngram_depth and (self._is_preferred or self._rng.random() < 0.5))
            for one in requests
        )


@contextmanager
def tuned(tuning: Tuning) -> Iterator[None]:
    """Use a tuning of the kernels in C within the context, where they can run."""
    libraries = [load_library(dtype) for dtype in TYPES if unsupported_reason(dtype) is None]
    before = [library.tuning for library in libraries]
    for library in libraries:
        library.use(tuning)
    try:
        yield
    finally:
        for library, own in zip(libraries, before, strict=True):
            library.use(own)


def run_case(
    core: EngineCore,
    requests: tuple[CaseRequest, ...],
    preempted_at_steps: tuple[int, ...] = (),
    disturb: Callable[[int], None] = lambda step: None,
) -> list[Answer]:
    """Run all requests to their ends, each arriving, aborted and preempted at its step.

    Args:
        disturb: called with the number of each step before it.
    """
    answers = [Answer([*each.begun], [*each.begun_logprobs]) for each in requests]
    for step in range(MOST_STEPS):
        for _ in range(IDLE_STEPS):
            if not core.has_work():
                core.idle_step()
        if step in preempted_at_steps and core.scheduler.running:
            core.preempt(core.scheduler.running[step % len(core.scheduler.running)])
        for number, request in enumerate(requests):
            if request.arrives_at_step == step:
                core.submit(_request(str(number), request, core.context.routed is not None))
            if request.aborted_at_step == step and answers[number].finish_reason is None:
                core.abort(str(number))
                answers[number].finish_reason = FinishReason.ABORT
        disturb(step)
        for output in core.step():
            answers[int(output.request_id)].take(output)
            if (suspended := output.suspended) is not None and suspended.grammar is not None:
                core.resume(replace(suspended, grammar=suspended.grammar.compile_again()))
        core.scheduler.check()
        if not core.has_work() and all(r.arrives_at_step <= step for r in requests):
            return answers
    raise AssertionError(f"no end after {MOST_STEPS} steps")


def _request(name: str, request: CaseRequest, returns_experts: bool) -> Request:
    return Request(
        name,
        request.prompt_ids,
        request.sampling,
        # Requests share no grammar, as in the server.
        None if request.grammar is None else request.grammar.compile_again(),
        max_steps=request.max_steps,
        return_routed_experts=returns_experts,
        output_ids=request.begun,
        queue_order=request.queue_order,
        cache_salt=request.cache_salt,
        adapter=request.adapter,
    )


def run_alone(core: EngineCore, request: CaseRequest) -> Answer:
    """Run one request alone."""
    alone = CaseRequest(
        request.prompt_ids, request.sampling, 0, None, request.grammar, adapter=request.adapter
    )
    return run_case(core, (alone,))[0]
