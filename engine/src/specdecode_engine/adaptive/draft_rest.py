"""What is kept for a draft that drafts nothing for long.

Keeping them takes several percent of a small model's step. The first steps of a stay at 0 draft
steps keep theirs, as many as the next draft can read. Later steps of a longer stay keep nothing, so
that they cost what steps cost without a draft. The next draft then begins some steps late, with the
rows of these steps after a gap. A gap costs acceptance, never an answer.

A draft that reads tokens alone has no gap: its next draft computes every missing row, those of
prompts too. At 0 draft steps short prompts wait for that, and most answers end before it comes.
"""

import math

from specdecode_engine.adaptive.policy import AdaptivePolicy, Decision, Reason
from specdecode_engine.adaptive.table import RangeTable

# Steps that keep hidden states before a draft, after a gap. The example EAGLE-3 and DFlash heads
# have all of their acceptance again after 32, which a probe has to measure, and over half after 8.
PROBE_LEAD, RISE_LEAD = 32, 8
# Steps after a probe that keep them: the policy rises by what the probe has shown.
AFTER_PROBE = 16
# Rows that a request may lack at most for its prompt to wait, and for its pages to be reused all
# the same: more would delay the step that computes them noticeably.
MOST_WAITING = 128


class DraftRest:
    """Carries out the decisions of a policy. Owned by the scheduler.

    Args:
        kept: rows of hidden states that are kept for the next draft; infinite: it reads none.
        computes_late: whether the draft can compute any missing row later.
    """

    def __init__(self, kept: float = math.inf, *, computes_late: bool = False) -> None:
        self.keeps = True  # whether the latest step keeps hidden states
        self.computes_late = computes_late
        self._drafts = True  # whether the latest step drafts
        self._kept = kept
        self._steps = 0.0  # of the present stay; fewer after a probe
        self._held: Decision | None = None  # waits for `_lead` more steps
        self._lead = 0
        self._table: RangeTable | None = None  # of `_held`

    @property
    def defers_prompts(self) -> bool:
        """Whether short prompts wait for the next draft."""
        return self.computes_late and not self._drafts

    def decide(
        self, policy: AdaptivePolicy, batch_size: int, kv_tokens: int, prefill_s: float
    ) -> Decision:
        """Return the policy's decision, or one without draft steps that has to precede it.

        A decision that waits is not made again, as a policy does not grant a probe or a step above
        its limit twice. It is dropped in another table or batch range, and waits for a step that no
        chunks of prompts share where the step's time is limited.
        """
        held = self._held
        if held is not None and not self._still_holds(policy, batch_size, held):
            held = None
        decision = held or policy.decide(batch_size, kv_tokens, prefill_s)
        self._drafts = decision.num_steps > 0
        if not decision.num_steps:
            self._held, self._lead = None, 0
            self._steps += 1
            self.keeps = self._steps <= self._kept
            return decision
        is_probe = decision.reason is Reason.PROBE
        if not self.keeps:
            lead = float(PROBE_LEAD if is_probe else RISE_LEAD)
            self._lead = int(min(lead, self._kept))
            self.keeps = True
        if self._lead or (held and prefill_s and policy.table.max_step_s < math.inf):
            self._lead = max(self._lead - 1, 0)
            self._held, self._table = decision, policy.table
            return decision._replace(num_steps=0, reason=Reason.KEEP)
        self._held = None
        self._steps = min(self._steps, self._kept - AFTER_PROBE) if is_probe else 0.0
        return decision

    def _still_holds(self, policy: AdaptivePolicy, batch_size: int, held: Decision) -> bool:
        if policy.table is not self._table:
            return False
        entry = policy.routing.route(policy.table, batch_size, held.range_start)
        return entry.lower_bound == held.range_start
