"""Refuses requests without a valid API key before their body is read.

Protected are the client API, `/v1/…`, and writes to the speculation table; the operator replaces
the table without a key by naming the custom resource that owns the engine. Probes, metrics and
`/server_info` are open: the kubelet and Prometheus have no key, and a NetworkPolicy can restrict
them. `/drain` needs no key and is accepted from loopback only.
"""

from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_api import names
from specdecode_engine.serve import errors
from specdecode_engine.serve.control.api_keys import ApiKeyStore

_SCHEME = "bearer "


class Authorization:
    """ASGI middleware of every route."""

    def __init__(self, app: ASGIApp, keys: ApiKeyStore, owner: str | None = None) -> None:
        self._app = app
        self._keys = keys
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        response = await errors.respond_to_error(Request(scope), refusal)
        response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> errors.HttpError | None:
        if not is_guarded(scope["method"], scope["path"]) or self._is_owner(scope):
            return None
        header = Headers(scope=scope).get("authorization", "")
        if header[: len(_SCHEME)].lower() != _SCHEME:
            return errors.unauthorized(
                "this server requires an API key: send the header 'Authorization: Bearer KEY'; "
                "OpenAI's clients send it when api_key or OPENAI_API_KEY is set"
            )
        if not self._keys.allow(header[len(_SCHEME) :].strip()):
            return errors.unauthorized(
                "the API key is not valid for this server: check it for typing errors, or request "
                "a key from the server's administrator"
            )
        return None

    def _is_owner(self, scope: Scope) -> bool:
        """Whether the operator, which wrote the boot file, replaces the table."""
        if self._owner is None or scope["path"] != names.PATH_TABLE:
            return False
        header = Headers(scope=scope).get(names.HEADER_OWNER, "")
        return compare_digest(header.encode(), self._owner.encode())


def is_guarded(method: str, path: str) -> bool:
    """Whether a request needs a key."""
    is_client_api = path == "/v1" or path.startswith("/v1/")
    return is_client_api or (path == names.PATH_TABLE and method not in ("GET", "HEAD"))
