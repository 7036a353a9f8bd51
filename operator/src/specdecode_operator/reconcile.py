"""Brings one resource to what its spec says: observe, decide, act, tell."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from specdecode_api import names
from specdecode_api.report import Degradation, Progress
from specdecode_operator import events, pods, trial
from specdecode_operator.cache import Cache
from specdecode_operator.cluster import ApiError, Cluster
from specdecode_operator.definition import Definition
from specdecode_operator.echo import tells_more
from specdecode_operator.image_volumes import REFUSED, image_volumes
from specdecode_operator.kinds import BY_KIND, DEPLOYMENT, ChildId, Manifest, child_id
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key, Observed, controller_of, is_controlled_by
from specdecode_operator.outcome import Obstacle, Outcome, Stopped
from specdecode_operator.plan import Cause, Plan, Write, plan, recorded
from specdecode_operator.resource import ResourceError
from specdecode_operator.settings import Settings
from specdecode_operator.sighting import Lookout
from specdecode_operator.status import status
from specdecode_operator.trial import Sight
from specdecode_operator.trial.record import BadRecord

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""After an obstacle: nobody tells us when a stranger's object goes away."""

LOOK_SOON_S = 0.5
"""After a step of a trial that gives pods other tables."""

LOOK_AT_PROGRESS_S = 10.0
"""While models are fetched: pods answer when asked, and tell nothing by themselves."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles resources; level-triggered: no call knows what happened, only what is."""

    cluster: Cluster
    cache: Cache
    settings: Settings
    metrics: Metrics
    now: Callable[[], datetime]
    peek: Callable[[Sequence[Manifest]], Awaitable[Mapping[str, Progress]]]
    lookout: Lookout
    definition: Definition = field(default_factory=Definition)
    degraded: Callable[[Sequence[Manifest]], tuple[tuple[str, Degradation], ...]] = lambda _: ()

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one resource; returns after how many seconds to look again, if at all."""
        observed = self.cache.observe(key)
        if observed is None:
            self.lookout.forget(key)
            return None
        observed = replace(observed, at=self.now(), degraded=self.degraded(observed.pods))
        is_fetching = any(map(pods.is_fetching, observed.pods))
        if is_fetching:
            observed = replace(observed, progress=await self.peek(observed.pods))
        look_again_s, sight = await self._look(key, observed)
        now_s = sight.at_s if sight else self.now().timestamp()
        decided = plan(observed, self.settings, now_s, sight)
        outcome = await self._act(observed, decided)
        told = await self._tell(observed, decided, outcome)
        has_turned = _has_turned(decided, observed)
        if has_turned:
            self.lookout.forget(key)  # the next look, which exchanges tables, is due at once
        waits_s = (
            0.0 if _was_changed_meanwhile(observed, (*outcome.written, *told)) else None,
            LOOK_AT_PROGRESS_S if is_fetching else None,
            LOOK_AGAIN_S if outcome.stopped else None,
            decided.pace.look_again_s,
            pods.patience_left_s(observed.pods, observed.at),
            look_again_s,
            LOOK_SOON_S if has_turned else None,
        )
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    async def _look(self, key: Key, observed: Observed) -> tuple[float | None, Sight | None]:
        """Look at the pods where that is due; says when it is the next time, if ever."""
        try:
            record = recorded(observed)
            every_s = trial.look_every_s(observed, record)
        except (ResourceError, BadRecord):
            return None, None
        if every_s is None:
            self.lookout.forget(key)
            return None, None
        due_s = self.lookout.due_s(key, every_s)
        if due_s > 0:
            return due_s, None
        tables = trial.tables(observed, record)
        sight = await self.lookout.look(key, observed.uid, observed.pods, tables, self._now_s)
        return every_s, sight

    def _now_s(self) -> float:
        return self.now().timestamp()

    async def _act(self, observed: Observed, decided: Plan) -> Outcome:
        """Write the workload after all it needs; what cannot be written stops what builds on it."""
        written: list[Manifest] = []
        removed: list[ChildId] = []
        for writes in _stages(decided.writes):
            # Together: a resource's latency is that of its requests one after another.
            answers = await asyncio.gather(
                *(self._write(observed, write) for write in writes), return_exceptions=True
            )
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
            written += [answer for answer in answers if isinstance(answer, dict)]
            stopped = next((answer for answer in answers if isinstance(answer, Stopped)), None)
            if stopped is not None:
                log.warning("stopped", extra={"reason": stopped.reason, "why": stopped.message})
                return Outcome(tuple(written), tuple(removed), stopped)
        for child in decided.prunes:
            await self.cluster.delete(child)
            self.metrics.prunes.labels(kind=child["kind"]).inc()
            removed.append(child_id(child))
            log.info("pruned", extra=_fields(child))
        return Outcome(tuple(written), tuple(removed))

    async def _write(self, observed: Observed, write: Write) -> Manifest | Stopped:
        manifest = write.manifest
        live = None if write.is_present else await self._find(manifest)
        if live is not None and not is_controlled_by(live, observed.uid):
            return _stranger(live, observed)
        force = write.is_present or live is not None
        try:
            if wanted := image_volumes(manifest):
                trial = await self.cluster.apply(manifest, force=force, is_trial=True)
                if not wanted <= image_volumes(trial):
                    return Stopped(Obstacle.IMAGE_VOLUMES_OFF, REFUSED)
            answer = await self.cluster.apply(manifest, force=force)
        except ApiError as error:
            self.metrics.applies.labels(kind=manifest["kind"], outcome="error").inc()
            if error.is_transient:
                raise
            return Stopped(Obstacle.APPLY_FAILED, str(error))
        self.cache.put(answer)
        self.metrics.applies.labels(kind=manifest["kind"], outcome=write.cause.value).inc()
        if write.cause is Cause.DRIFTED:
            self.metrics.drifts.labels(kind=manifest["kind"]).inc()
        log.info("applied", extra=_fields(manifest) | {"cause": write.cause.value})
        return answer

    async def _find(self, manifest: Manifest) -> Manifest | None:
        """Look past the cache, which holds only objects with our label."""
        metadata = manifest["metadata"]
        kind = BY_KIND[manifest["kind"]]
        return await self.cluster.get(kind, metadata["namespace"], metadata["name"])

    async def _tell(self, observed: Observed, decided: Plan, outcome: Outcome) -> list[Manifest]:
        """Write the status if it differs, and post an event for what changed in it.

        Returns what the API server answered, if it was asked.
        """
        if decided.is_ending:
            return []
        now = self.now()
        told = status(observed, decided, outcome, now, self.definition.lacking)
        told = self.definition.keep(told)
        if told == observed.resource.get("status"):
            return []
        answer = await self.cluster.apply_status(observed.resource, told)
        self.cache.put(answer)
        self.metrics.status_writes.inc()
        for ended in events.ended_trials(observed.resource, told):
            self.metrics.trials.labels(kind=ended["kind"], verdict=ended["verdict"]).inc()
        for event in events.transitions(observed.resource, told, now):
            await self.cluster.post_event(event)
        return [answer]


def _was_changed_meanwhile(observed: Observed, answers: Iterable[Manifest]) -> bool:
    """Whether others changed what we wrote to, so that there is more to do."""
    known = {**observed.children, child_id(observed.resource): observed.resource}
    befores = ((known.get(child_id(answer)), answer) for answer in answers)
    return any(before is not None and tells_more(before, answer) for before, answer in befores)


def _has_turned(decided: Plan, observed: Observed) -> bool:
    """Whether pods should now run other tables than before this reconcile."""
    if decided.step is None:
        return False
    try:
        before = recorded(observed)
    except BadRecord:
        return True
    after = decided.step.record
    return trial.tables(observed, before) != trial.tables(observed, after)


def _stages(writes: tuple[Write, ...]) -> tuple[list[Write], list[Write]]:
    """What a workload needs, and the workload."""
    workload = [write for write in writes if write.manifest["kind"] == DEPLOYMENT.kind]
    return [write for write in writes if write not in workload], workload


def _stranger(live: Manifest, observed: Observed) -> Stopped:
    """Say whose object is in the way: that of our namesake that was deleted, or a stranger's."""
    kind, name = live["kind"], live["metadata"]["name"]
    owner = controller_of(live) or {}
    namesake = observed.resource["metadata"]["name"]
    if (owner.get("kind"), owner.get("name")) == (names.KIND, namesake):
        message = f"{kind} {name} belongs to a deleted resource of this name; waiting until it goes"
        return Stopped(Obstacle.WAITING_FOR_GARBAGE_COLLECTION, message)
    message = (
        f"{kind} {name} exists and is not controlled by this resource, so it is left alone; "
        "delete it, or choose another name for the resource"
    )
    return Stopped(Obstacle.NAME_CONFLICT, message)


def _fields(manifest: Manifest) -> dict[str, str]:
    metadata = manifest["metadata"]
    return {"kind": manifest["kind"], "namespace": metadata["namespace"], "child": metadata["name"]}
