"""The engine core: one step is plan, extend, decode, commit."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from specdecode_engine.commit import Ending, cut_at_ending
from specdecode_engine.counters import Counters
from specdecode_engine.draft_shape import DraftShape
from specdecode_engine.metrics import CoreSnapshot
from specdecode_engine.request import FinishReason, Output, Request, RequestStats
from specdecode_engine.rounds.decode import run_decode_round
from specdecode_engine.rounds.extend import run_extend_round
from specdecode_engine.rounds.parts import Parts
from specdecode_engine.schedule.scheduler import Scheduler
from specdecode_engine.sequence import Sequence
from specdecode_engine.step import Emission, Plan


class EngineCore:
    """Requests in, tokens out, one step at a time; used by one thread.

    Args:
        parts: what the rounds compute with.
        scheduler: who runs.
        shapes: how a round of so many steps drafts.
        eos_token_ids: tokens that end an answer unless the request ignores them.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        parts: Parts,
        scheduler: Scheduler,
        shapes: Mapping[int, DraftShape],
        eos_token_ids: frozenset[int],
        clock: Callable[[], float],
    ) -> None:
        self.counters = Counters()
        self.scheduler = scheduler
        self._parts = parts
        self._shapes = shapes
        self._eos_token_ids = eos_token_ids
        self._clock = clock
        self._num_steps = scheduler.depth.choose(1)
        self._sequences: dict[str, Sequence] = {}

    @property
    def context_length(self) -> int:
        """Tokens, prompt and answer, that one request may reach."""
        return self.scheduler.limits.longest_sequence

    def submit(self, request: Request) -> None:
        """Queue a request; see `Scheduler.add` for what it raises."""
        if request.request_id in self._sequences:
            raise ValueError(f"request id {request.request_id!r} is in use; choose another")
        self._sequences[request.request_id] = self.scheduler.add(request)

    def abort(self, request_id: str) -> None:
        """End a request without another output; an unknown id has no effect."""
        sequence = self._sequences.get(request_id)
        if sequence is not None:
            self._finish(sequence, FinishReason.ABORT)

    def has_work(self) -> bool:
        """Whether a step would do anything."""
        return bool(self._sequences)

    def snapshot(self) -> CoreSnapshot:
        """State and totals, as plain numbers."""
        scheduler, counters = self.scheduler, self.counters
        return CoreSnapshot(
            running_requests=len(scheduler.running),
            waiting_requests=len(scheduler.waiting),
            kv_pages_total=scheduler.pages.total,
            kv_pages_free=scheduler.pages.free,
            num_steps=self._num_steps,
            rounds_total=counters.decode_rounds,
            request_rounds_total=counters.request_rounds,
            drafted_tokens_total=counters.drafted_tokens,
            accepted_tokens_total=counters.accepted_tokens,
            emitted_tokens_total=counters.emitted_tokens,
            prompt_tokens_total=counters.prompt_tokens,
            decode_seconds_total=counters.decode_seconds,
            prefill_seconds_total=counters.prefill_seconds,
            retracted_total=scheduler.retracted_total,
        )

    def step(self) -> list[Output]:
        """Run one step and return what it added to each request."""
        plan = self.scheduler.plan()
        self._open_slots(plan)
        started = self._clock()
        extended = run_extend_round(self._parts, plan.chunks) if plan.chunks else []
        between = self._clock()
        decoded = self._decode(plan) if plan.decoding else []
        self._count(plan, decoded, between - started, self._clock() - between)
        for chunk in plan.chunks:
            chunk.sequence.computed = chunk.end
        return [self._commit(emission, 0) for emission in extended] + [
            self._commit(emission, 1) for emission in decoded
        ]

    def _decode(self, plan: Plan) -> list[Emission]:
        return run_decode_round(self._parts, plan.decoding, self._shapes[plan.num_steps])

    def _open_slots(self, plan: Plan) -> None:
        """Bring the device tables up to date with what the scheduler handed out."""
        decoding = plan.decoding
        for sequence in [chunk.sequence for chunk in plan.chunks]:
            slot = sequence.slot
            assert slot is not None
            if sequence.computed == 0:
                self._open_slot(slot, sequence)
            self._parts.table.write_pages(slot, sequence.pages)
        for sequence in decoding:
            assert sequence.slot is not None
            self._parts.table.write_pages(sequence.slot, sequence.pages)

    def _open_slot(self, slot: int, sequence: Sequence) -> None:
        prompt = list(sequence.request.prompt_ids)
        output = sequence.tokens[len(prompt) :]
        self._parts.table.open(slot, sequence.tokens)
        self._parts.sampler.open(slot, sequence.request.sampling, prompt, output)
        if self._parts.drafter is not None:
            self._parts.drafter.open(slot)

    def _commit(self, emission: Emission, rounds: int) -> Output:
        """Append what counts of an emission and end the sequence where it ends."""
        sequence = emission.sequence
        request = sequence.request
        ending = cut_at_ending(emission.token_ids, sequence, self._eos_token_ids)
        kept = emission.token_ids[: ending.kept]
        sequence.tokens.extend(kept)
        sequence.computed = len(sequence.tokens) - 1
        sequence.stats = _add(sequence.stats, emission, len(kept), rounds)
        assert sequence.slot is not None
        self._parts.sampler.commit(sequence.slot, list(kept))
        output = _output(request, sequence, emission, ending)
        if ending.reason is not None:
            self._finish(sequence, ending.reason)
        return output

    def _finish(self, sequence: Sequence, reason: FinishReason) -> None:
        slot = sequence.slot
        self.scheduler.finish(sequence, reason)
        if slot is not None:
            self._parts.sampler.close(slot)
        del self._sequences[sequence.request.request_id]

    def _count(
        self, plan: Plan, decoded: list[Emission], prefill_s: float, decode_s: float
    ) -> None:
        counters = self.counters
        if plan.decoding:
            self._num_steps = plan.num_steps
        counters.steps += not plan.is_empty
        counters.decode_rounds += bool(decoded)
        counters.request_rounds += len(decoded)
        counters.prompt_tokens += sum(chunk.end - chunk.start for chunk in plan.chunks)
        counters.drafted_tokens += sum(emission.drafted for emission in decoded)
        counters.accepted_tokens += sum(emission.accepted for emission in decoded)
        counters.emitted_tokens += sum(len(emission.token_ids) for emission in decoded)
        counters.prefill_seconds += prefill_s
        counters.decode_seconds += decode_s


def _add(stats: RequestStats, emission: Emission, emitted: int, rounds: int) -> RequestStats:
    return replace(
        stats,
        rounds=stats.rounds + rounds,
        drafted=stats.drafted + emission.drafted,
        accepted=stats.accepted + emission.accepted,
        emitted=stats.emitted + emitted * rounds,
    )


def _output(request: Request, sequence: Sequence, emission: Emission, ending: Ending) -> Output:
    logprobs = emission.logprobs
    return Output(
        request_id=request.request_id,
        token_ids=emission.token_ids[: ending.kept],
        logprobs=None if logprobs is None else logprobs[: ending.kept],
        finish_reason=ending.reason,
        stop_token_id=ending.stop_token_id,
        stats=sequence.stats,
    )
