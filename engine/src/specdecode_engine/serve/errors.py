"""Errors in OpenAI's form, with the status that tells a client what to do next."""

import json

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specdecode_engine.request import QueueFull, RequestRefused, RequestTooLong
from specdecode_engine.serve.core import EngineFailed

INVALID = "invalid_request_error"
SHOWN_VALUE_CHARS = 80


class ApiError(Exception):
    """An answer that is an error: what to say, and how soon to come back if that helps."""

    def __init__(
        self,
        status: int,
        message: str,
        kind: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    def body(self) -> dict[str, object]:
        """Return the body that OpenAI's clients expect."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def response(self) -> JSONResponse:
        """Return the whole HTTP answer."""
        retry = self.retry_after_s
        headers = {} if retry is None else {"retry-after": str(retry)}
        return JSONResponse(self.body(), self.status, headers)


def invalid(param: str, message: str, code: str | None = None) -> ApiError:
    """Blame one field of the request."""
    return ApiError(400, message, param=param, code=code)


def too_long(message: str, param: str) -> ApiError:
    """Say that prompt and answer do not fit."""
    return invalid(param, message, "context_length_exceeded")


def unavailable(message: str, code: str, retry_after_s: int) -> ApiError:
    """Say that this pod takes nothing now."""
    return ApiError(503, message, "server_error", code=code, retry_after_s=retry_after_s)


def unauthorized(message: str) -> ApiError:
    """Say that a key is missing or wrong, in the code that OpenAI's clients know."""
    return ApiError(401, message, code="invalid_api_key")


def failed(message: str) -> ApiError:
    """Say that this answer cannot be completed, though the engine goes on."""
    return ApiError(500, message, "server_error", code="answer_failed")


def from_validation(error: ValidationError) -> ApiError:
    """Blame the first field that pydantic refused, with its value and what is allowed."""
    first = error.errors(include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first['msg']}", code="invalid_json")
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


def from_exception(error: Exception) -> ApiError:
    """Turn whatever ended a call into an answer."""
    match error:
        case ApiError():
            return error
        case RequestTooLong():
            return too_long(str(error), "max_tokens")
        case QueueFull():
            return ApiError(429, str(error), "rate_limit_error", None, "queue_full", 1)
        case RequestRefused():
            return ApiError(400, str(error))
        case ClientDisconnect():
            return ApiError(499, "the client left before its request was complete")
        case HTTPException():
            return ApiError(error.status_code, str(error.detail), code=_code(error.status_code))
        case EngineFailed():
            return ApiError(500, f"{error}; it restarts", "server_error", code="engine_failed")
        case _:
            return ApiError(500, "internal error", "server_error", code="internal_error")


def _code(status: int) -> str:
    return {404: "not_found", 405: "method_not_allowed"}.get(status, "http_error")


async def answer_error(request: Request, error: Exception) -> JSONResponse:
    """Answer an exception that left a route."""
    answer = from_exception(error)
    request.app.state.service.metrics.count_error(answer.status)
    return answer.response()
