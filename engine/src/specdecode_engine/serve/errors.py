"""Error responses of the engine, from what a request or the engine core raises."""

import json
from collections.abc import Sequence

from fastapi import Request
from fastapi.responses import JSONResponse
from pydantic import ValidationError
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specdecode_engine.batch.adapters import AdapterNotLoaded
from specdecode_engine.batch.request import QueueFull, RequestRefused, RequestTooLong
from specdecode_engine.serve.engine.core import EngineFailed, GrammarBusy
from specdecode_server.errors import (
    SHOWN_VALUE_CHARS,
    HttpError,
    invalid,
    response_not_found,
    unavailable,
)

__all__ = [
    "SHOWN_VALUE_CHARS",
    "HttpError",
    "adapter_not_found",
    "field_error",
    "from_exception",
    "from_validation",
    "invalid",
    "model_not_found",
    "respond_to_error",
    "response_not_found",
    "too_long",
    "unavailable",
]

SHOWN_NAMES = 32  # of models, in an error
TOO_LONG = "context_length_exceeded"
_FIELD_ERROR = "field_error"


def too_long(message: str, param: str) -> HttpError:
    return invalid(param, message, TOO_LONG)


def model_not_found(model: str, served: Sequence[str], field: str = "model") -> HttpError:
    """Return the error of a name that is none of `served`, the model's own name and adapters."""
    if not served:
        message = (
            "this engine has no adapters; remove it, start the engine with --lora-modules, or load "
            "one"
        )
        shown = repr(model[:SHOWN_VALUE_CHARS])
        return HttpError(404, f"{field} is {shown}: {message}", param=field, code="model_not_found")
    message = f"{field} {model[:SHOWN_VALUE_CHARS]!r} is not served here; use {_listed(served)}"
    return HttpError(404, message, param=field, code="model_not_found")


def adapter_not_found(name: str, loaded: Sequence[str]) -> HttpError:
    """Return the error of an unload of an adapter that is none of `loaded`."""
    has = f"the engine has {_listed(loaded)}" if loaded else "the engine has none"
    message = f"lora_name {name[:SHOWN_VALUE_CHARS]!r} is not loaded; {has}"
    return HttpError(404, message, param="lora_name", code="adapter_not_found")


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:SHOWN_NAMES]))
    return shown + (
        f" or one of {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    )


def field_error(field: str, message: str, code: str | None = None) -> PydanticCustomError:
    """Return what a validator of a whole body raises, so that the response names the field."""
    context = {"field": field, "message": message, "code": code}
    return PydanticCustomError(_FIELD_ERROR, "{message}", context)


def from_validation(error: ValidationError, document: object) -> HttpError:
    """Name the first field that pydantic refused, by its path in the document, and the remedy.

    The value is shown if it is short: objects and lists never are.
    """
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid" and "recursion limit" in first["msg"]:
        message = f"the body has too many levels of JSON ({first['msg']}); at most 200 are accepted"
        return HttpError(400, message, code="json_too_deep")
    if first["type"] == "json_invalid":
        return HttpError(400, f"the body is not valid JSON: {first['msg']}", code="invalid_json")
    place = _place(first["loc"], document, is_missing=first["type"] == "missing")
    if first["type"] == _FIELD_ERROR:
        context = first["ctx"]
        field = ".".join(filter(None, (place, context["field"])))
        return invalid(field, f"{field}: {context['message']}", context["code"])
    message = first["msg"].removeprefix("Value error, ")
    if not place:
        return HttpError(400, f"the body is {_shown(first['input'])}: {message}")
    if first["type"] == "missing":
        return invalid(place, f"{place} is missing; it is required")
    return invalid(place, f"{place} is {_shown(first['input'])}: {message}")


def _place(location: tuple[int | str, ...], document: object, is_missing: bool) -> str:
    """Return a path as in `messages[0].content`.

    Pydantic's locations also contain the names of the types of unions. They are not keys of the
    document and are left out.
    """
    text, value = "", document
    for depth, part in enumerate(location, start=1):
        if isinstance(part, int):
            if isinstance(value, list) and part < len(value):
                value = value[part]
            text += f"[{part}]"
        elif not isinstance(value, dict):
            continue
        elif part in value or (is_missing and depth == len(location)):
            value = value.get(part)
            text += f".{part[:SHOWN_VALUE_CHARS]}"
    return text.removeprefix(".")


def _shown(value: object) -> str:
    if isinstance(value, dict | list | tuple) and value:
        return "an object" if isinstance(value, dict) else "a list"
    if not isinstance(value, str):
        return json.dumps(value, default=str)[:SHOWN_VALUE_CHARS]
    text = json.dumps(value[: SHOWN_VALUE_CHARS + 1], ensure_ascii=False)
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
        case AdapterNotLoaded():
            return HttpError(404, str(error), param="model", code="model_not_found")
        case RequestRefused():
            return HttpError(400, str(error))
        case ClientDisconnect():
            return HttpError(499, "the client disconnected before its request was complete")
        case HTTPException():
            codes = {404: "not_found", 405: "method_not_allowed"}
            code = codes.get(error.status_code, "http_error")
            http_error = HttpError(error.status_code, str(error.detail), code=code)
            http_error.headers |= error.headers or {}  # Allow
            return http_error
        case GrammarBusy():
            return unavailable(str(error), "grammar_unavailable", 5)
        case EngineFailed():
            return HttpError(500, f"{error}; it restarts", "server_error", code="engine_failed")
        case _:
            return HttpError(500, "internal error", "server_error", code="internal_error")


async def respond_to_error(request: Request, error: Exception) -> JSONResponse:
    """Return the response to an exception that left a route, and count it."""
    http_error = from_exception(error)
    request.app.state.service.metrics.count_error(http_error.status)
    return http_error.response(request.scope["path"])
