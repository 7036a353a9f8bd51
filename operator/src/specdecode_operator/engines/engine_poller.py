"""Polls the engines of all resources: metrics, degradations and downloads; sends tables of trials.

Looks at metrics begin when a reconcile finds them due. They are level-triggered: every look sends
each pod the table that it should run. A restarted pod receives its table again, and a pod keeps the
table of a trial only as long as looks renew it. Degradations are polled periodically, and queue a
resource only when they change. All of this runs in tasks of its own: a pod without a response
delays no reconcile. Only download progress is awaited by the reconcile that pins a commit to it.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from specdecode_api.report import Degradation, Progress
from specdecode_api.table import TableEntry
from specdecode_operator.engines.draft_requests import DraftRequests
from specdecode_operator.engines.engine_client import EngineClient
from specdecode_operator.fleet import Reading
from specdecode_operator.judge.evidence import ArmEvidence, ArmKey
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.observed import Key
from specdecode_operator.objects.pods import is_ready
from specdecode_operator.trial.strategies.context import EngineSnapshot
from specdecode_operator.trial.strategies.looks import Look

log = logging.getLogger(__name__)

SLACK_S = 0.25
"""A look that is due within this time starts now."""
PERIOD_S = 30.0
"""Between two polls of degradations."""
MAX_PODS = 64
"""Engines whose degradations are polled per period; more engines take turns."""
CONCURRENT_POLLS = 8

Tables = Mapping[str, Mapping[str, TableEntry]]


@dataclass(slots=True)
class _Looks:
    """The latest look at the engines of a resource, and its result until it is taken."""

    began_s: float
    tables: Tables
    task: asyncio.Task[None] | None = None
    finished: EngineSnapshot | None = None


@dataclass(slots=True)
class _Serving:
    """The ready pods of all resources by uid, the one that was polled longest ago first."""

    pods: dict[str, tuple[Key, Manifest]] = field(default_factory=dict)
    degraded: dict[str, tuple[Degradation, ...]] = field(default_factory=dict)
    """Degradations by uid of the pods that have any."""
    uids: dict[Key, frozenset[str]] = field(default_factory=dict)

    def replace(self, key: Key, pods: Iterable[Manifest]) -> None:
        """Replace the ready pods of a resource; known ones keep their turn."""
        found = {_uid(pod): (key, pod) for pod in pods}
        for uid in self.uids.pop(key, frozenset()) - found.keys():
            del self.pods[uid]
            self.degraded.pop(uid, None)
        self.pods |= found
        if found:
            self.uids[key] = frozenset(found)

    def next_batch(self) -> list[str]:
        """The uids of the pods whose turn it is; they are last then."""
        batch = list(islice(self.pods, MAX_PODS))
        for uid in batch:
            self.pods[uid] = self.pods.pop(uid)
        return batch


class EnginePoller:
    """Polls engines. Owns what it has read until a reconcile takes it. Part of the event loop."""

    def __init__(
        self,
        engines: EngineClient,
        clock: Callable[[], float],
        wake: Callable[[Key], None] = lambda key: None,
    ) -> None:
        """Start without engines.

        Args:
            clock: monotonic, in seconds.
            wake: called with the key of a resource when a look at its engines is complete, and when
                their degradations change.
        """
        self._engines = engines
        self._clock = clock
        self._wake = wake
        self.drafts = DraftRequests(engines, clock, wake)
        self._looks: dict[Key, _Looks] = {}
        self._serving = _Serving()

    def use_token(self, namespace: str, token: str) -> None:
        """From now on, send a token with changes of the engines of a namespace."""
        self._engines.use_token(namespace, token)

    async def progress(self, pods: Sequence[Manifest]) -> Mapping[str, Progress]:
        """Download progress by pod name, of the pods that are fetching models and respond."""
        return await self._engines.progress(pods)

    def follow(self, key: Key, pods: Iterable[Manifest]) -> None:
        """From now on, poll the degradations of those pods of a resource that are ready."""
        self._serving.replace(key, filter(is_ready, pods))

    def degraded(self, pods: Iterable[Manifest]) -> tuple[tuple[str, Degradation], ...]:
        """The latest degradations of these pods, each with the name of its pod."""
        latest = self._serving.degraded
        return tuple(
            (pod["metadata"]["name"], each) for pod in pods for each in latest.get(_uid(pod), ())
        )

    async def forever(self, period_s: float = PERIOD_S) -> None:
        """Poll degradations until cancelled, while this process leads.

        Everything ends with that time: another leader sends the tables then. What this one has read
        would be older than what is stored by the time it leads again.
        """
        try:
            while True:
                await asyncio.sleep(period_s)
                await self.poll_degradations()
        finally:
            for key in [*self._looks]:
                self.stop_looks(key)
            self._serving = _Serving()
            self.drafts.stop()

    async def poll_degradations(self) -> None:
        """Poll the next engines, and queue the resource of each engine whose report changed."""
        gate = asyncio.Semaphore(CONCURRENT_POLLS)

        async def poll(uid: str, pod: Manifest) -> None:
            async with gate:
                report = await self._degraded(pod)
            if report is None or uid not in self._serving.pods:
                return
            if report == self._serving.degraded.get(uid, ()):
                return
            self._serving.degraded[uid] = report
            self._wake(self._serving.pods[uid][0])

        batch = self._serving.next_batch()
        await asyncio.gather(*(poll(uid, self._serving.pods[uid][1]) for uid in batch))

    async def _degraded(self, pod: Manifest) -> tuple[Degradation, ...] | None:
        try:
            return await self._engines.degraded(pod)
        except Exception:  # the response of one pod must not end the polls of all others
            metadata = pod["metadata"]
            name = f"{metadata.get('namespace', '')}/{metadata['name']}"
            log.exception("poll of degradations failed", extra={"pod": name})
            return None

    def since_s(self, key: Key) -> float:
        """Seconds since the latest look at a resource began; infinite if none did."""
        looks = self._looks.get(key)
        return math.inf if looks is None else self._clock() - looks.began_s

    def is_looking(self, key: Key) -> bool:
        """Whether a look at a resource is not complete yet."""
        looks = self._looks.get(key)
        return looks is not None and looks.task is not None

    def take(self, key: Key) -> EngineSnapshot | None:
        """The result of a complete look, once."""
        if (looks := self._looks.get(key)) is None:
            return None
        found, looks.finished = looks.finished, None
        return found

    def tables(self, key: Key) -> Tables:
        """The tables of the latest look; a look with other ones is due at once."""
        looks = self._looks.get(key)
        return {} if looks is None else looks.tables

    def stop_looks(self, key: Key) -> None:
        """End the look at a resource that is running, and drop the result of the latest one."""
        looks = self._looks.pop(key, None)
        if looks is not None and looks.task is not None:
            looks.task.cancel()

    def forget(self, key: Key) -> None:
        """Drop everything about a resource."""
        self.stop_looks(key)
        self.follow(key, ())
        self.drafts.forget(key)

    def look(self, key: Key, owner: str, look: Look, now_s: Callable[[], float]) -> None:
        """Start a look at a resource at which none is running.

        Args:
            owner: uid of the resource; engines with API keys accept a table with this owner.
            now_s: seconds since 1970.
        """
        latest = self._looks.get(key)
        looks = _Looks(self._clock(), look.tables, finished=latest.finished if latest else None)
        self._looks[key] = looks
        looks.task = asyncio.create_task(self._finish(key, looks, owner, look, now_s))

    async def complete(self, key: Key) -> None:
        """Wait for the look at a resource that is running, if any."""
        looks = self._looks.get(key)
        if looks is not None and looks.task is not None:
            await asyncio.wait([looks.task])

    async def _finish(
        self, key: Key, looks: _Looks, owner: str, look: Look, now_s: Callable[[], float]
    ) -> None:
        try:
            looks.finished = await self.observe(owner, look, now_s)
        except Exception:  # the next look is due as if this one had no response
            log.exception("look failed", extra={"resource": f"{key.namespace}/{key.name}"})
        finally:
            looks.task = None
        self._wake(key)

    async def observe(self, owner: str, look: Look, now_s: Callable[[], float]) -> EngineSnapshot:
        """Read pods, and send each its table: a wrong one is replaced, an expiry renewed.

        A pod whose table was replaced has what it counted before, under the key of the new table.

        Args:
            owner: uid of the resource.
            now_s: seconds since 1970.
        """
        tables = look.tables
        scraped = await self._engines.scrape(look.pods)
        readings = {each.pod_uid: each for each in scraped.readings}
        failures = dict(scraped.failures)
        sent = [pod for pod in look.pods if _uid(pod) in readings and _uid(pod) in tables]
        results = await asyncio.gather(
            *(
                self._engines.put_table(pod, owner, tables[_uid(pod)], look.expires_after_s)
                for pod in sent
            )
        )
        refusals: dict[str, str] = {}
        for pod, result in zip(sent, results, strict=True):
            if result.error:
                into = refusals if result.needs_restart else failures
                into[pod["metadata"]["name"]] = result.error
            else:
                uid = _uid(pod)
                readings[uid] = _under_table(readings[uid], result.table_hash)
        return EngineSnapshot(now_s(), readings, failures, refusals)


def _under_table(reading: Reading, table_hash: str) -> Reading:
    """A reading of a pod that has taken another table since."""
    key = ArmKey(reading.key.config_hash, table_hash)
    if key == reading.key:
        return reading
    facts = {**reading.facts, "table_hash": table_hash}
    return replace(reading, key=key, arms={key: ArmEvidence(), **reading.arms}, facts=facts)


def _uid(pod: Manifest) -> str:
    return str(pod["metadata"]["uid"])
