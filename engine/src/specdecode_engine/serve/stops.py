"""Stop strings, found across token borders and never shown by mistake."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Released:
    """Text that may be shown now, and whether a stop string ended it."""

    text: str
    is_stopped: bool


class StopScanner:
    """Looks for the earliest stop string in a text that arrives in pieces.

    Holds back the longest end of the text that could still become a stop string.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert all(stops), "an empty stop string would end every text"
        self._stops = stops
        self._held = ""

    def push(self, piece: str) -> Released:
        """Take the next piece and release what is certain."""
        if not self._stops:
            return Released(piece, False)
        text = self._held + piece
        starts = [start for stop in self._stops if (start := text.find(stop)) >= 0]
        if starts:
            self._held = ""
            return Released(text[: min(starts)], True)
        certain = len(text) - self._undecided_chars(text)
        self._held = text[certain:]
        return Released(text[:certain], False)

    def flush(self) -> str:
        """Release what was held back: the text is over and no stop string came of it."""
        held, self._held = self._held, ""
        return held

    def _undecided_chars(self, text: str) -> int:
        return max(_overlap(text, stop) for stop in self._stops)


def _overlap(text: str, stop: str) -> int:
    """Return how long a proper beginning of `stop` the text ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
