"""Errors in the form of Anthropic's API, on its paths, from those in OpenAI's form."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

MESSAGES_PATH: Final = "/v1/messages"

_TYPES: Final = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.FORBIDDEN: "permission_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
}


def is_messages(path: str) -> bool:
    """Whether a path belongs to Anthropic's API."""
    return path == MESSAGES_PATH or path.startswith(f"{MESSAGES_PATH}/")


def in_form_of(path: str, body: Mapping[str, Any], status: int) -> Mapping[str, Any]:
    """Return the body of an error in OpenAI's form, or as a path of Anthropic's API has it."""
    error = body.get("error")
    if not is_messages(path) or not isinstance(error, dict):
        return body
    return messages_error(error, status)


def messages_error(error: Mapping[str, Any], status: int = 500) -> dict[str, Any]:
    """Return Anthropic's error; `status` is 500 in a stream, which has one of its own."""
    is_failure = status >= HTTPStatus.INTERNAL_SERVER_ERROR
    kind = _TYPES.get(HTTPStatus(status), "api_error" if is_failure else "invalid_request_error")
    fields = {"type": kind, "message": error.get("message")}
    if error.get("code") is not None:
        fields["details"] = {"error_code": error["code"]}
    return {"type": "error", "error": fields}
