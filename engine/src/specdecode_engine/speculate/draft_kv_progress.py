"""Which rows of the draft's KV are computed for each request, as far as the host knows."""

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from specdecode_engine.batch.request_table import DecodeBatch


class DraftKvProgress:
    """Bounds the draft rows that are missing before a step, per request.

    During prefill the host knows exactly how many rows are computed. Once a request decodes, the
    host only has an upper bound of what is missing: a step that is not collected yet may have
    committed fewer tokens than it could. The device knows the first missing row, so a bound is
    enough: rows before that one, which other sequences may share, are not written.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._computed: dict[int, int] = {}
        self._pending: dict[int, int] = {}
        self._invalid: set[int] = set()
        self._first_missing = torch.zeros(slots, dtype=torch.int64, device=device)

    def open(self, slot: int, rows: int) -> None:
        """Start a request whose first `rows` rows were computed for another sequence."""
        self._pending.pop(slot, None)
        self._invalid.discard(slot)
        self.set_num_computed(slot, rows)

    def num_computed(self, slot: int) -> int:
        """Leading rows that are computed, during prefill."""
        return self._computed[slot]

    def set_num_computed(self, slot: int, rows: int) -> None:
        """Record that the first `rows` rows of a prompt are computed."""
        self._computed[slot] = rows
        self._first_missing[slot] = rows

    def add_pending(self, slots: Items[int], required: Items[int], rows: int) -> None:
        """Record that a step has committed up to `rows` tokens.

        Args:
            required: rows that a draft needed before the step, per slot.
        """
        for slot, count in zip(slots, required, strict=True):
            self._pending[slot] = self._pending.get(slot, count - self._computed[slot]) + rows

    def max_pending(self, slots: Items[int], required: Items[int]) -> list[int]:
        """Rows of `required` that may be missing, at least 1; exact at the first decode step."""
        pairs = zip(slots, required, strict=True)
        return [
            max(1, self._pending.get(slot, rows - self._computed[slot])) for slot, rows in pairs
        ]

    def complete(self, batch: DecodeBatch, rows: Tensor) -> None:
        """Record that the first `rows` [B] i64 rows are computed and none is missing."""
        self._pending.update(dict.fromkeys(batch.slot_ids, 0))
        self._first_missing[batch.slots] = rows

    def first_missing(self, batch: DecodeBatch) -> Tensor:
        """Return the first missing row [B] i64."""
        return self._first_missing[batch.slots]

    def invalidate(self, slot: int) -> None:
        """Record that some rows of a request will never be computed."""
        self._invalid.add(slot)

    def is_complete(self, slot: int) -> bool:
        """Whether every row of a request is or can still be computed."""
        return slot not in self._invalid
