"""`X-Request-Id`: the name of an HTTP request, from its client or its own, in response and logs."""

import logging
import re
import uuid
from collections.abc import Callable
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode_server import errors

HEADER = "X-Request-Id"
LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s%(request)s %(message)s"

_KEY = HEADER.lower().encode()
_VALID = re.compile(rb"[!-~]{1,128}")

_current: ContextVar[str] = ContextVar("request_id", default="")


def current() -> str:
    """Return the name of the request that is handled now; an empty string outside of one."""
    return _current.get()


class RequestIds:
    """ASGI middleware that names each request and returns the name with the response.

    Args:
        count_error: called with the status of a refusal.
    """

    def __init__(self, app: ASGIApp, count_error: Callable[[int], None]) -> None:
        self._app = app
        self._count_error = count_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = next((value for name, value in scope["headers"] if name == _KEY), None)
        is_valid = given is None or _VALID.fullmatch(given) is not None
        name = given if given is not None and is_valid else uuid.uuid4().hex.encode()
        token = _current.set(name.decode())

        async def send_with_name(message: Message) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), (_KEY, name)]}
            await send(message)

        try:
            if is_valid:
                await self._app(scope, receive, send_with_name)
            else:
                refusal = _refusal(given or b"")
                self._count_error(refusal.status)
                await refusal.response(scope["path"])(scope, receive, send_with_name)
        finally:
            _current.reset(token)


def _refusal(given: bytes) -> errors.HttpError:
    shown = given[: errors.SHOWN_VALUE_CHARS].decode("latin-1")
    message = f"{HEADER} is {shown!r}; send 1 to 128 printable ASCII characters without spaces"
    return errors.invalid(HEADER, message, "invalid_request_id")


class RequestIdFilter(logging.Filter):
    """Adds the name of the current request to what is logged while it is handled."""

    def filter(self, record: logging.LogRecord) -> bool:
        name = _current.get()
        record.request = f" [{name}]" if name else ""
        return True


def log_request_ids() -> None:
    """Write the names of requests to the log of this process."""
    for handler in logging.getLogger().handlers:
        handler.addFilter(RequestIdFilter())
        handler.setFormatter(logging.Formatter(LOG_FORMAT))
