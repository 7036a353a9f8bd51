"""The condition of a resource's InferencePool: written, and what Gateways report about it. Pure."""

from collections.abc import Iterator
from typing import NamedTuple

from specdecode_operator.objects.kinds import INFERENCE_POOL, Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import Plan
from specdecode_operator.status.conditions import Check
from specdecode_operator.status.outcome import Outcome

_REFUSALS = {"Accepted": "NotAccepted", "ResolvedRefs": "ReferencesNotResolved"}
"""Reason of ours by the type of a Gateway's condition that is False."""


class GatewayReport(NamedTuple):
    """A condition that a Gateway wrote into the status of an InferencePool."""

    gateway: str
    kind: str
    status: str
    message: str


def pool_check(seen: Observed, plan: Plan, outcome: Outcome) -> Check | None:
    """Condition of the InferencePool; None without one."""
    if plan.refused or not plan.pool.is_wanted:
        return None
    if outcome.pool is not None:
        return Check(False, outcome.pool.reason, outcome.pool.message)
    live = seen.owned(INFERENCE_POOL)
    if live is None:
        return Check(False, "WaitingForEngines", "it is written after the engines' own objects")
    reports = tuple(_reports(live))
    for each in reports:
        if each.status == "False" and each.kind in _REFUSALS:
            return Check(False, _REFUSALS[each.kind], f"Gateway {each.gateway}: {each.message}")
    accepted = {one.gateway for one in reports if (one.kind, one.status) == ("Accepted", "True")}
    if accepted:
        return Check(True, "Accepted", f"used by Gateway {', '.join(sorted(accepted))}")
    message = "no Gateway uses it yet: name it in the backendRefs of an HTTPRoute"
    return Check(True, "NoGateway", message)


def _reports(pool: Manifest) -> Iterator[GatewayReport]:
    for parent in (pool.get("status") or {}).get("parents") or ():
        reference = parent["parentRef"]
        namespace = reference.get("namespace") or pool["metadata"]["namespace"]
        gateway = f"{namespace}/{reference['name']}"
        for each in parent.get("conditions") or ():
            message = f"{each['reason']}: {each.get('message', '')}"
            yield GatewayReport(gateway, each["type"], each["status"], message)
