"""Reconciles one custom resource with its spec: observe, decide, act, report."""

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from http import HTTPStatus

from specdecode_api.v1alpha1 import Spec
from specdecode_operator import trial
from specdecode_operator.cluster.cache import Cache
from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.denials import Denials
from specdecode_operator.cluster.failure_log import FailureLog
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics, OverdueTrial
from specdecode_operator.cluster.object_writer import ObjectWriter
from specdecode_operator.cluster.router_secrets import RouterSecrets
from specdecode_operator.cluster.served_crd import ServedCrd
from specdecode_operator.concurrent_changes import changed_concurrently
from specdecode_operator.engines.engine_poller import SLACK_S, EnginePoller
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest, child_id
from specdecode_operator.objects.observed import Key, Observed
from specdecode_operator.objects.parts import Failures, Part
from specdecode_operator.objects.rollout import ImageRollouts, Rollout, hash_of_template, rollout
from specdecode_operator.plan.plan import Plan, plan
from specdecode_operator.plan.stable_pods import runs_default_image
from specdecode_operator.settings import Settings
from specdecode_operator.status import events
from specdecode_operator.status.activity import ActivityLog
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status
from specdecode_operator.trial.record.candidate import DryRun
from specdecode_operator.trial.record.state import Trial
from specdecode_operator.trial.record.stored import RecordMemory, StateMark
from specdecode_operator.trial.strategies.context import EngineSnapshot
from specdecode_operator.trial.strategies.looks import Look
from specdecode_operator.trial.strategies.overdue import overdue_s
from specdecode_operator.updates.draft_exchange import asked_pods, presented
from specdecode_operator.updates.update_strategy import overdue_pods

log = logging.getLogger(__name__)

LOOK_AGAIN_S = 60.0
"""After a block: unowned objects are not watched, so their deletion causes no event."""

LOOK_AFTER_CONFLICT_S = 1.0
"""Should the event of the change that refused a status be late."""

QUOTA = "exceeded quota"
"""In the message of the API server about an object that a ResourceQuota refuses."""

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
    poller: EnginePoller
    served_crd: ServedCrd = field(default_factory=ServedCrd)
    memories: dict[Key, RecordMemory] = field(default_factory=dict)
    stored: dict[Key, StateMark] = field(default_factory=dict)
    """State of trials that was written last."""
    running: dict[Key, tuple[Trial, Spec]] = field(default_factory=dict)
    """Running trials, each with the spec of its resource."""
    dry_runs: dict[Key, dict[str, str]] = field(default_factory=dict)
    """The answer of the API server to the latest dry run of a candidate, by its key."""
    activities: ActivityLog = field(default_factory=ActivityLog)
    failed: FailureLog = field(init=False)
    denials: Denials[Key] = field(init=False)
    writer: ObjectWriter = field(init=False)
    image_rollouts: ImageRollouts = field(init=False)
    tokens: RouterSecrets = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", RouterSecrets(self.cluster, self.now))
        object.__setattr__(self, "failed", FailureLog(self.metrics))
        denials: Denials[Key] = Denials(time.monotonic)
        writer = ObjectWriter(self.cluster, self.cache, self.metrics, denials)
        object.__setattr__(self, "denials", denials)
        object.__setattr__(self, "writer", writer)
        limit = self.settings.max_concurrent_rollouts
        object.__setattr__(self, "image_rollouts", ImageRollouts(limit))

    async def reconcile(self, key: Key) -> float | None:
        """Reconcile one resource; returns the seconds until the next reconcile, if one is due."""
        known = self.cache.observe(key)
        if known is None:
            self._forget(key)
            return None
        observed = await self._observe(key, known)
        snapshot = self.poller.take(key)
        self._note_rollout(key, observed)
        now_s = snapshot.at_s if snapshot else self._now_s()
        failures = Failures()
        observed = failures.attempt(
            Part.METRICS,
            "status.activity",
            partial(self._with_activity, key, observed, snapshot),
            _with_previous_activity(observed),
        )
        decided = await self._decide(key, observed, now_s, snapshot)
        failures.found += decided.failures
        look = failures.attempt(
            Part.METRICS, "the next look", partial(self._next_look, key, observed, decided), None
        )
        self._remember(key, decided)
        token_wait_s, token_error = await self._ensure_token(key, decided)
        outcome = await self.writer.write(key, observed, decided)
        outcome = replace(outcome, token_error=token_error)
        if outcome.blocked is None:
            self.denials.clear(key)
        if outcome.is_state_stored:
            await self._announce(observed, decided)
        answers, is_reported = await self._report(observed, decided, outcome, failures)
        self.failed.note(key, failures)
        has_stored = self._note_stored(
            key, decided, is_done=outcome.is_state_stored and is_reported
        )
        # What is not stored must not be tried: its tables are not sent.
        is_stored = outcome.is_state_stored and is_reported and not outcome.trial_error
        look_again_s = self._look(key, observed, look) if is_stored else None
        dry_run = decided.step.dry_run if decided.step else None
        has_tried = dry_run is not None and await self._try(key, dry_run)
        is_fetching = any(map(pods.is_fetching, observed.pods))
        waits_s = (
            0.0 if _has_concurrent_changes(observed, (*outcome.written, *answers)) else None,
            0.0 if has_tried else None,
            LOOK_AT_PROGRESS_S if is_fetching else None,
            LOOK_AGAIN_S if outcome.blocked or outcome.trial_error or outcome.pool else None,
            LOOK_AGAIN_S if self.image_rollouts.is_waiting(key) else None,
            # What is stored now is in force from the next step on. No event of it queues the key.
            0.0 if has_stored or (decided.objects.has_next_step and is_stored) else None,
            LOOK_AFTER_CONFLICT_S if not is_reported else None,
            decided.strategy.look_again_s,
            token_wait_s,
            pods.patience_left_s(observed.pods, observed.at),
            look_again_s,
            self._request_drafts(key, observed, decided) if outcome.blocked is None else None,
        )
        return min((wait_s for wait_s in waits_s if wait_s is not None), default=None)

    async def _ensure_token(self, key: Key, decided: Plan) -> tuple[float | None, str]:
        """Write the token before pods start, or not: engines serve without it.

        Returns:
            With routers, which are not ready without it: when to look at it again, in seconds, and
            why it was not written.
        """
        if decided.step is None or not self.settings.has_routers:
            return None, ""
        try:
            wait_s = await self.tokens.ensure(key.namespace)
        except KubeApiError as error:
            log.warning("token of engines and routers not written", extra={"why": str(error)})
            return (LOOK_AGAIN_S, str(error)) if decided.has_routers else (None, "")
        if token := self.tokens.current(key.namespace):
            self.poller.use_token(key.namespace, token)
        return (wait_s if decided.has_routers else None), ""

    def _forget(self, key: Key) -> None:
        """Drop everything about a resource that is gone."""
        self.poller.forget(key)
        self.denials.clear(key)
        for known in (self.memories, self.stored, self.running, self.dry_runs):
            known.pop(key, None)
        self.activities.forget(key)
        self.failed.forget(key)
        self.image_rollouts.forget(key)

    async def _observe(self, key: Key, known: Observed) -> Observed:
        """What the cache has not: the time, reports of pods, events about coming nodes."""
        self.poller.follow(key, known.pods)
        observed = replace(
            known,
            at=self.now(),
            degraded=self.poller.degraded(known.pods),
            dry_runs=self.dry_runs.get(key, {}),
        )
        observed = presented(replace(observed, drafts=self.poller.drafts.answers(key)))
        if any(map(pods.is_fetching, observed.pods)):
            observed = replace(observed, progress=await self.poller.progress(observed.pods))
        return replace(observed, node_events=await self._node_events(observed))

    def _with_activity(
        self, key: Key, observed: Observed, snapshot: EngineSnapshot | None
    ) -> Observed:
        """Add the work of the engines, with that of the latest look."""
        if snapshot is not None:
            self.activities.add(key, observed.uid, snapshot.readings.values(), snapshot.at_s)
        shown = observed.resource.get("status") or {}
        return replace(
            observed,
            activity=self.activities.extended(key, shown.get("activity")),
            measured=self.activities.measured(key, shown.get("measured")),
        )

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
        live = observed.owned(DEPLOYMENT)
        if live is None or not runs_default_image(observed, self.settings):
            self.image_rollouts.forget(key)
            return
        new = hash_of_template(live)
        left = (pod for pod in observed.pods if not pods.has_ended(pod))
        stable = filter(pods.is_stable, left)
        self.image_rollouts.note(
            key,
            is_complete=rollout(live) is Rollout.COMPLETE,
            has_old_pods=any(pods.config_hash_of(pod) != new for pod in stable),
        )

    def overdue_trials(self) -> list[OverdueTrial]:
        """How late each running trial is; called by another thread."""
        now_s = self._now_s()
        failures = Failures()
        late = {
            (key, running.name): failures.attempt(
                Part.METRICS,
                f"trial {running.name}",
                partial(overdue_s, running, spec, now_s),
                None,
            )
            for key, (running, spec) in list(self.running.items())
        }
        self.metrics.part_failures.labels(part=Part.METRICS.value).inc(len(failures.found))
        return [
            OverdueTrial(key, name, late_s)
            for (key, name), late_s in late.items()
            if late_s is not None
        ]

    def _remember(self, key: Key, decided: Plan) -> None:
        """Keep the state of trials."""
        if decided.memory is None or decided.step is None:
            return
        self.memories[key] = decided.memory
        running = decided.memory.record.trial
        if running is None:
            self.running.pop(key, None)
        else:
            self.running[key] = running, decided.step.now.resource.spec

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

    def _next_look(self, key: Key, observed: Observed, decided: Plan) -> Look | None:
        """The next look at the engines, if there is one."""
        if decided.step is None:
            return None
        record, since_s = decided.step.record, self.poller.since_s(key)
        return trial.next_look(observed, record, self._now_s(), since_s)

    def _look(self, key: Key, observed: Observed, look: Look | None) -> float | None:
        """Start a look at the engines if it is due; returns the seconds until the next one.

        A running look wakes the resource when it is complete.
        """
        if look is None:
            self.poller.stop_looks(key)
            return None
        if self.poller.is_looking(key):
            return None
        if look.due_s > SLACK_S and look.tables == self.poller.tables(key):
            return look.due_s
        self.poller.look(key, observed.uid, look, self._now_s)
        return None

    def _request_drafts(self, key: Key, observed: Observed, decided: Plan) -> float | None:
        """Ask pods to use the wanted draft; return the seconds until they are asked again.

        An answer wakes the resource.
        """
        if decided.exchange is None or decided.exchange.wanted is None:
            return None
        wanted = decided.exchange.wanted
        return self.poller.drafts.ask(key, observed.uid, asked_pods(observed, wanted), wanted)

    async def _try(self, key: Key, wanted: DryRun) -> bool:
        """Have the API server validate a candidate; returns whether it has answered."""
        try:
            await self.cluster.try_create(wanted.manifest)
            answer = ""
        except KubeApiError as error:
            if error.is_transient:
                log.warning("dry run of a candidate failed", extra={"why": str(error)})
                return False
            # A quota on custom resources is not about the candidate, which is never created.
            answer = "" if QUOTA in str(error) else str(error).partition(": ")[2]
        self.dry_runs[key] = {wanted.key: answer}
        return True

    def _now_s(self) -> float:
        return self.now().timestamp()

    async def _announce(self, observed: Observed, decided: Plan) -> None:
        """Count trials that ended, and post events of trials whose phase changes."""
        for before, new in decided.objects.statuses:
            if events.has_ended(before, new):
                labels = {"kind": new.get("strategy", ""), "verdict": new["verdict"]}
                self.metrics.trials.labels(**labels).inc()
            if event := events.of_trial(observed.resource, before, new, self.now()):
                await self.cluster.post_event(event)

    async def _report(
        self, observed: Observed, decided: Plan, outcome: Outcome, failures: Failures
    ) -> tuple[list[Manifest], bool]:
        """Write the status if it differs, and post events for its changes.

        Args:
            failures: parts that failed; those of the status are added.

        Returns the response of the API server, if a request was sent, and whether the status is
        written.
        """
        if decided.is_ending:
            return [], True
        now = self.now()
        new = status(observed, decided, outcome, now, self.served_crd.lacking, failures)
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


def _with_previous_activity(observed: Observed) -> Observed:
    """Leave what the status reports of the engines' work as it is."""
    shown = observed.resource.get("status") or {}
    return replace(observed, activity=shown.get("activity"), measured=shown.get("measured"))


def _has_concurrent_changes(observed: Observed, answers: Iterable[Manifest]) -> bool:
    """Whether others changed an object that was written, so that another reconcile is due."""
    known = {**observed.children, child_id(observed.resource): observed.resource}
    befores = ((known.get(child_id(answer)), answer) for answer in answers)
    return any(
        before is not None and changed_concurrently(before, answer) for before, answer in befores
    )
