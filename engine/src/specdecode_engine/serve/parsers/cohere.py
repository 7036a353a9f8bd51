"""Cohere: a list of calls between `<|START_ACTION|>` and `<|END_ACTION|>`.

A call is `{"tool_call_id": "0", "tool_name": "f", "parameters": {…}}`. Content stands between
`<|START_RESPONSE|>` and `<|END_RESPONSE|>` (Command R7B, A and A Reasoning), or between
`<|START_TEXT|>` and `<|END_TEXT|>` (Command A Plus). Reasoning precedes both.
"""

from functools import partial
from typing import ClassVar

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import JsonCallReader, read_marked_calls
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reading import Steps, StreamingParser

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
RESPONSE, RESPONSE_END = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
TEXT, TEXT_END = "<|START_TEXT|>", "<|END_TEXT|>"
NAME_KEY = "tool_name"
_make_reader = partial(JsonCallReader, name_key=NAME_KEY)


class CohereCommand3Parser(StreamingParser):
    """Drops the markers of content, and reads actions if the request has tools."""

    content_markers: ClassVar[tuple[str, str]] = RESPONSE, RESPONSE_END

    def __init__(self, context: ParserContext) -> None:
        actions = (ACTION,) if context.parameters else ()
        self._markers = Markers(*self.content_markers, *actions)
        super().__init__(context)

    def read(self) -> Steps[None]:
        while marker := (yield from self.read_until(self._markers, self.write_content)):
            if marker == ACTION:
                yield from read_marked_calls(self, ACTION, ACTION_END, _make_reader)


class CohereCommand4Parser(CohereCommand3Parser):
    """Command A Plus."""

    content_markers = TEXT, TEXT_END
