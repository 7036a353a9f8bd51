"""The engine core: one step schedules, launches, collects and commits."""

import logging
from collections.abc import Mapping
from dataclasses import replace

from specdecode_engine.adaptive.draft_evidence import NO_PROPOSALS, FirstPosition
from specdecode_engine.adaptive.policy import Decision, Reason, StageDraft, prepared
from specdecode_engine.adaptive.table import RangeTable
from specdecode_engine.batch.adapters import ChangeAdapters
from specdecode_engine.batch.request import FinishReason, Output, Request
from specdecode_engine.batch.sequence import SchedulerOutput, Sequence
from specdecode_engine.batch.shapes import DraftShape
from specdecode_engine.batch.verify_rows import VerifyRowsPolicy, rows_within_limits
from specdecode_engine.ranks import check_agreement
from specdecode_engine.sampling.sampler import NO_TOKEN, no_token_error
from specdecode_engine.schedule.drafting import skip_draft
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.stats.counters import Counters
from specdecode_engine.stats.per_table import PerTableStats
from specdecode_engine.stats.snapshot import CoreSnapshot, take_snapshot
from specdecode_engine.steps.draft_sources import learn_sources
from specdecode_engine.steps.feedback import count_first_position, make_feedback
from specdecode_engine.steps.in_flight import InFlightStep, StepResult
from specdecode_engine.steps.launch import Launcher
from specdecode_engine.steps.model_context import ModelContext
from specdecode_engine.steps.open_requests import check_request, close_request, open_requests
from specdecode_engine.steps.out_of_memory import is_out_of_memory, release_cached_memory
from specdecode_engine.steps.timing import Stopwatch

log = logging.getLogger(__name__)

CHECK_STEPS = 1000
"""Steps between two checks of the invariants: a check walks the whole prefix cache, and could delay
a request that arrives meanwhile."""


class EngineCore:
    """Requests in, tokens out, one step at a time; used by one thread.

    Args:
        context: what the steps compute with.
        scheduler: who runs.
        shapes: the draft shape for each `num_steps`.
        eos_token_ids: tokens that end an answer unless the request ignores them.
        stopwatch: measures steps.
        facts: what the engine runs on, for people to read.
    """

    def __init__(
        self,
        context: ModelContext,
        scheduler: Scheduler,
        shapes: Mapping[int, DraftShape],
        eos_token_ids: frozenset[int],
        stopwatch: Stopwatch,
        facts: Mapping[str, object],
    ) -> None:
        self.facts = facts
        self.counters = Counters()
        self.per_table = PerTableStats(scheduler.drafting.policy.table.table_hash)
        self.scheduler = scheduler
        self.context = context
        self.shapes = shapes
        self.eos_token_ids = eos_token_ids
        self.stage_draft: StageDraft | None = None  # set where drafts can be exchanged
        self.change_adapters: ChangeAdapters | None = None  # set where adapters may come
        self.most_draft_steps: int | None = None  # set where the draft can draft no more
        self.choose_rows: VerifyRowsPolicy = rows_within_limits
        self._launcher = Launcher(shapes, stopwatch)
        self._overlap = scheduler.limits.lag_tokens > 0
        self._pending: tuple[InFlightStep, ...] = ()
        self._ready: list[Output] = []
        self._sequences: dict[str, Sequence] = {}
        self._checked_steps = 0

    @property
    def context_length(self) -> int:
        return self.scheduler.limits.longest_sequence

    @property
    def latest_step(self) -> str:
        return self.context.graphs.latest_step

    def submit(self, request: Request) -> None:
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use; choose another")
        check_request(self.context, request)
        self._sequences[request.request_id] = self.scheduler.add(request, self.eos_token_ids)

    def abort(self, request_id: str) -> None:
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORT)
            self.per_table.close(sequence)
            self._ready = [output for output in self._ready if output.request_id != request_id]

    def preempt(self, sequence: Sequence) -> None:
        """Preempt a running sequence: free its memory; it waits and resumes with the same output.

        The scheduler preempts automatically when memory runs out; tests do it at any time.
        """
        self._ready += self._collect()
        if sequence.finish_reason is None and sequence.req_index is not None:
            self.context.sampler.close(sequence.req_index)
            self.scheduler.preempt(sequence)

    def resume(self, request: Request) -> None:
        """Continue a suspended request with its grammar; no effect if it was aborted."""
        sequence = self.scheduler.suspended.get(request.request_id)
        if sequence is not None:
            sequence.request = replace(sequence.request, grammar=request.grammar)
            self.scheduler.resume(request.request_id)

    def reload(self, table: RangeTable) -> None:
        table = prepared(table, self.shapes, self.most_draft_steps)
        self.scheduler.drafting.policy.reload(table)
        self._replan()
        self.per_table.use(table.table_hash)

    def begin_draft_exchange(self) -> None:
        """Stop testing the draft: until the end it consists of parts of two."""
        if self.scheduler.drafting.health is not None:
            self.scheduler.drafting.health.pause()

    def finish_draft_exchange(self) -> None:
        """Forget what is known of the draft: another one was copied over it."""
        self.scheduler.forget_draft()
        if self.context.sources is not None:
            self.context.sources.forget_draft()
        self.counters.forget_draft()
        self._replan()

    def has_work(self) -> bool:
        is_runnable = len(self._sequences) > len(self.scheduler.suspended)
        return is_runnable or bool(self._pending) or bool(self._ready)

    def idle_step(self) -> bool:
        """Capture a CUDA graph that did not fit the time at start; check invariants at the end."""
        assert not self.has_work(), "deferred work would delay a step"
        if self.context.graphs.capture_next():
            return True
        if self.counters.steps - self._checked_steps >= CHECK_STEPS:
            self._checked_steps = self.counters.steps
            try:
                self.scheduler.check()
            except AssertionError as error:
                log.error("a scheduling invariant is violated, please report it: %s", error)
        return False

    def snapshot(self) -> CoreSnapshot:
        graphs = self.context.graphs.report()
        nodes = {num_steps: shape.num_tokens for num_steps, shape in self.shapes.items()}
        return take_snapshot(self.scheduler, self.counters, self.per_table, nodes, graphs)

    def step(self) -> list[Output]:
        """Launch one step and return the outputs that arrived since the last one.

        With overlap the host is one step behind: it collects a step's tokens after the next step
        was launched, so the device never waits for the host. Without, it collects at once.
        """
        outputs, self._ready = self._ready, []
        if self._must_collect_first():
            outputs += self._collect()
        before, plan = self._pending, self.scheduler.plan()
        check_agreement(self.context.ranks, *plan.numbers)
        try:
            self._pending = self._launch(plan)
        except RuntimeError as error:
            # The other ranks wait for the rest of the step: it cannot be launched again.
            if not is_out_of_memory(error) or self.context.ranks.size > 1:
                raise
            return outputs + self._retry(plan, error)
        self.per_table.count_preemptions(self.scheduler.preempted_total)
        return outputs + (self._commit_all(before) if self._overlap else self._collect())

    def _must_collect_first(self) -> bool:
        """Whether the next plan needs tokens in flight: to preempt, or to follow a grammar."""
        if not self._pending:
            return False
        running = self.scheduler.running
        awaited = (s.req_index for s in running if s.in_flight_steps and s.req_index)
        needs_tokens = self.context.sampler.grammars.needs_host_tokens(awaited)
        return needs_tokens or self.scheduler.must_preempt()

    def _retry(self, plan: SchedulerOutput, error: RuntimeError) -> list[Output]:
        """Launch an interrupted step again, eagerly and without the youngest request.

        Parts of the step may have run and changed tables, penalties and the draft's KV, so that
        its sequences start over from the tokens that the host knows; their KV is in the prefix
        cache. What runs out of memory again ends with an error, and the engine continues.
        """
        log.warning("a step ran out of memory; %s: %s", self.latest_step, error)
        outputs = self._collect()
        interrupted = self._interrupted(plan)
        is_reduced = self.scheduler.reduce_batch(interrupted)
        release_cached_memory()
        if is_reduced:
            retried = self.scheduler.plan()
            try:
                self._pending = self._launch(retried)
                self.counters.out_of_memory["retried"] += 1
                return outputs if self._overlap else outputs + self._collect()
            except RuntimeError as again:
                if not is_out_of_memory(again):
                    raise
                error, interrupted = again, self._interrupted(retried)
        self.counters.out_of_memory["failed"] += 1
        log.error("a step ran out of memory again, its requests end with an error: %s", error)
        text = f"the device is out of memory, also for a smaller batch: {error}"
        return outputs + [self._fail(sequence, text) for sequence in interrupted]

    def _interrupted(self, plan: SchedulerOutput) -> tuple[Sequence, ...]:
        """Return the unfinished sequences of a step that failed, oldest first; none is in flight.

        What the step sent before it failed is never collected.
        """
        planned = {*[id(chunk.sequence) for chunk in plan.chunks], *map(id, plan.decoding)}
        found = tuple(one for one in self.scheduler.running if id(one) in planned)
        for sequence in found:
            assert sequence.req_index is not None
            sequence.in_flight_tokens = sequence.in_flight_steps = 0
            self.context.sampler.close(sequence.req_index)
        return found

    def _launch(self, plan: SchedulerOutput) -> tuple[InFlightStep, ...]:
        open_requests(self.context, plan, self.scheduler)
        if plan.decision is not None:
            self.counters.decide(plan.decision)
        table = self.per_table.table
        launched = self._launcher.launch(self.context, plan, table, self.choose_rows, self._pending)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.end
            if not chunk.waits:
                with_draft_kv = chunk.end - self.scheduler.cache.lookahead
                chunk.sequence.reusable = max(chunk.sequence.reusable, with_draft_kv)
        self.counters.steps += bool(launched)
        return launched

    def _collect(self) -> list[Output]:
        """Wait for everything in flight."""
        pending, self._pending = self._pending, ()
        return self._commit_all(pending)

    def _commit_all(self, steps: tuple[InFlightStep, ...]) -> list[Output]:
        outputs: list[Output] = []
        for step in steps:
            result = step.collect()
            committed = self._commit(step, result)
            self._count(step, result, committed)
            outputs += committed
        return outputs

    def _count(self, step: InFlightStep, result: StepResult, outputs: list[Output]) -> None:
        """Update the counters and the policy with the result of a step."""
        seconds = step.share * step.timing.seconds()
        health = self.scheduler.drafting.health
        if step.decision is None:
            self.counters.prompt_tokens += step.prompt_tokens
            self.counters.prefill_seconds += seconds
            busy_s = step.timing.busy_seconds()
            around = step.decoding, step.num_steps, step.prompt_context
            self.scheduler.prefill_pace.observe_chunk(step.prompt_tokens, busy_s, *around)
            if health is not None and health.is_unfit:
                health.account(seconds, is_probe=step.feeds_draft)
            return
        batch_size = len(step.sequences)
        self.counters.mixed_steps += not step.is_alone
        emitted = [len(token_ids) for token_ids in result.token_ids]
        counted = result.num_verify_rows, emitted, result.drafted, result.is_ngram
        self.counters.count(step.decision, seconds, *counted)
        if self.context.sources is not None:
            learn_sources(self.context.sources, step, result)
        noted = zip(result.sequences, outputs, strict=True)
        self.per_table.note(step.table, batch_size, noted, seconds)
        shape = self.shapes[step.decision.num_steps].verifying(step.decision.verify_tokens)
        feedback = make_feedback(step, shape, result, outputs)
        self.counters.learn(feedback)
        if step.is_alone:
            num_steps = step.decision.num_steps
            self.scheduler.prefill_pace.observe_step(batch_size, feedback.seconds, num_steps)
        if not step.decision.reason.is_of_unfit_draft:
            self.scheduler.drafting.policy.observe(feedback)
        if health is None:
            return
        drafter, first = self.context.drafter, NO_PROPOSALS
        if drafter is not None and step.decision.num_steps:
            first = count_first_position(result, drafter)
        if first.proposed:
            self.judge_draft(step.decision, first, feedback.seconds)
        elif health.is_unfit:
            is_probe = step.decision.reason is Reason.UNFIT_PROBE
            health.account(feedback.seconds, is_probe=is_probe)

    def judge_draft(self, decision: Decision, first: FirstPosition, seconds: float) -> None:
        """Judge the draft by the result of a step; tests bring results of their own."""
        health = self.scheduler.drafting.health
        if health is None or not health.observe(decision, first, seconds):
            return
        report = health.report()
        level = logging.WARNING if report.is_unfit else logging.INFO
        log.log(level, "%s", report.description)
        if report.is_unfit:
            skip_draft(self.scheduler.running)
        elif decision.reason.is_of_unfit_draft:
            self.scheduler.forget_draft_kv()
        self._replan()

    def _replan(self) -> None:
        """Plan CUDA graphs for what may be decided from now on."""
        drafting = self.scheduler.drafting
        self.context.graphs.replan(drafting.policy, with_plain=drafting.is_unfit)

    def _commit(self, step: InFlightStep, result: StepResult) -> list[Output]:
        """Append the tokens that sequences keep, and end sequences at a stop."""
        is_decode, has_drafter = step.decision is not None, self.context.drafter is not None
        lookahead = self.scheduler.cache.lookahead  # 0 without a drafter
        outputs: list[Output] = []
        columns = result.token_ids, result.drafted, result.logprobs, result.experts
        for sequence, token_ids, drafted, logprobs, experts in zip(
            result.sequences, *columns, strict=True
        ):
            request, tokens = sequence.request, sequence.tokens
            kept, reason, stop_token_id = token_ids, None, None
            room, count = sequence.total_limit - len(tokens), len(token_ids)
            if count >= room or not sequence.ending_ids.isdisjoint(token_ids):
                count, reason, stop_token_id = sequence.check_stop(token_ids)
                kept = token_ids[:count]
            if NO_TOKEN in kept:
                outputs.append(self._fail(sequence, no_token_error(len(tokens) + count - 1)))
                continue
            if request.grammar is not None:
                assert sequence.req_index is not None
                fault = self.context.sampler.grammars.follow(sequence.req_index, kept)
                if fault is not None:
                    outputs.append(self._end_grammar(sequence, fault))
                    continue
            tokens += kept
            sequence.computed = len(tokens) - 1
            if sequence.skips_draft or not has_drafter:
                sequence.reusable = sequence.computed - lookahead
            elif step.draft_is_current:
                self._note_draft_kv(sequence, count)
            if reason is not None:
                self._finish(sequence, reason)
            outputs.append(
                Output(
                    request.request_id,
                    kept,
                    None if logprobs is None else logprobs[:count],
                    sequence.first_prompt_logprobs(count),
                    reason,
                    stop_token_id,
                    None,
                    step.table,
                    int(is_decode),
                    drafted,
                    len(token_ids) - 1,
                    None,
                    sequence.admitted_s,
                    sequence.cached_tokens,
                    experts[:count] if experts is not None and is_decode else experts,
                )
            )
        return outputs

    def _note_draft_kv(self, sequence: Sequence, count: int) -> None:
        """Note how far the KV of target and draft is computed, `count` tokens being new."""
        drafter, req_index = self.context.drafter, sequence.req_index
        assert drafter is not None
        assert req_index is not None
        if drafter.is_complete(req_index):
            sequence.reusable = sequence.computed - count + drafter.bonus_rows

    def _end_grammar(self, sequence: Sequence, fault: str) -> Output:
        """Suspend a sequence with drafts until its grammar is compiled again; else end it.

        Masks of drafted tokens can exhaust a lexer that suffices without. No step waits for that.
        """
        if self.context.drafter is None or not sequence.allowed_steps(1):
            return self._fail(sequence, grammar_fault=fault)
        request = sequence.request = replace(sequence.request, max_steps=0)
        self.scheduler.suspend(sequence)
        output_ids = tuple(sequence.tokens[len(request.prompt_ids) :])
        return Output(request.request_id, (), suspended=replace(request, output_ids=output_ids))

    def _fail(
        self, sequence: Sequence, error: str | None = None, grammar_fault: str | None = None
    ) -> Output:
        """End one sequence with an error; the others keep running."""
        name, reason = sequence.request.request_id, FinishReason.ERROR
        self._finish(sequence, reason)
        return Output(name, (), finish_reason=reason, error=error, grammar_fault=grammar_fault)

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        if sequence.req_index is not None:
            close_request(self.context, sequence, self.scheduler)
        self.scheduler.finish(sequence, reason)
        del self._sequences[sequence.request.request_id]
