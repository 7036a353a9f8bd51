"""One slot of the decayed mean per range of batch sizes."""

from collections.abc import Mapping

from bench.simulation.policy.rivals.ema_slot import EmaSlot
from specdecode_engine.adaptive.policy import Decision, Feedback, Reason
from specdecode_engine.adaptive.table import BatchRange, RangeTable


class EmaByBatch:
    """Takes lower bound → (candidates, down hysteresis)."""

    def __init__(self, slots: Mapping[int, tuple[tuple[int, ...], float]]) -> None:
        self._table = RangeTable(BatchRange(bound, entry[0]) for bound, entry in slots.items())
        self._slots = {bound: EmaSlot(*entry) for bound, entry in slots.items()}
        self._number = 0

    def decide(self, batch_size: int, kv_tokens: int) -> Decision:
        """Look up the slot of the batch size."""
        self._number += 1
        bound = self._table.range_of(batch_size).lower_bound
        return Decision(self._slots[bound].current, bound, self._number, Reason.KEEP)

    def observe(self, feedback: Feedback) -> None:
        """Feed the slot of the batch size, with whatever comes."""
        bound = self._table.range_of(feedback.batch_size).lower_bound
        self._slots[bound].update(feedback.accepted)
