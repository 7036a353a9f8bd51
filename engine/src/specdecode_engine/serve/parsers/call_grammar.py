"""What the grammars of calls of all formats have in common."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdecode_engine.grammar import MAX_SOURCE_CHARS, NamedSchema
from specdecode_engine.serve import errors
from specdecode_engine.serve.parsers.lark import LarkRules, either, literal
from specdecode_engine.serve.parsers.schema_types import is_string

# Keywords of the schema of all parameters that rules per parameter enforce, and annotations.
_OBJECT_KEYWORDS = frozenset(
    {
        "type", "properties", "required", "additionalProperties", "$defs", "definitions",
        "description", "title", "$schema", "examples", "default",
    }
)  # fmt: skip
TEXT_KEYWORDS = frozenset({"type", "enum", "const", "description", "title", "examples", "default"})
COMMA = literal(", ")
WRAPPED = "\n"
"""Between a wrapper and a trigger."""


class UnsupportedSchema(Exception):
    """The format cannot be constrained to a schema; the message names the part and the remedy."""


@dataclass(frozen=True, slots=True)
class ToolSchema:
    """A tool: its name, the JSON schema of its parameters, and the field that contains that."""

    name: str
    parameters: Mapping[str, Any]
    is_strict: bool
    place: str


class CallGrammar(ABC):
    """Rules for the calls of one response.

    `trigger` is the marker that begins each call or all calls; None for calls without one.
    `triggers` are all such markers of a format with several. `bare` is the character that begins a
    text of calls without a trigger. `wrapper` is the marker that usually precedes the trigger.
    `content_markers` are those around content.
    """

    trigger: str | None = None
    bare = ""
    wrapper: str = ""
    content_markers: tuple[str, str] | None = None

    def __init__(self, rules: LarkRules, tools: Sequence[ToolSchema]) -> None:
        self.rules = rules
        self.tools = tools
        self.schemas: list[NamedSchema] = []

    @property
    def triggers(self) -> tuple[str, ...]:
        return () if self.trigger is None else (self.trigger,)

    @abstractmethod
    def calls(self, is_parallel: bool) -> str:
        """Return what matches a text of one call, or of one or more."""

    def after_trigger(self) -> str:
        """Return what matches the rest of a call after its trigger in free text."""
        raise NotImplementedError

    def arguments(self, tool: ToolSchema) -> str:
        """Return the rule of a tool's arguments as a JSON object."""
        check_object(tool)
        return self.add_schema(tool, {"type": "object", **tool.parameters}, tool.place)

    def add_schema(self, tool: ToolSchema, schema: Mapping[str, Any], place: str) -> str:
        name = f"schema_{len(self.schemas)}"
        self.schemas.append(NamedSchema(name, place, schema, tool.is_strict))
        return name

    def one_of(self, call: Callable[[ToolSchema], str]) -> str:
        return self.rules.add(either(call(tool) for tool in self.tools))

    def json_call(self, key: str) -> str:
        """Return what matches a call as a JSON object."""
        return self.one_of(
            lambda tool: (
                literal(f'{{"name": {json.dumps(tool.name)}, "{key}": ')
                + f' {self.arguments(tool)} "}}"'
            )
        )

    def separated(self, pairs: Sequence[tuple[str, bool]], comma: str) -> str:
        """Return the rule of a sequence with commas: each part, and whether it is required."""
        first = later = self.rules.add('""')
        for part, is_required in reversed(pairs):
            skipped_first = "" if is_required else f" | {first}"
            skipped_later = "" if is_required else f" | {later}"
            first = self.rules.add(f"{part} {later}{skipped_first}")
            later = self.rules.add(f"{comma} {part} {later}{skipped_later}")
        return first


def shown(value: object) -> str:
    """Return the beginning of a client's value, for an error."""
    return str(value)[: errors.SHOWN_VALUE_CHARS]


def check_object(tool: ToolSchema) -> None:
    """Raise `UnsupportedSchema` for parameters that are not an object."""
    kind = tool.parameters.get("type", "object")
    if kind not in ("object", ["object"]):
        raise UnsupportedSchema(f"{tool.place}: type is {shown(kind)}; arguments are an object")


def check_key(tool: ToolSchema, key: str, *excluded: str) -> None:
    """Raise `UnsupportedSchema` for a property that a parser would read as another one."""
    if key.strip() != key or any(each in key for each in excluded):
        raise UnsupportedSchema(
            f"{tool.place}: {shown(key)} is not a name in this model's format of calls; rename it"
        )


def repeated(item: str, separator: str, is_parallel: bool) -> str:
    return f"{item} ({separator} {item})*" if is_parallel else item


class ParameterCalls(CallGrammar):
    """Calls whose arguments are not one JSON object: each parameter has its own rule."""

    def parameters(self, tool: ToolSchema) -> list[tuple[str, Mapping[str, Any], bool]]:
        """Return name, schema and whether it is required, of each parameter.

        Raises:
            UnsupportedSchema: for keywords that rules per parameter cannot enforce.
        """
        schema = tool.parameters
        unknown = sorted(set(schema) - _OBJECT_KEYWORDS) if tool.is_strict else []
        check_object(tool)
        if unknown:
            raise UnsupportedSchema(
                f"{tool.place}: {shown(unknown[0])} cannot be enforced in this model's format of "
                "calls; describe the parameters by properties and required only"
            )
        properties, required = schema.get("properties") or {}, schema.get("required") or ()
        if not isinstance(properties, Mapping) or not isinstance(required, Sequence):
            raise UnsupportedSchema(f"{tool.place}: properties must be an object, required a list")
        shared = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
        if len(json.dumps(shared)) * len(properties) > MAX_SOURCE_CHARS:
            raise UnsupportedSchema(
                f"{tool.place}: each of its {len(properties)} properties would need a copy of "
                "$defs; write the schemas of the properties without $ref"
            )
        return [
            (key, {**shared, **value} if isinstance(value, Mapping) else {}, key in required)
            for key, value in properties.items()
        ]

    def value(self, tool: ToolSchema, key: str, schema: Mapping[str, Any]) -> str:
        return self.add_schema(tool, schema, f"{tool.place}.properties.{shown(key)}")

    def value_to(
        self, end: str, before_end: str, tool: ToolSchema, key: str, schema: Mapping[str, Any]
    ) -> str:
        """Return what matches a value and the marker after it: a string as it is, else JSON.

        `before_end` matches what precedes the marker; any text of the model's own may end in it.
        """
        close = f"{before_end} {self.rules.marker(end)}"
        if not is_string(schema):
            return f"{self.value(tool, key, schema)} {close}"
        unknown = sorted(set(schema) - TEXT_KEYWORDS - {"$defs", "definitions"})
        if unknown and tool.is_strict:
            raise UnsupportedSchema(
                f"{tool.place}.properties.{shown(key)}: {shown(unknown[0])} of a string cannot be "
                "enforced in this model's format of calls; use enum, or remove it"
            )
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices is None:
            return self.rules.until(end)
        return f"{either(literal(str(choice)) for choice in choices)} {close}"
