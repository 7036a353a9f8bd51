"""Calls as in Python: `[f(a=1, b="x"), g()]`.

Llama 3.2 and 4 write them bare or between `<|python_start|>` and `<|python_end|>`, LFM2 between
`<|tool_call_start|>` and `<|tool_call_end|>`, Olmo 3 without brackets, a line each, between
`<function_calls>` and `</function_calls>`.
"""

import re
from typing import ClassVar

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.json_call import CallEnd, read_broken, read_call_objects
from specdecode_engine.serve.parsers.python_literals import quoted, read_literal
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser

PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"
LFM2_START, LFM2_END = "<|tool_call_start|>", "<|tool_call_end|>"
OLMO3_START, OLMO3_END = "<function_calls>", "</function_calls>"
_NAME = re.compile(r"[\w.]+")
_KEY = re.compile(r"\w+")


class PythonicParser(StreamingParser):
    """A list of calls begins the text, or follows the start token; arguments are built as JSON."""

    start: ClassVar[str] = PYTHON_START
    end: ClassVar[str] = PYTHON_END

    def read(self) -> Steps[None]:
        space = yield from self.take_space()
        if (yield from self.next_char()) == "[":
            yield from self._read_list(space + self.buffer.take(1), is_bare=True)
        else:
            self.write_content(space)
        yield from self.read_marked()

    def read_marked(self) -> Steps[None]:
        """Read content and marked lists of calls up to the end."""
        start = Markers(self.start)
        while (yield from self.read_until(start, self.write_content)):
            opening = self.start + (yield from self.take_space())
            if (yield from self.skip("[")):
                yield from self.read_marked_list(opening + "[")
            else:
                self.write_content(opening)

    def read_marked_list(self, before: str) -> Steps[None]:
        """Read a list after its bracket; `before` is the text taken so far."""
        yield from self._read_list(before, is_bare=False)

    def _read_list(self, before: str, is_bare: bool) -> Steps[None]:
        while (yield from self.read_call(before, is_bare)):
            before = yield from self.take_space()
            if (yield from self.skip(",")):
                before += ","
            elif (yield from self.skip("]")):
                yield from self.take_space()
                yield from self.skip(self.end)
                return
            else:
                self.write_content(before)
                return

    def read_call(self, before: str, is_bare: bool) -> Steps[bool]:
        """Read a call; return whether it is one and complete."""
        before += yield from self.take_space()
        name = yield from self.take_run(_NAME)
        is_call = bool(NAME.fullmatch(name)) and (self.is_tool(name) or not is_bare)
        if not is_call or not (yield from self.skip("(")):
            self.write_content(before + name)
            return False
        space = yield from self.take_space()
        key = yield from self.take_run(_KEY)
        after_key = yield from self.take_space()
        mark = yield from self.next_char()
        if mark != ("=" if key else ")"):
            self.write_content(before + name + "(" + space + key + after_key)
            return False
        self.begin_call(name)
        self.add_arguments("{")
        self.buffer.take(1)
        if key and not (yield from self._read_arguments(key)):
            return False
        self.add_arguments("}")
        return True

    def _read_arguments(self, key: str) -> Steps[bool]:
        """Read arguments after the first `key=`, up to the closing parenthesis."""
        while True:
            self.add_arguments(f"{quoted(key)}: ")
            if not (yield from read_literal(self, self.add_arguments)):
                return False
            yield from self.take_space()
            has_comma = yield from self.skip(",")
            yield from self.take_space()
            if (yield from self.skip(")")):
                return True
            key = yield from self.take_run(_KEY)
            yield from self.take_space()
            if not key or not has_comma or not (yield from self.skip("=")):
                return False
            self.add_arguments(", ")


class Lfm2Parser(PythonicParser):
    """Reads JSON objects in the list too, which the model writes on demand."""

    start, end = LFM2_START, LFM2_END

    def read(self) -> Steps[None]:
        yield from self.read_marked()

    def read_marked_list(self, before: str) -> Steps[None]:
        space = yield from self.take_space()
        if (yield from self.next_char()) != "{":
            yield from super().read_marked_list(before + space)
            return
        end = yield from read_call_objects(self, before + space)
        if end is CallEnd.BROKEN:
            yield from read_broken(self, Markers(self.end))
        elif end is CallEnd.COMPLETE:
            yield from self.take_space()
            yield from self.skip(self.end)


class Olmo3Parser(PythonicParser):
    """Calls follow one another with white space, or a comma, between them."""

    start, end = OLMO3_START, OLMO3_END

    def read(self) -> Steps[None]:
        start = Markers(self.start)
        while (yield from self.read_until(start, self.write_content)):
            before = self.start + (yield from self.take_space())
            while (yield from self.read_call(before, is_bare=False)):
                before = yield from self.take_space()
                if (yield from self.skip(",")):
                    before += "," + (yield from self.take_space())
                if (yield from self.skip(self.end)):
                    break
