"""Probes, drain, and what people and Prometheus look at. Nothing here ever generates."""

import asyncio
from contextlib import suppress
from dataclasses import asdict
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder

from specdecode_api import names
from specdecode_api.report import Degradations
from specdecode_engine.serve.degradation import degradations
from specdecode_engine.serve.service import service_of

router = APIRouter()


@router.get(names.PATH_STARTUP)
async def probe_startup(request: Request) -> Response:
    """Tell whether the model is loaded."""
    lifecycle = service_of(request).lifecycle
    is_waiting = not lifecycle.is_loaded or lifecycle.failure is not None
    return _probe(lifecycle.not_ready_reason() if is_waiting else None)


@router.get(names.PATH_READY)
async def probe_ready(request: Request) -> Response:
    """Tell whether traffic should come here."""
    return _probe(service_of(request).lifecycle.not_ready_reason())


@router.get(names.PATH_LIVE)
async def probe_live(request: Request) -> Response:
    """Tell whether the process is worth keeping; busy is alive."""
    return _probe(service_of(request).dead_reason())


@router.get(names.PATH_DEGRADED)
async def degraded(request: Request) -> Response:
    """Tell what this engine does worse than it was told to; it serves all the same."""
    told = Degradations(degraded=degradations(service_of(request)))
    return Response(told.model_dump_json(), media_type="application/json")


def _probe(trouble: str | None) -> Response:
    if trouble is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": trouble}, 503)


@router.api_route(names.PATH_DRAIN, methods=["GET", "POST"])
async def drain(
    request: Request, wait_seconds: Annotated[float, Query(ge=0, le=600)] = 0.0
) -> dict[str, object]:
    """Stop being ready, and keep serving; there is no way back.

    GET as well as POST, since a preStop hook of Kubernetes can only GET. The answer comes after
    `wait_seconds`, so that the hook can hold the stop signal back until every router knows.
    """
    lifecycle = service_of(request).lifecycle
    lifecycle.drain()
    with suppress(TimeoutError):
        await asyncio.wait_for(lifecycle.ending(), wait_seconds)
    return {"status": "draining", "calls": lifecycle.calls}


@router.get(names.PATH_SERVER_INFO)
async def server_info(request: Request) -> dict[str, object]:
    """Tell what this engine is and what it is doing."""
    service = service_of(request)
    return {
        "version": version("specdecode-engine"),
        "model": service.served_name,
        "state": service.lifecycle.not_ready_reason() or "ready",
        "context_length": service.engine.context_length,
        "boot": service.boot.model_dump(mode="json", exclude={"server": {"owner"}}),
        "facts": dict(service.facts),
        "speculation_table": service.tables.describe(),
        "needs_restart": list(service.watch.needs_restart) if service.watch else [],
        "snapshot": asdict(service.engine.snapshot),
    }


@router.get(names.PATH_METRICS)
async def metrics(request: Request) -> Response:
    """Answer a scrape in the format that it accepts."""
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    body = encode(service_of(request).metrics.registry)
    return Response(body, headers={"content-type": content_type})
