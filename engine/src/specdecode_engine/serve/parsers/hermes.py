"""Hermes 2 Pro, Qwen 2.5 and Qwen 3: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import CallEnd, JsonCallReader, read_broken
from specdecode_engine.serve.parsers.reading import Steps, StreamingParser

BEGIN, END = "<tool_call>", "</tool_call>"
_BEGIN, _END = Markers(BEGIN), Markers(END)


class HermesParser(StreamingParser):
    """A tag contains one call object; several are read too. The end tag may be missing."""

    def read(self) -> Steps[None]:
        while (yield from self.read_until(_BEGIN, self.write_content)):
            space = yield from self.take_space()
            if (yield from self.next_char()) != "{":
                self.write_content(BEGIN + space)
                continue
            end = yield from JsonCallReader(self, BEGIN + space).read()
            if end is not CallEnd.NOT_A_CALL:
                yield from self._read_end(end)

    def _read_end(self, end: CallEnd) -> Steps[None]:
        while end is CallEnd.COMPLETE:
            space = yield from self.take_space()
            if (yield from self.next_char()) != "{":
                if not (yield from self.skip(END)):
                    self.write_content(space)
                return
            end = yield from JsonCallReader(self, space).read()
        if end is CallEnd.BROKEN:
            yield from read_broken(self, _END)
