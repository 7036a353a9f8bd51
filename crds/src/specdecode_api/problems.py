"""What is wrong with a resource or a boot file, in sentences: place, fault, value, remedy.

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
from specdecode_api.fields import ANY_ITEM, ANY_KEY, fields

_LONGEST_VALUE: Final = 80
_SINGLE: Final = frozenset({"int_type", "float_type", "bool_type", "string_type"})
"""Types of errors where a list or an object stands in the place of a single value."""

Place = tuple[str | int, ...]


def problems(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """List everything that `model` refused, one sentence each."""
    return tuple(f"{dotted(place)}: {said}" for place, said in refusals(error, model))


def refusals(error: ValidationError, model: type[BaseModel]) -> list[tuple[Place, str]]:
    """List everything that `model` refused: the place, and what is wrong there."""
    return [found for detail in error.errors() for found in _refusals(detail, model)]


def dotted(place: Place) -> str:
    """Write a place as people do: `table.8.candidate_steps[1]`."""
    words = [f"[{word}]" if isinstance(word, int) else f".{_printable(word)}" for word in place]
    return "".join(words).removeprefix(".") or "document"


def _printable(key: str) -> str:
    """Keep a key that somebody made up from breaking the line, or the terminal."""
    return key if key.isprintable() else repr(key)[1:-1]


def no_such_field(name: str, known: Sequence[str]) -> str:
    """Say that nothing is called `name`, and which of the `known` names may be meant."""
    close = difflib.get_close_matches(name, known, n=1)
    remedy = (
        f"did you mean {close[0]}?" if close else f"remove it, or use one of {', '.join(known)}"
    )
    return f"no such field; {remedy}"


def seen(value: object) -> str:
    """Show a value at the end of a sentence, unless it is long."""
    shown = "null" if value is None else repr(value)
    return f"; got {shown}" if len(shown) <= _LONGEST_VALUE else ""


def _refusals(detail: ErrorDetails, model: type[BaseModel]) -> list[tuple[Place, str]]:
    place = detail["loc"]
    match detail["type"]:
        case rules.RULE_ERROR:
            found = detail["ctx"]["refusals"]
            return [((*place, *filter(None, field.split("."))), said) for field, said in found]
        case "missing":
            return [(place, "is required: add it")]
        case "extra_forbidden":
            return [(place, no_such_field(str(place[-1]), _known_beside(place, model)))]
        case "too_short" if len(detail["input"]) >= detail["ctx"]["min_length"]:
            return []  # only because its items were refused, which is said of each
        case "too_short":
            return [(place, f"needs at least {detail['ctx']['min_length']} item: add one")]
        case _:
            said = detail["msg"].removeprefix("Value error, ")
            said = f"{said[:1].lower()}{said[1:]}".replace("tuple", "list")  # JSON has no tuples
            return [(place, said + _seen(detail))]


def _known_beside(place: Place, model: type[BaseModel]) -> list[str]:
    """List the fields that may stand where the unknown one stands."""
    return [
        row.path[-1]
        for row in fields(model.model_json_schema(by_alias=True))
        if len(row.path) == len(place) and _covers(row.path[:-1], place[:-1])
    ]


def _covers(pattern: Sequence[str], place: Place) -> bool:
    return all(name in (ANY_KEY, ANY_ITEM, word) for name, word in zip(pattern, place, strict=True))


def _seen(detail: ErrorDetails) -> str:
    """Show a single value, or what stands where one should; a whole object says nothing."""
    value = detail["input"]
    is_shown = not isinstance(value, dict | list | tuple | BaseModel)
    return seen(value) if is_shown or detail["type"] in _SINGLE else ""
