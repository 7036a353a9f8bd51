"""How far each decode step drafts, and which requests pass the draft."""

import math
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import replace

from specdecode_engine.adaptive.draft_health import DraftHealth
from specdecode_engine.adaptive.draft_rest import MOST_WAITING, DraftRest
from specdecode_engine.adaptive.policy import AdaptivePolicy, Decision, Reason
from specdecode_engine.batch.sequence import PrefillChunk, Sequence


class Drafting:
    """The policy, and what overrules it: an unfit draft, limits of requests, the rest of a draft.

    Args:
        health: None if the draft is not tested, or if there is none.
        rest: which steps at 0 draft steps keep hidden states; by default all do.
        has_fallback: whether NGRAM drafts where the draft model does not.
    """

    def __init__(
        self,
        policy: AdaptivePolicy,
        health: DraftHealth | None = None,
        rest: DraftRest | None = None,
        *,
        has_fallback: bool = False,
    ) -> None:
        self.policy = policy
        self.health = health
        self.rest = rest or DraftRest()
        self._has_fallback = has_fallback

    @property
    def is_unfit(self) -> bool:
        """Whether the draft does not fit the target."""
        return self.health is not None and self.health.is_unfit

    @property
    def is_overruled(self) -> bool:
        """Whether an unfit draft decides in the place of the policy."""
        return self.is_unfit and not self._has_fallback

    def decide(self, decoding: Items[Sequence], kv_tokens: int, prefill_s: float) -> Decision:
        """Let the policy choose, and draft no deeper than is useful to any request of the batch.

        Where the range has no candidate as small as the limit, its smallest one drafts more; the
        excess is not accepted. Static draft steps may have CUDA graphs where fewer have none, so
        the end of an answer does not change them.

        Args:
            prefill_s: that chunks of prompts are expected to add to the step.
        """
        health, table = self.health, self.policy.table
        if health is not None and health.is_unfit:
            has_probe = health.is_probing and not all(one.skips_draft for one in decoding)
            decision = health.decide(table, len(decoding), has_probe=has_probe)
            if decision.reason is Reason.UNFIT_PROBE or not self._has_fallback:
                return decision
        decision = self.rest.decide(self.policy, len(decoding), kv_tokens, prefill_s)
        chosen, is_static = decision.num_steps, decision.reason is Reason.STATIC
        limit = Sequence.allowed_steps if is_static else Sequence.useful_steps
        most = 0
        for sequence in decoding:
            most = max(most, limit(sequence, chosen))
            if most == chosen:
                return decision  # the common case, at the first sequence
        num_steps = table.range_of(decision.range_start).nearest(most)
        is_less = num_steps < chosen
        return decision._replace(num_steps=num_steps, reason=Reason.LIMIT) if is_less else decision

    def feeds_draft(self, decision: Decision) -> bool:
        """Whether a step keeps what the draft reads: while that is unfit, only for probes."""
        return decision.reason is Reason.UNFIT_PROBE if self.is_unfit else self.rest.keeps

    def catches_up(self, sequence: Sequence) -> bool:
        """Whether the draft can compute later what it lacks of a sequence, and that is little."""
        is_little = sequence.computed - sequence.reusable <= MOST_WAITING
        return is_little and self.rest.computes_late

    def defer(self, chunks: tuple[PrefillChunk, ...]) -> tuple[PrefillChunk, ...]:
        """Let the draft compute its rows of short prompts later, if it rests."""
        if not chunks or not self.defers_prompts:
            return chunks
        lacking = [chunk.end - chunk.sequence.reusable for chunk in chunks]
        return tuple(
            replace(chunk, waits=rows <= MOST_WAITING)
            for chunk, rows in zip(chunks, lacking, strict=True)
        )

    @property
    def defers_prompts(self) -> bool:
        """Whether short prompts wait for the next draft, which computes their rows.

        Where a step's time is limited, none does: what has to be computed then is not foreseen.
        """
        if self.is_unfit or self.policy.table.max_step_s < math.inf:
            return False
        return self.rest.defers_prompts

    def is_probe(self, sequence: Sequence) -> bool:
        """Whether a sequence that is admitted now is to show whether an unfit draft fits."""
        health = self.health
        return health is not None and health.is_probe_due and sequence.request.is_unrestricted

    def admit(self, sequence: Sequence, running: Iterable[Sequence], *, is_probe: bool) -> None:
        """Let a sequence skip the draft while that is unfit, unless it is a probe.

        Args:
            running: the others. When a probe is admitted, earlier ones have ended.
        """
        if self.health is None:
            return
        if is_probe:
            self.health.begin_probe()
            skip_draft(running)
        sequence.skips_draft = self.health.is_unfit and not is_probe


def skip_draft(sequences: Iterable[Sequence]) -> None:
    """Let none of these pass the draft any more."""
    for sequence in sequences:
        sequence.skips_draft = True
