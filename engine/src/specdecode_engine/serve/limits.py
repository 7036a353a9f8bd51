"""Limits on the body of a request."""

from fastapi import Request

from specdecode_engine.serve import errors

BASE_BODY_BYTES = 64 * 2**10
BYTES_PER_PROMPT_BYTE = 8
DEFAULT_MAX_BODY_BYTES = 4 * 2**20


def max_body_bytes(context_length: int, longest_token_bytes: int, most: int | None) -> int:
    """Return the limit on a body: what a prompt that fills the context may need.

    It is at most `most`, by default 4 MiB.

    `64 KiB + 8 x context length x longest token in bytes`: JSON writes a byte of text in up to
    6 bytes, and the other fields and messages have room.
    """
    longest_prompt_bytes = context_length * longest_token_bytes
    derived = BASE_BODY_BYTES + BYTES_PER_PROMPT_BYTE * longest_prompt_bytes
    return min(derived, DEFAULT_MAX_BODY_BYTES if most is None else most)


async def read_limited(request: Request, max_bytes: int, remedy: str) -> bytes:
    """Return the body; a longer one is answered with 413 and the remedy.

    One with a larger Content-Length is not read at all, a chunked one only up to the limit. The
    connection discards what the client still sends.
    """
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(request, f"{declared} bytes", max_bytes, remedy)
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > max_bytes:
            raise _too_large(request, f"more than {max_bytes} bytes", max_bytes, remedy)
    return bytes(body)


def _too_large(request: Request, size: str, max_bytes: int, remedy: str) -> errors.HttpError:
    message = f"the body has {size}; at most {max_bytes} bytes are accepted; {remedy}"
    # A client that waits for 100 Continue sends no body now: what comes next would be taken for it.
    closes = "expect" in request.headers
    return errors.HttpError(413, message, code="body_too_large", closes=closes)
