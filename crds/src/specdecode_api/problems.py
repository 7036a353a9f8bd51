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

Place = tuple[str | int, ...]


def problems(error: ValidationError, model: type[BaseModel]) -> tuple[str, ...]:
    """List everything that `model` refused, one sentence each."""
    return tuple(
        f"{_path(place)}: {said}"
        for detail in error.errors()
        for place, said in _refusals(detail, model)
    )


def _refusals(detail: ErrorDetails, model: type[BaseModel]) -> list[tuple[Place, str]]:
    place = detail["loc"]
    match detail["type"]:
        case rules.RULE_ERROR:
            refusals = detail["ctx"]["refusals"]
            return [((*place, *filter(None, field.split("."))), said) for field, said in refusals]
        case "missing":
            return [(place, "is required: add it")]
        case "extra_forbidden":
            return [(place, f"no such field; {_remedy(place, model)}")]
        case _:
            said = detail["msg"].removeprefix("Value error, ")
            return [(place, f"{said[:1].lower()}{said[1:]}{_seen(detail['input'])}")]


def _remedy(place: Place, model: type[BaseModel]) -> str:
    known = _known_beside(place, model)
    close = difflib.get_close_matches(str(place[-1]), known, n=1)
    return f"did you mean {close[0]}?" if close else f"remove it, or use one of {', '.join(known)}"


def _known_beside(place: Place, model: type[BaseModel]) -> list[str]:
    """List the fields that may stand where the unknown one stands."""
    return [
        row.path[-1]
        for row in fields(model.model_json_schema(by_alias=True))
        if len(row.path) == len(place) and _covers(row.path[:-1], place[:-1])
    ]


def _covers(pattern: Sequence[str], place: Place) -> bool:
    return all(name in (ANY_KEY, ANY_ITEM, word) for name, word in zip(pattern, place, strict=True))


def _path(place: Place) -> str:
    words = [f"[{word}]" if isinstance(word, int) else f".{word}" for word in place]
    return "".join(words).removeprefix(".") or "document"


def _seen(value: object) -> str:
    """Show a single value; an object or a list would bury the message."""
    if value is None or isinstance(value, dict | list | tuple | BaseModel):
        return ""
    shown = repr(value)
    return f"; got {shown}" if len(shown) <= _LONGEST_VALUE else ""
