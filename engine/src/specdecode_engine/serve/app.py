"""Puts the routes together."""

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from specdecode_engine.request import RequestRefused
from specdecode_engine.serve import chat, completions, errors, health, models, speculation
from specdecode_engine.serve.authorization import Authorization
from specdecode_engine.serve.core import EngineFailed
from specdecode_engine.serve.farewell import Farewell
from specdecode_engine.serve.service import Service


def build_app(service: Service) -> FastAPI:
    """Return the application that serves one engine."""
    app = FastAPI(title="specdecode", openapi_url=None)
    app.state.service = service
    app.add_middleware(Farewell, lifecycle=service.lifecycle)
    for part in (completions, chat, models, health, speculation):
        app.include_router(part.router)
    known = (errors.ApiError, RequestRefused, EngineFailed, HTTPException, ClientDisconnect)
    for kind in (*known, Exception):
        app.add_exception_handler(kind, errors.answer_error)
    if service.keys is not None:
        app.add_middleware(Authorization, keys=service.keys, owner=service.boot.server.owner)
    return app
