"""Token ids to text as they arrive, without incomplete characters."""

import codecs

from specdecode_engine.serve.text.tokenizer import Vocabulary

_utf8 = codecs.getincrementaldecoder("utf-8")


class Detokenizer:
    """The text of one sequence so far.

    The pieces of all tokens, then that of `flush`, join to the whole text. Bytes that are not
    valid UTF-8 become U+FFFD as soon as that is certain. Of special tokens only `visible_ids` have
    a text, their spelling.
    """

    def __init__(self, vocabulary: Vocabulary, visible_ids: frozenset[int] = frozenset()) -> None:
        self._vocabulary = vocabulary
        self._visible_ids = visible_ids
        self._bytes = self._visible_bytes if visible_ids else vocabulary.text_bytes
        self._decoder = _utf8(errors="replace")

    @property
    def num_held(self) -> int:
        """Characters that have begun and are incomplete: 0 or 1."""
        return bool(self._decoder.getstate()[0])

    def push(self, *token_ids: int) -> str:
        """Return the characters that these tokens complete."""
        return self._decoder.decode(b"".join(map(self._bytes, token_ids)))

    def flush(self) -> str:
        """Return the replacement of an incomplete character at the end, if there is one."""
        return self._decoder.decode(b"", final=True)

    def _visible_bytes(self, token_id: int) -> bytes:
        if token_id in self._visible_ids:
            return self._vocabulary.spelling(token_id)
        return self._vocabulary.text_bytes(token_id)


class StopStringScanner:
    """Searches a text for the stop string that is complete first, however it is cut into pieces.

    Holds back the longest end of the text that could still become a stop string. `is_stopped` is
    set once a stop string ended the text. With `keeps_stop` the text ends after it, else before;
    of stop strings that end with the same character the longest counts, and is `found` then.
    """

    def __init__(self, stop: tuple[str, ...], keeps_stop: bool = False) -> None:
        assert all(stop), "an empty stop string would end every text"
        self.is_stopped = False
        self.found: str | None = None
        self._matches = [StopStringMatch(each) for each in stop]
        self._keeps_stop = keeps_stop
        self._held = ""

    def push(self, piece: str) -> str:
        """Add the next piece; return the text that can be released now."""
        text = self._held + piece
        ends = [(match.push(piece), match.marker) for match in self._matches]
        found = [(len(self._held) + end, -len(stop), stop) for end, stop in ends if end is not None]
        if found:
            self.is_stopped = True
            self.flush()
            end, minus_size, self.found = min(found)
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
