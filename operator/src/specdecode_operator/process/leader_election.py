"""Leader election on a Lease among several operators.

The state machine is pure and knows only the local clock: a standby counts from when it first saw
the current version of the Lease, a leader from when it sent its last successful renewal. Clocks of
two processes are never compared, so clock skew does no harm. `Election` does the requests.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus

from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.denials import DENIED, PERMISSION_GRACE_S
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.objects.kinds import LEASE, Manifest
from specdecode_operator.process.errors import StartError

log = logging.getLogger(__name__)

DURATION_S = 12.0
"""A Lease that has not been renewed for this long may be taken by another process."""
DEADLINE_S = 8.0
"""A leader that could not renew for this long stops working: before another process may start."""
PERIOD_S = 2.0
"""Time between two attempts to acquire or renew the Lease."""
REQUEST_S = 3.0
"""Timeout of one attempt: the renew deadline allows for two."""


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
    """A version of the Lease, and when it expires, in seconds of the local clock."""

    version: str
    expires_at_s: float


def see(lease: Manifest | None, before: ObservedLease | None, now_s: float) -> ObservedLease | None:
    """Note a version of the Lease; it expires its duration after it was first seen."""
    if lease is None:
        return None
    version = lease["metadata"]["resourceVersion"]
    if before is not None and before.version == version:
        return before
    duration_s = float((lease.get("spec") or {}).get("leaseDurationSeconds") or DURATION_S)
    return ObservedLease(version, now_s + duration_s)


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
    if not holder or now_s >= seen.expires_at_s:
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


@dataclass(slots=True)
class Election:
    """One operator's part in a leader election. Owned by the one task that runs it."""

    cluster: Cluster
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    now: Callable[[], datetime]
    _state: Leadership = field(default_factory=Leadership)
    _seen: ObservedLease | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this process holds the Lease, and the renew deadline has not passed."""
        return self._state.is_leader

    async def acquire(self) -> bool:
        """Stand by until this process holds the Lease; returns whether it had to wait.

        Raises:
            StartError: since the start of the process every attempt was answered with 401 or 403,
                for `denials.PERMISSION_GRACE_S`.
        """
        has_waited = False
        while not await self._attempt():
            if not has_waited:
                log.info("standing by", extra={"lease": self._path})
            has_waited = True
            await asyncio.sleep(self._standby_s())
        log.info("leading", extra={"identity": self.identity})
        return has_waited

    async def keep(self) -> None:
        """Renew the Lease; returns when another process holds it or the deadline has passed."""
        while self.is_leader:
            await asyncio.sleep(min(PERIOD_S, self._remaining_s()))
            await self._attempt()
        age_s = round(self.clock() - self._state.renewed_at_s, 1)
        log.warning("lost the lease", extra={"lease": self._path, "not_renewed_for_s": age_s})

    async def release(self) -> None:
        """Give the Lease back, so that a standby need not wait; a failure is only logged."""
        if not self.is_leader:
            return
        self._state = Leadership()
        try:
            async with asyncio.timeout(REQUEST_S):
                lease = await self.cluster.get(LEASE, self.namespace, self.name)
                if lease and (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                    await self.cluster.replace(released(lease, self.now()))
                    log.info("released the lease")
        except (KubeApiError, TimeoutError) as error:
            log.warning("the lease was not released", extra={"why": str(error)})

    @property
    def _path(self) -> str:
        return f"{self.namespace}/{self.name}"

    def _remaining_s(self) -> float:
        return self._state.remaining_s(self.clock())

    def _standby_s(self) -> float:
        """Seconds until the next attempt of a standby: not later than the Lease expires."""
        left_s = self._seen.expires_at_s - self.clock() if self._seen is not None else 0.0
        return min(PERIOD_S, left_s) if left_s > 0 else PERIOD_S

    async def _attempt(self) -> bool:
        """Acquire or renew the Lease once; returns whether this process leads now."""
        sent_at_s = self.clock()
        try:
            async with asyncio.timeout(
                min(REQUEST_S, self._remaining_s()) if self.is_leader else REQUEST_S
            ):
                attempt = await self._step()
        except TimeoutError:
            attempt = Attempt.FAILED
        except KubeApiError as error:
            attempt = Attempt.DENIED if error.code in DENIED else Attempt.FAILED
            self._state = self._state.after(attempt, sent_at_s, self.clock())
            self._report(error)
            return self.is_leader
        self._state = self._state.after(attempt, sent_at_s, self.clock())
        return self.is_leader

    def _report(self, error: KubeApiError) -> None:
        if self._state.lacks_permission(self.clock()):
            raise StartError(
                f"{error}; grant the operator's service account get, create and update of "
                "leases in this namespace, as the chart does, or run a single operator with "
                "--no-leader-election"
            ) from error
        if error.code != HTTPStatus.CONFLICT:
            log.warning("the lease cannot be read or written", extra={"why": str(error)})

    async def _step(self) -> Attempt:
        lease = await self.cluster.get(LEASE, self.namespace, self.name)
        self._seen = see(lease, self._seen, self.clock())
        action = decide(lease, self.identity, self._seen, self.clock())
        if action is LeaseAction.WAIT:
            return Attempt.NOT_HELD
        wanted = written(lease, self.namespace, self.name, self.identity, self.now())
        answer = await self._write(action, wanted)
        self._seen = see(answer, self._seen, self.clock())
        return Attempt.HELD

    async def _write(self, action: LeaseAction, lease: Manifest) -> Manifest:
        if action is LeaseAction.CREATE:
            return await self.cluster.create(lease)
        return await self.cluster.replace(lease)
