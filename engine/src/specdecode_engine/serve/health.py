"""Health of the engine: for clients on the API port; probes and degradations for Kubernetes."""

from collections.abc import Iterator

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from specdecode_api import names
from specdecode_api.report import (
    Degradation,
    Degradations,
    Degraded,
    Progress,
    StartProgress,
)
from specdecode_engine.graphs.plan import CAPTURING, Eager, GraphReport
from specdecode_engine.serve import VERSION
from specdecode_engine.serve.openai.service import Service, service_of
from specdecode_engine.stats.snapshot import CoreSnapshot

api_router = APIRouter()
router = APIRouter()
"""For the management port."""

MIN_STEPS = 200
"""Fewer decode steps than this give no meaningful share."""
MISSED_SHARE = 0.1


@api_router.get(names.PATH_HEALTH)
@api_router.get(names.PATH_PING)
async def get_health(request: Request) -> Response:
    """Report whether requests should be sent here, for load balancers without Kubernetes.

    The reason is one word, because clients must not see the text of internal errors.
    """
    reason = service_of(request).lifecycle.not_ready_reason()
    return _probe(None if reason is None else reason.partition(":")[0])


@api_router.get(names.PATH_VERSION)
async def get_version() -> dict[str, str]:
    return {"version": VERSION}


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


@router.get(names.PATH_PROGRESS)
async def get_progress(request: Request) -> Response:
    """Report what the engine does before it serves, or the CUDA graphs that it captures since."""
    service = service_of(request)
    start = service.start_progress
    if service.lifecycle.is_loaded:
        graphs = (await service.engine.refresh_snapshot()).graphs
        total = graphs.pairs + len(graphs.pending)
        captured = StartProgress(stage=CAPTURING, done=graphs.pairs, total=total, unit="pair")
        start = captured if graphs.pending else None
    report = Progress(start=start).model_dump_json(exclude_none=True)
    return Response(report, media_type="application/json")


@router.get(names.PATH_DEGRADED)
async def get_degraded(request: Request) -> Response:
    """Report degradations; a degraded engine serves."""
    service = service_of(request)
    snapshot = await service.engine.refresh_snapshot()
    found = _degradations(service, snapshot)
    degraded = tuple(Degradation(reason=reason, message=text) for reason, text in found)
    report = Degradations(degraded=degraded)
    return Response(report.model_dump_json(), media_type="application/json")


def _degradations(service: Service, snapshot: CoreSnapshot) -> Iterator[tuple[Degraded, str]]:
    """Yield the degradations, the worst first."""
    keys, watch = service.keys, service.watch
    if keys is not None and keys.error:
        yield Degraded.API_KEYS_MISSING, keys.error
    if snapshot.draft is not None and snapshot.draft.is_unfit:
        yield Degraded.DRAFT_UNFIT, snapshot.draft.description
    if refusal := service.tables.latest_refusal:
        yield Degraded.TABLE_REFUSED, f"the old table stays in force: {refusal}"
    if watch is not None and watch.needs_restart:
        changed = ", ".join(watch.needs_restart)
        yield Degraded.NEEDS_RESTART, f"changed, and requires a restart: {changed}"
    if reason := service.facts.get("cpu_kernels_missing"):
        text = f"torch is used instead of the C kernels and is several times slower: {reason}"
        yield Degraded.CPU_KERNELS_MISSING, text
    if text := missed_graphs(snapshot.graphs):
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
