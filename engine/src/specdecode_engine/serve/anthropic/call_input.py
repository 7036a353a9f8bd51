"""The input of a call as an object, from the text of arguments that a limit may have cut."""

import json
import math
from collections.abc import Iterator
from typing import Any

from pydantic_core import from_json

TEXT_INPUT = "arguments"
"""The name of arguments that are not a JSON object, as in earlier calls of a conversation."""


def read_input(arguments: str) -> dict[str, Any]:
    """Return the members of the arguments.

    Of arguments that break off, these are the complete ones: no part of a value, and no number at
    the end of the text, which could have gone on.
    """
    text = arguments.strip()
    if not text or text == "null":
        return {}
    if not text.startswith("{"):
        return {TEXT_INPUT: arguments}
    return dict(_members(text))


def _members(text: str) -> Iterator[tuple[str, Any]]:
    """Yield the members of an object until it ends, breaks off or is malformed."""
    place, follows = 1, ","
    while follows == ",":
        try:
            key, end = _value(text, _skip_space(text, place))
            colon = _skip_space(text, end)
            if not isinstance(key, str) or text[colon : colon + 1] != ":":
                return
            value, end = _value(text, _skip_space(text, colon + 1))
        except (ValueError, RecursionError):
            return
        place = _skip_space(text, end)
        follows = text[place : place + 1]
        if follows not in (",", "}") and (follows or _may_go_on(value)):
            return
        yield key, value
        place += 1


def _value(text: str, start: int) -> tuple[Any, int]:
    """Return the value that begins at a place, and where it ends, or raise `ValueError`."""
    value, end = _DECODER.raw_decode(text, start)
    from_json(text[start:end])  # which refuses what no response can contain, as lone surrogates
    return value, end


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_finite)


def _skip_space(text: str, place: int) -> int:
    while place < len(text) and text[place] in " \t\r\n":
        place += 1
    return place


def _may_go_on(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
