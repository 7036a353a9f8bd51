"""Structured output: the fields of OpenAI, vLLM and SGLang that constrain a response's text."""

import json
from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from specdecode_engine.grammar import GrammarKind, GrammarSource
from specdecode_engine.serve import errors

Schema = dict[str, Any] | str
Choices = Annotated[list[str], Field(min_length=1, max_length=4096)]

_ANY_OBJECT = GrammarSource(GrammarKind.JSON_SCHEMA, '{"type": "object"}')


class JsonSchemaFormat(BaseModel):
    """OpenAI's `json_schema`; keywords that cannot be enforced are refused if it is strict."""

    model_config = ConfigDict(strict=True, frozen=True)

    content: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's `response_format`, and the types `regex` and `ebnf`."""

    model_config = ConfigDict(strict=True, frozen=True)

    type: Literal["text", "json_object", "json_schema", "regex", "ebnf"]
    json_schema: JsonSchemaFormat | None = None
    regex: str | None = Field(None, validation_alias=AliasChoices("regex", "pattern"))
    ebnf: str | None = Field(None, validation_alias=AliasChoices("ebnf", "grammar"))


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`."""

    model_config = ConfigDict(strict=True, frozen=True)

    json_: Schema | None = Field(None, alias="json")
    regex: str | None = None
    choice: Choices | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: Any | None = None


class ConstraintFields(BaseModel):
    """The fields of a body that constrain its choices; at most one of them may be set."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: Schema | None = None
    guided_regex: str | None = None
    guided_choice: Choices | None = None
    guided_grammar: str | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None


def read_constraint(body: ConstraintFields) -> tuple[str, GrammarSource] | None:
    """Return the constraining field of a body and its grammar; None without one.

    Raises `HttpError` if two fields are set, or one is incomplete.
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
    }
    sources = {field: source for field, source in candidates.items() if source is not None}
    if len(sources) > 1:
        first, second, *_ = sources
        message = f"{first} and {second} both constrain the response; send only one"
        raise errors.invalid(second, message)
    return next(iter(sources.items()), None)


def _read_response_format(wanted: ResponseFormat | None) -> dict[str, GrammarSource | None]:
    if wanted is None or wanted.type == "text":
        return {}
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
