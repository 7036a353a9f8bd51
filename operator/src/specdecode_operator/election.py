"""Acquires, renews and releases the Lease of the leader among several operators."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from http import HTTPStatus

from specdecode_operator import leadership
from specdecode_operator.cluster import Cluster, KubeApiError
from specdecode_operator.denials import DENIED
from specdecode_operator.errors import StartError
from specdecode_operator.kinds import LEASE, Manifest
from specdecode_operator.leadership import PERIOD_S, Attempt, Leadership, LeaseAction, ObservedLease

log = logging.getLogger(__name__)

REQUEST_S = 4.0
"""Timeout of one attempt: the renew deadline allows for two."""


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
            await asyncio.sleep(PERIOD_S)
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
                    await self.cluster.replace(leadership.released(lease, self.now()))
                    log.info("released the lease")
        except (KubeApiError, TimeoutError) as error:
            log.warning("the lease was not released", extra={"why": str(error)})

    @property
    def _path(self) -> str:
        return f"{self.namespace}/{self.name}"

    def _remaining_s(self) -> float:
        return self._state.remaining_s(self.clock())

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
        self._seen = leadership.see(lease, self._seen, self.clock())
        action = leadership.decide(lease, self.identity, self._seen, self.clock())
        if action is LeaseAction.WAIT:
            return Attempt.NOT_HELD
        wanted = leadership.written(lease, self.namespace, self.name, self.identity, self.now())
        answer = await self._write(action, wanted)
        self._seen = leadership.see(answer, self._seen, self.clock())
        return Attempt.HELD

    async def _write(self, action: LeaseAction, lease: Manifest) -> Manifest:
        if action is LeaseAction.CREATE:
            return await self.cluster.create(lease)
        return await self.cluster.replace(lease)
