"""Qwen3-Coder, Qwen3.5 and later, Nemotron 3.

`<tool_call>`, `<function=NAME>`, then `<parameter=k>`, a value, `</parameter>`.
"""

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.parameter_values import (
    ONLY_TEXT,
    as_json,
    quoted,
    quoted_part,
    types_of,
)
from specdecode_engine.serve.parsers.reading import NAME, NAME_CHARS, Steps, StreamingParser

BEGIN, END = "<tool_call>", "</tool_call>"
FUNCTION, FUNCTION_END = "<function=", "</function>"
PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_BEGIN = Markers(BEGIN, FUNCTION)
_KEY_END = Markers(">")
# The line break before it is not part of the value.
_VALUE_ENDS = (f"\n{PARAMETER_END}", PARAMETER_END)
_VALUE_END = Markers(*_VALUE_ENDS)
_QUOTE_OR_END = Markers('"', *_VALUE_ENDS)
# As the chat template writes them in earlier calls, and models after it.
_PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


class QwenCoderParser(StreamingParser):
    """Builds the JSON of the arguments: values are strings unless the tool's schema allows others.

    Models leave out `<tool_call>`, so that `<function=` and the name of a tool begin a call too.
    Only strings are passed on before their end.
    """

    def read(self) -> Steps[None]:
        marker = yield from self.read_until(_BEGIN, self.write_content)
        while marker:
            opening = marker
            if marker == BEGIN:
                opening += yield from self.take_space()
                opening += FUNCTION if (yield from self.skip(FUNCTION)) else ""
            if opening.endswith(FUNCTION):
                yield from self._read_function(opening)
            else:
                self.write_content(opening)
            marker = yield from self.read_until(_BEGIN, self.write_content)

    def _read_function(self, opening: str) -> Steps[None]:
        """Read a call after `<function=`; what is no call is content."""
        name = yield from self.take_run(NAME_CHARS)
        is_known = opening != FUNCTION or self.is_tool(name)
        if not is_known or not NAME.fullmatch(name) or not (yield from self.skip(">")):
            self.write_content(opening + name)
            return
        self.begin_call(name)
        self.add_arguments("{")
        yield from self._read_arguments(name)
        yield from self.take_space()
        if (yield from self.skip(FUNCTION_END)):
            self.add_arguments("}")
            yield from self.take_space()
            yield from self.skip(END)
        elif (yield from self.skip(END)):
            self.add_arguments("}")

    def _read_arguments(self, name: str) -> Steps[None]:
        separator = ""
        yield from self.take_space()
        while (yield from self.skip(PARAMETER)):
            key, end = yield from self.collect_until(_KEY_END)
            if not end:
                return
            self.add_arguments(f"{separator}{quoted(key.strip())}: ")
            separator = ", "
            yield from self.skip("\n")
            yield from self._read_value(types_of(self.schema_of(name), key.strip()))
            yield from self.take_space()

    def _read_value(self, types: frozenset[str] | None) -> Steps[None]:
        if types == ONLY_TEXT:
            self.add_arguments('"')
            end = yield from self.read_until(_VALUE_END, self._add_quoted)
            self.add_arguments('"' if end else "")
            return
        text, end = yield from self._collect_value()
        if end:
            constant = _PYTHON_CONSTANTS.get(text.strip(), text)
            self.add_arguments(as_json(constant, types))

    def _collect_value(self) -> Steps[tuple[str, str]]:
        """Return a value and its end, which strings in JSON may contain."""
        parts = [(yield from self.take_space())]
        is_json = (yield from self.next_char()) in ("{", "[", '"')
        while True:
            text, end = yield from self.collect_until(_QUOTE_OR_END if is_json else _VALUE_END)
            parts.append(text)
            if end != '"':
                return "".join(parts), end
            parts.append(end)
            yield from self.read_string_rest(parts.append)

    def _add_quoted(self, text: str) -> None:
        self.add_arguments(quoted_part(text))
