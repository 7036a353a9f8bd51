"""GLM-4.5: `<tool_call>NAME`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` per argument."""

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.parameter_values import as_json, quoted, quoted_part
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser
from specdecode_engine.serve.parsers.schema_types import is_string, property_of, types_of

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
_BEGIN = Markers(BEGIN)
_HEADER = Markers(KEY, END, BEGIN)
_KEY_END = Markers(KEY_END, END, BEGIN)
_VALUE_END = Markers(VALUE_END)


class GlmParser(StreamingParser):
    """Builds the JSON of the arguments: values are strings unless the tool's schema allows others.

    Only strings are passed on before their end.
    """

    def read(self) -> Steps[None]:
        marker = yield from self.read_until(_BEGIN, self.write_content)
        while marker:
            header, end = yield from self.collect_until(_HEADER)
            header, end = (header, end) if end else _without_cut_end(header)
            name = header.strip()
            if end in (KEY, END) and NAME.fullmatch(name):
                self.begin_call(name)
                self.add_arguments("{")
                is_whole = yield from self._read_arguments(name, has_key=end == KEY)
                self.add_arguments("}" if is_whole else "")
            else:
                self.write_content(BEGIN + header + (end if end != BEGIN else ""))
                if end == BEGIN:
                    continue
            marker = yield from self.read_until(_BEGIN, self.write_content)

    def _read_arguments(self, name: str, has_key: bool) -> Steps[bool]:
        """Read arguments after the first `<arg_key>`; return whether the call has its end."""
        separator = ""
        while has_key:
            key, end = yield from self.collect_until(_KEY_END)
            yield from self.take_space()
            if end != KEY_END or not (yield from self.skip(VALUE)):
                return end == END
            self.add_arguments(f"{separator}{quoted(key.strip())}: ")
            separator = ", "
            end = yield from self._read_value(self.schema_of(name), key.strip())
            if end != VALUE_END:
                return end == END
            yield from self.take_space()
            has_key = yield from self.skip(KEY)
        if separator:
            return (yield from self.skip_end(END))
        return True

    def _read_value(self, schema: object, key: str) -> Steps[str]:
        if is_string(property_of(schema, key)):
            self.add_arguments('"')
            end = yield from self.read_until(_VALUE_END, self._add_quoted, drops_cut=True)
            self.add_arguments('"' if end else "")
            return end
        text, end = yield from self.collect_until(_VALUE_END)
        if end:
            self.add_arguments(as_json(text, types_of(schema, key)))
        return end

    def _add_quoted(self, text: str) -> None:
        self.add_arguments(quoted_part(text))


def _without_cut_end(header: str) -> tuple[str, str]:
    """Return a header at the end of the text without the end marker that is cut, and the marker."""
    name, slash, rest = header.rpartition(END[:2])
    return (name, END) if slash and END.startswith(slash + rest) else (header, "")
