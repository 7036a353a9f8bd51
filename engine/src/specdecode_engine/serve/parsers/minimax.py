"""MiniMax M2: `<minimax:tool_call>`, then calls as `<invoke name="f">` with their parameters."""

from dataclasses import dataclass
from typing import ClassVar

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.reading import NAME, NAME_CHARS, Steps
from specdecode_engine.serve.parsers.xml_parameters import ParameterTags, XmlParameterParser

NAME_END = '">'
PARAMETER_TAGS = ParameterTags('<parameter name="', NAME_END, "</parameter>", has_lines=False)


@dataclass(frozen=True, slots=True)
class InvokeTags:
    """The tags around all calls, before a name, and after a call."""

    begin: str
    end: str
    invoke: str
    invoke_end: str


TAGS = InvokeTags("<minimax:tool_call>", "</minimax:tool_call>", '<invoke name="', "</invoke>")


class MiniMaxM2Parser(XmlParameterParser):
    """A block contains one call or more."""

    tags = PARAMETER_TAGS
    invoke_tags: ClassVar[InvokeTags] = TAGS

    def read(self) -> Steps[None]:
        tags = self.invoke_tags
        begin = Markers(tags.begin)
        while (yield from self.read_until(begin, self.write_content)):
            opening = tags.begin + (yield from self.take_space())
            if not (yield from self.skip(tags.invoke)):
                self.write_content(opening)
                continue
            opening += tags.invoke
            while (yield from self._read_call(opening)) and (yield from self.skip(tags.invoke)):
                opening = tags.invoke
            yield from self.skip(tags.end)

    def _read_call(self, opening: str) -> Steps[bool]:
        """Read a call after `<invoke name="`; return whether it is one and complete."""
        name = yield from self.take_run(NAME_CHARS)
        if not NAME.fullmatch(name) or not (yield from self.skip(NAME_END)):
            self.write_content(opening + name)
            return False
        self.begin_call(name)
        self.add_arguments("{")
        yield from self.read_parameters(name)
        is_whole = yield from self.skip_end(self.invoke_tags.invoke_end)
        self.add_arguments("}" if is_whole else "")
        yield from self.take_space()
        return is_whole
