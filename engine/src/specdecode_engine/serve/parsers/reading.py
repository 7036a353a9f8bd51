"""The frame of a streaming parser: code that reads in sequence and waits where text is missing.

A parser is a generator. It reads from a buffer, yields while it cannot decide, and appends deltas.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from typing import TypeVar

from specdecode_engine.serve.parsers.buffer import ContentWriter, Markers, TextBuffer
from specdecode_engine.serve.parsers.message import MessageDelta, ParserContext, ToolCallDelta

T = TypeVar("T")
Steps = Generator[None, None, T]
"""Yields while more text is needed, then returns a value."""
Emit = Callable[[str], None]

NAME = re.compile(r"[\w.:/-]{1,256}")
"""A tool's name. It has no surrogates, which a response could not contain."""

NAME_CHARS = re.compile(r"[\w.:/-]+")

_SPACE = re.compile(r"\s+")
_IN_STRING = re.compile(r'[^"\\]+')
_IN_NESTED = re.compile(r'[^"\[\]{}]+')
_IN_SCALAR = re.compile(r'[^\s,:"\[\]{}<`]+')
_CLOSING = {"{": "}", "[": "]"}


class StreamingParser(ABC):
    """Finds tool calls in a text that arrives in pieces; implements `MessageParser`."""

    def __init__(self, context: ParserContext) -> None:
        self.buffer = TextBuffer()
        self._parameters = context.parameters
        self._content = ContentWriter()
        self._deltas: list[MessageDelta] = []
        self._num_calls = 0
        self._num_taken = 0  # characters of a run that is not complete
        self._steps = self.read()

    @abstractmethod
    def read(self) -> Steps[None]:
        """Read the whole text; what it leaves at the end of the text is content."""

    @property
    def num_held(self) -> int:
        return self._num_taken + len(self.buffer) + self._content.num_held

    def push(self, piece: str) -> list[MessageDelta]:
        self.buffer.push(piece)
        return self._advance()

    def flush(self) -> list[MessageDelta]:
        self.buffer.end()
        return [*self._advance(), *self._content.flush()]

    def _advance(self) -> list[MessageDelta]:
        next(self._steps, None)
        deltas, self._deltas = self._deltas, []
        return deltas

    def write_content(self, text: str) -> None:
        self._deltas += self._content.write(text)

    def drop_space(self) -> None:
        """Drop the white space at the end of the content so far."""
        self._content.drop_space()

    def is_tool(self, name: str) -> bool:
        """Whether the request has a tool of this name; true for every name without tools."""
        return not self._parameters or name in self._parameters

    def schema_of(self, name: str) -> object:
        """Return the JSON schema of a tool's parameters; None if it is unknown."""
        return self._parameters.get(name)

    def begin_call(self, name: str) -> None:
        """Begin the next call; the white space before it is not content."""
        self._content.begin_call()
        self._deltas.append(ToolCallDelta(self._num_calls, name, ""))
        self._num_calls += 1

    def add_arguments(self, text: str) -> None:
        """Add text to the arguments of the latest call."""
        if text:
            self._deltas.append(ToolCallDelta(self._num_calls - 1, None, text))

    def read_until(self, markers: Markers, emit: Emit, *, drops_cut: bool = False) -> Steps[str]:
        """Pass on text up to a marker; return the marker, which is taken, or "" at the end.

        With `drops_cut` what the end of the text has cut of a marker is not passed on.
        """
        while True:
            if drops_cut:
                self.buffer.drop_cut(markers)
            text, marker = self.buffer.take_until(markers)
            emit(text)
            if marker or self.buffer.is_ended:
                return marker
            yield

    def collect_until(self, markers: Markers) -> Steps[tuple[str, str]]:
        """Return the text up to a marker and the marker, which is taken, or "" at the end."""
        parts: list[str] = []
        marker = yield from self.read_until(markers, parts.append)
        return "".join(parts), marker

    def next_char(self) -> Steps[str]:
        """Return the next character without taking it; "" at the end."""
        while not (char := self.buffer.peek()) and not self.buffer.is_ended:
            yield
        return char

    def take_space(self) -> Steps[str]:
        """Take white space, and return it."""
        return (yield from self.take_run(_SPACE))

    def take_run(self, pattern: re.Pattern[str]) -> Steps[str]:
        """Take and return the longest run of characters that match a pattern."""
        parts: list[str] = []
        while True:
            parts.append(self.buffer.take_while(pattern))
            self._num_taken += len(parts[-1])
            if len(self.buffer) or self.buffer.is_ended:
                self._num_taken = 0
                return "".join(parts)
            yield

    def skip(self, marker: str) -> Steps[bool]:
        """Take a marker if it is next; return whether it was.

        What the end of the text has cut of a marker in or after a call is taken too: it is neither
        content nor part of the arguments.
        """
        while (is_next := self.buffer.starts_with(marker)) is None:
            yield
        if is_next:
            self.buffer.take(len(marker))
        elif self._content.is_after_call and self.buffer.is_cut(marker):
            self.buffer.take_rest()
        return is_next

    def skip_end(self, marker: str) -> Steps[bool]:
        """Take the marker that completes a call, also if it is cut; return whether it was next."""
        while self.buffer.starts_with(marker) is None:
            yield
        is_cut = self.buffer.is_cut(marker)
        return (yield from self.skip(marker)) or is_cut

    def read_json(self, emit: Emit) -> Steps[bool]:
        """Pass on a JSON value; return False at the character, or the end, that breaks it.

        Brackets and strings are checked, other values are not.
        """
        char = yield from self.next_char()
        if char == '"':
            return (yield from self.read_json_string(emit))
        if char in ("{", "["):
            return (yield from self._read_nested(emit))
        scalar = yield from self.take_run(_IN_SCALAR)
        emit(scalar)
        return bool(scalar)

    def read_json_string(self, emit: Emit) -> Steps[bool]:
        emit(self.buffer.take(1))
        return (yield from self.read_string_rest(emit))

    def read_string_rest(self, emit: Emit) -> Steps[bool]:
        """Pass on a JSON string after its first quote; return False at the end of the text."""
        while True:
            emit(self.buffer.take_while(_IN_STRING))
            char = yield from self.next_char()
            emit(self.buffer.take(1))
            if char in ('"', ""):
                return char == '"'
            if char == "\\":
                yield from self.next_char()
                emit(self.buffer.take(1))

    def _read_nested(self, emit: Emit) -> Steps[bool]:
        closing: list[str] = []
        while True:
            char = yield from self.next_char()
            if text := self.buffer.take_while(_IN_NESTED):
                emit(text)
                continue
            if char == '"':
                yield from self.read_json_string(emit)
                continue
            if char in _CLOSING:
                closing.append(_CLOSING[char])
            elif not char or char != closing.pop():
                return False
            emit(self.buffer.take(1))
            if not closing:
                return True
