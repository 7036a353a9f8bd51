"""The routes that generate no tokens: probes, drain, /metrics, /server_info, models and tables."""

import asyncio
import ipaddress
import json
from collections.abc import Iterator
from contextlib import suppress
from importlib.metadata import version
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client.exposition import choose_encoder

from specdecode_api import names
from specdecode_api.report import Degradation, Degradations, Degraded
from specdecode_api.table import TableError
from specdecode_engine.adaptive.policy import TableRefused
from specdecode_engine.graphs.plan import Eager, GraphReport
from specdecode_engine.serve import errors
from specdecode_engine.serve.service import Service, service_of

router = APIRouter()

MIN_STEPS = 200
"""Fewer decode steps than this give no meaningful share."""
MISSED_SHARE = 0.1
TABLE_SOURCE = f"PUT {names.PATH_TABLE}"


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
async def get_degraded(request: Request) -> Response:
    """Report degradations; a degraded engine serves."""
    service = service_of(request)
    snapshot = await service.engine.refresh_snapshot()
    found = _degradations(service, snapshot.graphs)
    degraded = tuple(Degradation(reason=reason, message=text) for reason, text in found)
    report = Degradations(degraded=degraded)
    return Response(report.model_dump_json(), media_type="application/json")


def _degradations(service: Service, graphs: GraphReport) -> Iterator[tuple[Degraded, str]]:
    """Yield the degradations, the worst first."""
    keys, watch = service.keys, service.watch
    if keys is not None and keys.error:
        yield Degraded.API_KEYS_MISSING, f"every request is refused: {keys.error}"
    if refusal := service.tables.latest_refusal:
        yield Degraded.TABLE_REFUSED, f"the old table stays in force: {refusal}"
    if watch is not None and watch.needs_restart:
        changed = ", ".join(watch.needs_restart)
        yield Degraded.NEEDS_RESTART, f"changed, and requires a restart: {changed}"
    if reason := service.facts.get("cpu_kernels_missing"):
        text = f"torch is used instead of the C kernels and is several times slower: {reason}"
        yield Degraded.CPU_KERNELS_MISSING, text
    if text := missed_graphs(graphs):
        yield Degraded.CUDA_GRAPHS_MISSED, text


def missed_graphs(graphs: GraphReport) -> str:
    """Return a message if many decode steps ran without a planned CUDA graph, else "".

    The message has no counts, because they change with every step; metrics report them.
    """
    if graphs.failure:
        return f"forwards run eagerly, slower than with CUDA graphs: {graphs.failure}"
    reasons = (Eager.TOO_LARGE, Eager.REFUSED, Eager.UNPLANNED, Eager.PENDING)
    found = [why for why in reasons if graphs.eager_steps.get(why)]
    eager = sum(graphs.eager_steps[why] for why in found)
    steps = graphs.graph_steps + eager
    if graphs.mode == "off" or steps < MIN_STEPS or eager < MISSED_SHARE * steps:
        return ""
    missing = (*graphs.refused, *graphs.pending)[:1]
    return (
        f"more than {MISSED_SHARE:.0%} of the decode steps ran without CUDA graphs "
        f"({'; '.join((', '.join(found), *missing))}); raise graphs.max_bytes or "
        "graphs.max_seconds, or use fewer num_steps or smaller batches"
    )


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
    service = service_of(request)
    await service.engine.refresh_snapshot()
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    body = encode(service.metrics.registry)
    return Response(body, headers={"content-type": content_type})


@router.get(names.PATH_TABLE)
async def get_table(request: Request) -> dict[str, object]:
    return service_of(request).tables.describe()


@router.put(names.PATH_TABLE)
async def put_table(request: Request) -> dict[str, object]:
    """Choose draft steps by another table from the next step on; running requests continue.

    The body is a table in any of its forms. An invalid table is answered with 400 and all its
    errors, a table that requires a restart with 409; the old table then stays in force.
    """
    service = service_of(request)
    service.lifecycle.check_admission()
    try:
        document = json.loads(await request.body())
    except ValueError as error:
        raise errors.HttpError(400, f"the body is not valid JSON: {error}; send a table") from None
    try:
        await service.tables.apply_document(document, TABLE_SOURCE)
    except TableError as error:
        raise errors.HttpError(400, str(error), code="bad_table") from None
    except TableRefused as error:
        raise errors.HttpError(409, str(error), code="needs_restart") from None
    return service.tables.describe()


@router.get("/v1/models")
async def list_models(request: Request) -> dict[str, object]:
    return {"object": "list", "data": [_describe_model(service_of(request))]}


@router.get("/v1/models/{name:path}")
async def get_model(name: str, request: Request) -> dict[str, object]:
    service = service_of(request)
    if name != service.served_name:
        raise errors.model_not_found(name, service.served_name)
    return _describe_model(service)


def _describe_model(service: Service) -> dict[str, object]:
    service.lifecycle.check_admission()
    return {
        "id": service.served_name,
        "object": "model",
        "created": service.created,
        "owned_by": "specdecode",
        "max_model_len": service.engine.context_length,
    }
