"""Writes what a reconcile decided: owned objects by stages, then the objects of trials."""

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus

from specdecode_operator import owned
from specdecode_operator.cluster.cache import Cache, version_of
from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.denials import Denials
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import (
    BY_KIND,
    DEPLOYMENT,
    INFERENCE_POOL,
    ROLE_BINDING,
    ChildId,
    Manifest,
    child_id,
    log_fields,
)
from specdecode_operator.objects.observed import Key, Observed, is_controlled_by
from specdecode_operator.plan.plan import Plan
from specdecode_operator.plan.writes import Cause, Write
from specdecode_operator.status.outcome import (
    Blocked,
    BlockReason,
    Outcome,
    blocked_by,
    pool_blocked_by,
)
from specdecode_operator.trial.view.projection import TrialObjects

log = logging.getLogger(__name__)

_NOT_ABOUT_FIELDS = frozenset({HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND})
"""Answers to a dry run that the write itself reports."""


@dataclass(frozen=True, slots=True)
class ObjectWriter:
    """Writes owned objects, and puts the responses of the API server into the cache."""

    cluster: Cluster
    cache: Cache
    metrics: Metrics
    denials: Denials[Key]

    async def write(self, key: Key, observed: Observed, decided: Plan) -> Outcome:
        """Write the workload after its dependencies; a blocked write stops the following ones."""
        if rejected := await self._rejected_template(observed, decided):
            log.warning("blocked", extra={"reason": rejected.reason, "why": rejected.message})
            written, _ = await self._write_stages(key, observed, decided.held)
            return Outcome(tuple(written), is_state_stored=False, blocked=rejected)
        written, blocked = await self._write_stages(key, observed, decided.writes)
        if blocked is not None:
            return Outcome(tuple(written), blocked=blocked, is_state_stored=False)
        removed = await self._prune(decided.prunes)
        pool = await self._write_pool(key, observed, decided, written, removed)
        is_stored, error = await self._store(decided.objects)
        if is_stored:
            error = await self._write_trial(key, observed, decided, written)
        return Outcome(
            tuple(written),
            tuple(removed),
            is_state_stored=is_stored,
            trial_error=error,
            pool=pool,
        )

    async def _write_stages(
        self, key: Key, observed: Observed, wanted: tuple[Write, ...]
    ) -> tuple[list[Manifest], Blocked | None]:
        """Write objects by stages; returns those that were written, and what blocked the rest."""
        written: list[Manifest] = []
        for writes in _stages(wanted):
            answers = await self._write_all(key, observed, writes)
            written += [answer for answer in answers if isinstance(answer, dict)]
            blocked = next((answer for answer in answers if isinstance(answer, Blocked)), None)
            if blocked is not None:
                log.warning("blocked", extra={"reason": blocked.reason, "why": blocked.message})
                return written, blocked
        return written, None

    async def _prune(self, children: Iterable[Manifest]) -> list[ChildId]:
        """Delete owned objects that are no longer needed."""
        removed = []
        for child in children:
            await self.cluster.delete(child)
            self.metrics.prunes.labels(kind=child["kind"]).inc()
            removed.append(child_id(child))
            log.info("pruned", extra=log_fields(child))
        return removed

    async def _write_pool(
        self,
        key: Key,
        observed: Observed,
        decided: Plan,
        written: list[Manifest],
        removed: list[ChildId],
    ) -> Blocked | None:
        """Write or remove the InferencePool; returns why that failed, if it did.

        It never blocks the resource: the Service leads to the engines without it.
        """
        try:
            removed += await self._prune(decided.pool.prunes)
        except KubeApiError as error:
            return pool_blocked_by(error.code, str(error))
        answers = await self._write_all(key, observed, decided.pool.writes)
        written += [answer for answer in answers if isinstance(answer, dict)]
        blocked = next((answer for answer in answers if isinstance(answer, Blocked)), None)
        if blocked is not None:
            log.warning(
                "InferencePool not written",
                extra={"reason": blocked.reason, "why": blocked.message},
            )
        return blocked

    async def _rejected_template(self, observed: Observed, decided: Plan) -> Blocked | None:
        """Try Deployments with a user's template by a dry run, before anything is written."""
        places = owned.templates(observed.resource) if decided.step is not None else {}
        for write in decided.writes:
            child = child_id(write.manifest)
            if child.kind != DEPLOYMENT.kind or child.name not in places:
                continue
            try:
                await self.cluster.apply(write.manifest, force=True, is_trial=True)
            except KubeApiError as error:
                if error.is_transient or error.code in _NOT_ABOUT_FIELDS:
                    continue
                place = places[child.name]
                message = f"{error}; correct spec.{place}, or the field that the message names"
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
            adopted = [each for each, _ in objects.adoptions]
            for each, new in objects.statuses:
                if each not in adopted:  # its version is an older one; the next step writes it
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
                    return Blocked(BlockReason.IMAGE_VOLUMES_OFF, IMAGE_VOLUMES_REFUSED)
            answer = await self.cluster.apply(manifest, force=force)
        except KubeApiError as error:
            self.metrics.applies.labels(kind=manifest["kind"], outcome="error").inc()
            if manifest["kind"] == INFERENCE_POOL.kind:
                return pool_blocked_by(error.code, str(error))
            if error.is_transient or self.denials.is_recent(key, error.code):
                raise
            return Blocked(BlockReason.APPLY_FAILED, str(error))
        self.cache.put(answer)
        self.metrics.applies.labels(kind=manifest["kind"], outcome=write.cause.value).inc()
        if write.cause is Cause.DRIFTED and _has_changed(observed, answer):
            self.metrics.drifts.labels(kind=manifest["kind"]).inc()
        log.info("applied", extra=log_fields(manifest) | {"cause": write.cause.value})
        return answer

    async def _find(self, manifest: Manifest) -> Manifest | None:
        """Read from the API server; the cache has only objects with the operator's label."""
        metadata = manifest["metadata"]
        kind = BY_KIND[manifest["kind"]]
        return await self.cluster.get(kind, metadata["namespace"], metadata["name"])


def _has_changed(observed: Observed, answer: Manifest) -> bool:
    """Whether a write has changed an object: a webhook or a default may have undone it."""
    before = observed.children.get(child_id(answer))
    return before is None or version_of(before) != version_of(answer)


def _stages(writes: tuple[Write, ...]) -> tuple[list[Write], ...]:
    """The dependencies of a workload, RoleBindings after their Roles, and the workload."""
    last = (ROLE_BINDING.kind, DEPLOYMENT.kind)
    first = [write for write in writes if write.manifest["kind"] not in last]
    return first, *([write for write in writes if write.manifest["kind"] == kind] for kind in last)


# Whether the API server stores image volumes; without the feature gate it drops them silently.
#
# Pods would then start without their model. Kubernetes has the feature gate `ImageVolume` since
# 1.31; it is on by default from 1.35.

IMAGE_VOLUMES_REFUSED = (
    "a model of oci:// is mounted as an image volume, which this cluster drops; enable the feature "
    "gate ImageVolume in API server and kubelets (Kubernetes 1.33 and 1.34; on by default later), "
    "or use hf:// or pvc://"
)


def image_volumes(manifest: Manifest) -> frozenset[str]:
    """Names of the image volumes in a Deployment; empty for other kinds."""
    if manifest["kind"] != DEPLOYMENT.kind:
        return frozenset()
    volumes = manifest["spec"]["template"]["spec"].get("volumes") or ()
    return frozenset(volume["name"] for volume in volumes if "image" in volume)
