"""Builds the engine of a case, and runs its requests step by step."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from unittest import mock

from checks.lossless.poison import build_poisoned
from checks.lossless.run import RandomSources
from checks.lossless.verify_rows import RandomVerifyRows
from specdecode_api.boot import EngineBoot
from specdecode_engine.adaptive.draft_evidence import FirstPosition
from specdecode_engine.adaptive.draft_health import DraftHealth
from specdecode_engine.adaptive.policy import Decision, Reason
from specdecode_engine.batch.request import Request, SamplingParams
from specdecode_engine.batch.sequence import SchedulerOutput
from specdecode_engine.engine import EngineCore
from specdecode_engine.grammar import (
    Grammar,
    GrammarCompiler,
    GrammarKind,
    GrammarSource,
    TokenBytes,
)
from specdecode_engine.model.drafts import draft_exchange
from specdecode_engine.startup.draft_staging import DraftStaging
from tests.engine.checkpoints import EOS, VOCAB, Checkpoints
from tests.engine.whole_engine import Answer, boot_of, requests_of
from tests.shadow_cuda.device import ShadowDevice
from tests.shadow_cuda.suite.cases import (
    GRAMMAR,
    GREEDY,
    MIXED,
    SAMPLED,
    SCORED,
    SINGLE,
    ShadowCase,
)
from tests.shadow_cuda.waits import Wait

MAX_TOKENS = 12
CONTEXT = 64
JOINS_AT_STEP = 4
"""When the last request joins the others, which decode by then."""
MAX_STEPS = 1000
PIECE_BYTES = 32 << 10
DRAFTED = Decision(3, 1, 0, Reason.STATIC)


class StepKind(StrEnum):
    """What a step does, by which its waits are limited."""

    GREEDY = "steady_greedy"
    SAMPLED = "steady_sampled"
    TREE = "tree"
    JOINING = "joining"  # it computes prompts, of new or preempted requests
    GRAMMAR = "grammar"  # it decodes under a grammar, whose masks need the draft on the host
    CAPTURING = "capturing"
    EMPTY = "empty"  # it launches nothing


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step, which may wait for the events of so many `results`."""

    kind: StepKind
    batch_size: int
    launches: int
    blocking: tuple[Wait, ...]
    event_waits: int
    launched: tuple[Wait, ...]  # the places of the launches where they are logged
    results: int = 1

    @property
    def waits(self) -> int:
        """Waits beyond those for results."""
        return len(self.blocking) + max(0, self.event_waits - self.results)


@dataclass(slots=True)
class ShadowRun:
    """Answers by request, and every step."""

    answers: dict[str, Answer] = field(default_factory=lambda: defaultdict(Answer))
    steps: list[StepRecord] = field(default_factory=list)


def build(
    checkpoints: Checkpoints, case: ShadowCase, device: str, attention: str = "auto"
) -> EngineCore:
    """Build the engine of a case, with poison in its KV cache."""
    document: dict[str, Any] = boot_of(
        checkpoints,
        case.algorithm,
        case.topk,
        scheduling={
            "max_running_requests": 4,
            "chunked_prefill_tokens": 12,
            "overlap": case.overlap,
        },
        memory={"page_size": 8, "kv_cache_dtype": case.kv_cache_dtype},
        graphs={"mode": case.graphs, "max_seconds": case.max_capture_seconds},
        attention_backend=attention,
        device=device,
    )
    document["model"] |= {
        "dtype": case.dtype,
        "context_length": CONTEXT,
        "implementation": case.implementation,
        "return_routed_experts": case.returns_experts,
    }
    document["speculation"] |= case.speculation
    core = build_poisoned(EngineBoot.model_validate(document))
    if case.draws_verify_rows:
        core.choose_rows = RandomVerifyRows(len(case.name))
    if core.context.sources is not None:
        core.context = replace(core.context, sources=RandomSources(len(case.name)))
    return core


def make_grammar() -> Grammar:
    """Words of small letters; a token is one printable character."""
    spellings = [bytes([32 + token]) if token < 95 else b"\n" for token in range(VOCAB)]
    spellings[EOS] = b"</s>"
    compiler = GrammarCompiler(TokenBytes(spellings, frozenset({EOS}), frozenset({EOS})))
    return compiler.compile(GrammarSource(GrammarKind.REGEX, "([a-e]{1,3} )+"))


def make_requests(kind: str, grammar: Grammar) -> list[Request]:
    """Three requests; one "single" one, four "mixed" ones."""
    if kind == SINGLE:
        kind, kinds = GREEDY, [GREEDY]
    else:
        kinds = [kind] * 3
    if kind == GRAMMAR:
        kinds[0] = GREEDY
    if kind == MIXED:
        kinds = [GRAMMAR, GREEDY, SAMPLED, SCORED]  # the shortest answer comes first
    return [
        _request(request, kind, grammar)
        for request, kind in zip(requests_of(VOCAB, len(kinds), MAX_TOKENS), kinds, strict=True)
    ]


def _request(request: Request, kind: str, grammar: Grammar) -> Request:
    number = int(request.request_id)
    sampling = SamplingParams(
        seed=number, max_tokens=MAX_TOKENS + 4 * number, temperature=0.0, ignore_eos=True
    )
    if kind == SAMPLED:
        sampling = replace(
            sampling,
            temperature=0.8,
            top_k=40,
            top_p=0.95,
            min_p=0.001,
            repetition_penalty=1.2,
            frequency_penalty=0.3,
            logit_bias={7: 0.5},
            logprobs=2,
        )
    if kind == SCORED:
        sampling = replace(sampling, logprobs=1, prompt_logprobs=1)
    return replace(request, sampling=sampling, grammar=grammar if kind == GRAMMAR else None)


def drive(
    core: EngineCore, case: ShadowCase, requests: list[Request], gpu: ShadowDevice | None = None
) -> ShadowRun:
    """Run requests to their ends; the last one joins the others at `JOINS_AT_STEP`.

    Raises:
        AssertionError: an invariant of the scheduler is violated, or there is no end.
    """
    ran = ShadowRun()
    if case.returns_experts:
        requests = [replace(request, return_routed_experts=True) for request in requests]
    first, last = requests[:-1], requests[-1]
    for request in first:
        core.submit(request)
    pieces: Iterator[Callable[[], None]] = iter(())
    with _plans(core) as plans:
        for number in range(MAX_STEPS):
            if number == JOINS_AT_STEP:
                core.submit(last)
            _meet_events(core, case, number)
            if number == case.exchanged_at_step:
                pieces = exchange_draft(core)
            piece = next(pieces, None)
            if number > JOINS_AT_STEP and not core.has_work():
                return ran
            before = _Counts.of(gpu)
            if piece is not None:
                piece()
            for output in core.step():
                answer = ran.answers[output.request_id]
                answer.tokens += output.token_ids
                answer.logprobs += (*(output.prompt_logprobs or ()), *(output.logprobs or ()))
                if output.routed_experts is not None:
                    answer.routed_experts.append(output.routed_experts)
            if gpu is not None:
                ran.steps.append(_record(case, plans[-1], before, gpu))
            core.scheduler.check()
    raise AssertionError(f"the engine of {case.name} does not come to an end")


def exchange_draft(core: EngineCore) -> Iterator[Callable[[], None]]:
    """Read the draft of a case again; yield the pieces in which it is copied over the running one.

    They are smaller than those of a real draft.
    """
    assert isinstance(core.stage_draft, DraftStaging)
    folder = core.stage_draft.config.boot.speculation.draft_path
    assert folder is not None
    pieces = core.stage_draft(Path(folder))
    with mock.patch.object(draft_exchange, "PIECE_BYTES", PIECE_BYTES):
        yield from pieces


def _meet_events(core: EngineCore, case: ShadowCase, number: int) -> None:
    if number == case.preempted_at_step:
        core.preempt(core.scheduler.running[0])
    if number == case.aborted_at_step:
        core.abort(core.scheduler.running[0].request.request_id)
    if number == case.reloaded_at_step:
        core.reload(case.reloaded_table)
    if number == case.unfit_at_step:
        health = core.scheduler.drafting.health = DraftHealth()
        core.judge_draft(DRAFTED, FirstPosition(proposed=400, accepted=0, requests=24), 0.01)
        assert health.is_unfit


@contextmanager
def _plans(core: EngineCore) -> Iterator[list[SchedulerOutput]]:
    """Collect what the scheduler plans."""
    plans: list[SchedulerOutput] = []
    plan = core.scheduler.plan

    def keep() -> SchedulerOutput:
        plans.append(plan())
        return plans[-1]

    with mock.patch.object(core.scheduler, "plan", keep):
        yield plans


@dataclass(frozen=True, slots=True)
class _Counts:
    waits: int
    event_waits: int
    launches: int
    captures: int
    launches_logged: int

    @classmethod
    def of(cls, gpu: ShadowDevice | None) -> "_Counts":
        if gpu is None:
            return cls(0, 0, 0, 0, 0)
        logged = len(gpu.launch_log or ())
        return cls(len(gpu.waits), gpu.event_waits, gpu.launches, gpu.captures, logged)


def _record(
    case: ShadowCase, plan: SchedulerOutput, before: _Counts, gpu: ShadowDevice
) -> StepRecord:
    after = _Counts.of(gpu)
    has_captured = after.captures > before.captures
    return StepRecord(
        StepKind.CAPTURING if has_captured else _kind(case, plan),
        len(plan.decoding),
        after.launches - before.launches,
        tuple(gpu.waits[before.waits :]),
        after.event_waits - before.event_waits,
        tuple((gpu.launch_log or ())[before.launches_logged :]),
        case.results,
    )


def _kind(case: ShadowCase, plan: SchedulerOutput) -> StepKind:
    if plan.is_empty:
        return StepKind.EMPTY
    requests = [sequence.request for sequence in plan.decoding]
    if any(request.grammar is not None for request in requests):
        return StepKind.GRAMMAR
    if plan.chunks:
        return StepKind.JOINING
    if case.topk > 1 and plan.decision is not None and plan.decision.num_steps:
        return StepKind.TREE
    is_sampled = any(request.sampling.temperature for request in requests)
    return StepKind.SAMPLED if is_sampled else StepKind.GREEDY


def numbers_of(answer: Answer) -> list[float]:
    """Every log-probability that was reported, in order."""
    return [
        number
        for one in answer.logprobs
        for number in (one.logprob, *(logprob for _, logprob in one.top))
    ]


def largest_difference(got: Mapping[str, Answer], wanted: Mapping[str, Answer]) -> float:
    """The greatest difference of two log-probabilities; infinite where their number differs."""
    largest = 0.0
    for name, answer in got.items():
        pairs = numbers_of(answer), numbers_of(wanted[name])
        if len(pairs[0]) != len(pairs[1]):
            return float("inf")
        largest = max([largest, *(abs(a - b) for a, b in zip(*pairs, strict=True))])
    return largest
