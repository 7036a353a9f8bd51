"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3, Step 3.5; Seed-OSS with other tags around a call.

`<tool_call>`, `<function=NAME>`, then `<parameter=k>`, a value, `</parameter>`.
"""

from typing import ClassVar

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.reading import NAME, NAME_CHARS, Steps
from specdecode_engine.serve.parsers.xml_parameters import ParameterTags, XmlParameterParser

BEGIN, END = "<tool_call>", "</tool_call>"
SEED_BEGIN, SEED_END = "<seed:tool_call>", "</seed:tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"


class QwenCoderParser(XmlParameterParser):
    """Models leave out `<tool_call>`, so `<function=` and the name of a tool begin a call too."""

    tags = ParameterTags(PARAMETER, ">", PARAMETER_END, has_lines=True)
    begin: ClassVar[str] = BEGIN
    end: ClassVar[str] = END

    def read(self) -> Steps[None]:
        begin = Markers(self.begin, FUNCTION)
        while opening := (yield from self.read_until(begin, self.write_content)):
            if opening == self.begin:
                opening += yield from self.take_space()
                opening += FUNCTION if (yield from self.skip(FUNCTION)) else ""
            if opening.endswith(FUNCTION):
                yield from self._read_function(opening)
            else:
                self.write_content(opening)

    def _read_function(self, opening: str) -> Steps[None]:
        """Read a call after `<function=`; what is no call is content."""
        name = yield from self.take_run(NAME_CHARS)
        is_known = opening != FUNCTION or self.is_tool(name)
        if not is_known or not NAME.fullmatch(name) or not (yield from self.skip(">")):
            self.write_content(opening + name)
            return
        self.begin_call(name)
        self.add_arguments("{")
        yield from self.read_parameters(name)
        if (yield from self.skip_end(FUNCTION_END)):
            self.add_arguments("}")
            yield from self.take_space()
            yield from self.skip(self.end)
        elif (yield from self.skip_end(self.end)):
            self.add_arguments("}")


class SeedOssParser(QwenCoderParser):
    """Calls between `<seed:tool_call>` and `</seed:tool_call>`."""

    begin, end = SEED_BEGIN, SEED_END
