"""Arguments between tags, one parameter after the other: `<parameter=k>v</parameter>`."""

from dataclasses import dataclass
from typing import ClassVar

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.parameter_values import as_json, is_python, quoted, quoted_part
from specdecode_engine.serve.parsers.reading import Steps, StreamingParser
from specdecode_engine.serve.parsers.schema_types import is_string, property_of, types_of


@dataclass(frozen=True, slots=True)
class ParameterTags:
    """What precedes a key, follows it, and follows the value.

    With `has_lines` a line break after the key and one before the end are not part of the value.
    """

    begin: str
    key_end: str
    end: str
    has_lines: bool

    @property
    def value_ends(self) -> tuple[str, ...]:
        return (f"\n{self.end}", self.end) if self.has_lines else (self.end,)


class XmlParameterParser(StreamingParser):
    """Builds the JSON of the arguments: values are strings unless the tool's schema allows others.

    Only strings are passed on before their end.
    """

    tags: ClassVar[ParameterTags]

    def read_parameters(self, name: str) -> Steps[None]:
        """Read the parameters of the tool `name`, and the white space around them."""
        key_end = Markers(self.tags.key_end)
        separator = ""
        yield from self.take_space()
        while (yield from self.skip(self.tags.begin)):
            key, end = yield from self.collect_until(key_end)
            if not end:
                return
            self.add_arguments(f"{separator}{quoted(key.strip())}: ")
            separator = ", "
            if self.tags.has_lines:
                yield from self.skip("\n")
            schema = self.schema_of(name)
            if is_string(property_of(schema, key.strip())):
                yield from self.read_string_value()
            else:
                yield from self.read_value(schema, key.strip())
            yield from self.take_space()

    def read_string_value(self) -> Steps[None]:
        """Read a value that is a string, and its end."""
        self.add_arguments('"')
        ends = Markers(*self.tags.value_ends)
        end = yield from self.read_until(ends, self._add_quoted, drops_cut=True)
        self.add_arguments('"' if end else "")

    def read_value(self, schema: object, key: str) -> Steps[None]:
        """Read a value of one of the types that a schema permits for a key, and its end."""
        text, end = yield from self._collect_value()
        if end:
            self.add_arguments(as_json(text, types_of(schema, key)))

    def _collect_value(self) -> Steps[tuple[str, str]]:
        """Return a value and its end, which strings in JSON may contain."""
        parts = [(yield from self.take_space())]
        is_json = (yield from self.next_char()) in ("{", "[", '"')
        markers = Markers(*(('"',) if is_json else ()), *self.tags.value_ends)
        while True:
            text, end = yield from self.collect_until(markers)
            parts.append(text)
            if end != '"':
                return "".join(parts), end
            parts.append(end)
            if is_python("".join(parts)):
                markers = Markers(*self.tags.value_ends)
            else:
                yield from self.read_string_rest(parts.append)

    def _add_quoted(self, text: str) -> None:
        self.add_arguments(quoted_part(text))
