"""Validation errors of a custom resource or a boot file: path, error, value, remedy.

speculation.numDraftTokens: topk 1 drafts a chain, so numDraftTokens must be numSteps + 1: …
memory.page_sise: no such field; did you mean page_size?
model.dtype: input should be 'auto', 'bfloat16', 'float16' or 'float32'; got 'int8'
"""

import difflib
from collections.abc import Sequence
from typing import Final

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from specdecode_api import rules
from specdecode_api.descriptions import ANY_ITEM, ANY_KEY, field_descriptions
from specdecode_api.key_mask import quoted

_LONGEST_VALUE: Final = 80
_SINGLE: Final = frozenset({"int_type", "float_type", "bool_type", "string_type"})
"""Types of errors for a list or an object in place of a single value."""

Place = tuple[str | int, ...]


def validation_errors(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """List every error that `model` reported, one sentence each."""
    return tuple(f"{dotted(place)}: {message}" for place, message in refusals(error, model))


def refusals(error: ValidationError, model: type[BaseModel]) -> list[tuple[Place, str]]:
    """List every error that `model` reported: its path and its message."""
    return [found for detail in error.errors() for found in _refusals(detail, model)]


def dotted(place: Place) -> str:
    """Format a path: `table.8.candidate_steps[1]`."""
    words = [f"[{word}]" if isinstance(word, int) else f".{_printable(word)}" for word in place]
    return "".join(words).removeprefix(".") or "document"


def _printable(key: str) -> str:
    return key if key.isprintable() else repr(key)[1:-1]


def no_such_field(name: str, known: Sequence[str]) -> str:
    """Return the error for an unknown field, with the closest of the `known` names."""
    close = difflib.get_close_matches(name, known, n=1)
    remedy = (
        f"did you mean {close[0]}?" if close else f"remove it, or use one of {', '.join(known)}"
    )
    return f"no such field; {remedy}"


def seen(value: object) -> str:
    """Return `; got VALUE`, or nothing if the value is long; only the length of a possible key."""
    shown = "null" if value is None else quoted(value)
    return f"; got {shown}" if len(shown) <= _LONGEST_VALUE else ""


def _refusals(detail: ErrorDetails, model: type[BaseModel]) -> list[tuple[Place, str]]:
    place = detail["loc"]
    match detail["type"]:
        case rules.RULE_ERROR:
            found = detail["ctx"]["refusals"]
            return [
                ((*place, *filter(None, field.split("."))), message) for field, message in found
            ]
        case "missing":
            return [(place, "is required: add it")]
        case "extra_forbidden":
            return [(place, no_such_field(str(place[-1]), _siblings(place, model)))]
        case "too_short" if len(detail["input"]) >= detail["ctx"]["min_length"]:
            return []  # only because its items were rejected, and each item has its own error
        case "too_short":
            return [(place, f"needs at least {detail['ctx']['min_length']} item: add one")]
        case _:
            message = detail["msg"].removeprefix("Value error, ")
            message = f"{message[:1].lower()}{message[1:]}".replace(
                "tuple", "list"
            )  # JSON has no tuples
            return [(place, message + _seen(detail))]


def _siblings(place: Place, model: type[BaseModel]) -> list[str]:
    """List the known fields at the path of the unknown one."""
    return [
        row.path[-1]
        for row in field_descriptions(model.model_json_schema(by_alias=True))
        if len(row.path) == len(place) and _covers(row.path[:-1], place[:-1])
    ]


def _covers(pattern: Sequence[str], place: Place) -> bool:
    return all(name in (ANY_KEY, ANY_ITEM, word) for name, word in zip(pattern, place, strict=True))


def _seen(detail: ErrorDetails) -> str:
    """Show a single value, or what is in place of one; objects are not shown."""
    value = detail["input"]
    is_shown = not isinstance(value, dict | list | tuple | BaseModel)
    return seen(value) if is_shown or detail["type"] in _SINGLE else ""
