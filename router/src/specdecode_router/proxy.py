"""Requests that an engine answers as they are on its API port: models, responses, its page."""

import re
from http import HTTPStatus
from typing import Final

import aiohttp
from starlette.requests import Request
from yarl import URL

from specdecode_router.attempt import RETRY_AFTER_SECONDS
from specdecode_router.client_request import ClientResponse, forwarded_headers
from specdecode_router.engines import EnginePool, RoutedEngine
from specdecode_router.routing.stored_response import is_stored_path, name_in_path
from specdecode_router.upstream import is_tried_elsewhere
from specdecode_server.errors import unavailable

PATHS: Final = re.compile(
    r"(?P<get>/|/v1/speculation|/v1/models(/.{1,512})?|/tokenizer_info|/(get_)?model_info|/openapi\.json)"
    r"|/tokenize|/detokenize|/v1/messages/count_tokens"
)
SECONDS: Final = 30.0
ATTEMPTS: Final = 3
RELAYED_HEADERS: Final = frozenset(
    {"content-type", "retry-after", "allow", "www-authenticate"}
    | {"content-security-policy", "x-content-type-options", "referrer-policy", "cache-control"}
)


def is_forwarded(method: str, path: str) -> bool:
    """Whether an engine's API port answers a request; no other path is ever sent there."""
    if ".." in path or "\\" in path:
        return False
    found = PATHS.fullmatch(path)
    if found is None:
        return is_stored_path(method, path)
    return method in ("GET", "HEAD") if found["get"] else method == "POST"


def _engines(pool: EnginePool, path: str) -> list[RoutedEngine]:
    """Return the engines to try in turn.

    If the one that stores a response has gone, another one refuses the id as it does unknown ones.
    """
    ready = sorted(pool.usable(), key=lambda each: each.requests)[:ATTEMPTS]
    storing = pool.storing(name_in_path(path))
    return ready if storing is None else [storing, *(each for each in ready if each is not storing)]


async def forward(
    request: Request,
    body: bytes,
    response: ClientResponse,
    pool: EnginePool,
    session: aiohttp.ClientSession,
    *,
    retries_failures: bool = False,
) -> None:
    """Answer with the response of a ready engine, or of the one that stores what the path names.

    Args:
        retries_failures: try another engine also after 500, which one that shuts down may answer.

    Raises:
        HttpError: no engine is ready or answers.
    """
    timeout = aiohttp.ClientTimeout(total=SECONDS)
    path = request.scope["raw_path"].decode("ascii", "replace")
    query = request.scope["query_string"].decode("latin-1")
    target = f"{path}?{query}" if query else path
    engines = _engines(pool, request.scope["path"])
    for engine in engines:
        assert engine.state is not None
        url = engine.address.url(target, engine.state.api_port)
        try:
            async with session.request(
                "GET" if request.method == "HEAD" else request.method,
                URL(url, encoded=True),
                data=body or None,
                headers=forwarded_headers(request.headers),
                timeout=timeout,
                allow_redirects=False,
            ) as upstream:
                data = await upstream.read()
        except (aiohttp.ClientError, OSError, TimeoutError):
            continue
        if upstream.status == HTTPStatus.SERVICE_UNAVAILABLE:
            continue
        if retries_failures and is_tried_elsewhere(upstream.status) and engine is not engines[-1]:
            continue
        headers = [
            (name.lower().encode(), value.encode("latin-1"))
            for name, value in upstream.headers.items()
            if name.lower() in RELAYED_HEADERS
        ]
        length = (b"content-length", str(len(data)).encode())
        await response.begin(upstream.status, [*headers, length])
        response.keep_last(b"" if request.method == "HEAD" else data)
        await response.end()
        return
    raise unavailable("no engine is ready; try again", "no_engine", RETRY_AFTER_SECONDS)
