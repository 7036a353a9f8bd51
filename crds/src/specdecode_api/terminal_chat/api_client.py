"""The API of one server, with the HTTP client of Python: all programs have that one."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Any
from urllib.parse import urlsplit

from specdecode_api import names

CONNECT_S = 10.0
"""An answer may take any time: connecting and the list of models have a limit."""
SHOWN_CHARS = 300
_DATA, _END = b"data: ", b"[DONE]"


class ChatError(Exception):
    """An answer failed, or the server cannot be used; the message has the remedy."""


class KeyRefused(ChatError):
    """The server accepts requests with one of its API keys alone."""


@dataclass(frozen=True, slots=True)
class ApiClient:
    """Sends each request on a connection of its own, never through a proxy.

    Args:
        url: of the server, with or without `/v1`.
        key: API key, shown nowhere.
        remedy: what to do if nothing answers.
    """

    url: str
    key: str | None = field(repr=False)
    remedy: str

    def model(self) -> str:
        """Return the name of the model that is served.

        Raises:
            ChatError: nothing answers there, or not with a list of models.
        """
        try:
            with self._request("GET", "models", timeout_s=CONNECT_S) as response:
                return str(json.loads(response.read())["data"][0]["id"])
        except (OSError, HTTPException, UnicodeError) as error:
            raise ChatError(
                f"nothing answers at {self.url}: {_text(error)}; {self.remedy}"
            ) from None
        except (ValueError, LookupError, TypeError):
            raise ChatError(f"{self.url} has no list of models; check the URL") from None

    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the events of a streamed answer; the server stops if the iteration is given up.

        Raises:
            ChatError: the request is refused, or the answer fails or is incomplete.
        """
        try:
            with self._request("POST", path, body) as response:
                yield from _read(response)
        except (OSError, HTTPException, ValueError) as error:
            raise ChatError(f"the answer was cut off: {_text(error)}") from None

    @contextmanager
    def _request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[HTTPResponse]:
        """Send a request; yields a response with status 200, and closes the connection."""
        base, connection = self._connection()
        headers = {"Content-Type": "application/json", **self._authorization()}
        try:
            connection.connect()
            connection.sock.settimeout(timeout_s)
            given = None if body is None else json.dumps(body).encode()
            connection.request(method, f"{base}/v1/{path}", given, headers)
            response = connection.getresponse()
            if response.status != HTTPStatus.OK:
                raise _refusal(response)
            yield response
        finally:
            connection.close()

    def _connection(self) -> tuple[str, HTTPConnection]:
        """Return the path before `/v1`, and a connection that is not open."""
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError as error:
            raise ChatError(f"{self.url} is not a URL: {error}") from None
        if parts.username is not None or parts.password is not None:
            raise ChatError(f"the URL has a user or password; set {names.VARIABLE_API_KEY} instead")
        if not parts.hostname:
            raise ChatError(f"{self.url} has no host; write http://HOST:PORT")
        connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        base = parts.path.rstrip("/").removesuffix("/v1")
        return base, connect(parts.hostname, port, timeout=CONNECT_S)

    def _authorization(self) -> dict[str, str]:
        if self.key is None:
            return {}
        if not (self.key.isascii() and self.key.isprintable()):
            raise ChatError(
                f"the API key has a character that a header cannot contain; set "
                f"{names.VARIABLE_API_KEY} to printable ASCII characters"
            )
        return {"Authorization": f"Bearer {self.key}"}


def _refusal(response: HTTPResponse) -> ChatError:
    """Return what a refusal states, with the remedy for a missing key."""
    text = response.read().decode(errors="replace")
    try:
        message = str(json.loads(text)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        message = text
    words = f"status {response.status}: {message[:SHOWN_CHARS]}"
    if response.status == HTTPStatus.UNAUTHORIZED:
        return KeyRefused(f"{words}; set {names.VARIABLE_API_KEY}")
    return ChatError(words)


def _read(response: HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in response:
        if not line.startswith(_DATA):
            continue
        data = line.removeprefix(_DATA).strip()
        if data == _END:
            return
        event: dict[str, Any] = json.loads(data)
        if (error := event.get("error")) is not None:
            raise ChatError(f"the answer failed: {str(error.get('message'))[:SHOWN_CHARS]}")
        yield event
    raise ChatError("the answer was cut off; send the message again")


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
