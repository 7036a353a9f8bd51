"""GLM-4.5: `<tool_call>NAME`, then `<arg_key>k</arg_key><arg_value>v</arg_value>` per argument."""

import json
from collections.abc import Mapping
from functools import partial
from typing import Any

from specdecode_engine.serve.parsers.buffer import Markers
from specdecode_engine.serve.parsers.reading import NAME, Steps, StreamingParser

BEGIN, END = "<tool_call>", "</tool_call>"
KEY, KEY_END = "<arg_key>", "</arg_key>"
VALUE, VALUE_END = "<arg_value>", "</arg_value>"
_BEGIN = Markers(BEGIN)
_HEADER = Markers(KEY, END, BEGIN)
_KEY_END = Markers(KEY_END, END, BEGIN)
_VALUE_END = Markers(VALUE_END)
_ONLY_TEXT = frozenset({"string"})
_JSON_TYPES: dict[type, frozenset[str]] = {
    str: frozenset({"string"}),
    bool: frozenset({"boolean"}),
    int: frozenset({"integer", "number"}),
    float: frozenset({"integer", "number"}),  # 3.0
    list: frozenset({"array"}),
    dict: frozenset({"object"}),
    type(None): frozenset({"null"}),
}


class GlmParser(StreamingParser):
    """Builds the JSON of the arguments: values are strings unless the tool's schema allows others.

    Only strings are passed on before their end.
    """

    def read(self) -> Steps[None]:
        marker = yield from self.read_until(_BEGIN, self.write_content)
        while marker:
            header, end = yield from self.collect_until(_HEADER)
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
            self.add_arguments(f"{separator}{_quoted(key.strip())}: ")
            separator = ", "
            end = yield from self._read_value(_types(self.schema_of(name), key.strip()))
            if end != VALUE_END:
                return end == END
            yield from self.take_space()
            has_key = yield from self.skip(KEY)
        if separator:
            return (yield from self.skip(END))
        return True

    def _read_value(self, types: frozenset[str] | None) -> Steps[str]:
        if types == _ONLY_TEXT:
            self.add_arguments('"')
            end = yield from self.read_until(_VALUE_END, self._add_quoted)
            self.add_arguments('"' if end else "")
            return end
        text, end = yield from self.collect_until(_VALUE_END)
        if end:
            self.add_arguments(text.strip() if _is_json(text, types) else _quoted(text))
        return end

    def _add_quoted(self, text: str) -> None:
        self.add_arguments(_quoted(text)[1:-1])


_quoted = partial(json.dumps, ensure_ascii=False)


def _types(schema: object, key: str) -> frozenset[str] | None:
    """Return the JSON types that a schema allows for a parameter; None if that is unknown."""
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    found = properties.get(key) if isinstance(properties, Mapping) else None
    types = found.get("type") if isinstance(found, Mapping) else None
    if isinstance(types, str):
        return frozenset({types})
    if isinstance(types, list):
        return frozenset(each for each in types if isinstance(each, str))
    return None


def _is_json(text: str, types: frozenset[str] | None) -> bool:
    """Whether a text is a JSON value of one of the types."""
    try:
        value: Any = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError):
        return False
    return types is None or bool(_JSON_TYPES[type(value)] & types)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")
