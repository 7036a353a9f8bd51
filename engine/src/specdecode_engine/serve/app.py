"""The ASGI applications: the API, the management port, or both on one port."""

from collections.abc import Callable, Sequence
from functools import partial

from fastapi import APIRouter, FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_api.internal_api import PATH_GENERATE
from specdecode_engine.batch.request import RequestRefused
from specdecode_engine.serve import (
    errors,
    health,
    lora,
    management,
    openapi,
    speculation,
    tokenization,
)
from specdecode_engine.serve.anthropic import messages
from specdecode_engine.serve.control.router_tokens import ChangeAuthorization
from specdecode_engine.serve.engine.core import EngineFailed, GrammarBusy
from specdecode_engine.serve.internal import routes
from specdecode_engine.serve.openai import chat, completions, models
from specdecode_engine.serve.openai.responses import api as responses
from specdecode_engine.serve.openai.responses import stored_routes
from specdecode_engine.serve.openai.service import Service
from specdecode_engine.serve.page import routes as page
from specdecode_engine.serve.page.host_guard import HostGuard, is_loopback
from specdecode_server import request_id
from specdecode_server.api_keys import (
    Authorization,
    is_client_api,
    is_engine_change,
)
from specdecode_server.middleware import ConnectionDrain, HeadRequests, StreamKeepAlive
from specdecode_server.request_id import RequestIds

API = (
    completions.router,
    chat.router,
    responses.router,
    stored_routes.router,
    messages.router,
    models.router,
    speculation.router,
    tokenization.router,
    health.api_router,
    openapi.router,
)
MANAGEMENT = (health.router, management.router, lora.router, management.reports)
INTERNAL = routes.router
"""Of the management port alone."""


def build_app(service: Service, management_port: int | None = None) -> ASGIApp:
    """Return the application of the server; with a management port, each has its own routes."""
    if management_port is None:
        app = _build(
            service,
            (*_api(service), *MANAGEMENT),
            lambda method, path: is_client_api(method, path) or is_engine_change(method, path),
        )
        return _guarded(StreamKeepAlive(app), service)
    routers, report_paths = _api(service), frozenset[str]()
    if service.boot.server.metrics_on_api_port:
        routers, report_paths = (*routers, management.reports), management.REPORT_PATHS
    built = _build(
        service,
        routers,
        lambda method, path: is_client_api(method, path) or path in report_paths,
    )
    api = _guarded(StreamKeepAlive(built), service)
    return PortRouter(api, _management_app(service), management_port)


def _api(service: Service) -> tuple[APIRouter, ...]:
    """Return the routes of the API, with the page where it is on: by default on loopback."""
    server = service.boot.server
    has_page = is_loopback(server.host) if server.page is None else server.page
    return (*API, page.router) if has_page else API


def _guarded(app: ASGIApp, service: Service) -> ASGIApp:
    """Check the host of requests where neither keys nor the address keep web pages out."""
    needs_guard = service.keys is None and is_loopback(service.boot.server.host)
    return HostGuard(app, service.metrics.count_error) if needs_guard else app


def _management_app(service: Service) -> ASGIApp:
    """The application of the management port; in pods a token guards changes, else a key does.

    An operator of this release writes both the owner and the path of the token.
    """
    tokens, owner = service.router_tokens, service.boot.server.owner
    routers = (*MANAGEMENT, INTERNAL)
    if tokens is None or owner is None:
        return _build(
            service,
            routers,
            lambda method, path: is_engine_change(method, path) or path == PATH_GENERATE,
        )
    guard = partial(ChangeAuthorization, tokens=tokens, owner=owner, is_change=is_engine_change)
    return _build(service, routers, lambda _, path: path == PATH_GENERATE, guard)


def _build(
    service: Service,
    routers: Sequence[APIRouter],
    needs_key: Callable[[str, str], bool],
    guard: Callable[[ASGIApp], ASGIApp] | None = None,
) -> ASGIApp:
    app = FastAPI(title="specdecode", openapi_url=None)
    app.state.service = service
    app.add_middleware(ConnectionDrain, lifecycle=service.lifecycle)
    for router in routers:
        app.include_router(router)
    known = (
        errors.HttpError, RequestRefused, GrammarBusy, EngineFailed, HTTPException,
        ClientDisconnect,
    )  # fmt: skip
    for kind in (*known, Exception):
        app.add_exception_handler(kind, errors.respond_to_error)
    if guard is not None:
        app.add_middleware(guard)
    if service.keys is not None:
        owner = service.boot.server.owner
        app.add_middleware(
            Authorization,
            keys=service.keys,
            needs_key=needs_key,
            respond=errors.respond_to_error,
            owner=owner,
        )
    return _with_headers(app, service)


def _with_headers(app: ASGIApp, service: Service) -> ASGIApp:
    """Wrap what concerns every response, that of an internal error included."""
    app = HeadRequests(app)
    if origins := service.boot.server.cors_origins:
        app = CORSMiddleware(
            app,
            allow_origins=origins,
            allow_methods=("GET", "HEAD", "POST", "DELETE"),
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
