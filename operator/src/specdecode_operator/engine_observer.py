"""Reads the metrics of a resource's engines, and sends them the tables of a trial.

Level-triggered: every look sends each pod the table that it should run. A restarted pod receives
its table again, and a pod keeps the table of a trial only as long as looks renew it. Each look runs
in a task of its own: a pod without a response delays no reconcile, and reconciles of other
resources not at all.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_operator.engine_client import EngineClient
from specdecode_operator.fleet import Reading
from specdecode_operator.kinds import Manifest
from specdecode_operator.observed import Key
from specdecode_operator.trial.looks import Look
from specdecode_operator.trial.snapshot import EngineSnapshot

log = logging.getLogger(__name__)

SLACK_S = 0.25
"""A look that is due within this time starts now."""

Tables = Mapping[str, Mapping[str, TableEntry]]


class EngineObserver:
    """Looks at engines. Owns the looks that run, and the finished ones until they are taken."""

    def __init__(
        self,
        engines: EngineClient,
        clock: Callable[[], float],
        wake: Callable[[Key], None] = lambda key: None,
    ) -> None:
        """Start with no look.

        Args:
            clock: monotonic, in seconds.
            wake: called with the key of a resource when a look at its engines is complete.
        """
        self._engines = engines
        self._clock = clock
        self._wake = wake
        self._latest: dict[Key, float] = {}
        self._tables: dict[Key, Tables] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}
        self._finished: dict[Key, EngineSnapshot] = {}

    def since_s(self, key: Key) -> float:
        """Seconds since the latest look at a resource began; infinite if none did."""
        latest = self._latest.get(key)
        return math.inf if latest is None else self._clock() - latest

    def is_running(self, key: Key) -> bool:
        """Whether a look at a resource is not complete yet."""
        return key in self._running

    def take(self, key: Key) -> EngineSnapshot | None:
        """The result of a complete look, once."""
        return self._finished.pop(key, None)

    def tables(self, key: Key) -> Tables:
        """The tables of the latest look; a look with other ones is due at once."""
        return self._tables.get(key, {})

    def forget(self, key: Key) -> None:
        """Drop everything about a resource."""
        self._latest.pop(key, None)
        self._finished.pop(key, None)
        self._tables.pop(key, None)
        if task := self._running.pop(key, None):
            task.cancel()

    def start(self, key: Key, owner: str, look: Look, now_s: Callable[[], float]) -> None:
        """Start a look at a resource at which none is running.

        Args:
            owner: uid of the resource; engines with API keys accept a table with this owner.
            now_s: seconds since 1970.
        """
        self._latest[key], self._tables[key] = self._clock(), look.tables
        task = asyncio.create_task(self._finish(key, owner, look, now_s))
        self._running[key] = task

    async def complete(self, key: Key) -> None:
        """Wait for the look at a resource that is running, if any."""
        if task := self._running.get(key):
            await asyncio.wait([task])

    async def _finish(self, key: Key, owner: str, look: Look, now_s: Callable[[], float]) -> None:
        try:
            self._finished[key] = await self.observe(owner, look, now_s)
        except Exception:  # the next look is due as if this one had no response
            log.exception("look failed", extra={"resource": f"{key.namespace}/{key.name}"})
        finally:
            if self._running.get(key) is asyncio.current_task():
                del self._running[key]
        self._wake(key)

    async def observe(self, owner: str, look: Look, now_s: Callable[[], float]) -> EngineSnapshot:
        """Read pods, and send each its table: a wrong one is replaced, an expiry renewed.

        Args:
            owner: uid of the resource.
            now_s: seconds since 1970.
        """
        tables = look.tables
        scraped = await self._engines.scrape(look.pods)
        readings = {each.pod_uid: each for each in scraped.readings}
        failures = dict(scraped.failures)
        sent = [pod for pod in look.pods if _uid(pod) in readings and _uid(pod) in tables]
        wrong = [pod for pod in sent if _is_wrong(readings[_uid(pod)], tables[_uid(pod)])]
        results = await asyncio.gather(
            *(
                self._engines.put_table(pod, owner, tables[_uid(pod)], look.expires_after_s)
                for pod in sent
            )
        )
        refusals: dict[str, str] = {}
        for pod, (needs_restart, error) in zip(sent, results, strict=True):
            if error:
                (refusals if needs_restart else failures)[pod["metadata"]["name"]] = error
        if not wrong:
            return EngineSnapshot(now_s(), readings, failures, refusals)
        again = await self._engines.scrape(wrong)
        readings |= {each.pod_uid: each for each in again.readings}
        return EngineSnapshot(now_s(), readings, failures, refusals)


def _is_wrong(reading: Reading, table: Mapping[str, TableEntry]) -> bool:
    """Whether a pod runs a table other than the required one."""
    return reading.key.table_hash != table_hash(Policy(reading.facts["policy"]), table)


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"]["uid"])
