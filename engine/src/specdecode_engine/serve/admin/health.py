"""Probes, drain, /server_info and /metrics. None of these routes generates tokens."""

import asyncio
import ipaddress
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder

from specdecode_api import names
from specdecode_api.report import Degradations
from specdecode_engine.serve import errors
from specdecode_engine.serve.admin.degraded import degradations
from specdecode_engine.serve.service import service_of

router = APIRouter()


@router.get(names.PATH_STARTUP)
async def probe_startup(request: Request) -> Response:
    """Report whether the model is loaded."""
    lifecycle = service_of(request).lifecycle
    is_waiting = not lifecycle.is_loaded or lifecycle.failure is not None
    return _probe(lifecycle.not_ready_reason() if is_waiting else None)


@router.get(names.PATH_READY)
async def probe_ready(request: Request) -> Response:
    """Report whether traffic should be routed here."""
    return _probe(service_of(request).lifecycle.not_ready_reason())


@router.get(names.PATH_LIVE)
async def probe_live(request: Request) -> Response:
    """Report whether the process is alive, however busy; otherwise it should be restarted."""
    return _probe(service_of(request).dead_reason())


@router.get(names.PATH_DEGRADED)
async def degraded(request: Request) -> Response:
    """Report degradations; a degraded engine serves."""
    service = service_of(request)
    await service.engine.refresh_snapshot()
    report = Degradations(degraded=degradations(service))
    return Response(report.model_dump_json(), media_type="application/json")


def _probe(reason: str | None) -> Response:
    if reason is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": reason}, 503)


@router.post(names.PATH_DRAIN)
async def drain(
    request: Request, wait_seconds: Annotated[float, Query(ge=0, le=600)] = 0.0
) -> dict[str, object]:
    """Report not ready from now on, and continue to serve; from the pod itself only.

    This cannot be undone. The response is sent after `wait_seconds`, so that a preStop
    hook can delay the stop signal until every router has removed the pod.
    """
    if not is_loopback(request.client.host if request.client else ""):
        message = f"{names.PATH_DRAIN} is accepted from loopback only; call it inside the container"
        raise errors.HttpError(403, message, code="forbidden")
    lifecycle = service_of(request).lifecycle
    lifecycle.drain()
    with suppress(TimeoutError):
        await asyncio.wait_for(lifecycle.wait_for_end(), wait_seconds)
    return {"status": "draining", "calls": lifecycle.running_requests}


def is_loopback(host: str) -> bool:
    """Whether a peer address is a loopback address, IPv4 addresses mapped to IPv6 included."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


@router.get(names.PATH_SERVER_INFO)
async def server_info(request: Request) -> dict[str, object]:
    """Describe the configuration and the state of this engine."""
    service = service_of(request)
    snapshot = await service.engine.refresh_snapshot()
    return {
        "version": version("specdecode-engine"),
        "model": service.served_name,
        "state": service.lifecycle.not_ready_reason() or "ready",
        "context_length": service.engine.context_length,
        "boot": service.boot.model_dump(mode="json", exclude={"server": {"owner"}}),
        "facts": dict(service.facts),
        "speculation_table": service.tables.describe(),
        "needs_restart": list(service.watch.needs_restart) if service.watch else [],
        "snapshot": snapshot.document(),
        "snapshot_age_seconds": service.engine.snapshot_age(),
    }


@router.get(names.PATH_METRICS)
async def metrics(request: Request) -> Response:
    """Return the metrics in the format that the scrape accepts."""
    service = service_of(request)
    await service.engine.refresh_snapshot()
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    body = encode(service.metrics.registry)
    return Response(body, headers={"content-type": content_type})
