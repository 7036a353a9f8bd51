"""Refuses calls that show no API key, before anything of them is read.

Guarded is what clients call, `/v1/…`, and what changes the engine, its table, which the operator
exchanges by naming the resource that owns the engine. Probes, metrics, `/server_info` and `/drain`
stay open: the kubelet and Prometheus have no key, and a NetworkPolicy is what keeps others from
them.
"""

from hmac import compare_digest

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_api import names
from specdecode_engine.serve import errors
from specdecode_engine.serve.api_keys import ApiKeys

_SCHEME = "bearer "


class Authorization:
    """ASGI middleware in front of every route."""

    def __init__(self, app: ASGIApp, keys: ApiKeys, owner: str | None = None) -> None:
        self._app = app
        self._keys = keys
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a call on, or answer it with 401."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        answer = await errors.answer_error(Request(scope), refusal)
        answer.headers["www-authenticate"] = "Bearer"
        await answer(scope, receive, send)

    def _refusal(self, scope: Scope) -> errors.ApiError | None:
        if not is_guarded(scope["method"], scope["path"]) or self._is_owner(scope):
            return None
        shown = Headers(scope=scope).get("authorization", "")
        if shown[: len(_SCHEME)].lower() != _SCHEME:
            return errors.unauthorized(
                "this server asks for an API key: send the header 'Authorization: Bearer KEY', "
                "which OpenAI's clients do where api_key or OPENAI_API_KEY is set"
            )
        if not self._keys.allow(shown[len(_SCHEME) :].strip()):
            return errors.unauthorized(
                "the API key is not one of this server's: ask whoever runs it for a key, and look "
                "for a typing error"
            )
        return None

    def _is_owner(self, scope: Scope) -> bool:
        """Whether the table's exchange comes from whoever wrote the boot file."""
        if self._owner is None or scope["path"] != names.PATH_TABLE:
            return False
        shown = Headers(scope=scope).get(names.HEADER_OWNER, "")
        return compare_digest(shown.encode(), self._owner.encode())


def is_guarded(method: str, path: str) -> bool:
    """Whether a call must show a key."""
    is_client_call = path == "/v1" or path.startswith("/v1/")
    return is_client_call or (path == names.PATH_TABLE and method not in ("GET", "HEAD"))
