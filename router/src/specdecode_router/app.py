"""The ASGI applications of the router: the API as engines have it, and the management port."""

import logging
from dataclasses import dataclass
from typing import Final, cast, get_args

from prometheus_client.exposition import choose_encoder
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_api import names
from specdecode_api.internal_api import GenerationPath
from specdecode_router.client_request import (
    ClientRequest,
    ClientResponse,
    forwarded_headers,
    session_of,
    timeout_seconds,
)
from specdecode_router.plain.relay import GENERATION as PLAIN_GENERATION
from specdecode_router.plain.relay import PlainRelay, WithoutKeys, is_plain_path
from specdecode_router.proxy import forward, is_forwarded
from specdecode_router.relay import Relay
from specdecode_router.routing.prompt_blocks import cut_prompt
from specdecode_router.routing.stored_response import name_in_body
from specdecode_router.settings import RouterSettings
from specdecode_server import request_id
from specdecode_server.api_keys import ApiKeyStore, Authorization, Respond, is_client_api
from specdecode_server.body import DEFAULT_MAX_BODY_BYTES, read_limited
from specdecode_server.disconnect import run_until_disconnect
from specdecode_server.errors import HttpError
from specdecode_server.lifecycle import ServerLifecycle
from specdecode_server.middleware import ConnectionDrain, StreamKeepAlive
from specdecode_server.request_id import RequestIds

log = logging.getLogger(__name__)

GENERATION: Final = frozenset(get_args(GenerationPath))
AnyRelay = Relay | PlainRelay
REMEDY: Final = "split it into several requests, or raise server.max_body_bytes of the engines"
PLAIN_REMEDY: Final = "split it into several requests, or raise --max-body-bytes of the router"


@dataclass(frozen=True, slots=True)
class RouterApi:
    """ASGI application of the API port."""

    relay: AnyRelay
    lifecycle: ServerLifecycle
    settings: RouterSettings
    version: str

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        try:
            await self._answer(request, receive, send)
        except HttpError as error:
            self.relay.metrics.count_response(error.status)
            await error.response(scope["path"])(scope, receive, send)
        except ClientDisconnect:
            log.debug("the client disconnected before its request was complete")

    async def _answer(self, request: Request, receive: Receive, send: Send) -> None:
        method, path = request.method, str(request.scope["path"])
        is_plain = isinstance(self.relay, PlainRelay)
        if path in (PLAIN_GENERATION if is_plain else GENERATION):
            _check_method(method, ("POST",))
            await self._generate(request, cast("GenerationPath", path), receive, send)
        elif path in (names.PATH_HEALTH, names.PATH_PING, names.PATH_VERSION):
            _check_method(method, ("GET", "HEAD"))
            await self._describe(path)(request.scope, receive, send)
        elif (is_plain_path if is_plain else is_forwarded)(method, path):
            body = await self._read(request, DEFAULT_MAX_BODY_BYTES)
            response, relay = ClientResponse(send), self.relay
            with self.lifecycle.count_request():
                await forward(
                    request, body, response, relay.pool, relay.session, retries_failures=is_plain
                )
        else:
            message = f"{method} {path[:80]} is not served here"
            raise HttpError(404, message, code="not_found")

    def _describe(self, path: str) -> Response:
        if path == names.PATH_VERSION:
            return JSONResponse({"version": self.version})
        reason = self.lifecycle.not_ready_reason()
        return _probe(reason and reason.partition(":")[0])

    async def _generate(
        self, request: Request, path: GenerationPath, receive: Receive, send: Send
    ) -> None:
        arrived_s = self.relay.pool.clock()
        self.lifecycle.check_admission()
        timeout_s = timeout_seconds(request.headers, self.settings.timeout_seconds)
        body = await self._read(request, self.relay.pool.max_body_bytes or DEFAULT_MAX_BODY_BYTES)
        headers = forwarded_headers(request.headers)
        headers[request_id.HEADER] = request_id.current()
        session, prompt = session_of(request.headers), cut_prompt(body)
        is_stored = path == "/v1/responses" and isinstance(self.relay, Relay)
        named = name_in_body(body) if is_stored else None
        kept = ClientRequest(path, headers, body, prompt, session, arrived_s, timeout_s, named)
        with self.lifecycle.count_request():
            work = self.relay.respond(kept, ClientResponse(send))
            if not await run_until_disconnect(receive, work):
                log.debug("the client disconnected")

    async def _read(self, request: Request, engines_limit: int) -> bytes:
        """Return the body; the limit is that of the engines if they have one."""
        if isinstance(self.relay, PlainRelay):
            return await read_limited(request, self.settings.max_body_bytes, PLAIN_REMEDY)
        return await read_limited(request, engines_limit, REMEDY)


def _refusal_response(relay: AnyRelay) -> Respond:
    async def respond(request: Request, refusal: Exception) -> Response:
        assert isinstance(refusal, HttpError)
        relay.metrics.count_response(refusal.status)
        return refusal.response(request.scope["path"])

    return respond


def _check_method(method: str, allowed: tuple[str, ...]) -> None:
    if method not in allowed:
        error = HttpError(405, f"{method} is not allowed here", code="method_not_allowed")
        error.headers["allow"] = ", ".join(allowed)
        raise error


def _probe(reason: str | None) -> Response:
    if reason is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": reason}, 503)


@dataclass(frozen=True, slots=True)
class RouterManagement:
    """ASGI application of the management port: probes and metrics."""

    relay: AnyRelay
    lifecycle: ServerLifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        response = self._respond(request)
        await response(scope, receive, send)

    def _respond(self, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return HttpError(405, "only GET is served here", code="method_not_allowed").response()
        match request.url.path:
            case names.PATH_LIVE | names.PATH_STARTUP:
                return _probe(None)
            case names.PATH_READY:
                return _probe(self._not_ready_reason())
            case names.PATH_METRICS:
                encode, content_type = choose_encoder(request.headers.get("accept", ""))
                body = encode(self.relay.metrics.registry)
                return Response(body, headers={"content-type": content_type})
            case names.PATH_SERVER_INFO:
                return JSONResponse(self._info())
        return HttpError(404, "it is not served here", code="not_found").response()

    def _not_ready_reason(self) -> str | None:
        """A router gets no requests before it knows the engines; those that come anyway wait."""
        has_started = self.relay.pool.has_started
        return self.lifecycle.not_ready_reason() or (None if has_started else "starting")

    def _info(self) -> dict[str, object]:
        """Return what is known of the engines, for people."""
        now_s = self.relay.pool.clock()
        engines = [
            {
                "engine": each.pod,
                "address": str(each.address),
                "arm": each.arm,
                "reason": each.reason,
                "resume_id": each.last_id,
                "requests": each.requests,
                "other_requests": each.others,
                "failures": each.breaker.failures,
                "open_seconds": max(0.0, each.breaker.open_until_s - now_s)
                if each.breaker.is_open
                else 0.0,
            }
            for each in self.relay.pool.engines.values()
        ]
        state = self._not_ready_reason() or "ready"
        return {"state": state, "engines": engines, "prefix_blocks": len(self.relay.table)}


def build_app(
    relay: AnyRelay,
    lifecycle: ServerLifecycle,
    settings: RouterSettings,
    version: str,
    keys: ApiKeyStore | None,
) -> ASGIApp:
    """Return the application of the API port, with what concerns every response.

    Args:
        keys: those of clients, where the router checks them.
    """
    app: ASGIApp = RouterApi(relay, lifecycle, settings, version)
    if isinstance(relay, PlainRelay):
        app = WithoutKeys(app)
    if keys is not None:
        app = Authorization(app, keys, is_client_api, _refusal_response(relay))
    app = StreamKeepAlive(ConnectionDrain(app, lifecycle))
    if settings.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=settings.cors_origins,
            allow_methods=("GET", "HEAD", "POST", "DELETE"),
            allow_headers=("*",),
            expose_headers=(request_id.HEADER, "Retry-After"),
        )
    return RequestIds(app, relay.metrics.count_response)
