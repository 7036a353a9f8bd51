"""The token by which an engine knows routers and the operator; `api_keys` describes the files.

Endpoints for routers need it, and in pods the changes of table and draft on the management port.
During a rotation several tokens are valid. Without a readable file none is: the API is served all
the same, and routers are refused until the file is there.
"""

import asyncio
import hmac
import logging
from collections.abc import Callable
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_api import names
from specdecode_api.internal_api import HEADER_TOKEN
from specdecode_api.key_mask import without_key
from specdecode_engine.serve import errors
from specdecode_server.api_keys import ApiKeyStore, NoApiKeys

log = logging.getLogger(__name__)


class RouterTokens:
    """The valid tokens of a file or folder. Owned by the event loop."""

    def __init__(self, path: Path) -> None:
        self._path, name = path, without_key(str(path))
        self._store: ApiKeyStore | None = None
        try:
            self._store = ApiKeyStore(path)
        except NoApiKeys as error:
            log.warning("routers are refused until %s has a token: %s", name, error)

    async def refresh(self) -> None:
        """Read the tokens again."""
        if self._store is not None:
            await self._store.refresh()
            return
        try:
            self._store = await asyncio.to_thread(ApiKeyStore, self._path)
        except NoApiKeys:
            return
        log.info("tokens of routers were read from %s", without_key(str(self._path)))

    def allow(self, headers: Headers) -> bool:
        """Whether a request has a valid token."""
        token = headers.get(HEADER_TOKEN, "")
        return bool(token) and self._store is not None and self._store.allow(token)

    def check(self, request: Request) -> None:
        """Raise `HttpError` unless a request has a valid token."""
        if not self.allow(request.headers):
            raise errors.HttpError(
                403,
                f"the header {HEADER_TOKEN} has no valid token; this endpoint is for routers: send "
                "requests to the API port",
                code="invalid_router_token",
            )


class ChangeAuthorization:
    """ASGI middleware of the management port that refuses changes without a valid token.

    Operators of the release before send the owner instead, which is accepted for this release.

    Args:
        is_change: whether a request with this method and path changes the engine.
    """

    def __init__(
        self, app: ASGIApp, tokens: RouterTokens, owner: str, is_change: Callable[[str, str], bool]
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._owner = owner.encode()
        self._is_change = is_change

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or self._is_allowed(scope):
            await self._app(scope, receive, send)
            return
        refusal = errors.HttpError(
            403,
            f"changes of this engine need a valid token in the header {HEADER_TOKEN}; the operator "
            f"sends it: change the SpecDecodeDeployment instead, or read the Secret "
            f"{names.ROUTER_SECRET}",
            code="invalid_router_token",
        )
        response = await errors.respond_to_error(Request(scope), refusal)
        await response(scope, receive, send)

    def _is_allowed(self, scope: Scope) -> bool:
        if not self._is_change(scope["method"], scope["path"]):
            return True
        headers = Headers(scope=scope)
        owner = headers.get(names.HEADER_OWNER, "").encode()
        return self._tokens.allow(headers) or hmac.compare_digest(owner, self._owner)
