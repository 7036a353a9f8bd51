"""GET /v1/speculation: what the speculation table has chosen last and why, and recent rates.

All of it is of the engine as a whole, from a copy that the core makes between steps: nothing is of
one request or label.
"""

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from specdecode_api.metrics import core
from specdecode_engine.adaptive.policy import RangeState
from specdecode_engine.serve.openai.service import Service, service_of
from specdecode_engine.stats.snapshot import CoreSnapshot

router = APIRouter()

PATH = "/v1/speculation"


class RangeReport(BaseModel):
    """A range of batch sizes, and the draft steps with which its next decode step would run."""

    from_batch_size: int
    candidate_steps: list[int]
    num_steps: int
    reason: str


class RatesReport(BaseModel):
    """Of the last minute, or since the start if that is shorter."""

    seconds: float
    output_tokens_per_second: float | None = Field(description="of decode steps, all requests")
    accept_length: float | None = Field(description="output tokens per request and decode step")
    accepted_share: float | None = Field(description="of the draft tokens")


class SpeculationReport(BaseModel):
    """What the engine drafts with; `num_steps` to `reason` are of the latest decode step."""

    model: str
    algorithm: str
    policy: str
    table_hash: str
    num_steps: int
    num_draft_tokens: int
    active_range: int = Field(description="lower bound of its range of batch sizes")
    reason: str = Field(description="why it had these draft steps; empty before the first step")
    running_requests: int
    waiting_requests: int
    ranges: list[RangeReport]
    rates: RatesReport


@router.get(PATH)
async def get_speculation(request: Request) -> dict[str, Any]:
    service = service_of(request)
    service.lifecycle.check_admission()
    snapshot = await service.engine.refresh_snapshot()
    await service.sample_rates()
    return _report(service, snapshot).model_dump()


def _report(service: Service, snapshot: CoreSnapshot) -> SpeculationReport:
    speculation = service.boot.speculation
    return SpeculationReport(
        model=service.served_name,
        algorithm=speculation.algorithm.value,
        policy=speculation.policy.value,
        table_hash=service.tables.table_hash,
        num_steps=int(snapshot[core.NUM_STEPS]),
        num_draft_tokens=int(snapshot[core.NUM_DRAFT_TOKENS]),
        active_range=int(snapshot[core.ACTIVE_RANGE]),
        reason=snapshot.reason,
        running_requests=int(snapshot[core.RUNNING_REQUESTS]),
        waiting_requests=int(snapshot[core.WAITING_REQUESTS]),
        ranges=[_range(each) for each in snapshot.ranges],
        rates=RatesReport(**asdict(service.rates.rates())),
    )


def _range(state: RangeState) -> RangeReport:
    return RangeReport(
        from_batch_size=state.range_start,
        candidate_steps=[*state.candidate_steps],
        num_steps=state.num_steps,
        reason=state.reason.value,
    )
