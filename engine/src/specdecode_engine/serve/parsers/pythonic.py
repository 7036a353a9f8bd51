"""Llama 3.2 and 4: `[f(a=1, b="x"), g()]`, also between `<|python_start|>` and `<|python_end|>`."""

import re

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.python_literals import quoted, read_literal
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser

PYTHON_START, PYTHON_END = "<|python_start|>", "<|python_end|>"
_START = Markers(PYTHON_START)
_NAME = re.compile(r"[\w.]+")
_KEY = re.compile(r"\w+")


class PythonicParser(StreamingParser):
    """A list of calls begins the text, or follows the start token; arguments are built as JSON."""

    def read(self) -> Steps[None]:
        space = yield from self.take_space()
        if (yield from self.next_char()) == "[":
            yield from self._read_list(space, is_bare=True)
        else:
            self.write_content(space)
        while (yield from self.read_until(_START, self.write_content)):
            space = yield from self.take_space()
            if (yield from self.next_char()) == "[":
                yield from self._read_list(PYTHON_START + space, is_bare=False)
            else:
                self.write_content(PYTHON_START + space)

    def _read_list(self, before: str, is_bare: bool) -> Steps[None]:
        before += self.buffer.take(1)
        while (yield from self._read_call(before, is_bare)):
            before = yield from self.take_space()
            if (yield from self.skip(",")):
                before += ","
            elif (yield from self.skip("]")):
                yield from self.take_space()
                yield from self.skip(PYTHON_END)
                return
            else:
                self.write_content(before)
                return

    def _read_call(self, before: str, is_bare: bool) -> Steps[bool]:
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
