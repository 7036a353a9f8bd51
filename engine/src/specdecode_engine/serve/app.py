"""The ASGI applications: the API, the management port, or both on one port."""

from collections.abc import Callable, Sequence

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from specdecode_api.internal_api import PATH_GENERATE
from specdecode_engine.batch.request import RequestRefused
from specdecode_engine.serve import errors, health, management, openapi, request_id, tokenization
from specdecode_engine.serve.control.api_keys import (
    Authorization,
    is_client_api,
    is_speculation_change,
)
from specdecode_engine.serve.engine.core import EngineFailed
from specdecode_engine.serve.internal import routes
from specdecode_engine.serve.lifecycle import ServerLifecycle
from specdecode_engine.serve.openai import chat, completions, models, responses
from specdecode_engine.serve.request_id import RequestIds
from specdecode_engine.serve.service import Service

API = (
    completions.router,
    chat.router,
    responses.router,
    models.router,
    tokenization.router,
    health.api_router,
    openapi.router,
)
MANAGEMENT = (health.router, management.router)
INTERNAL = routes.router
"""Of the management port alone."""
CLOSE = (b"connection", b"close")


def build_app(service: Service, management_port: int | None = None) -> ASGIApp:
    """Return the application of the server; with a management port, each has its own routes."""
    if management_port is None:
        return _build(
            service,
            (*API, *MANAGEMENT),
            lambda method, path: is_client_api(method, path) or is_speculation_change(method, path),
        )
    api = _build(service, API, is_client_api)
    management_app = _build(
        service,
        (*MANAGEMENT, INTERNAL),
        lambda method, path: is_speculation_change(method, path) or path == PATH_GENERATE,
    )
    return PortRouter(api, management_app, management_port)


def _build(
    service: Service, routers: Sequence[APIRouter], needs_key: Callable[[str, str], bool]
) -> ASGIApp:
    app = FastAPI(title="specdecode", openapi_url=None)
    app.state.service = service
    app.add_middleware(ConnectionDrain, lifecycle=service.lifecycle)
    for router in routers:
        app.include_router(router)
    known = (errors.HttpError, RequestRefused, EngineFailed, HTTPException, ClientDisconnect)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, errors.respond_to_error)
    if service.keys is not None:
        owner = service.boot.server.owner
        app.add_middleware(Authorization, keys=service.keys, needs_key=needs_key, owner=owner)
    return _with_headers(app, service)


def _with_headers(app: ASGIApp, service: Service) -> ASGIApp:
    """Wrap what concerns every response, that of an internal error included."""
    app = HeadRequests(app)
    if origins := service.boot.server.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST"),
            allow_headers=("*",),
            expose_headers=(request_id.HEADER, "Retry-After"),
        )
    return RequestIds(app, service.metrics.count_error)


class PortRouter:
    """ASGI application of two listeners: the local port of a connection decides, no header does."""

    def __init__(self, api: ASGIApp, management: ASGIApp, management_port: int) -> None:
        self._api = api
        self._management = management
        self._port = management_port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        server = scope.get("server")
        is_management = server is not None and server[1] == self._port
        app = self._management if is_management else self._api
        await app(scope, receive, send)


class HeadRequests:
    """ASGI middleware that answers HEAD as GET; the server omits the body of the response."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "HEAD":
            scope = {**scope, "method": "GET"}
        await self._app(scope, receive, send)


class ConnectionDrain:
    """ASGI middleware that adds `Connection: close` to the responses of a draining pod.

    A Service balances connections, not requests: a client with an open connection returns to this
    pod until the connection ends, even after the pod's endpoint was removed. Idle connections are
    closed when the pod stops. A request can still be lost if it is on its way meanwhile.
    """

    def __init__(self, app: ASGIApp, lifecycle: ServerLifecycle) -> None:
        self._app = app
        self._lifecycle = lifecycle

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_close(message: Message) -> None:
            if message["type"] == "http.response.start" and self._lifecycle.is_draining:
                message = {**message, "headers": [*message.get("headers", ()), CLOSE]}
            await send(message)

        await self._app(scope, receive, send_with_close)
