"""Wins, keeps and gives back the Lease by which one of several operators works."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus

from specdecode_operator import leadership
from specdecode_operator.cluster import ApiError, Cluster
from specdecode_operator.errors import StartError
from specdecode_operator.kinds import LEASE, Manifest
from specdecode_operator.leadership import DEADLINE_S, PERIOD_S, Seen, Step

log = logging.getLogger(__name__)

DOUBT_S = 60.0
"""For how long after an outage of the API server everything is listed again and again."""

REQUEST_S = 4.0
"""A request about the Lease that takes longer is given up: the deadline allows for two."""


class LeadershipLost(Exception):
    """The Lease could not be kept: somebody else may work now, so this process must not."""


@dataclass(slots=True)
class Election:
    """One operator's part in an election. Owned by the one task that runs it."""

    cluster: Cluster
    namespace: str
    name: str
    identity: str
    clock: Callable[[], float]
    now: Callable[[], datetime]
    on_return: Callable[[], None] = lambda: None  # told for a while after the API server was away
    is_leader: bool = False
    _seen: Seen | None = None
    _renewed_s: float = 0.0
    _doubtful_until_s: float = 0.0

    async def win(self) -> bool:
        """Wait until the Lease is ours; returns whether it had to be waited for.

        Raises:
            StartError: when the Lease cannot be had for want of rights.
        """
        has_waited = False
        while not await self._try():
            if not has_waited:
                log.info("standing by", extra={"lease": f"{self.namespace}/{self.name}"})
            has_waited = True
            await asyncio.sleep(PERIOD_S)
        log.info("leading", extra={"identity": self.identity})
        return has_waited

    async def keep(self) -> None:
        """Renew for ever.

        Raises:
            LeadershipLost: when somebody else holds the Lease, or nothing could be renewed in time.
        """
        while True:
            await asyncio.sleep(PERIOD_S)
            is_ours = await self._try()
            self._note_outage(is_ours)
            age_s = self.clock() - self._renewed_s
            if not self.is_leader or (not is_ours and age_s > DEADLINE_S):
                self.is_leader = False
                raise LeadershipLost(
                    f"lease {self.namespace}/{self.name} was not renewed for {age_s:.0f} s"
                )

    def _note_outage(self, is_ours: bool) -> None:
        """Watches that are taken up while an API server begins may stay silent for a minute."""
        now_s = self.clock()
        if not is_ours:
            self._doubtful_until_s = now_s + DOUBT_S
        elif now_s < self._doubtful_until_s:
            self.on_return()

    async def release(self) -> None:
        """Give the Lease back, so that a standby need not wait; that it fails is no fault."""
        if not self.is_leader:
            return
        self.is_leader = False
        try:
            async with asyncio.timeout(REQUEST_S):
                lease = await self.cluster.get(LEASE, self.namespace, self.name)
                if lease and (lease.get("spec") or {}).get("holderIdentity") == self.identity:
                    await self.cluster.replace(leadership.released(lease, self.now()))
                    log.info("gave the lease back")
        except (ApiError, TimeoutError) as error:
            log.warning("the lease was not given back", extra={"why": str(error)})

    async def _try(self) -> bool:
        """Look at the Lease once and write it if we may; returns whether it is ours now."""
        asked_s = self.clock()
        try:
            async with asyncio.timeout(REQUEST_S):
                is_ours = await self._step()
        except TimeoutError:
            return False
        except ApiError as error:
            if error.code == HTTPStatus.FORBIDDEN:
                raise StartError(
                    f"{error}; grant the operator's service account get, create and update of "
                    "leases in this namespace, as the chart does, or run it alone with "
                    "--no-leader-election"
                ) from error
            if error.code != HTTPStatus.CONFLICT:
                log.warning("the lease cannot be read", extra={"why": str(error)})
            return False
        self.is_leader = is_ours
        if is_ours:
            self._renewed_s = asked_s
        return is_ours

    async def _step(self) -> bool:
        lease = await self.cluster.get(LEASE, self.namespace, self.name)
        self._seen = leadership.see(lease, self._seen, self.clock())
        step = leadership.decide(lease, self.identity, self._seen, self.clock())
        if step is Step.WAIT:
            return False
        wanted = leadership.written(lease, self.namespace, self.name, self.identity, self.now())
        answer = await self._write(step, wanted)
        self._seen = leadership.see(answer, self._seen, self.clock())
        return True

    async def _write(self, step: Step, lease: Manifest) -> Manifest:
        if step is Step.CREATE:
            return await self.cluster.create(lease)
        return await self.cluster.replace(lease)
