"""A body of JSON: read with a limit, checked against its model, refused by the name of a field."""

import asyncio
import json
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from specdecode_engine.serve import errors
from specdecode_server.body import read_limited

Model = TypeVar("Model", bound=BaseModel)

THREAD_BODY_BYTES = 16 * 2**10
"""Validating a larger body takes long enough to delay other requests."""
MEDIA_TYPE = "application/json"
REMEDY = "split it into several requests, or raise server.max_body_bytes (--max-body-bytes)"


async def read_json(request: Request, model: type[Model], max_bytes: int) -> Model:
    """Return the validated body of a POST, or raise `HttpError`.

    Only `application/json` is read: a page of another origin may send any other type, or none,
    without asking this server first.
    """
    check_media_type(request)
    return await parse_body(model, await read_limited(request, max_bytes, REMEDY))


def check_media_type(request: Request) -> None:
    """Refuse a body that is not declared as JSON."""
    given = request.headers.get("content-type", "")
    if given.partition(";")[0].strip().lower() != MEDIA_TYPE:
        message = f"the body has to be JSON; send the header 'Content-Type: {MEDIA_TYPE}'"
        raise errors.HttpError(415, message, code="unsupported_media_type")


async def parse_body(model: type[Model], data: bytes) -> Model:
    """Return the validated document, or raise `HttpError`; a thread parses what takes long."""
    if len(data) > THREAD_BODY_BYTES:
        return await asyncio.to_thread(parse_json, model, data)
    return parse_json(model, data)


def parse_json(model: type[Model], data: bytes) -> Model:
    """Return the validated document, or raise `HttpError`."""
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise errors.from_validation(error, _document(data)) from None


def parse_strict_json(model: type[Model], data: bytes) -> Model:
    """As `parse_json`, and refuse an object that contains a key twice, as kubectl does.

    It takes eight times as long, so run it in a thread.
    """
    parsed = parse_json(model, data)  # which keeps the last of equal keys, and limits the depth
    # Integers stay text, because Python limits their digits.
    place = _repeated_key(json.loads(data, object_pairs_hook=_Pairs, parse_int=str))
    if place:
        raise errors.invalid(place, f"{place} is given twice; remove one", "duplicate_key")
    return parsed


class _Pairs(list[tuple[str, object]]):
    """The keys and values of an object."""


def _repeated_key(value: object, place: str = "") -> str:
    """Return the path of the first repeated key, as in `table.batchSizes[0].from`, or ""."""
    keys = set[str]()
    children: list[tuple[str, object]] = []
    if isinstance(value, _Pairs):
        for key, child in value:
            path = f"{place}.{key[: errors.SHOWN_VALUE_CHARS]}".removeprefix(".")
            if key in keys:
                return path
            keys.add(key)
            children.append((path, child))
    elif isinstance(value, list):
        children = [(f"{place}[{number}]", child) for number, child in enumerate(value)]
    return next(filter(None, (_repeated_key(child, path) for path, child in children)), "")


def _document(data: bytes) -> object:
    try:
        return from_json(data)
    except ValueError:
        return None
