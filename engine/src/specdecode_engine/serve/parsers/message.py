"""The parts of an assistant's message, and the interface of the parsers that find them in a text.

A parser reads the text of one sequence in pieces. Its deltas may be cut differently for different
pieces, their concatenation per part depends on the whole text only. No text raises: malformed
markup is content, or the arguments so far as the model wrote them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class ContentDelta:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningDelta:
    """Text of the reasoning before or between answers."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCallDelta:
    """Part of the call `index`, counted from 0 in the message.

    The first delta of a call has its name, later ones have None; `arguments` are appended.
    """

    index: int
    name: str | None
    arguments: str


MessageDelta = ContentDelta | ReasoningDelta | ToolCallDelta
PartKey = tuple[type[MessageDelta], int]
"""Equal for deltas of one part: its type, and the index of a call."""


def part_key(delta: MessageDelta) -> PartKey:
    return type(delta), delta.index if isinstance(delta, ToolCallDelta) else 0


def part_text(delta: MessageDelta) -> str:
    """Return what a delta appends to its part."""
    return delta.arguments if isinstance(delta, ToolCallDelta) else delta.text


class MessageParser(Protocol):
    """Reads one text. Total work is linear in its length, for any split into pieces."""

    def push(self, piece: str) -> list[MessageDelta]:
        """Read the next piece; return what is certain now."""

    def flush(self) -> list[MessageDelta]:
        """Return what was held back: the text has ended."""

    @property
    def num_held(self) -> int:
        """Characters that were held back and may still be content.

        Of a call that is being read there are none: text that breaks a call off is seldom.
        """


class ReasoningParser(MessageParser, Protocol):
    """A parser that also separates reasoning; the first one, or the only one, of a text."""

    @property
    def in_reasoning(self) -> bool:
        """Whether what follows is reasoning, as far as is known."""

    @property
    def is_undecided(self) -> bool:
        """Whether reasoning is held back that may be a call."""


@dataclass(frozen=True, slots=True)
class ParserContext:
    """What a parser needs of the request.

    `in_reasoning` is whether the prompt ends inside reasoning. `parameters` are the JSON schemas of
    the parameters by name of the tool; empty without tools. `calls_in_reasoning` is whether a
    complete call ends reasoning that is never closed.
    """

    in_reasoning: bool = False
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    calls_in_reasoning: bool = True


@dataclass(frozen=True, slots=True)
class MessageFormat:
    """How a family of models writes reasoning or tool calls.

    `special_tokens` are the tokens whose spelling the parser reads; other special tokens have no
    text. `marks_content` is whether they also surround content, so that a response to a request
    without tools has some. `call_markers` are the texts that begin calls anywhere.
    """

    name: str
    special_tokens: frozenset[str]
    make_parser: Callable[[ParserContext], MessageParser]
    marks_content: bool = False
    call_markers: tuple[str, ...] = ()


class ContentParser:
    """Everything is content."""

    in_reasoning = False
    is_undecided = False
    num_held = 0

    def push(self, piece: str) -> list[MessageDelta]:
        return [ContentDelta(piece)] if piece else []

    def flush(self) -> list[MessageDelta]:
        return []


class ChainedParser:
    """Reads reasoning first; the content that this leaves is read by the parser of tool calls."""

    def __init__(self, reasoning: ReasoningParser, tools: MessageParser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    @property
    def in_reasoning(self) -> bool:
        return self._reasoning.in_reasoning

    @property
    def is_undecided(self) -> bool:
        return self._reasoning.is_undecided

    @property
    def num_held(self) -> int:
        return self._reasoning.num_held + self._tools.num_held

    def push(self, piece: str) -> list[MessageDelta]:
        return self._read_content(self._reasoning.push(piece))

    def flush(self) -> list[MessageDelta]:
        return [*self._read_content(self._reasoning.flush()), *self._tools.flush()]

    def _read_content(self, deltas: Sequence[MessageDelta]) -> list[MessageDelta]:
        read: list[MessageDelta] = []
        for delta in deltas:
            read += self._tools.push(delta.text) if isinstance(delta, ContentDelta) else [delta]
        return read
