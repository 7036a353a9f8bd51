"""Reads a request's body: not too large, valid JSON, every field in its range."""

import logging
from typing import TypeVar

from fastapi import Request
from pydantic import ValidationError

from specdecode_engine.serve import errors
from specdecode_engine.serve.wire import GenerationBody

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
# A client that hears of its mistake only after sending everything still hears of it, up to here.
MAX_DISCARDED_BYTES = 4 * MAX_BODY_BYTES

Body = TypeVar("Body", bound=GenerationBody)


async def read_body(request: Request, kind: type[Body], max_bytes: int = MAX_BODY_BYTES) -> Body:
    """Return the body as a record, or raise the error to answer with."""
    data = await _read(request, max_bytes)
    try:
        body = kind.model_validate_json(data)
    except ValidationError as error:
        raise errors.from_validation(error) from None
    if body.model_extra:
        log.debug("ignored fields: %s", sorted(body.model_extra))
    return body


async def _read(request: Request, max_bytes: int) -> bytes:
    received = 0
    parts: list[bytes] = []
    async for part in request.stream():
        received += len(part)
        if received > max_bytes:
            parts.clear()
        else:
            parts.append(part)
        if received > MAX_DISCARDED_BYTES:
            break
    if received > max_bytes:
        message = f"the body is larger than {max_bytes} bytes; split it into several calls"
        raise errors.ApiError(413, message, code="body_too_large")
    return b"".join(parts)
