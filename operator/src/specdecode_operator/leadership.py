"""Leader election on a Lease as a pure state machine: no I/O, and only the local clock.

A standby counts from when it first saw the current version of the Lease, a leader from when it
sent its last successful renewal. Clocks of two processes are never compared, so clock skew does no
harm.
"""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from specdecode_operator.denials import PERMISSION_GRACE_S
from specdecode_operator.kinds import LEASE, Manifest

DURATION_S = 15.0
"""A Lease that has not been renewed for this long may be taken by another process."""
DEADLINE_S = 10.0
"""A leader that could not renew for this long stops working: before another process may start."""
PERIOD_S = 2.0
"""Time between two attempts to acquire or renew the Lease."""


class LeaseAction(StrEnum):
    """What to do with the Lease that was read."""

    CREATE = "create"
    TAKE = "take"
    RENEW = "renew"
    WAIT = "wait"


class Attempt(StrEnum):
    """Result of one attempt to acquire or renew the Lease."""

    HELD = "held"
    """The Lease was written with this process as its holder."""
    NOT_HELD = "not held"
    """Another process holds the Lease."""
    FAILED = "failed"
    """No answer in time, a server error, or a write conflict."""
    DENIED = "denied"
    """401 or 403: no permission, or an API server that has just started."""


@dataclass(frozen=True, slots=True)
class Leadership:
    """Whether this process leads, as far as the attempts up to now prove."""

    is_leader: bool = False
    renewed_at_s: float = 0.0
    """When the last successful attempt was sent, in seconds of the local clock."""
    was_permitted: bool = False
    """Whether any attempt of this process was answered without 401 or 403."""
    denied_since_s: float | None = None
    """When the first of the latest unbroken series of denied attempts was sent."""

    def after(self, attempt: Attempt, sent_at_s: float, now_s: float) -> "Leadership":
        """The state after an attempt.

        A failed or denied renewal proves nothing about other processes, so the leader keeps its
        leadership until the deadline.
        """
        if attempt is Attempt.HELD:
            return Leadership(True, renewed_at_s=sent_at_s, was_permitted=True)
        if attempt is Attempt.NOT_HELD:
            return replace(self, is_leader=False, was_permitted=True, denied_since_s=None)
        is_leader = self.is_leader and self.remaining_s(now_s) > 0
        since_s = sent_at_s if self.denied_since_s is None else self.denied_since_s
        denied_since_s = since_s if attempt is Attempt.DENIED else None
        return replace(self, is_leader=is_leader, denied_since_s=denied_since_s)

    def remaining_s(self, now_s: float) -> float:
        """Seconds until the renew deadline of a leader; 0 when it has passed."""
        return max(0.0, self.renewed_at_s + DEADLINE_S - now_s)

    def lacks_permission(self, now_s: float) -> bool:
        """Whether denials since the start have lasted too long for an API server that starts."""
        if self.was_permitted or self.denied_since_s is None:
            return False
        return now_s - self.denied_since_s >= PERMISSION_GRACE_S


@dataclass(frozen=True, slots=True)
class ObservedLease:
    """A version of the Lease, and when it was first seen, in seconds of the local clock."""

    version: str
    at_s: float


def see(lease: Manifest | None, before: ObservedLease | None, now_s: float) -> ObservedLease | None:
    """Note a version of the Lease; a version that was seen before keeps its time."""
    if lease is None:
        return None
    version = lease["metadata"]["resourceVersion"]
    return (
        before
        if before is not None and before.version == version
        else ObservedLease(version, now_s)
    )


def decide(
    lease: Manifest | None, identity: str, seen: ObservedLease | None, now_s: float
) -> LeaseAction:
    """What `identity` should do with the Lease that it has `seen`."""
    if lease is None or seen is None:
        return LeaseAction.CREATE
    held = lease.get("spec") or {}
    holder = held.get("holderIdentity") or ""
    if holder == identity:
        return LeaseAction.RENEW
    if not holder or now_s - seen.at_s > float(held.get("leaseDurationSeconds") or DURATION_S):
        return LeaseAction.TAKE
    return LeaseAction.WAIT


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
    """The Lease without a holder, which any standby may take at once."""
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
    """A time in the format of Kubernetes' MicroTime."""
    return now.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
