"""API keys that clients must send, as OpenAI's clients do: `Authorization: Bearer KEY`.

Anthropic's clients send `x-api-key: KEY`, which is read where there is no other header.

Only digests are kept, all of the same length, and a request's key is compared with each of them,
so that the time of a refusal reveals nothing about any key. No key is ever logged or shown.

Protected are the client API, `/v1/…` and the tokenizer, and changes of the speculation table; the
operator changes the table without a key by naming the custom resource that owns the engine. Reading
the management port requires no key, because the kubelet and Prometheus have none; a NetworkPolicy
restricts it. Routers check keys where their engines leave a part of that open.
"""

import asyncio
import hashlib
import hmac
import logging
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_api import names
from specdecode_api.key_mask import without_key
from specdecode_api.report import TerminationReason
from specdecode_server.errors import HttpError

log = logging.getLogger(__name__)

_SCHEME = "bearer "
_SPECULATION_PATHS = frozenset({names.PATH_TABLE, names.PATH_DRAFT})
_CHANGE_PATHS = _SPECULATION_PATHS | {names.PATH_LOAD_ADAPTER, names.PATH_UNLOAD_ADAPTER}
_OTHER_PATHS = frozenset(
    {"/tokenize", "/detokenize", "/tokenizer_info", "/model_info", "/get_model_info"}
)
_DIGEST = "specdecode.key_digest"
_REMEDY = (
    "write the keys to it, one per line; in Kubernetes to the Secret that serving.apiKeys names, "
    "for example with: kubectl create secret generic NAME --from-literal=keys=KEY"
)

Digests = frozenset[bytes]
Respond = Callable[[Request, Exception], Awaitable[Response]]
"""Returns the response to a refusal, and counts it."""


class NoApiKeys(Exception):
    """API keys are required, and none can be read, or one cannot be sent in a header."""

    reason = TerminationReason.API_KEYS_MISSING


def read_digests(path: Path) -> Digests:
    """Read the keys of a file, or of every file in a folder, one per line.

    Kubernetes mounts a Secret as links into a folder whose name begins with a dot; such names are
    skipped.

    Raises:
        NoApiKeys: the path cannot be read, has no key, or has one that a header cannot contain.
    """
    try:
        is_folder = path.is_dir()
        files = sorted(each for each in path.iterdir() if each.is_file()) if is_folder else [path]
        shown = [each for each in files if not (is_folder and each.name.startswith("."))]
        lines = [line for each in shown for line in each.read_text("utf-8").splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not a text file"
        raise NoApiKeys(
            f"API keys cannot be read from {without_key(str(path))}: {reason}; {_REMEDY}"
        ) from None
    keys = [line.strip() for line in lines if line.strip()]
    if not keys:
        raise NoApiKeys(f"no API key in {without_key(str(path))}; {_REMEDY}")
    return digests_of(str(path), keys)


def digests_of(source: str, keys: Sequence[str]) -> Digests:
    """Return the digests of keys. Raise `NoApiKeys`, naming the source, for an unusable one."""
    for number, key in enumerate(keys, 1):
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise NoApiKeys(
                f"key {number} of {len(keys)} in {source} is empty, or has a space or a character "
                "outside ASCII, which a header cannot contain; replace the key"
            )
    return frozenset(map(_digest, keys))


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()


class ApiKeyStore:
    """The valid keys of a file or folder. Owned by the event loop. Raises as `read_digests`.

    Args:
        fixed: of keys that are valid until the process ends, in addition.
    """

    def __init__(self, path: Path | None, fixed: Digests = frozenset()) -> None:
        self._path = path
        self._fixed = fixed
        self._digests = fixed if path is None else fixed | read_digests(path)
        self.error = ""

    @property
    def digests(self) -> Digests:
        """Of the keys that are valid now."""
        return self._digests

    def allow(self, key: str) -> bool:
        """Whether a key is valid; takes the same time for valid and invalid ones."""
        return self.match(key) is not None

    def match(self, key: str) -> bytes | None:
        """Return the digest of a valid key, after the same time as for an invalid one."""
        digest = _digest(key)
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return digest if any(matches) else None

    async def refresh(self) -> None:
        """Read the file again. If that fails, none of its keys is valid: removal revokes them."""
        if self._path is None:
            return
        try:
            found = self._fixed | await asyncio.to_thread(read_digests, self._path)
        except NoApiKeys as error:
            refused = "every request with their keys" if self._fixed else "every request"
            message = f"{refused} is refused: {error}"
            if message != self.error:
                log.error(message)
            self.error, self._digests = message, self._fixed
            return
        self.error = ""
        if found != self._digests:
            self._digests = found
            log.info("API keys were replaced; %d are valid now", len(found))


class Authorization:
    """ASGI middleware that refuses requests without a valid API key before their body is read.

    `key_digest` is the digest of the key of a request that it has passed on.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: ApiKeyStore,
        needs_key: Callable[[str, str], bool],
        respond: Respond,
        owner: str | None = None,
    ) -> None:
        self._app = app
        self._keys = keys
        self._needs_key = needs_key
        self._respond = respond
        self._owner = owner

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is None:
            await self._app(scope, receive, send)
            return
        response = await self._respond(Request(scope), refusal)
        response.headers["www-authenticate"] = "Bearer"
        await response(scope, receive, send)

    def _refusal(self, scope: Scope) -> HttpError | None:
        if not self._needs_key(scope["method"], scope["path"]) or self._is_owner(scope):
            return None
        headers = Headers(scope=scope)
        header = headers.get("authorization", "")
        if not header and "x-api-key" in headers:
            header = _SCHEME + headers["x-api-key"]
        if header[: len(_SCHEME)].lower() != _SCHEME:
            message = (
                "this server requires an API key: send the header 'Authorization: Bearer KEY'; "
                "OpenAI's clients send it when api_key or OPENAI_API_KEY is set"
            )
        elif (digest := self._keys.match(header[len(_SCHEME) :].strip())) is None:
            message = (
                "the API key is not valid for this server: check it for typing errors, or request "
                "a key from the server's administrator"
            )
        else:
            scope[_DIGEST] = digest
            return None
        return HttpError(401, message, code="invalid_api_key")

    def _is_owner(self, scope: Scope) -> bool:
        """Whether the operator, which wrote the boot file, changes table or draft."""
        if self._owner is None or scope["path"] not in _SPECULATION_PATHS:
            return False
        header = Headers(scope=scope).get(names.HEADER_OWNER, "")
        return hmac.compare_digest(header.encode(), self._owner.encode())


def key_digest(request: Request) -> bytes:
    """Return the digest of the API key that a request was allowed with; b"" if none is needed."""
    digest: bytes = request.scope.get(_DIGEST, b"")
    return digest


def is_client_api(method: str, path: str) -> bool:
    """Whether a request of any method is one of the client API."""
    return path in _OTHER_PATHS or path == "/v1" or path.startswith("/v1/")


def is_engine_change(method: str, path: str) -> bool:
    """Whether a request changes the speculation table, the draft or adapters of an engine."""
    return path in _CHANGE_PATHS and method not in ("GET", "HEAD")
