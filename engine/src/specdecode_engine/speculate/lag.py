"""How far a draft has followed each slot, on the host."""

from collections.abc import Sequence as Items

from specdecode_engine.slots import Span


class Lag:
    """Counts the leading draft rows that are computed, per slot.

    A round first computes the rows still missing. Normally these are the few that the round before
    accepted, and they are done for the whole batch at once, `window` rows at most; what lies
    further back (rounds were run without drafting) is caught up slot by slot.
    """

    def __init__(self, window: int) -> None:
        self._window = window
        self._rows: dict[int, int] = {}

    def open(self, slot: int) -> None:
        """Start at no row."""
        self._rows[slot] = 0

    def reach(self, slot: int, rows: int) -> None:
        """Say that the first `rows` rows are computed."""
        self._rows[slot] = rows

    def rows(self, slot: int) -> int:
        """Leading rows computed."""
        return self._rows[slot]

    def far(self, slots: Items[int], goals: Items[int]) -> list[Span]:
        """Spans that lie further back than a window before the goals."""
        return [
            Span(slot, self._rows[slot], goal - self._window)
            for slot, goal in zip(slots, goals, strict=True)
            if goal - self._rows[slot] > self._window
        ]

    def count(self, slots: Items[int], goals: Items[int]) -> int:
        """Rows before the goals that a common window has to compute, 1 at least."""
        return max(1, *(goal - self._rows[slot] for slot, goal in zip(slots, goals, strict=True)))
