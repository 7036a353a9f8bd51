"""The engine core: one step schedules, launches, collects and commits."""

import itertools
import logging
from collections.abc import Mapping

from specdecode_engine.adaptive.policy import Feedback, TableRefused
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.draft_shape import DraftShape
from specdecode_engine.batch.request import FinishReason, Output, Request
from specdecode_engine.batch.scheduler_output import SchedulerOutput, StepOutput
from specdecode_engine.batch.sequence import Sequence
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.stats.counters import Counters
from specdecode_engine.stats.per_table import PerTableStats
from specdecode_engine.stats.snapshot import CoreSnapshot, take_snapshot
from specdecode_engine.steps.in_flight import InFlightStep
from specdecode_engine.steps.launch import Launcher
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.stop_check import (
    check_stop,
    ending_ids,
    make_output,
)
from specdecode_engine.steps.timing import Stopwatch

log = logging.getLogger(__name__)

CHECK_STEPS = 1000
"""Steps between two checks of the invariants: a check walks the whole prefix cache, and could delay
a request that arrives meanwhile."""


class EngineCore:
    """Requests in, tokens out, one step at a time; used by one thread.

    Args:
        parts: what the steps compute with.
        scheduler: who runs.
        shapes: the draft shape for each `num_steps`.
        eos_token_ids: tokens that end an answer unless the request ignores them.
        stopwatch: measures steps.
        facts: what the engine runs on, for people to read.
    """

    def __init__(
        self,
        parts: ModelContext,
        scheduler: Scheduler,
        shapes: Mapping[int, DraftShape],
        eos_token_ids: frozenset[int],
        stopwatch: Stopwatch,
        facts: Mapping[str, object],
    ) -> None:
        self.facts = facts
        self.counters = Counters()
        self.per_table = PerTableStats(scheduler.depth.table.table_hash)
        self.scheduler = scheduler
        self.parts = parts
        self.shapes = shapes
        self.eos_token_ids = eos_token_ids
        self._launcher = Launcher(shapes, stopwatch)
        self._overlap = scheduler.limits.lag_tokens > 0
        self._pending: tuple[InFlightStep, ...] = ()
        self._ready: list[Output] = []
        self._sequences: dict[str, Sequence] = {}
        self._checked_steps = 0

    @property
    def context_length(self) -> int:
        """Tokens, prompt and answer, that one request may reach."""
        return self.scheduler.limits.longest_sequence

    def submit(self, request: Request) -> None:
        """Queue a request; see `Scheduler.add` for what it raises."""
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use; choose another")
        sequence = self.scheduler.add(request)
        sequence.ending_ids = ending_ids(request, self.eos_token_ids)
        self._sequences[request.request_id] = sequence

    def abort(self, request_id: str) -> None:
        """End a request without another output; an unknown id has no effect."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORT)
            self.per_table.close(sequence)
            self._ready = [output for output in self._ready if output.request_id != request_id]

    def retract(self, sequence: Sequence) -> None:
        """Preempt a running sequence: free its memory; it waits and resumes with the same output.

        The scheduler preempts automatically when memory runs out; tests do it at any time.
        """
        self._ready += self._collect()
        if sequence.finish_reason is None and sequence.slot is not None:
            self.parts.sampler.close(sequence.slot)
            self.scheduler.retract(sequence)

    def reload(self, table: RangeTable) -> None:
        """Choose depths by another table from the next step on.

        Raises:
            TableRefused: it has a depth that nothing was prepared for; the old table stays.
        """
        unknown = sorted(set(table.candidates()) - set(self.shapes))
        if unknown:
            raise TableRefused(
                f"candidate_steps {unknown} are not among the depths {sorted(self.shapes)} that "
                "this engine prepared at start; keep to those, or restart it with the new table"
            )
        self.scheduler.depth.reload(table)
        self.parts.graphs.replan(self.scheduler.depth)
        self.per_table.use(table.table_hash)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences) or bool(self._pending) or bool(self._ready)

    def idle_step(self) -> bool:
        """Do one short piece of deferred work while nothing runs; return whether any is left.

        Each call captures one of the CUDA graphs that did not fit the time at start; the last one
        checks the invariants of scheduler, prefix cache and allocator.
        """
        assert not self.has_work(), "deferred work would delay a step"
        if self.parts.graphs.capture_next():
            return True
        self._check_invariants()
        return False

    def _check_invariants(self) -> None:
        """Log a violated invariant, once `CHECK_STEPS` steps have run since the last check."""
        if self.counters.steps - self._checked_steps < CHECK_STEPS:
            return
        self._checked_steps = self.counters.steps
        try:
            self.scheduler.check()
        except AssertionError as error:
            log.error("a scheduling invariant is violated, please report it: %s", error)

    def snapshot(self) -> CoreSnapshot:
        """State and totals, as plain numbers."""
        graphs = self.parts.graphs.report()
        nodes = {num_steps: shape.num_tokens for num_steps, shape in self.shapes.items()}
        return take_snapshot(self.scheduler, self.counters, self.per_table, nodes, graphs)

    def step(self) -> list[Output]:
        """Launch one step and return what came back since the last one.

        With overlap the host is one step behind: it collects a step's tokens after the next step
        was launched, so the device never waits for the host. Without, it collects at once.
        """
        outputs, self._ready = self._ready, []
        if self._must_collect_first():
            outputs += self._collect()
        before = self._pending
        self._pending = self._launch(self.scheduler.plan())
        self.per_table.note_retractions(self.scheduler.retracted_total)
        if not self._overlap:
            return outputs + self._collect()
        return outputs + self._commit_all(before)

    def _must_collect_first(self) -> bool:
        """Whether the next plan needs what is still in flight."""
        return bool(self._pending) and (
            self.scheduler.must_retract() or self._must_follow_grammars()
        )

    def _must_follow_grammars(self) -> bool:
        """Whether what may come next depends on tokens that are still in flight."""
        awaited = [s.slot for s in self.scheduler.running if s.in_flight_rounds and s.slot]
        return self.parts.sampler.grammars.needs_host_tokens(awaited)

    def _launch(self, plan: SchedulerOutput) -> tuple[InFlightStep, ...]:
        self._open_slots(plan)
        if plan.decision is not None:
            self.counters.decide(plan.decision)
        launched = self._launcher.launch(self.parts, plan, self.per_table.table)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.end
            with_draft_kv = chunk.end - self.scheduler.cache.lookahead
            chunk.sequence.reusable = max(chunk.sequence.reusable, with_draft_kv)
        self.counters.steps += not plan.is_empty
        return launched

    def _collect(self) -> list[Output]:
        """Wait for everything in flight."""
        pending, self._pending = self._pending, ()
        return self._commit_all(pending)

    def _commit_all(self, steps: tuple[InFlightStep, ...]) -> list[Output]:
        outputs: list[Output] = []
        for step in steps:
            collected = step.collect()
            decode_steps, table = step.decode_steps, step.table
            committed = [self._commit(output, decode_steps, table) for output in collected]
            self._count(step, collected, committed)
            outputs += committed
        return outputs

    def _count(
        self, step: InFlightStep, collected: list[StepOutput], outputs: list[Output]
    ) -> None:
        """Update the counters and the policy with the result of a step."""
        seconds = step.timing.seconds()
        if step.decision is None:
            self.counters.prompt_tokens += step.prompt_tokens
            self.counters.prefill_seconds += seconds
            return
        self.counters.mixed_rounds += not step.is_alone
        self.counters.count(step.decision, collected, seconds)
        batch_size = len(step.sequences)
        self.per_table.note(step.table, batch_size, collected, outputs, seconds)
        pairs = zip(collected, outputs, strict=True)
        feedback = Feedback(
            decision=step.decision,
            batch_size=batch_size,
            kv_tokens=step.kv_tokens,
            accepted=tuple(one.accepted for one, out in pairs if out.finish_reason is None),
            seconds=step.timing.busy_seconds(),
            is_alone=step.is_alone,
        )
        self.counters.learn(feedback)
        self.scheduler.depth.observe(feedback)

    def _open_slots(self, plan: SchedulerOutput) -> None:
        """Bring the device tables up to date with what the scheduler handed out."""
        for chunk in plan.chunks:
            sequence = chunk.sequence
            slot = sequence.slot
            assert slot is not None
            if sequence.computed == sequence.matched:
                self._open_slot(slot, sequence)
        sequences = itertools.chain((chunk.sequence for chunk in plan.chunks), plan.decoding)
        self.parts.table.write_pages((s.slot, s.pages) for s in sequences if s.slot is not None)

    def _open_slot(self, slot: int, sequence: Sequence) -> None:
        prompt = list(sequence.request.prompt_ids)
        output = sequence.tokens[len(prompt) :]
        self.parts.table.open(slot, sequence.tokens)
        request = sequence.request
        self.parts.sampler.open(slot, request.sampling, prompt, output, request.grammar)
        if self.parts.drafter is not None:
            self.parts.drafter.open(slot, sequence.matched)

    def _commit(self, collected: StepOutput, decode_steps: int, table: str) -> Output:
        """Append the tokens that are kept, and end the sequence at a stop."""
        sequence = collected.sequence
        stop = check_stop(collected.token_ids, sequence)
        kept = collected.token_ids[: stop.kept]
        if sequence.request.grammar is not None:
            fault = self._follow_grammar(sequence, kept)
            if fault is not None:
                return self._fail(sequence, f"the grammar could not be followed: {fault}")
        with_draft_kv = len(sequence.tokens) - self.scheduler.cache.lookahead
        sequence.tokens.extend(kept)
        sequence.computed = len(sequence.tokens) - 1
        if self._has_draft_kv(collected):
            sequence.reusable = with_draft_kv if collected.drafted else sequence.computed
        output = make_output(sequence, collected, stop, table, decode_steps)
        if stop.reason is not None:
            self._finish(sequence, stop.reason)
        return output

    def _follow_grammar(self, sequence: Sequence, kept: tuple[int, ...]) -> str | None:
        assert sequence.slot is not None
        return self.parts.sampler.grammars.follow(sequence.slot, kept)

    def _fail(self, sequence: Sequence, error: str) -> Output:
        """End one sequence with an error; the others keep running."""
        self._finish(sequence, FinishReason.ERROR)
        return Output(
            request_id=sequence.request.request_id,
            token_ids=(),
            finish_reason=FinishReason.ERROR,
            error=error,
        )

    def _has_draft_kv(self, collected: StepOutput) -> bool:
        """Whether the draft's KV is complete up to where the step began."""
        drafter, slot = self.parts.drafter, collected.sequence.slot
        assert slot is not None
        return drafter is None or (collected.drafted > 0 and drafter.is_complete(slot))

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        slot = sequence.slot
        self.scheduler.finish(sequence, reason)
        if slot is not None:
            self.parts.sampler.close(slot)
        del self._sequences[sequence.request.request_id]
