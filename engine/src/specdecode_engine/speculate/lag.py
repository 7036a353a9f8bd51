"""How far a draft is behind its target in each slot, as far as the host knows."""

from collections.abc import Sequence as Items


class Lag:
    """Bounds the draft rows that are missing before a round, per slot.

    While a prompt is followed, the host knows exactly how many rows there are. Once a slot decodes,
    it only counts what is missing at most: a round that was not collected yet may have committed
    fewer tokens than it could. Computing a row twice gives the same values, so a bound is enough.
    """

    def __init__(self) -> None:
        self._rows: dict[int, int] = {}
        self._missing: dict[int, int] = {}

    def open(self, slot: int) -> None:
        """Start at no row."""
        self._rows[slot] = 0
        self._missing.pop(slot, None)

    def reach(self, slot: int, rows: int) -> None:
        """Say that the first `rows` rows of a prompt are computed."""
        self._rows[slot] = rows

    def rows(self, slot: int) -> int:
        """Leading rows computed, while a prompt is followed."""
        return self._rows[slot]

    def missing(self, slots: Items[int], goals: Items[int]) -> list[int]:
        """Rows before the goals that may be missing, 1 at least; exact at the first decode."""
        pairs = zip(slots, goals, strict=True)
        return [max(1, self._missing.get(slot, goal - self._rows[slot])) for slot, goal in pairs]

    def catch_up(self, slots: Items[int]) -> None:
        """Say that nothing is missing any more."""
        self._missing.update(dict.fromkeys(slots, 0))

    def fall_behind(self, slots: Items[int], goals: Items[int], rows: int) -> None:
        """Say that a round has committed up to `rows` tokens."""
        for slot, goal in zip(slots, goals, strict=True):
            self._missing[slot] = self._missing.get(slot, goal - self._rows[slot]) + rows
