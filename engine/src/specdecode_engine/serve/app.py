"""Builds the ASGI application from routes, error handlers and middleware."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specdecode_engine.batch.request import RequestRefused
from specdecode_engine.serve import errors
from specdecode_engine.serve.admin import health, speculation_table
from specdecode_engine.serve.connection_drain import ConnectionDrain
from specdecode_engine.serve.control.authorization import Authorization
from specdecode_engine.serve.engine.core import EngineFailed
from specdecode_engine.serve.openai import chat, completions, models
from specdecode_engine.serve.service import Service


def build_app(service: Service) -> FastAPI:
    """Return the application that serves one engine."""
    app = FastAPI(title="specdecode", openapi_url=None)
    app.state.service = service
    app.add_middleware(ConnectionDrain, lifecycle=service.lifecycle)
    for module in (completions, chat, models, health, speculation_table):
        app.include_router(module.router)
    known = (errors.HttpError, RequestRefused, EngineFailed, HTTPException, ClientDisconnect)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, errors.respond_to_error)
    if service.keys is not None:
        app.add_middleware(Authorization, keys=service.keys, owner=service.boot.server.owner)
    return app
