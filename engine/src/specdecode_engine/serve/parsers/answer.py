"""The tags around an answer after its reasoning: Hunyuan A13B, ERNIE 4.5, Granite 3.3.

`<answer>`, a line break, the answer, a line break, `</answer>`; with `<response>` in ERNIE and
Granite. Facts: vLLM's reasoning parsers `hunyuan_a13b` and `ernie45`.
"""

import re
from typing import NamedTuple

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reading import Steps, StreamingParser

_LINE_BREAKS = re.compile(r"\n+")


class AnswerTags(NamedTuple):
    """Around an answer; the model may leave them out."""

    start: str
    end: str


class AnswerParser(StreamingParser):
    """Drops the tags, if the text begins with the first one, or ends with the last one."""

    def __init__(self, tags: AnswerTags) -> None:
        self._tags = tags
        super().__init__(ParserContext())

    def read(self) -> Steps[None]:
        space = yield from self.take_space()
        is_open = yield from self.skip(self._tags.start)
        if is_open:
            yield from self.take_run(_LINE_BREAKS)
        else:
            self.write_content(space)
        end = Markers(self._tags.end)
        while (yield from self.read_until(end, self.write_content, drops_cut=is_open)):
            space = yield from self.take_space()
            is_last = (yield from self.next_char()) == ""
            if is_open or is_last:
                self.drop_space()
                self.write_content("" if is_last else space)
            else:
                self.write_content(self._tags.end + space)
            is_open = False
