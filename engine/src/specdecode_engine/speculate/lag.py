"""How far a draft is behind its target in each slot, as far as the host knows."""

from collections.abc import Sequence as Items

import torch
from torch import Tensor

from specdecode_engine.slots import DecodeBatch


class Lag:
    """Bounds the draft rows that are missing before a round, per slot.

    While a prompt is followed, the host knows exactly how many rows there are. Once a slot decodes,
    it only counts what is missing at most: a round that was not collected yet may have committed
    fewer tokens than it could. The device knows the first row that is missing, `first_missing`, so
    a bound is enough: rows before that one, which other sequences may share, are left alone.
    """

    def __init__(self, slots: int, device: torch.device) -> None:
        self._rows: dict[int, int] = {}
        self._missing: dict[int, int] = {}
        self._spoilt: set[int] = set()
        self._first_missing = torch.zeros(slots, dtype=torch.int64, device=device)

    def open(self, slot: int, rows: int) -> None:
        """Start with `rows` rows, computed for another sequence."""
        self._missing.pop(slot, None)
        self._spoilt.discard(slot)
        self.reach(slot, rows)

    def reach(self, slot: int, rows: int) -> None:
        """Say that the first `rows` rows of a prompt are computed."""
        self._rows[slot] = rows
        self._first_missing[slot] = rows

    def spoil(self, slot: int) -> None:
        """Say that some rows of a slot will never be computed."""
        self._spoilt.add(slot)

    def is_whole(self, slot: int) -> bool:
        """Whether every row of a slot can still be computed."""
        return slot not in self._spoilt

    def first_missing(self, batch: DecodeBatch) -> Tensor:
        """Return the first row that is missing [B] i64."""
        return self._first_missing[batch.slots]

    def rows(self, slot: int) -> int:
        """Leading rows computed, while a prompt is followed."""
        return self._rows[slot]

    def missing(self, slots: Items[int], goals: Items[int]) -> list[int]:
        """Rows before the goals that may be missing, 1 at least; exact at the first decode."""
        pairs = zip(slots, goals, strict=True)
        return [max(1, self._missing.get(slot, goal - self._rows[slot])) for slot, goal in pairs]

    def catch_up(self, batch: DecodeBatch, rows: Tensor) -> None:
        """Say that the first `rows` [B] i64 rows are computed and nothing is missing any more."""
        self._missing.update(dict.fromkeys(batch.slot_ids, 0))
        self._first_missing[batch.slots] = rows

    def fall_behind(self, slots: Items[int], goals: Items[int], rows: int) -> None:
        """Say that a round has committed up to `rows` tokens."""
        for slot, goal in zip(slots, goals, strict=True):
            self._missing[slot] = self._missing.get(slot, goal - self._rows[slot]) + rows
