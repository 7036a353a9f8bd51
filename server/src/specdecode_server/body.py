"""The body of a request, read up to a limit."""

from starlette.requests import Request

from specdecode_server.errors import HttpError

DEFAULT_MAX_BODY_BYTES = 4 * 2**20


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


def _too_large(request: Request, size: str, max_bytes: int, remedy: str) -> HttpError:
    message = f"the body has {size}; at most {max_bytes} bytes are accepted; {remedy}"
    # A client that waits for 100 Continue sends no body now: what comes next would be taken for it.
    closes = "expect" in request.headers
    return HttpError(413, message, code="body_too_large", closes=closes)
