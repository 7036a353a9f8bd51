"""SGLang's adaptive policy: thresholds on a moving average of accepted draft tokens.

Each batch range has its own number of draft steps, average and counter. A batch is routed by its
padded size, and its result goes to the range that decided. After `warmup_batches` steps of a range,
and then every `update_interval` steps, its average is compared with the thresholds, which may
change the draft steps by several candidates at once. With 0 draft steps nothing is accepted: the
average does not change, and the next evaluation tries the next larger candidate unconditionally.

Source: `adaptive_spec_params.py` and `adaptive_step_router.py` of SGLang (#24055 and later).
Two differences: feedback for a number of draft steps that the range has left is dropped, and a
batch uses the new number of draft steps from its next step on.
"""

import math

from specdecode_api.table import accepted_to_fall, accepted_to_rise, ceiling
from specdecode_engine.adaptive.policy import Decision, Feedback, RangeState, Reason
from specdecode_engine.adaptive.table import BatchRange, PaddedRouting, RangeTable


class EmaPolicy:
    """Thresholds on the moving average of each batch range.

    Args:
        num_steps: draft steps at start; a range that does not list them starts at its middle
            candidate.
        captured: batch sizes that steps are padded to; empty where they are not.
    """

    def __init__(self, table: RangeTable, num_steps: int, captured: tuple[int, ...] = ()) -> None:
        self.routing = PaddedRouting(captured)
        self._num_steps = num_steps
        self._averages: dict[int, _RangeAverage] = {}
        self._sequence = 0
        self.reload(table)

    def decide(self, batch_size: int, kv_tokens: int, prefill_s: float = 0.0) -> Decision:
        entry = self.routing.route(self.table, batch_size, None)
        average = self._averages[entry.lower_bound]
        decision = Decision(average.num_steps, entry.lower_bound, self._sequence, average.reason)
        self._sequence += 1
        return decision

    def prefill_room_s(self, batch_size: int, kv_tokens: int) -> float:
        return math.inf

    def observe(self, feedback: Feedback) -> None:
        """Update the range that decided, unless its draft steps have changed since."""
        decision = feedback.decision
        average = self._averages.get(decision.range_start)
        if average is None or decision.sequence < self._first_valid:
            return
        if decision.num_steps == average.num_steps and feedback.accepted:
            average.learn(sum(feedback.accepted) / len(feedback.accepted))

    def reload(self, table: RangeTable) -> None:
        """Replace the table; ranges that are in both keep their averages."""
        known = {average.entry: average for average in self._averages.values()}
        self._averages = {
            entry.lower_bound: known.get(entry) or _RangeAverage(entry, self._num_steps)
            for entry in table.ranges
        }
        self.table = table
        self._first_valid = self._sequence  # of the first decision in this table

    def forget_draft(self) -> None:
        self._averages = {}
        self.reload(self.table)

    def states(self) -> tuple[RangeState, ...]:
        return tuple(self._averages[entry.lower_bound].state() for entry in self.table.ranges)


class _RangeAverage:
    """Draft steps, average and counter of one batch range. Owned by its policy."""

    def __init__(self, entry: BatchRange, num_steps: int) -> None:
        steps = entry.candidate_steps
        self.entry = entry
        self.reason = Reason.START
        self.num_steps = num_steps if num_steps in steps else steps[len(steps) // 2]
        # Between the thresholds at first; below 0 where the range starts without drafting.
        self._ema = self.num_steps - 1.0
        self._updates = 0

    def learn(self, accepted: float) -> None:
        """Add the mean over a step's requests, and evaluate when due."""
        entry = self.entry
        if self.num_steps > 0:
            self._ema = (1 - entry.ema_alpha) * self._ema + entry.ema_alpha * accepted
        self._updates += 1
        since_warmup = self._updates - entry.warmup_batches
        if since_warmup > 0 and since_warmup % entry.update_interval == 0:
            self._evaluate()

    def state(self) -> RangeState:
        entry, ema = self.entry, self._ema if self._ema >= 0 else None
        steps = entry.candidate_steps
        return RangeState(entry.lower_bound, steps, self.num_steps, self.reason, ema)

    def _evaluate(self) -> None:
        if self.num_steps == 0:
            self._probe()
            return
        steps = self.entry.candidate_steps
        here = steps.index(self.num_steps)
        index = self._by_thresholds(here)
        capped = self._capped(index) if index <= here else index
        if capped < index:
            self.reason = Reason.CEILING
        elif index == here:
            self.reason = Reason.KEEP
        else:
            self.reason = Reason.RISE if index > here else Reason.FALL
        self.num_steps = steps[capped]

    def _probe(self) -> None:
        """Go from 0 draft steps to the next candidate, if there is one."""
        steps = self.entry.candidate_steps
        self.num_steps = steps[min(1, len(steps) - 1)]
        self.reason = Reason.PROBE if self.num_steps > 0 else Reason.KEEP
        if self.num_steps > 0 and self._ema < 0:
            self._ema = self.num_steps - 1.0

    def _by_thresholds(self, here: int) -> int:
        index, steps = here, self.entry.candidate_steps
        down, up = self.entry.down_hysteresis, self.entry.up_hysteresis
        while index > 0 and self._ema <= accepted_to_fall(steps[index - 1], down):
            index -= 1
        if index < here:
            return index
        while index < len(steps) - 1 and self._ema > accepted_to_rise(steps[index], up):
            index += 1
        return index

    def _capped(self, index: int) -> int:
        """Apply the ceiling; not called where this evaluation has just raised the draft steps."""
        if self.entry.ceiling_coeff > 0:
            cap = ceiling(self._ema, self.entry.ceiling_coeff)
            while index > 0 and self.entry.candidate_steps[index] > cap:
                index -= 1
        return index
