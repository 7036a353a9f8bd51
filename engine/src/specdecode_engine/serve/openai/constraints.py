"""Structured output: the fields of OpenAI, vLLM and SGLang that constrain a response's text."""

import json
from dataclasses import replace
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, model_validator

from specdecode_engine.grammar import GrammarKind, GrammarSource
from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.refused_fields import STRUCTURED_OUTPUTS, check_constraint

Schema = dict[str, Any] | str
Choices = Annotated[list[str], Field(min_length=1, max_length=4096)]

_ANY_OBJECT = GrammarSource(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


class _Constraint(BaseModel):
    """An object that does nothing but constrain: its unknown keys are refused."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    @model_validator(mode="after")
    def _check_keys(self) -> Self:
        check_constraint(self.model_extra, STRUCTURED_OUTPUTS)
        return self


class JsonSchemaFormat(_Constraint):
    """OpenAI's `json_schema`; keywords that cannot be enforced are refused if it is strict."""

    name: str | None = None
    description: str | None = None
    content: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


FormatType = Literal["text", "json_object", "json_schema", "regex", "ebnf"]


class ResponseFormat(_Constraint):
    """OpenAI's `response_format`, and the types `regex` and `ebnf`.

    `schema` is that of llama.cpp (type `json_object`) and of SGLang (type `json_schema`).
    """

    type: FormatType
    name: str | None = None
    description: str | None = None
    strict: bool | None = None
    json_schema: JsonSchemaFormat | None = None
    content: dict[str, Any] | None = Field(None, alias="schema")
    regex: str | None = Field(None, validation_alias=AliasChoices("regex", "pattern"))
    ebnf: str | None = Field(None, validation_alias=AliasChoices("ebnf", "grammar"))

    @model_validator(mode="after")
    def _check_type(self) -> Self:
        values = {
            "json_schema": self.json_schema,
            "schema": self.content,
            "regex": self.regex,
            "ebnf": self.ebnf,
        }
        for field, value in values.items():
            if value is not None and field not in _USED_BY_TYPE[self.type]:
                raise errors.field_error(
                    field, f"type {self.type} does not use it; change the type or remove it"
                )
        if self.json_schema is not None and self.content is not None:
            raise errors.field_error("schema", "json_schema has a schema too; send only one")
        return self


_USED_BY_TYPE: dict[FormatType, tuple[str, ...]] = {
    "text": (),
    "json_object": ("schema",),
    "json_schema": ("json_schema", "schema"),
    "regex": ("regex",),
    "ebnf": ("ebnf",),
}


class StructuredOutputs(_Constraint):
    """vLLM's `structured_outputs`; `disable_fallback` changes nothing, as there is one backend."""

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any | None = None
    disable_fallback: bool | None = None

    @model_validator(mode="after")
    def _check_constrains(self) -> Self:
        constraints = (self.json_, self.regex, self.choice, self.grammar, self.structural_tag)
        if all(each is None for each in constraints) and not self.json_object:
            raise ValueError(
                "it constrains nothing; set json, regex, choice, grammar or json_object, or "
                "remove it"
            )
        return self


class ConstraintFields(BaseModel):
    """The fields of a body that constrain its choices; all that are set have to be equal."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    json_schema: Schema | None = None
    regex: str | None = None
    ebnf: str | None = None
    grammar: str | None = None


def read_constraint(body: ConstraintFields) -> tuple[str, GrammarSource] | None:
    """Return the constraining field of a body and its grammar; None without one.

    One constraint may be in several fields, as some clients send it. It is strict if any of them
    is. Raises `HttpError` if two fields differ, or one is incomplete.
    """
    candidates = {
        **_read_response_format(body.response_format),
        **_read_structured_outputs(body.structured_outputs),
        "guided_json": _schema(body.guided_json),
        "guided_regex": _source(GrammarKind.REGEX, body.guided_regex),
        "guided_choice": _choice(body.guided_choice),
        "guided_grammar": _source(GrammarKind.EBNF, body.guided_grammar),
        "json_schema": _schema(body.json_schema),
        "regex": _source(GrammarKind.REGEX, body.regex),
        "ebnf": _source(GrammarKind.EBNF, body.ebnf),
        "grammar": _source(GrammarKind.EBNF, body.grammar or None),
    }
    sources = {field: source for field, source in candidates.items() if source is not None}
    if not sources:
        return None
    (first, source), *others = sources.items()
    for field, other in others:
        if _value(other) != _value(source):
            message = f"{first} and {field} both constrain the response, and differ; send only one"
            raise errors.invalid(field, message)
    is_strict = any(each.is_strict for each in sources.values())
    return first, replace(source, is_strict=is_strict)


def _value(source: GrammarSource) -> tuple[GrammarKind, str]:
    """Return what two spellings of one constraint have in common: not the blanks of a schema."""
    if source.kind is not GrammarKind.JSON_SCHEMA:
        return source.kind, source.text
    try:
        return source.kind, json.dumps(json.loads(source.text))
    except (ValueError, RecursionError):
        return source.kind, source.text


def _read_response_format(wanted: ResponseFormat | None) -> dict[str, GrammarSource | None]:
    if wanted is None or wanted.type == "text":
        return {}
    if wanted.content is not None:
        is_strict = wanted.type == "json_object" or bool(wanted.strict)
        return {"response_format.schema": _schema(wanted.content, is_strict)}
    if wanted.type == "json_object":
        return {"response_format": _ANY_OBJECT}
    field, value = f"response_format.{wanted.type}", getattr(wanted, wanted.type)
    if value is None:
        raise errors.invalid(field, f"response_format of type {wanted.type} requires this field")
    if isinstance(value, JsonSchemaFormat):
        return {f"{field}.schema": _schema(value.content, bool(value.strict))}
    return {field: _source(GrammarKind(wanted.type), value)}


def _read_structured_outputs(outputs: StructuredOutputs | None) -> dict[str, GrammarSource | None]:
    if outputs is None:
        return {}
    field = "structured_outputs"
    if outputs.structural_tag is not None:
        raise errors.invalid(f"{field}.structural_tag", "structural_tag is not supported; use json")
    return {
        f"{field}.json": _schema(outputs.json_),
        f"{field}.regex": _source(GrammarKind.REGEX, outputs.regex),
        f"{field}.choice": _choice(outputs.choice),
        f"{field}.grammar": _source(GrammarKind.EBNF, outputs.grammar),
        f"{field}.json_object": _ANY_OBJECT if outputs.json_object else None,
    }


def _schema(schema: Schema | None, is_strict: bool = True) -> GrammarSource | None:
    text = json.dumps(schema, ensure_ascii=False) if isinstance(schema, dict) else schema
    return None if text is None else GrammarSource(GrammarKind.JSON_SCHEMA, text, is_strict)


def _choice(choices: list[str] | None) -> GrammarSource | None:
    return None if choices is None else GrammarSource(GrammarKind.CHOICE, json.dumps(choices))


def _source(kind: GrammarKind, text: str | None) -> GrammarSource | None:
    return None if text is None else GrammarSource(kind, text)
