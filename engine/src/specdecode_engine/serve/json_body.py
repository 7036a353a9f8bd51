"""A body of JSON: read with a limit, checked against its model, refused by the name of a field."""

import asyncio
from typing import TypeVar

from fastapi import Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from specdecode_engine.json_keys import repeated_key
from specdecode_engine.serve import errors
from specdecode_server.body import read_limited

Model = TypeVar("Model", bound=BaseModel)

THREAD_BODY_BYTES = 16 * 2**10
"""Validating a larger body takes long enough to delay other requests."""
MAX_NODES = 2**17
"""Objects, lists and strings of a body, keys included: 128 tools may have 1,000 each, or 2,000
messages 60. All streams stop while they are parsed, which takes up to 0.6 µs for each."""
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
    if nodes := excess_nodes(data):
        message = (
            f"the body has at least {nodes} JSON objects, lists and strings; at most {MAX_NODES} "
            "are accepted; split it into several requests"
        )
        raise errors.HttpError(400, message, code="json_too_complex")
    try:
        return model.model_validate_json(data)
    except ValidationError as error:
        raise errors.from_validation(error, _document(data)) from None


def excess_nodes(data: bytes) -> int:
    """Return the count of `count_nodes` if it is more than `MAX_NODES`, else 0."""
    if len(data) <= MAX_NODES:
        return 0
    nodes = count_nodes(data)
    return nodes if nodes > MAX_NODES else 0


def count_nodes(data: bytes) -> int:
    """Return a lower limit, at least half, of the objects, lists and strings of a document.

    A text in it may have any number of brackets. A few scans find them, without the parser.
    """
    strings = (data.count(b'"') - data.count(b'\\"')) // 2
    if strings <= MAX_NODES < strings + data.count(b"[") + data.count(b"{"):
        unescaped = data.replace(b"\\\\", b"").replace(b'\\"', b"")
        data = b"".join(unescaped.split(b'"')[::2])  # what is outside of strings
    return strings + data.count(b"[") + data.count(b"{")


def parse_strict_json(model: type[Model], data: bytes) -> Model:
    """As `parse_json`, and refuse an object that contains a key twice, as kubectl does.

    It takes eight times as long, so run it in a thread.
    """
    parsed = parse_json(model, data)  # which keeps the last of equal keys, and limits the depth
    if place := repeated_key(data):
        raise errors.invalid(place, f"{place} is given twice; remove one", "duplicate_key")
    return parsed


def _document(data: bytes) -> object:
    try:
        return from_json(data)
    except ValueError:
        return None
