"""Errors in OpenAI's format, with the HTTP status from which a client learns whether to retry."""

from starlette.responses import JSONResponse

from specdecode_server.error_forms import in_form_of

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
        self.headers: dict[str, str] = {}
        if retry_after_s is not None:
            self.headers["retry-after"] = str(retry_after_s)
        if closes:
            self.headers["connection"] = "close"

    def response(self, path: str = "") -> JSONResponse:
        """Return it in the form of the API that a path belongs to, by default OpenAI's."""
        return JSONResponse(in_form_of(path, self.body, self.status), self.status, self.headers)


def invalid(param: str, message: str, code: str | None = None) -> HttpError:
    return HttpError(400, message, param=param, code=code)


def response_not_found(named_id: str, param: str) -> HttpError:
    """Return the refusal of an id that names no stored response of the client, for any reason."""
    return HttpError(
        404,
        f"{param} is {named_id[:SHOWN_VALUE_CHARS]!r}: no stored response with it is found; a "
        "response is kept for at most an hour, for the API key that created it, unless store is "
        "false, until it is deleted, newer ones need its memory or its engine ends; send the whole "
        "conversation in input",
        param=param,
        code="response_not_found",
    )


def unavailable(message: str, code: str, retry_after_s: int) -> HttpError:
    return HttpError(503, message, "server_error", code=code, retry_after_s=retry_after_s)
