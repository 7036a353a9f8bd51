"""The engine core: one step is plan, extend, decode, commit."""

import itertools
from collections.abc import Mapping

from specdecode_engine.commit import add_emission, cut_at_ending, ending_ids, output_of
from specdecode_engine.counters import Counters
from specdecode_engine.depth.decision import Feedback, TableRefused
from specdecode_engine.depth.ranges import DepthTable
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.metrics import CoreSnapshot
from specdecode_engine.request import FinishReason, Output, Request
from specdecode_engine.rounds.launch import Launcher
from specdecode_engine.rounds.launched import Launched
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.rounds.timing import Stopwatch
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission, Plan
from specdecode_engine.summary import summarise, totals_of
from specdecode_engine.tally import Tally


class EngineCore:
    """Requests in, tokens out, one step at a time; used by one thread.

    Args:
        parts: what the rounds compute with.
        scheduler: who runs.
        shapes: how a round of so many steps drafts.
        eos_token_ids: tokens that end an answer unless the request ignores them.
        stopwatch: measures rounds.
        facts: what the engine runs on, for people to read.
    """

    def __init__(
        self,
        parts: Parts,
        scheduler: Scheduler,
        shapes: Mapping[int, DraftShape],
        eos_token_ids: frozenset[int],
        stopwatch: Stopwatch,
        facts: Mapping[str, object],
    ) -> None:
        self.facts = facts
        self.counters = Counters()
        self.tally = Tally(scheduler.depth.table.table_hash)
        self.scheduler = scheduler
        self.parts = parts
        self.shapes = shapes
        self.eos_token_ids = eos_token_ids
        self._launcher = Launcher(shapes, stopwatch)
        self._overlap = scheduler.limits.lag_tokens > 0
        self._pending: tuple[Launched, ...] = ()
        self._ready: list[Output] = []
        self._sequences: dict[str, Sequence] = {}

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
            self.tally.close(sequence)
            self._ready = [output for output in self._ready if output.request_id != request_id]

    def retract(self, sequence: Sequence) -> None:
        """Take a running sequence's memory away; it waits and goes on later as if nothing had been.

        The scheduler does this by itself when memory runs out; tests do it at any time.
        """
        self._ready += self._collect()
        if sequence.finish_reason is None and sequence.slot is not None:
            self.parts.sampler.close(sequence.slot)
            self.scheduler.retract(sequence)

    def reload(self, table: DepthTable) -> None:
        """Choose depths by another table from the next round on.

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
        self.parts.states.replan(self.scheduler.depth)
        self.tally.use(table.table_hash)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences) or bool(self._pending) or bool(self._ready)

    def snapshot(self) -> CoreSnapshot:
        """State and totals, as plain numbers."""
        graphs = self.parts.states.report()
        return summarise(self.scheduler, self.counters, self.tally, self.shapes, graphs)

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
        self.tally.note_retractions(self.scheduler.retracted_total)
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

    def _launch(self, plan: Plan) -> tuple[Launched, ...]:
        self._open_slots(plan)
        if plan.decision is not None:
            self.counters.decide(plan.decision)
        launched = self._launcher.launch(self.parts, plan, self.tally.table)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.end
            followed = chunk.end - self.scheduler.cache.lookahead
            chunk.sequence.reusable = max(chunk.sequence.reusable, followed)
        self.counters.steps += not plan.is_empty
        return launched

    def _collect(self) -> list[Output]:
        """Wait for everything in flight."""
        pending, self._pending = self._pending, ()
        return self._commit_all(pending)

    def _commit_all(self, rounds: tuple[Launched, ...]) -> list[Output]:
        outputs: list[Output] = []
        for launched in rounds:
            emissions = launched.pending.collect() if launched.pending else []
            counted, table = launched.decode_rounds, launched.table
            ended = [self._commit(emission, counted, table) for emission in emissions]
            self._count(launched, emissions, ended)
            outputs += ended
        return outputs

    def _count(self, launched: Launched, emissions: list[Emission], outputs: list[Output]) -> None:
        """Tell the counters and the policy what became of a round."""
        seconds = launched.timing.seconds()
        if launched.decision is None or launched.pending is None:
            self.counters.prompt_tokens += launched.prompt_tokens
            self.counters.prefill_seconds += seconds
            return
        self.counters.mixed_rounds += not launched.is_alone
        self.counters.count(launched.decision, totals_of(emissions, seconds))
        batch_size = len(launched.pending.sequences)
        self.tally.note(launched.table, batch_size, emissions, outputs, seconds)
        going_on = zip(emissions, outputs, strict=True)
        feedback = Feedback(
            decision=launched.decision,
            batch_size=batch_size,
            kv_tokens=launched.kv_tokens,
            accepted=tuple(e.accepted for e, out in going_on if out.finish_reason is None),
            seconds=launched.timing.busy_seconds(),
            is_alone=launched.is_alone,
        )
        self.counters.learn(feedback)
        self.scheduler.depth.observe(feedback)

    def _open_slots(self, plan: Plan) -> None:
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

    def _commit(self, emission: Emission, decode_rounds: int, table: str) -> Output:
        """Append what counts of an emission and end the sequence where it ends."""
        sequence = emission.sequence
        ending = cut_at_ending(emission.token_ids, sequence)
        kept = emission.token_ids[: ending.kept]
        if sequence.request.grammar is not None:
            fault = self._follow_grammar(sequence, kept)
            if fault is not None:
                return self._fail(sequence, f"the grammar could not be followed: {fault}")
        followed = len(sequence.tokens) - self.scheduler.cache.lookahead
        sequence.tokens.extend(kept)
        sequence.computed = len(sequence.tokens) - 1
        if self._has_followed(emission):
            sequence.reusable = followed if emission.drafted else sequence.computed
        sequence.stats = add_emission(sequence.stats, emission, ending.kept, decode_rounds)
        output = output_of(sequence, emission, ending, table)
        if ending.reason is not None:
            self._finish(sequence, ending.reason)
        return output

    def _follow_grammar(self, sequence: Sequence, kept: tuple[int, ...]) -> str | None:
        assert sequence.slot is not None
        return self.parts.sampler.grammars.follow(sequence.slot, kept)

    def _fail(self, sequence: Sequence, error: str) -> Output:
        """End one sequence with an error; the others go on."""
        self._finish(sequence, FinishReason.ERROR)
        return Output(
            request_id=sequence.request.request_id,
            token_ids=(),
            finish_reason=FinishReason.ERROR,
            stats=sequence.stats,
            error=error,
        )

    def _has_followed(self, emission: Emission) -> bool:
        """Whether the draft's rows are right up to where the round began."""
        drafter, slot = self.parts.drafter, emission.sequence.slot
        assert slot is not None
        return drafter is None or (emission.drafted > 0 and drafter.is_whole(slot))

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        slot = sequence.slot
        self.scheduler.finish(sequence, reason)
        if slot is not None:
            self.parts.sampler.close(slot)
        del self._sequences[sequence.request.request_id]
