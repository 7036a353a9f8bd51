"""The unread end of a text that arrives in pieces, and content with its white space held back."""

import re
from re import Pattern

from specdecode_engine.serve.parsers.message import ContentDelta, MessageDelta


class TextBuffer:
    """The unread end of a text.

    A parser takes text from the front. It takes only what no continuation could change, so that
    its decisions do not depend on how the text was cut. `is_ended` is set once no text follows.
    """

    def __init__(self) -> None:
        self.is_ended = False
        self._text = ""
        self._start = 0

    def __len__(self) -> int:
        return len(self._text) - self._start

    def push(self, piece: str) -> None:
        self._text = self._text[self._start :] + piece
        self._start = 0

    def end(self) -> None:
        self.is_ended = True

    def peek(self) -> str:
        """Return the next character; an empty string if it has not arrived."""
        return self._text[self._start : self._start + 1]

    def take(self, count: int) -> str:
        start = self._start
        self._start = min(start + count, len(self._text))
        return self._text[start : self._start]

    def take_rest(self) -> str:
        return self.take(len(self))

    def take_while(self, pattern: Pattern[str]) -> str:
        """Take what a pattern matches here; it must match character by character."""
        found = pattern.match(self._text, self._start)
        return self.take(found.end() - self._start) if found else ""

    def starts_with(self, marker: str) -> bool | None:
        """Whether the unread text begins with a marker; None while that is open."""
        if self._text.startswith(marker, self._start):
            return True
        if self.is_ended or len(self) >= len(marker):
            return False
        return None if marker.startswith(self._text[self._start :]) else False

    def is_cut(self, marker: str) -> bool:
        """Whether the text ended in a marker: its rest begins the marker and is not all of it."""
        rest = self._text[self._start :]
        return self.is_ended and 0 < len(rest) < len(marker) and marker.startswith(rest)

    def drop_cut(self, markers: "Markers") -> None:
        """Drop what the end of the text has cut of a marker."""
        if self.is_ended and markers.pattern.search(self._text, self._start) is None:
            self._text = self._text[: len(self._text) - self._begun(markers)]

    def take_until(self, markers: "Markers") -> tuple[str, str]:
        """Take the text before the earliest marker, or all that cannot be part of one.

        Returns that text, and the marker, which is taken too; an empty one if none has arrived.
        """
        found = markers.pattern.search(self._text, self._start)
        if found is not None:
            text = self.take(found.start() - self._start)
            return text, self.take(len(found[0]))
        return self.take(len(self) - self._held(markers)), ""

    def _held(self, markers: "Markers") -> int:
        """Return the length of the longest end of the text that begins a marker."""
        return 0 if self.is_ended else self._begun(markers)

    def _begun(self, markers: "Markers") -> int:
        for length in range(min(markers.longest - 1, len(self)), 0, -1):
            end = self._text[len(self._text) - length :]
            if any(marker.startswith(end) for marker in markers.texts):
                return length
        return 0


class Markers:
    """Strings to search for together, of which none begins another."""

    def __init__(self, *texts: str) -> None:
        self.texts = texts
        self.longest = max(map(len, texts))
        self.pattern = re.compile("|".join(map(re.escape, texts)))


class ContentWriter:
    """Content around tool calls: white space before a call is not content.

    White space at the end of the text so far is held back until something follows it.
    """

    def __init__(self) -> None:
        self._held: list[str] = []
        self._has_content = False
        self._is_after_call = False

    @property
    def num_held(self) -> int:
        """Characters of white space that are held back."""
        return sum(map(len, self._held))

    @property
    def is_after_call(self) -> bool:
        """Whether a call has begun and no content has followed it."""
        return self._is_after_call

    def write(self, text: str) -> list[MessageDelta]:
        stripped = text.rstrip()
        if not stripped:
            self._held += [text] if text else []
            return []
        released = "".join(self._held) + stripped
        if self._is_after_call and not self._has_content:
            released = released.lstrip()
        self._held = [text[len(stripped) :]]
        self._has_content = True
        self._is_after_call = False
        return [ContentDelta(released)]

    def drop_space(self) -> None:
        """Drop the white space that is held back."""
        self._held = []

    def begin_call(self) -> None:
        self._held = []
        self._is_after_call = True

    def flush(self) -> list[MessageDelta]:
        held, self._held = "".join(self._held), []
        return [ContentDelta(held)] if held and not self._is_after_call else []
