"""Reconciles one custom resource with its spec: observe, decide, act, report."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from http import HTTPStatus

from specdecode_api.report import Degradation, Progress
from specdecode_operator import events, pods, trial
from specdecode_operator.activity import ActivityLog
from specdecode_operator.cache import Cache
from specdecode_operator.cluster import Cluster, KubeApiError
from specdecode_operator.concurrent_changes import changed_concurrently
from specdecode_operator.denials import Denials
from specdecode_operator.engine_observer import SLACK_S, EngineObserver
from specdecode_operator.image_volumes import REFUSED, image_volumes
from specdecode_operator.kinds import BY_KIND, DEPLOYMENT, ChildId, Manifest, child_id, log_fields
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key, Observed, is_controlled_by
from specdecode_operator.outcome import Blocked, BlockReason, Outcome, blocked_by
from specdecode_operator.plan import Cause, Plan, Write, plan
from specdecode_operator.rollout import ImageRollouts, Rollout, hash_of_template, rollout
from specdecode_operator.served_crd import ServedCrd
from specdecode_operator.settings import Settings
from specdecode_operator.stable_pods import running_image
from specdecode_operator.status import status
from specdecode_operator.trial.projection import TrialObjects
from specdecode_operator.trial.snapshot import EngineSnapshot
from specdecode_operator.trial.stored import RecordMemory, StateMark
from specdecode_operator.update_strategy import overdue_pods

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""After a block: unowned objects are not watched, so their deletion causes no event."""

LOOK_AFTER_CONFLICT_S = 1.0
"""Should the event of the change that refused a status be late."""

_NOT_ABOUT_FIELDS = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""Answers to a dry run that the write itself reports."""

LOOK_AT_PROGRESS_S = 10.0
"""While models are downloaded: progress is only available by polling."""


@dataclass(frozen=True, slots=True)
class Reconciler:
    """Reconciles custom resources; level-triggered: it compares states, not events."""

    cluster: Cluster
    cache: Cache
    settings: Settings
    metrics: Metrics
    now: Callable[[], datetime]
    fetch_progress: Callable[[Sequence[Manifest]], Awaitable[Mapping[str, Progress]]]
    observer: EngineObserver
    served_crd: ServedCrd = field(default_factory=ServedCrd)
    degraded: Callable[[Sequence[Manifest]], tuple[tuple[str, Degradation], ...]] = lambda _: ()
    denials: Denials[Key] = field(default_factory=lambda: Denials(time.monotonic))
    memories: dict[Key, RecordMemory] = field(default_factory=dict)
    stored: dict[Key, StateMark] = field(default_factory=dict)
    """State of trials that was written last."""
    image_rollouts: ImageRollouts = field(init=False)
    progress: dict[Key, float] = field(default_factory=dict)
    """Monotonic time of the latest progress of each running trial."""
    activities: ActivityLog = field(default_factory=ActivityLog)

    def __post_init__(self) -> None:
        limit = self.settings.max_concurrent_rollouts
        object.__setattr__(self, "image_rollouts", ImageRollouts(limit))

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one resource; returns the seconds until the next reconcile, if one is due."""
        observed = self.cache.observe(key)
        if observed is None:
            self.observer.forget(key)
            self.denials.clear(key)
            for known in (self.memories, self.stored, self.progress):
                known.pop(key, None)
            self.activities.forget(key)
            self.image_rollouts.forget(key)
            return None
        observed = replace(observed, at=self.now(), degraded=self.degraded(observed.pods))
        is_fetching = any(map(pods.is_fetching, observed.pods))
        if is_fetching:
            observed = replace(observed, progress=await self.fetch_progress(observed.pods))
        observed = replace(observed, node_events=await self._node_events(observed))
        snapshot = self.observer.take(key)
        self._note_rollout(key, observed)
        now_s = snapshot.at_s if snapshot else self._now_s()
        if snapshot is not None:
            self.activities.add(key, observed.uid, snapshot.readings.values(), snapshot.at_s)
        shown = observed.resource.get("status") or {}
        observed = replace(
            observed,
            activity=self.activities.extended(key, shown.get("activity")),
            measured=self.activities.measured(key, shown.get("measured")),
        )
        decided = await self._decide(key, observed, now_s, snapshot)
        self._remember(key, decided.memory)
        outcome = await self._act(key, observed, decided)
        if outcome.blocked is None:
            self.denials.clear(key)
        if outcome.is_state_stored:
            await self._announce(observed, decided)
        answers, is_reported = await self._report(observed, decided, outcome)
        has_stored = self._note_stored(
            key, decided, is_done=outcome.is_state_stored and is_reported
        )
        # What is not stored must not be tried: its tables are not sent.
        is_stored = outcome.is_state_stored and is_reported and not outcome.trial_error
        look_again_s = self._look(key, observed, decided) if is_stored else None
        waits_s = (
            0.0 if _has_concurrent_changes(observed, (*outcome.written, *answers)) else None,
            LOOK_AT_PROGRESS_S if is_fetching else None,
            LOOK_AGAIN_S if outcome.blocked or outcome.trial_error else None,
            LOOK_AGAIN_S if self.image_rollouts.is_waiting(key) else None,
            # What is stored now is in force from the next step on.
            0.0 if has_stored or (decided.objects.creates and is_stored) else None,
            LOOK_AFTER_CONFLICT_S if not is_reported else None,
            decided.strategy.look_again_s,
            pods.patience_left_s(observed.pods, observed.at),
            look_again_s,
        )
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    async def _node_events(self, observed: Observed) -> tuple[Manifest, ...]:
        """Events about pods for which a node may be coming.

        Read only before a rollout continues in place: the API server searches all events of the
        namespace. Errors are raised, because without events an engine might end needlessly.
        """
        found = [await self.cluster.events_about(pod) for pod in overdue_pods(observed)]
        return tuple(event for events in found for event in events)

    async def _decide(
        self, key: Key, observed: Observed, now_s: float, snapshot: EngineSnapshot | None
    ) -> Plan:
        """Plan outside the event loop, because that takes milliseconds.

        A thread must not begin rollouts, which the event loop counts: a plan that would begin one
        is made again when the rollout is admitted.
        """
        given = (observed, self.settings, now_s, snapshot, self.memories.get(key))
        asked: list[Key] = []

        def may_roll() -> bool:
            asked.append(key)
            return self.image_rollouts.is_rolling(key)

        decided = await asyncio.to_thread(plan, *given, may_roll)
        is_waiting = bool(asked) and not self.image_rollouts.is_rolling(key)
        if is_waiting and self.image_rollouts.admit(key):
            return await asyncio.to_thread(plan, *given, may_roll)
        return decided

    def _note_rollout(self, key: Key, observed: Observed) -> None:
        """Count a resource among those that roll to the default image until it is complete."""
        live = observed.children.get(ChildId(DEPLOYMENT.kind, key.name))
        if live is None or running_image(observed, key.name) != self.settings.engine_image:
            self.image_rollouts.forget(key)
            return
        new = hash_of_template(live)
        stable = filter(pods.is_stable, observed.pods)
        self.image_rollouts.note(
            key,
            is_complete=rollout(live) is Rollout.COMPLETE,
            has_old_pods=any(pods.config_hash_of(pod) != new for pod in stable),
        )

    def stalled_s(self) -> float:
        """Longest time since a running trial made progress, in seconds; 0 without trials."""
        now_s = time.monotonic()
        # copied first: metrics are read by another thread
        return max((now_s - latest_s for latest_s in list(self.progress.values())), default=0.0)

    def _remember(self, key: Key, memory: RecordMemory | None) -> None:
        """Keep the state of trials; what is to be stored changes when a trial makes progress."""
        if memory is None:
            return
        before = self.memories.get(key)
        self.memories[key] = memory
        if memory.record.trial is None:
            self.progress.pop(key, None)
        elif before is None or before.mark.trial != memory.mark.trial:
            self.progress[key] = time.monotonic()

    def _note_stored(self, key: Key, decided: Plan, *, is_done: bool) -> bool:
        """Whether new state was stored now.

        A definition that is older than the operator drops fields of the state. So the same state,
        stored again, is not new.
        """
        if decided.memory is None or not is_done:
            self.stored.pop(key, None)
            return False
        before, self.stored[key] = self.stored.get(key), decided.memory.mark
        return decided.has_new_state and before != decided.memory.mark

    def _look(self, key: Key, observed: Observed, decided: Plan) -> float | None:
        """Start a look at the engines if one is due; returns the seconds until the next one.

        A running look wakes the resource when it is complete.
        """
        if decided.step is None:
            self.observer.forget(key)
            return None
        since_s = self.observer.since_s(key)
        look = trial.next_look(observed, decided.step.record, self._now_s(), since_s)
        if look is None:
            self.observer.forget(key)
            return None
        if self.observer.is_running(key):
            return None
        if look.due_s > SLACK_S and look.tables == self.observer.tables(key):
            return look.due_s
        self.observer.start(key, observed.uid, look, self._now_s)
        return None

    def _now_s(self) -> float:
        return self.now().timestamp()

    async def _act(self, key: Key, observed: Observed, decided: Plan) -> Outcome:
        """Write the workload after its dependencies; a blocked write stops the following ones."""
        written: list[Manifest] = []
        removed: list[ChildId] = []
        if rejected := await self._rejected_template(observed, decided):
            log.warning("blocked", extra={"reason": rejected.reason, "why": rejected.message})
            return Outcome(is_state_stored=False, blocked=rejected)
        for writes in _stages(decided.writes):
            answers = await self._write_all(key, observed, writes)
            written += [answer for answer in answers if isinstance(answer, dict)]
            blocked = next((answer for answer in answers if isinstance(answer, Blocked)), None)
            if blocked is not None:
                log.warning("blocked", extra={"reason": blocked.reason, "why": blocked.message})
                return Outcome(tuple(written), tuple(removed), blocked, is_state_stored=False)
        for child in decided.prunes:
            await self.cluster.delete(child)
            self.metrics.prunes.labels(kind=child["kind"]).inc()
            removed.append(child_id(child))
            log.info("pruned", extra=log_fields(child))
        is_stored, error = await self._store(decided.objects)
        if is_stored:
            error = await self._write_trial(key, observed, decided, written)
        return Outcome(tuple(written), tuple(removed), is_state_stored=is_stored, trial_error=error)

    async def _rejected_template(self, observed: Observed, decided: Plan) -> Blocked | None:
        """Try a Deployment with a user's template by a dry run, before anything is written."""
        template = (observed.resource.get("spec") or {}).get("template") or {}
        workload = [each for each in decided.writes if each.manifest["kind"] == DEPLOYMENT.kind]
        if not template.get("spec") or not workload:
            return None
        try:
            await self.cluster.apply(workload[0].manifest, force=True, is_trial=True)
        except KubeApiError as error:
            if error.is_transient or error.code in _NOT_ABOUT_FIELDS:
                return None
            message = f"{error}; correct spec.template, or the field that the message names"
            return Blocked(BlockReason.TEMPLATE_REJECTED, message)
        return None

    async def _write_trial(
        self, key: Key, observed: Observed, decided: Plan, written: list[Manifest]
    ) -> str:
        """Write the objects of trials after all others; returns why that failed, if it did.

        A trial never blocks the resource: whatever fails here is tried again later.
        """
        for writes in _stages(decided.trial_writes):
            try:
                answers = await self._write_all(key, observed, writes)
            except KubeApiError as error:
                log.warning("trial not written", extra={"why": str(error)})
                return str(error)
            written += [answer for answer in answers if isinstance(answer, dict)]
            blocked = next((answer for answer in answers if isinstance(answer, Blocked)), None)
            if blocked is not None:
                log.warning("trial blocked", extra={"why": blocked.message})
                return blocked.message
        return ""

    async def _store(self, objects: TrialObjects) -> tuple[bool, str]:
        """Write revisions and SpecDecodeTrials; returns whether that succeeded, or why not.

        A conflict means that a trial has changed meanwhile, which its event reports.
        """
        try:
            for manifest in objects.revisions:
                self.cache.put(await self.cluster.apply(manifest, force=True))
            for manifest in objects.creates:
                self.cache.put(await self.cluster.create_trial(manifest))
            for each, owned in objects.adoptions:
                self.cache.put(await self.cluster.adopt_trial(each, owned))
            for each, new in objects.statuses:
                self.cache.put(await self.cluster.apply_trial_status(each, new))
            for each in objects.deletes:
                await self.cluster.delete(each)
        except KubeApiError as error:
            if error.code in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                return False, ""
            log.warning("SpecDecodeTrial not written", extra={"why": str(error)})
            return False, str(error)
        return True, ""

    async def _write_all(
        self, key: Key, observed: Observed, writes: Iterable[Write]
    ) -> list[Manifest | Blocked]:
        """Write concurrently: sequential requests would add up to the latency of a reconcile."""
        answers = await asyncio.gather(
            *(self._write(key, observed, write) for write in writes), return_exceptions=True
        )
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _write(self, key: Key, observed: Observed, write: Write) -> Manifest | Blocked:
        manifest = write.manifest
        try:
            live = None if write.is_present else await self._find(manifest)
            if live is not None and not is_controlled_by(live, observed.uid):
                return blocked_by(live, observed)
            force = write.is_present or live is not None
            if wanted := image_volumes(manifest):
                trial = await self.cluster.apply(manifest, force=force, is_trial=True)
                if not wanted <= image_volumes(trial):
                    return Blocked(BlockReason.IMAGE_VOLUMES_OFF, REFUSED)
            answer = await self.cluster.apply(manifest, force=force)
        except KubeApiError as error:
            self.metrics.applies.labels(kind=manifest["kind"], outcome="error").inc()
            if error.is_transient or self.denials.is_recent(key, error.code):
                raise
            return Blocked(BlockReason.APPLY_FAILED, str(error))
        self.cache.put(answer)
        self.metrics.applies.labels(kind=manifest["kind"], outcome=write.cause.value).inc()
        if write.cause is Cause.DRIFTED:
            self.metrics.drifts.labels(kind=manifest["kind"]).inc()
        log.info("applied", extra=log_fields(manifest) | {"cause": write.cause.value})
        return answer

    async def _find(self, manifest: Manifest) -> Manifest | None:
        """Read from the API server; the cache has only objects with the operator's label."""
        metadata = manifest["metadata"]
        kind = BY_KIND[manifest["kind"]]
        return await self.cluster.get(kind, metadata["namespace"], metadata["name"])

    async def _announce(self, observed: Observed, decided: Plan) -> None:
        """Count trials that ended, and post events of trials whose phase changes."""
        for before, new in decided.objects.statuses:
            if events.has_ended(before, new):
                labels = {"kind": new.get("strategy", ""), "verdict": new["verdict"]}
                self.metrics.trials.labels(**labels).inc()
            if event := events.of_trial(observed.resource, before, new, self.now()):
                await self.cluster.post_event(event)

    async def _report(
        self, observed: Observed, decided: Plan, outcome: Outcome
    ) -> tuple[list[Manifest], bool]:
        """Write the status if it differs, and post events for its changes.

        Returns the response of the API server, if a request was sent, and whether the status is
        written.
        """
        if decided.is_ending:
            return [], True
        now = self.now()
        new = status(observed, decided, outcome, now, self.served_crd.lacking)
        new = self.served_crd.keep(new)
        if new == observed.resource.get("status"):
            return [], True
        try:
            answer = await self.cluster.apply_status(observed.resource, new)
        except KubeApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise
            return [], False  # the resource has changed meanwhile, which its event reports
        self.cache.put(answer)
        self.metrics.status_writes.inc()
        for event in events.transitions(observed.resource, new, now):
            await self.cluster.post_event(event)
        return [answer], True


def _has_concurrent_changes(observed: Observed, answers: Iterable[Manifest]) -> bool:
    """Whether others changed an object that was written, so that another reconcile is due."""
    known = {**observed.children, child_id(observed.resource): observed.resource}
    befores = ((known.get(child_id(answer)), answer) for answer in answers)
    return any(
        before is not None and changed_concurrently(before, answer) for before, answer in befores
    )


def _stages(writes: tuple[Write, ...]) -> tuple[list[Write], list[Write]]:
    """The dependencies of a workload, and the workload."""
    workload = [write for write in writes if write.manifest["kind"] == DEPLOYMENT.kind]
    return [write for write in writes if write not in workload], workload
