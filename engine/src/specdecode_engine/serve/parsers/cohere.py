"""Cohere: a list of calls between `<|START_ACTION|>` and `<|END_ACTION|>`.

A call is `{"tool_call_id": "0", "tool_name": "f", "parameters": {…}}`. Content stands between
`<|START_RESPONSE|>` and `<|END_RESPONSE|>` (Command R7B, A and A Reasoning), or between
`<|START_TEXT|>` and `<|END_TEXT|>` (Command A Plus). Reasoning precedes both.
"""

from typing import ClassVar

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import CallEnd, read_broken, read_call_objects
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reading import Steps, StreamingParser

ACTION, ACTION_END = "<|START_ACTION|>", "<|END_ACTION|>"
RESPONSE, RESPONSE_END = "<|START_RESPONSE|>", "<|END_RESPONSE|>"
TEXT, TEXT_END = "<|START_TEXT|>", "<|END_TEXT|>"
NAME_KEY = "tool_name"
_ACTION_END = Markers(ACTION_END)


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
                yield from self._read_action()

    def _read_action(self) -> Steps[None]:
        opening = ACTION + (yield from self.take_space())
        if (yield from self.skip("[")):
            opening += "[" + (yield from self.take_space())
        if (yield from self.next_char()) != "{":
            self.write_content(opening)
            return
        end = yield from read_call_objects(self, opening, NAME_KEY)
        if end is CallEnd.BROKEN:
            yield from read_broken(self, _ACTION_END)
        elif end is CallEnd.COMPLETE:
            space = yield from self.take_space()
            if not (yield from self.skip(ACTION_END)):
                self.write_content(space)


class CohereCommand4Parser(CohereCommand3Parser):
    """Command A Plus."""

    content_markers = TEXT, TEXT_END
