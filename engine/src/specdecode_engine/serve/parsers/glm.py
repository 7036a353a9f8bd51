"""GLM-4.5: `<tool_call>NAME`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` per argument."""

from typing import NamedTuple

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.parameter_values import as_json, quoted, quoted_part
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser
from specdecode_engine.serve.parsers.schema_types import is_string, property_of, types_of


class CallTags(NamedTuple):
    """The tags around a call, a key and a value."""

    begin: str
    end: str
    key: str
    key_end: str
    value: str
    value_end: str


TAGS = CallTags(
    "<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"
)


class GlmParser(StreamingParser):
    """Builds the JSON of the arguments: values are strings unless the tool's schema allows others.

    Only strings are passed on before their end.
    """

    def __init__(self, context: ParserContext, tags: CallTags = TAGS) -> None:
        super().__init__(context)
        self.tags = tags
        self._begin = Markers(tags.begin)
        self._header = Markers(tags.key, tags.end, tags.begin)
        self._key_end = Markers(tags.key_end, tags.end, tags.begin)
        self._value_end = Markers(tags.value_end)

    def read(self) -> Steps[None]:
        begin = self.tags.begin
        marker = yield from self.read_until(self._begin, self.write_content)
        while marker:
            header, end = yield from self.collect_until(self._header)
            header, end = (header, end) if end else self._without_cut_end(header)
            name = header.strip()
            if end in (self.tags.key, self.tags.end) and NAME.fullmatch(name):
                self.begin_call(name)
                self.add_arguments("{")
                is_whole = yield from self.read_arguments(name, end == self.tags.key)
                self.add_arguments("}" if is_whole else "")
            else:
                self.write_content(begin + header + (end if end != begin else ""))
                if end == begin:
                    continue
            marker = yield from self.read_until(self._begin, self.write_content)

    def read_arguments(self, name: str, has_key: bool) -> Steps[bool]:
        """Read arguments after the first `<arg_key>`; return whether the call has its end."""
        tags, separator = self.tags, ""
        while has_key:
            key, end = yield from self.collect_until(self._key_end)
            yield from self.take_space()
            if end != tags.key_end or not (yield from self.skip(tags.value)):
                return end == tags.end
            self.add_arguments(f"{separator}{quoted(key.strip())}: ")
            separator = ", "
            end = yield from self._read_value(self.schema_of(name), key.strip())
            if end != tags.value_end:
                return end == tags.end
            yield from self.take_space()
            has_key = yield from self.skip(tags.key)
        if separator:
            return (yield from self.skip_end(tags.end))
        return True

    def _read_value(self, schema: object, key: str) -> Steps[str]:
        if is_string(property_of(schema, key)):
            self.add_arguments('"')
            end = yield from self.read_until(self._value_end, self._add_quoted, drops_cut=True)
            self.add_arguments('"' if end else "")
            return end
        text, end = yield from self.collect_until(self._value_end)
        if end:
            self.add_arguments(as_json(text, types_of(schema, key)))
        return end

    def _add_quoted(self, text: str) -> None:
        self.add_arguments(quoted_part(text))

    def _without_cut_end(self, header: str) -> tuple[str, str]:
        """Return a header at the end of the text without the end marker that is cut, and that."""
        end = self.tags.end
        name, slash, rest = header.rpartition(end[:2])
        return (name, end) if slash and end.startswith(slash + rest) else (header, "")
