"""The routes of the management port, apart from probes: /server_info, /metrics, table and draft."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from prometheus_client.exposition import choose_encoder
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from specdecode_api import names
from specdecode_api.metrics import core
from specdecode_api.table import TableError
from specdecode_engine.adaptive.policy import DraftRefused, TableRefused
from specdecode_engine.serve import VERSION, errors
from specdecode_engine.serve.json_body import parse_strict_json
from specdecode_engine.serve.openai.service import Service, service_of
from specdecode_engine.stats.snapshot import CoreSnapshot
from specdecode_server.body import read_limited

router = APIRouter()
reports = APIRouter()
"""What an engine reports of itself; also served on the API's port, if the engine is set so."""

PATH_GET_SERVER_INFO = "/get_server_info"
"""As earlier releases of SGLang name it."""
REPORT_PATHS = frozenset({names.PATH_SERVER_INFO, PATH_GET_SERVER_INFO, names.PATH_METRICS})
TABLE_SOURCE = f"PUT {names.PATH_TABLE}"
DRAFT_SOURCE = f"PUT {names.PATH_DRAFT}"
MAX_TABLE_BYTES = 256 * 1024
MAX_DRAFT_BYTES = 8 * 1024
MAX_DRAFT_SECONDS = 5.0
"""Until an exchange is answered although it continues; GET reports its end."""
MAX_EXPIRY_SECONDS = 7 * 86_400


@reports.get(names.PATH_SERVER_INFO)
@reports.get(PATH_GET_SERVER_INFO)
async def server_info(request: Request) -> dict[str, object]:
    service = service_of(request)
    snapshot = await service.engine.refresh_snapshot()
    return {
        "version": VERSION,
        "model": service.served_name,
        "state": service.lifecycle.not_ready_reason() or "ready",
        "context_length": service.engine.context_length,
        "boot": service.boot.model_dump(mode="json", exclude={"server": {"owner"}}),
        "facts": _facts(service),
        "stop_tokens": service.stop_tokens.document(),
        "resume_id": service.resume_id.value,
        "speculation_table": service.tables.describe(),
        "speculation_draft": service.drafts.describe(),
        "needs_restart": list(service.watch.needs_restart) if service.watch else [],
        "snapshot": snapshot.document(),
        "snapshot_age_seconds": service.engine.snapshot_age(),
        "internal_states": [_internal_state(snapshot)],
    }


def _facts(service: Service) -> dict[str, object]:
    """Return what is known of the engine, and of the adapters that it has now."""
    adapters = service.adapters.facts
    has_adapters = "adapters" in service.facts or bool(adapters)
    return {**service.facts, **({"adapters": adapters} if has_adapters else {})}


def _internal_state(snapshot: CoreSnapshot) -> dict[str, float]:
    """Return what SGLang's benchmarks read: tokens per request and decode step since the start."""
    if not snapshot[core.REQUEST_STEPS]:
        return {}
    return {"avg_spec_accept_length": snapshot[core.ACCEPT_LENGTH]}


@reports.get(names.PATH_METRICS)
async def metrics(request: Request) -> Response:
    service = service_of(request)
    await service.engine.refresh_snapshot()
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    body = encode(service.metrics.registry)
    return Response(body, headers={"content-type": content_type})


@router.get(names.PATH_TABLE)
async def get_table(request: Request) -> dict[str, object]:
    return service_of(request).tables.describe()


class TableOffer(BaseModel):
    """The body of a PUT: a table in any of its forms, and how long it is valid."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)

    table: Any
    expires_after_s: Annotated[float, Field(gt=0, le=MAX_EXPIRY_SECONDS)] | None = Field(
        default=None, alias="expiresAfterSeconds"
    )


@router.put(names.PATH_TABLE)
async def put_table(request: Request) -> dict[str, object]:
    """Choose draft steps by another table from the next step on; running requests continue.

    An invalid table is answered with 400 and all its errors, a table that requires a restart with
    409; the old table then stays in force.
    """
    service = service_of(request)
    service.lifecycle.check_admission()
    data = await read_limited(request, MAX_TABLE_BYTES, "a table has one entry per batch size")
    offer = await asyncio.to_thread(parse_strict_json, TableOffer, data)
    try:
        await service.tables.apply_document(offer.table, TABLE_SOURCE, offer.expires_after_s)
    except TableError as error:
        raise errors.HttpError(400, str(error), code="bad_table") from None
    except TableRefused as error:
        raise errors.HttpError(409, str(error), code="needs_restart") from None
    return service.tables.describe()


@router.delete(names.PATH_TABLE)
async def delete_table(request: Request) -> dict[str, object]:
    """Return to the last table without expiry now; without effect while that is in force."""
    service = service_of(request)
    service.lifecycle.check_admission()
    await service.tables.remove()
    return service.tables.describe()


@router.get(names.PATH_DRAFT)
async def get_draft(request: Request) -> dict[str, object]:
    return service_of(request).drafts.describe()


def _absolute(path: str) -> str:
    if not path.startswith("/") or "\0" in path:
        raise ValueError("give the absolute path of a folder that the engine can read")
    return path


class DraftOffer(BaseModel):
    """The body of a PUT: a folder that the engine can read, and the name of the configuration."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    path: Annotated[str, Field(max_length=4096), AfterValidator(_absolute)]
    config_hash: (
        Annotated[str, Field(min_length=1, max_length=names.MAX_CONFIG_HASH_LENGTH)] | None
    ) = Field(default=None, alias="configHash")


@router.put(names.PATH_DRAFT)
async def put_draft(request: Request, response: Response) -> dict[str, object]:
    """Draft with other weights of the same algorithm, config and shapes; requests continue.

    A draft that cannot replace the running one is answered with 409; the old one then stays. What
    takes longer than a few seconds is answered with 202, and continues.
    """
    service = service_of(request)
    service.lifecycle.check_admission()
    data = await read_limited(request, MAX_DRAFT_BYTES, "a draft is named by its path")
    offer = await asyncio.to_thread(parse_strict_json, DraftOffer, data)
    try:
        async with asyncio.timeout(MAX_DRAFT_SECONDS):
            await service.drafts.apply(offer.path, DRAFT_SOURCE, offer.config_hash)
    except TimeoutError:
        response.status_code = 202
    except DraftRefused as error:
        raise errors.HttpError(409, str(error), code="draft_refused") from None
    return service.drafts.describe()
