"""Who of several operators works: decided on a Lease, by the own clock alone, without I/O.

A standby counts from when it saw the Lease change last, and a leader from when it last asked to
keep it: no clock is compared with another, so clocks that disagree do no harm.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from specdecode_operator.kinds import LEASE, Manifest

DURATION_S = 15.0
"""How long a Lease holds that nobody renews."""
DEADLINE_S = 10.0
"""When a leader that could not renew stops: before anybody else may begin."""
PERIOD_S = 2.0
"""Between two looks at the Lease."""


class Step(StrEnum):
    """What to do about the Lease now."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Seen:
    """A version of the Lease, and when it was first seen, in seconds of the own clock."""

    version: str
    at_s: float


def see(lease: Manifest | None, before: Seen | None, now_s: float) -> Seen | None:
    """Note a version of the Lease; one that was seen before keeps its time."""
    if lease is None:
        return None
    version = lease["metadata"]["resourceVersion"]
    return before if before is not None and before.version == version else Seen(version, now_s)


def decide(lease: Manifest | None, identity: str, seen: Seen | None, now_s: float) -> Step:
    """What `identity` should do about the Lease that it has `seen`."""
    if lease is None or seen is None:
        return Step.CREATE
    held = lease.get("spec") or {}
    holder = held.get("holderIdentity") or ""
    if holder == identity:
        return Step.RENEW
    if not holder or now_s - seen.at_s > float(held.get("leaseDurationSeconds") or DURATION_S):
        return Step.TAKE
    return Step.WAIT


def written(
    lease: Manifest | None, namespace: str, name: str, identity: str, now: datetime
) -> Manifest:
    """The Lease with `identity` as its holder, based on the version that was read."""
    before = (lease or {}).get("spec") or {}
    is_ours = before.get("holderIdentity") == identity
    spec = {
        "holderIdentity": identity,
        "leaseDurationSeconds": int(DURATION_S),
        "renewTime": micro_time(now),
        "acquireTime": before["acquireTime"] if is_ours else micro_time(now),
        "leaseTransitions": int(before.get("leaseTransitions") or 0)
        + int(lease is not None and not is_ours),
    }
    return _lease(lease, namespace, name, spec)


def released(lease: Manifest, now: datetime) -> Manifest:
    """The Lease without a holder: whoever waits may take it at once."""
    spec = {**(lease.get("spec") or {}), "holderIdentity": "", "renewTime": micro_time(now)}
    metadata = lease["metadata"]
    return _lease(lease, metadata["namespace"], metadata["name"], spec)


def _lease(lease: Manifest | None, namespace: str, name: str, spec: Manifest) -> Manifest:
    version = {"resourceVersion": lease["metadata"]["resourceVersion"]} if lease else {}
    return {
        "apiVersion": LEASE.api_version,
        "kind": LEASE.kind,
        "metadata": {"name": name, "namespace": namespace, **version},
        "spec": spec,
    }


def micro_time(now: datetime) -> str:
    """A time as a Lease has it."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
