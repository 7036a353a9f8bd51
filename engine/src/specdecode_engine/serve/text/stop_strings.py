"""Strings that end a text, found in pieces of it."""


class StopStringScanner:
    """Searches a text for the stop string that is complete first, however it is cut into pieces.

    Holds back the longest end of the text that could still become a stop string. `is_stopped` is
    set once a stop string ended the text. With `keeps_stop` the text ends after it, else before;
    of stop strings that end with the same character the longest counts.
    """

    def __init__(self, stop: tuple[str, ...], keeps_stop: bool = False) -> None:
        assert all(stop), "an empty stop string would end every text"
        self.is_stopped = False
        self._matches = [StopStringMatch(each) for each in stop]
        self._keeps_stop = keeps_stop
        self._held = ""

    def push(self, piece: str) -> str:
        """Add the next piece; return the text that can be released now."""
        text = self._held + piece
        ends = [(match.push(piece), len(match.marker)) for match in self._matches]
        found = [(len(self._held) + end, -size) for end, size in ends if end is not None]
        if found:
            self.is_stopped = True
            self.flush()
            end, minus_size = min(found)
            return text[: end if self._keeps_stop else end + minus_size]
        released = len(text) - max((match.length for match in self._matches), default=0)
        self._held = text[released:]
        return text[:released]

    def flush(self) -> str:
        """Release the text that is held back: the text has ended without a stop string."""
        held, self._held = self._held, ""
        for match in self._matches:
            match.length = 0
        return held


class StopStringMatch:
    """The longest prefix of `marker` that a text ends with, while the text arrives in pieces.

    Knuth, Morris and Pratt's automaton: time linear in the text, whatever the marker. `length` is
    that of the prefix; 0 begins another text.
    """

    def __init__(self, marker: str) -> None:
        self.marker = marker
        self.length = 0
        # By n - 1, the longest proper prefix of the marker's first n characters that ends them.
        self._borders = [0]

    def push(self, piece: str) -> int | None:
        """Add a piece; return how many of its characters end the first whole marker, if one does.

        `length` has to be set to 0 then.
        """
        if not self.length and self.marker[0] not in piece:
            return None
        for end, char in enumerate(piece, start=1):
            self.length = self._extend(self.length, char)
            if self.length == len(self.marker):
                return end
            if self.length > len(self._borders):
                self._borders.append(self._extend(self._borders[-1], char))
        return None

    def _extend(self, length: int, char: str) -> int:
        """Return the length of the longest prefix after one more character."""
        while length and self.marker[length] != char:
            length = self._borders[length - 1]
        return length + (self.marker[length] == char)
