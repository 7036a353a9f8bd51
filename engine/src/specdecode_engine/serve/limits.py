"""Reads the body of a request up to a limit."""

from fastapi import Request

from specdecode_engine.serve import errors

MAX_DISCARDED_BYTES = 128 * 2**20
"""Most clients read an error only after they have sent the whole body: up to here it is read."""


async def read_limited(request: Request, max_bytes: int, remedy: str) -> bytes:
    """Return the body; a longer one is answered with 413 and the remedy, and is not kept."""
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
        message = f"the body is larger than {max_bytes} bytes; {remedy}"
        raise errors.HttpError(413, message, code="body_too_large")
    return b"".join(parts)
