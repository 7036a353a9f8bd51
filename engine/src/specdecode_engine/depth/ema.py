"""Follows a moving average of accepted draft tokens, with thresholds: SGLang's policy, as it is.

Each range of batch sizes has a slot of its own: depth, average, counter. A batch is routed by the
size it is padded to, and its result goes to the slot that decided for it. After `warmup_batches`
rounds of a slot, and then every `update_interval`, its average is held against the thresholds and
may pass several candidates at once. At depth 0 nothing is accepted: the average stands still, and
the next time the next deeper candidate is tried, whatever the average says.

Source: `adaptive_spec_params.py` and `adaptive_step_router.py` of SGLang (#24055 and after).
Otherwise than there, feedback of a depth that the slot has left meanwhile is dropped, and a batch
only meets the new depth at its next round.
"""

from specdecode_api.table import accepted_to_fall, accepted_to_rise, ceiling
from specdecode_engine.depth.decision import Decision, Feedback, RangeState, Reason
from specdecode_engine.depth.ranges import BatchRange, DepthTable
from specdecode_engine.depth.routing import PaddedRouting


class EmaDepth:
    """Thresholds on the moving average of each range.

    Args:
        num_steps: depth at start; a range without it starts at its middle candidate.
        captured: batch sizes that rounds are padded to; empty where they are not.
    """

    def __init__(self, table: DepthTable, num_steps: int, captured: tuple[int, ...] = ()) -> None:
        self.table = table
        self.routing = PaddedRouting(captured)
        self._num_steps = num_steps
        self._slots = {entry.lower_bound: _Slot(entry, num_steps) for entry in table.ranges}
        self._sequence = 0
        self._first_valid = 0  # sequence of the first decision in this table

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Look up the depth of the slot that `batch_size` is routed to; only feedback moves it."""
        entry = self.routing.route(self.table, batch_size, None)
        slot = self._slots[entry.lower_bound]
        decision = Decision(slot.num_steps, entry.lower_bound, self._sequence, slot.reason)
        self._sequence += 1
        return decision

    def observe(self, feedback: Feedback) -> None:
        """Have the slot that decided learn, if it still is where it was."""
        decision = feedback.decision
        slot = self._slots.get(decision.slot)
        if slot is None or decision.sequence < self._first_valid:
            return
        if decision.num_steps == slot.num_steps and feedback.accepted:
            slot.learn(sum(feedback.accepted) / len(feedback.accepted))

    def reload(self, table: DepthTable) -> None:
        """Take up another table; ranges that are in both keep what they learned."""
        known = {slot.entry: slot for slot in self._slots.values()}
        self._slots = {
            entry.lower_bound: known.get(entry) or _Slot(entry, self._num_steps)
            for entry in table.ranges
        }
        self.table = table
        self._first_valid = self._sequence

    def states(self) -> tuple[RangeState, ...]:
        """Describe every range; a slot that never drafted has no average."""
        return tuple(self._slots[entry.lower_bound].state() for entry in self.table.ranges)


class _Slot:
    """Depth, average and counter of one range. Owned by its policy."""

    def __init__(self, entry: BatchRange, num_steps: int) -> None:
        steps = entry.candidate_steps
        self.entry = entry
        self.reason = Reason.START
        self.num_steps = num_steps if num_steps in steps else steps[len(steps) // 2]
        # Neither rises nor falls at first; below 0 where the slot starts without drafting.
        self._ema = self.num_steps - 1.0
        self._rounds = 0

    def learn(self, accepted: float) -> None:
        """Take in the mean over a round's requests, and decide anew when it is time."""
        entry = self.entry
        if self.num_steps > 0:
            self._ema = (1 - entry.ema_alpha) * self._ema + entry.ema_alpha * accepted
        self._rounds += 1
        since_warmup = self._rounds - entry.warmup_batches
        if since_warmup > 0 and since_warmup % entry.update_interval == 0:
            self._decide()

    def state(self) -> RangeState:
        ema = self._ema if self._ema >= 0 else None
        entry = self.entry
        return RangeState(
            entry.lower_bound, entry.candidate_steps, self.num_steps, self.reason, ema
        )

    def _decide(self) -> None:
        if self.num_steps == 0:
            self._probe()
            return
        steps = self.entry.candidate_steps
        here = steps.index(self.num_steps)
        place = self._fallen(here)
        if place == here:
            place = self._risen(here)
        capped = self._capped(place) if place <= here else place
        self.reason = _reason(here, place, capped)
        self.num_steps = steps[capped]

    def _probe(self) -> None:
        """Leave depth 0 for the next candidate, if there is one."""
        steps = self.entry.candidate_steps
        self.num_steps = steps[min(1, len(steps) - 1)]
        self.reason = Reason.PROBE if self.num_steps > 0 else Reason.KEEP
        if self.num_steps > 0 and self._ema < 0:
            self._ema = self.num_steps - 1.0

    def _fallen(self, place: int) -> int:
        steps = self.entry.candidate_steps
        margin = self.entry.down_hysteresis
        while place > 0 and self._ema <= accepted_to_fall(steps[place - 1], margin):
            place -= 1
        return place

    def _risen(self, place: int) -> int:
        steps = self.entry.candidate_steps
        margin = self.entry.up_hysteresis
        while place < len(steps) - 1 and self._ema > accepted_to_rise(steps[place], margin):
            place += 1
        return place

    def _capped(self, place: int) -> int:
        """Lower a depth that was not risen to just now."""
        if self.entry.ceiling_coeff > 0:
            cap = ceiling(self._ema, self.entry.ceiling_coeff)
            while place > 0 and self.entry.candidate_steps[place] > cap:
                place -= 1
        return place


def _reason(here: int, place: int, capped: int) -> Reason:
    if capped < place:
        return Reason.CEILING
    if place == here:
        return Reason.KEEP
    return Reason.RISE if place > here else Reason.FALL
