"""Strings that end a text, found in pieces of it."""


class StopStringScanner:
    """Searches a text that arrives in pieces for the earliest stop string.

    Holds back the longest end of the text that could still become a stop string. `is_stopped` is
    set once a stop string ended the text. With `keeps_stop` the text ends after it, else before;
    of stop strings that begin at the same character the shortest counts.
    """

    def __init__(self, stop: tuple[str, ...], keeps_stop: bool = False) -> None:
        assert all(stop), "an empty stop string would end every text"
        self.is_stopped = False
        self._stop = stop
        self._keeps_stop = keeps_stop
        self._held = ""

    def push(self, piece: str) -> str:
        """Add the next piece; return the text that can be released now."""
        text = self._held + piece
        found = [(start, stop) for stop in self._stop if (start := text.find(stop)) >= 0]
        if found:
            self.is_stopped = True
            self._held = ""
            start, length = min((start, len(stop)) for start, stop in found)
            return text[: start + length * self._keeps_stop]
        released = len(text) - max((partial_length(text, stop) for stop in self._stop), default=0)
        self._held = text[released:]
        return text[:released]

    def flush(self) -> str:
        """Release the text that is held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        return held


def partial_length(text: str, marker: str) -> int:
    """Return the length of the longest proper prefix of `marker` that the text ends with."""
    lengths = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(marker[:length])), 0)
