"""Errors in OpenAI's format, with the HTTP status from which a client learns whether to retry."""

import json

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specdecode_engine.batch.request import QueueFull, RequestRefused, RequestTooLong
from specdecode_engine.serve.engine.core import EngineFailed

INVALID = "invalid_request_error"
SHOWN_VALUE_CHARS = 80


class HttpError(Exception):
    """An error response: status, body, and the delay before a retry where one helps.

    `closes` ends the connection after it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
        closes: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        error = {"message": message, "type": kind, "param": param, "code": code}
        self.body: dict[str, object] = {"error": error}
        self._headers = {} if retry_after_s is None else {"retry-after": str(retry_after_s)}
        if closes:
            self._headers["connection"] = "close"

    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self._headers)


def invalid(param: str, message: str, code: str | None = None) -> HttpError:
    return HttpError(400, message, param=param, code=code)


def too_long(message: str, param: str) -> HttpError:
    return invalid(param, message, "context_length_exceeded")


def model_not_found(model: str, served_name: str) -> HttpError:
    message = f"model {model!r} is not served here; use {served_name!r}"
    return HttpError(404, message, param="model", code="model_not_found")


def unavailable(message: str, code: str, retry_after_s: int) -> HttpError:
    return HttpError(503, message, "server_error", code=code, retry_after_s=retry_after_s)


def from_validation(error: ValidationError) -> HttpError:
    """Name the first field that pydantic refused, with its value and what is allowed."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid" and "recursion limit" in first["msg"]:
        message = f"the body has too many levels of JSON ({first['msg']}); at most 200 are accepted"
        return HttpError(400, message, code="json_too_deep")
    if first["type"] == "json_invalid":
        return HttpError(400, f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    field = _field(first["loc"])
    if first["type"] == "missing":
        return invalid(field, f"{field} is missing; it is required")
    message = first["msg"].removeprefix("Value error, ")
    return invalid(field, f"{field} is {_shown(first['input'])}: {message}")


def _field(location: tuple[int | str, ...]) -> str:
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".") or "body"


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_VALUE_CHARS else text[:SHOWN_VALUE_CHARS] + "…"


def from_exception(error: Exception) -> HttpError:
    """Return the error response to whatever ended a request."""
    match error:
        case HttpError():
            return error
        case RequestTooLong():
            return too_long(str(error), "max_tokens")
        case QueueFull():
            return HttpError(429, str(error), "rate_limit_error", None, "queue_full", 1)
        case RequestRefused():
            return HttpError(400, str(error))
        case ClientDisconnect():
            return HttpError(499, "the client disconnected before its request was complete")
        case HTTPException():
            codes = {404: "not_found", 405: "method_not_allowed"}
            code = codes.get(error.status_code, "http_error")
            return HttpError(error.status_code, str(error.detail), code=code)
        case EngineFailed():
            return HttpError(500, f"{error}; it restarts", "server_error", code="engine_failed")
        case _:
            return HttpError(500, "internal error", "server_error", code="internal_error")


async def respond_to_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an exception that left a route, and count it."""
    http_error = from_exception(error)
    request.app.state.service.metrics.count_error(http_error.status)
    return http_error.response()
