"""Harmony, the format of gpt-oss: messages with channels, which also contain the reasoning.

A response is `<|channel|>analysis<|message|>…<|end|>`, then messages that begin with
`<|start|>assistant`. The channel `final` is content, and so is `commentary` without a recipient. A
message to a recipient, `<|channel|>commentary to=functions.f <|constrain|>json<|message|>`, is a
call. Headers are markup, also where they are cut short.
"""

import re
from enum import Enum, auto

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.message import ContentDelta, ParserContext, ReasoningDelta
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser

START, CHANNEL, CONSTRAIN = "<|start|>", "<|channel|>", "<|constrain|>"
MESSAGE, MESSAGE_END, CALL, RETURN = "<|message|>", "<|end|>", "<|call|>", "<|return|>"
_BODY_END = Markers(START, CHANNEL, MESSAGE_END, CALL, RETURN)
_HEADER_END = Markers(MESSAGE, START, MESSAGE_END, CALL, RETURN)
_RECIPIENT = re.compile(r"\bto=([^\s<]+)")
_FUNCTIONS = "functions."
_TO_FUNCTION = f"to={_FUNCTIONS}"


class _Kind(Enum):
    CONTENT = auto()
    REASONING = auto()
    CALL = auto()


class HarmonyParser(StreamingParser):
    """Reads messages; text outside them is content. Messages of one kind are joined by a line."""

    is_undecided = False

    def __init__(self, context: ParserContext) -> None:
        super().__init__(context)
        self._kind = _Kind.REASONING if context.in_reasoning else _Kind.CONTENT
        self._written: set[_Kind] = set()
        self._is_first = False

    @property
    def in_reasoning(self) -> bool:
        """Whether what follows is reasoning, as far as is known."""
        return self._kind is _Kind.REASONING

    def read(self) -> Steps[None]:
        end = yield from self._read_beginning()
        while end:
            end = (
                yield from self._read_message() if end in (START, CHANNEL) else self._skip_to_next()
            )

    def _read_beginning(self) -> Steps[str]:
        """Read what continues the prompt's `<|start|>assistant`: a recipient, or text."""
        space = yield from self.take_space()
        if self._kind is _Kind.CONTENT and (yield from self.skip(_TO_FUNCTION)):
            return (yield from self._read_message(_TO_FUNCTION))
        self._write(space)
        return (yield from self.read_until(_BODY_END, self._write))

    def _skip_to_next(self) -> Steps[str]:
        """Read text between messages, which should be empty."""
        self._begin(_Kind.CONTENT)
        return (yield from self.read_until(_BODY_END, self._write))

    def _read_message(self, begin: str = "") -> Steps[str]:
        """Read a message after the beginning of its header; return the marker after it."""
        self._begin(_Kind.CONTENT)  # a header belongs to no reasoning
        rest, end = yield from self.collect_until(_HEADER_END)
        header = begin + rest
        if end != MESSAGE:
            self._write(header if begin else "")
            return end
        recipient = _RECIPIENT.search(header)
        name = recipient[1].removeprefix(_FUNCTIONS) if recipient else ""
        if NAME.fullmatch(name):
            self.begin_call(name)
            self._kind = _Kind.CALL
        else:
            channel = header.partition(CHANNEL)[2] or header
            is_reasoning = channel.strip().startswith("analysis")
            self._begin(_Kind.REASONING if is_reasoning else _Kind.CONTENT)
        return (yield from self.read_until(_BODY_END, self._write, drops_cut=True))

    def _begin(self, kind: _Kind) -> None:
        self._kind = kind
        self._is_first = kind in self._written

    def _write(self, text: str) -> None:
        if not text:
            return
        if self._kind is _Kind.CALL:
            self.add_arguments(text)
            return
        if self._is_first:
            text, self._is_first = "\n" + text, False
        self._written.add(self._kind)
        self._deltas.append(
            ReasoningDelta(text) if self._kind is _Kind.REASONING else ContentDelta(text)
        )
