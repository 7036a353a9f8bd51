"""Stop strings, found across token boundaries and never part of the released text."""


class StopStringScanner:
    """Searches a text that arrives in pieces for the earliest stop string.

    Holds back the longest end of the text that could still become a stop string. `is_stopped` is
    set once a stop string ended the text.
    """

    def __init__(self, stop: tuple[str, ...]) -> None:
        assert all(stop), "an empty stop string would end every text"
        self.is_stopped = False
        self._stop = stop
        self._held = ""

    def push(self, piece: str) -> str:
        """Add the next piece; return the text that can be released now."""
        text = self._held + piece
        starts = [start for stop in self._stop if (start := text.find(stop)) >= 0]
        if starts:
            self.is_stopped = True
            self._held = ""
            return text[: min(starts)]
        released = len(text) - max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[released:]
        return text[:released]

    def flush(self) -> str:
        """Release the text that is held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """Return the length of the longest proper prefix of `stop` that the text ends with."""
    for length in range(min(len(stop) - 1, len(text)), 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0
