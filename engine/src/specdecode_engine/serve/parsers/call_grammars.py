"""Grammars of the calls of each format, as its parser reads them."""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specdecode_engine.grammar import MAX_SOURCE_CHARS, NamedSchema
from specdecode_engine.serve import errors
from specdecode_engine.serve.parsers import (
    deepseek,
    glm,
    hermes,
    llama,
    mistral,
    pythonic,
    qwen_coder,
)
from specdecode_engine.serve.parsers.lark import LarkRules, either, literal

# Keywords of the schema of all parameters that rules per parameter enforce, and annotations.
_OBJECT_KEYWORDS = frozenset(
    {
        "type", "properties", "required", "additionalProperties", "$defs", "definitions",
        "description", "title", "$schema", "examples", "default",
    }
)  # fmt: skip
_TEXT_KEYWORDS = frozenset({"type", "enum", "const", "description", "title", "examples", "default"})
COMMA = literal(", ")
WRAPPED = "\n"
"""Between a wrapper and a trigger."""
_IDENTIFIER = re.compile(r"\w+")
_DOTTED = re.compile(r"[\w.]+")


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

    `trigger` is the marker that begins each call or all calls; None for calls without one. `bare`
    is the character that begins a text of calls without a trigger. `wrapper` is the marker that
    usually precedes the trigger.
    """

    trigger: str | None = None
    bare = ""
    wrapper = ""

    def __init__(self, rules: LarkRules, tools: Sequence[ToolSchema]) -> None:
        self.rules = rules
        self.tools = tools
        self.schemas: list[NamedSchema] = []

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


def shown(value: object) -> str:
    """Return the beginning of a client's value, for an error."""
    return str(value)[: errors.SHOWN_VALUE_CHARS]


def check_object(tool: ToolSchema) -> None:
    """Raise `UnsupportedSchema` for parameters that are not an object."""
    kind = tool.parameters.get("type", "object")
    if kind not in ("object", ["object"]):
        raise UnsupportedSchema(f"{tool.place}: type is {shown(kind)}; arguments are an object")


def repeated(item: str, separator: str, is_parallel: bool) -> str:
    return f"{item} ({separator} {item})*" if is_parallel else item


class HermesCalls(CallGrammar):
    trigger = hermes.BEGIN

    def after_trigger(self) -> str:
        end = self.rules.marker(hermes.END)
        return f'"\\n" {self.json_call("arguments")} "\\n" {end}'

    def calls(self, is_parallel: bool) -> str:
        call = self.rules.add(f"{self.rules.marker(hermes.BEGIN)} {self.after_trigger()}")
        return repeated(call, '"\\n"', is_parallel)


class LlamaJsonCalls(CallGrammar):
    trigger = llama.PYTHON_TAG
    bare = "{"

    def calls(self, is_parallel: bool) -> str:
        return repeated(self.json_call("parameters"), '"; "', is_parallel)

    def after_trigger(self) -> str:
        return self.json_call("parameters")


class MistralCalls(CallGrammar):
    trigger = mistral.TOOL_CALLS

    def after_trigger(self) -> str:
        if not self._has_names:
            calls = repeated(self.json_call("arguments"), COMMA, True)
            return f'" "? "[" {calls} "]"'
        args = self.rules.marker(mistral.ARGS)
        return self.one_of(lambda tool: f"{literal(tool.name)} {args} {self.arguments(tool)}")

    def calls(self, is_parallel: bool) -> str:
        begin = self.rules.marker(mistral.TOOL_CALLS)
        if self._has_names:
            return repeated(self.rules.add(f"{begin} {self.after_trigger()}"), "", is_parallel)
        calls = repeated(self.json_call("arguments"), COMMA, is_parallel)
        return f'{begin} " "? "[" {calls} "]"'

    @property
    def _has_names(self) -> bool:
        """Whether the vocabulary is that of tokenizer v11 or later."""
        return self.rules.is_special(mistral.ARGS)


class DeepSeekV31Calls(CallGrammar):
    trigger = deepseek.CALLS_BEGIN
    separator = ""

    def after_trigger(self) -> str:
        return self._all_calls(True)

    def calls(self, is_parallel: bool) -> str:
        return f"{self.rules.marker(deepseek.CALLS_BEGIN)} {self._all_calls(is_parallel)}"

    def _all_calls(self, is_parallel: bool) -> str:
        rules = self.rules
        begin, end = rules.marker(deepseek.CALL_BEGIN), rules.marker(deepseek.CALL_END)
        call = rules.add(f"{begin} {self.one_of(self.body)} {end}")
        calls = repeated(call, self.separator, is_parallel)
        return f"{calls} {rules.marker(deepseek.CALLS_END)}"

    def body(self, tool: ToolSchema) -> str:
        separator = self.rules.marker(deepseek.SEPARATOR)
        return f"{literal(tool.name)} {separator} {self.arguments(tool)}"


class DeepSeekV3Calls(DeepSeekV31Calls):
    separator = '"\\n"'

    def body(self, tool: ToolSchema) -> str:
        separator = self.rules.marker(deepseek.SEPARATOR)
        begin = literal(f"{tool.name}\n```json\n")
        return f'"function" {separator} {begin} {self.arguments(tool)} "\\n```"'


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
        if schema.get("type") not in ("string", ["string"]):
            return f"{self.value(tool, key, schema)} {close}"
        unknown = sorted(set(schema) - _TEXT_KEYWORDS - {"$defs", "definitions"})
        if unknown and tool.is_strict:
            raise UnsupportedSchema(
                f"{tool.place}.properties.{shown(key)}: {shown(unknown[0])} of a string cannot be "
                "enforced in this model's format of calls; use enum, or remove it"
            )
        choices = [schema["const"]] if "const" in schema else schema.get("enum")
        if choices is None:
            return self.rules.until(end)
        return f"{either(literal(str(choice)) for choice in choices)} {close}"


class PythonicCalls(ParameterCalls):
    trigger = pythonic.PYTHON_START
    bare = "["

    def calls(self, is_parallel: bool) -> str:
        return f'"[" {repeated(self.one_of(self._call), COMMA, is_parallel)} "]"'

    def after_trigger(self) -> str:
        return f"{self.calls(True)} {self.rules.marker(pythonic.PYTHON_END)}"

    def _call(self, tool: ToolSchema) -> str:
        if not _DOTTED.fullmatch(tool.name):
            raise UnsupportedSchema(f"{tool.place}: {tool.name} is not a name in Python; rename it")
        return f'{literal(tool.name + "(")} {self._keywords(tool)} ")"'

    def _keywords(self, tool: ToolSchema) -> str:
        """Return the rule of the keyword arguments in order, with commas between them."""
        first = later = self.rules.add('""')
        for key, schema, is_required in reversed(self.parameters(tool)):
            if not _IDENTIFIER.fullmatch(key):
                raise UnsupportedSchema(
                    f"{tool.place}: {shown(key)} is not a name in Python; rename it"
                )
            pair = self.rules.add(f"{literal(key + '=')} {self.value(tool, key, schema)}")
            skipped_first = "" if is_required else f" | {first}"
            skipped_later = "" if is_required else f" | {later}"
            first = self.rules.add(f"{pair} {later}{skipped_first}")
            later = self.rules.add(f'", " {pair} {later}{skipped_later}')
        return first


class GlmCalls(ParameterCalls):
    trigger = glm.BEGIN

    def after_trigger(self) -> str:
        return f"{self.one_of(self._call)} {self.rules.marker(glm.END)}"

    def calls(self, is_parallel: bool) -> str:
        call = self.rules.add(f"{self.rules.marker(glm.BEGIN)} {self.after_trigger()}")
        return repeated(call, '"\\n"', is_parallel)

    def _call(self, tool: ToolSchema) -> str:
        arguments = [literal(tool.name + "\n")]
        rules = self.rules
        for key, schema, is_required in self.parameters(tool):
            begin = f'{rules.marker(glm.KEY)} {literal(key)} {rules.marker(glm.KEY_END)} "\\n"'
            value = self.value_to(glm.VALUE_END, "", tool, key, schema)
            argument = rules.add(f'{begin} {rules.marker(glm.VALUE)} {value} "\\n"')
            arguments.append(argument if is_required else f"{argument}?")
        return " ".join(arguments)


class QwenCoderCalls(ParameterCalls):
    trigger: str = qwen_coder.FUNCTION
    wrapper = qwen_coder.BEGIN

    def after_trigger(self) -> str:
        end = literal(f"{qwen_coder.FUNCTION_END}\n")
        return f"{self.one_of(self._call)} {end} {self.rules.marker(qwen_coder.END)}"

    def calls(self, is_parallel: bool) -> str:
        begin = f"{self.rules.marker(self.wrapper)} {literal(WRAPPED + self.trigger)}"
        call = self.rules.add(f"{begin} {self.after_trigger()}")
        return repeated(call, '"\\n"', is_parallel)

    def _call(self, tool: ToolSchema) -> str:
        arguments = [literal(f"{tool.name}>\n")]
        for key, schema, is_required in self.parameters(tool):
            if key.strip() != key or ">" in key:
                raise UnsupportedSchema(
                    f"{tool.place}: {shown(key)} is not a name in this model's format of calls; "
                    "rename it"
                )
            begin = literal(f"{qwen_coder.PARAMETER}{key}>\n")
            value = self.value_to(qwen_coder.PARAMETER_END, '"\\n"', tool, key, schema)
            argument = self.rules.add(f'{begin} {value} "\\n"')
            arguments.append(argument if is_required else f"{argument}?")
        return " ".join(arguments)


CALL_GRAMMARS: Mapping[str, type[CallGrammar]] = {
    "deepseek_v3": DeepSeekV3Calls,
    "deepseek_v31": DeepSeekV31Calls,
    "glm45": GlmCalls,
    "hermes": HermesCalls,
    "llama3_json": LlamaJsonCalls,
    "mistral": MistralCalls,
    "pythonic": PythonicCalls,
    "qwen3_coder": QwenCoderCalls,
}
