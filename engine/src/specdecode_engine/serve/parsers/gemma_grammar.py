"""The grammar of Gemma 4's calls: values that follow a JSON schema, in its own notation."""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specdecode_engine.serve.parsers import gemma
from specdecode_engine.serve.parsers.call_grammar import (
    TEXT_KEYWORDS,
    CallGrammar,
    ToolSchema,
    UnsupportedSchema,
    check_object,
    repeated,
    shown,
)
from specdecode_engine.serve.parsers.lark import either, literal

MAX_DEPTH = 32

_KEY = re.compile(r"[^\s:,{}\[\]<>\"|]+")
_SCALARS = ("boolean", "integer", "null", "number")
_ANNOTATIONS = frozenset(
    {"type", "$defs", "definitions", "description", "title", "$schema", "examples", "default"}
)
_STRING_KEYWORDS = TEXT_KEYWORDS | {"minLength", "maxLength"}
_LIST_KEYWORDS = _ANNOTATIONS | {"items", "minItems", "maxItems"}
_OBJECT_KEYWORDS = _ANNOTATIONS | {"properties", "required", "additionalProperties"}


class Gemma4Calls(CallGrammar):
    tokens = gemma.TOKENS

    @property
    def triggers(self) -> tuple[str, ...]:
        return (self.tokens.begin,)

    def calls(self, is_parallel: bool) -> str:
        call = self.rules.add(f"{self.rules.marker(self.tokens.begin)} {self.after_trigger()}")
        return repeated(call, "", is_parallel)

    def after_trigger(self) -> str:
        call = self.one_of(self._call)
        return f"{literal(gemma.CALL)} {call} {self.rules.marker(self.tokens.end)}"

    def _call(self, tool: ToolSchema) -> str:
        check_object(tool)
        arguments = _GemmaValues(self, tool, self.tokens.string).object_value(
            tool.parameters, tool.place, 0
        )
        return f"{literal(tool.name)} {arguments}"


class FunctionGemmaCalls(Gemma4Calls):
    tokens = gemma.FUNCTION_TOKENS


class _GemmaValues:
    """Rules of the values of one tool's arguments."""

    def __init__(self, grammar: CallGrammar, tool: ToolSchema, string: str) -> None:
        self._grammar = grammar
        self._rules = grammar.rules
        self._tool = tool
        self._text_end = string
        self._quote = grammar.rules.marker(string)
        self._by_reference: dict[str, str] = {}
        self._any: str | None = None

    def value(self, schema: object, place: str, depth: int) -> str:
        """Return what matches a value of a schema at a place.

        Raises:
            UnsupportedSchema: for keywords that the rules cannot enforce, if the tool is strict.
        """
        if depth > MAX_DEPTH:
            raise UnsupportedSchema(
                f"{place}: it is nested deeper than {MAX_DEPTH} levels; make it flatter"
            )
        if not isinstance(schema, Mapping):
            return self._any_value()
        if "$ref" in schema:
            return self._reference(schema["$ref"], place, depth)
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(choices, list) and choices:
            return either(self._exact(choice, place) for choice in choices)
        for key in ("anyOf", "oneOf"):
            options = schema.get(key)
            if isinstance(options, list) and options:
                self._check(schema, _ANNOTATIONS | {key}, place)
                return either(self.value(each, f"{place}.{key}", depth + 1) for each in options)
        kinds = schema.get("type", self._implied_type(schema))
        if isinstance(kinds, list) and kinds:
            return either(self._typed(kind, schema, place, depth) for kind in kinds)
        return self._typed(kinds, schema, place, depth)

    def object_value(self, schema: Mapping[str, Any], place: str, depth: int) -> str:
        self._check(schema, _OBJECT_KEYWORDS, place)
        properties, required = schema.get("properties"), schema.get("required") or ()
        if not properties:
            more = schema.get("additionalProperties", True)
            return '"{}"' if more is False else self._free_object(more, place, depth)
        if not isinstance(properties, Mapping) or not isinstance(required, Sequence):
            raise UnsupportedSchema(f"{place}: properties must be an object, required a list")
        pairs = []
        for key, value in properties.items():
            if not _KEY.fullmatch(key):
                raise UnsupportedSchema(
                    f"{place}: {shown(key)} is not a name in this model's format of calls; "
                    "rename it"
                )
            matched = self.value(value, f"{place}.properties.{shown(key)}", depth + 1)
            pairs.append((self._rules.add(f"{literal(key + ':')} {matched}"), key in required))
        return f'"{{" {self._grammar.separated(pairs, literal(","))} "}}"'

    def _implied_type(self, schema: Mapping[str, Any]) -> str | None:
        implied = {"properties": "object", "items": "array"}
        return next((kind for key, kind in implied.items() if key in schema), None)

    def _typed(self, kind: object, schema: Mapping[str, Any], place: str, depth: int) -> str:
        if kind is None:
            self._check(schema, _ANNOTATIONS, place)
            return self._any_value()
        if kind == "string":
            return self._string(schema, place)
        if kind == "array":
            return self._list(schema, place, depth)
        if kind == "object":
            return self.object_value(schema, place, depth)
        if kind in _SCALARS:
            return self._grammar.add_schema(self._tool, {**schema, "type": kind}, place)
        raise UnsupportedSchema(f"{place}: type is {shown(kind)}; use a type of JSON Schema")

    def _string(self, schema: Mapping[str, Any], place: str) -> str:
        self._check(schema, _STRING_KEYWORDS, place)
        least, most = _bounds(schema, "minLength", "maxLength", place)
        if (least, most) == (0, None):
            return f"{self._quote} {self._rules.until(self._text_end)}"
        pattern = f"(?s:.{{{least},{'' if most is None else most}}})"
        text = self._rules.text(self._text_end, pattern=pattern)
        return f"{self._quote} {text} {self._quote}"

    def _list(self, schema: Mapping[str, Any], place: str, depth: int) -> str:
        self._check(schema, _LIST_KEYWORDS, place)
        least, most = _bounds(schema, "minItems", "maxItems", place)
        if most == 0:
            return '"[]"'
        item = self._rules.add(self.value(schema.get("items"), f"{place}.items", depth + 1))
        later = f"{max(least - 1, 0)},{'' if most is None else most - 1}"
        items = f'({item} ("," {item}){{{later}}})'
        return f'"[" {items}{"" if least else "?"} "]"'

    def _free_object(self, schema: object, place: str, depth: int) -> str:
        value = self.value(schema, f"{place}.additionalProperties", depth + 1)
        pair = self._rules.add(f'/[A-Za-z_][A-Za-z0-9_.-]*/ ":" {value}')
        return f'"{{" ({pair} ("," {pair})*)? "}}"'

    def _any_value(self) -> str:
        if self._any is None:
            self._any = self._rules.reserve()
            kinds = {"type": ["boolean", "null", "number"]}
            scalar = self._grammar.add_schema(self._tool, kinds, self._tool.place)
            text = f"{self._quote} {self._rules.until(self._text_end)}"
            items = f'"[" ({self._any} ("," {self._any})*)? "]"'
            pairs = self._free_object(None, self._tool.place, 0)
            self._rules.define(self._any, either([scalar, text, items, pairs]))
        return self._any

    def _reference(self, reference: object, place: str, depth: int) -> str:
        """Return the rule of a definition, which may refer to itself."""
        path = str(reference).split("/")
        definitions = self._tool.parameters.get(path[1]) if len(path) == 3 else None
        if path[0] != "#" or not isinstance(definitions, Mapping) or path[2] not in definitions:
            raise UnsupportedSchema(
                f"{place}: $ref is {shown(reference)}; refer to an entry of $defs of the parameters"
            )
        name = self._by_reference.get(path[2])
        if name is None:
            name = self._by_reference[path[2]] = self._rules.reserve()
            self._rules.define(name, self.value(definitions[path[2]], place, depth + 1))
        return name

    def _exact(self, value: object, place: str) -> str:
        """Return what matches one value."""
        if isinstance(value, str):
            if self._text_end in value:
                raise UnsupportedSchema(f"{place}: a value contains {self._text_end}; change it")
            return f"{self._quote} {literal(value)} {self._quote}"
        if isinstance(value, list | dict):
            raise UnsupportedSchema(
                f"{place}: {shown(value)} among its values is not a string, number, boolean or "
                "null; describe it by properties or items"
            )
        return literal(json.dumps(value))

    def _check(self, schema: Mapping[str, Any], known: frozenset[str], place: str) -> None:
        unknown = sorted(set(schema) - known) if self._tool.is_strict else []
        if unknown:
            raise UnsupportedSchema(
                f"{place}: {shown(unknown[0])} cannot be enforced in this model's format of calls; "
                "remove it"
            )


def _bounds(schema: Mapping[str, Any], least: str, most: str, place: str) -> tuple[int, int | None]:
    """Return the bounds of a length or a count."""
    low, high = schema.get(least, 0), schema.get(most)
    if not isinstance(low, int) or not isinstance(high, int | None) or low < 0:
        raise UnsupportedSchema(f"{place}: {least} and {most} must be whole numbers from 0 on")
    if high is not None and high < low:
        raise UnsupportedSchema(f"{place}: {most} is {high}, less than {least}, {low}; raise it")
    return low, high
