"""The token by which the endpoints for routers know a router; see `api_keys` for files and digests.

During a rotation several tokens are valid. Without a readable file none is: the API is served all
the same, and routers are refused until the file is there.
"""

import asyncio
import logging
from pathlib import Path

from starlette.requests import Request

from specdecode_api.internal_api import HEADER_TOKEN
from specdecode_engine.serve import errors
from specdecode_engine.serve.control.api_keys import ApiKeyStore, NoApiKeys

log = logging.getLogger(__name__)


class RouterTokens:
    """The valid tokens of a file or folder. Owned by the event loop."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._store: ApiKeyStore | None = None
        try:
            self._store = ApiKeyStore(path)
        except NoApiKeys as error:
            log.warning("routers are refused until %s has a token: %s", path, error)

    async def refresh(self) -> None:
        """Read the tokens again."""
        if self._store is not None:
            await self._store.refresh()
            return
        try:
            self._store = await asyncio.to_thread(ApiKeyStore, self._path)
        except NoApiKeys:
            return
        log.info("tokens of routers were read from %s", self._path)

    def check(self, request: Request) -> None:
        """Raise `HttpError` unless a request has a valid token."""
        token = request.headers.get(HEADER_TOKEN, "")
        if not token or self._store is None or not self._store.allow(token):
            raise errors.HttpError(
                403,
                f"the header {HEADER_TOKEN} has no valid token; this endpoint is for routers: send "
                "requests to the API port",
                code="invalid_router_token",
            )
