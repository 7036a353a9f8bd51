"""Decides which objects to write and to delete. Pure: (observed, settings) → plan."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from specdecode_api import names
from specdecode_api.v1alpha1 import ModelStatus
from specdecode_operator import children, downloads, matching, pods, trial
from specdecode_operator.draft_exchange import DraftExchange
from specdecode_operator.kinds import CONFIG_MAP, DEPLOYMENT, INFERENCE_POOL, Manifest
from specdecode_operator.kinds import child_id as identify
from specdecode_operator.observed import Observed, is_controlled_by
from specdecode_operator.resource import Resource, ResourceError, parse_stored
from specdecode_operator.rollout import Rollout, rollout
from specdecode_operator.router_switch import is_router_serving
from specdecode_operator.settings import Settings
from specdecode_operator.stable_pods import boot_files, engine_image, naming_revision, stable_pods
from specdecode_operator.trial import EngineSnapshot, Step
from specdecode_operator.trial.loss import recover
from specdecode_operator.trial.projection import NO_OBJECTS, TrialObjects, trial_objects
from specdecode_operator.trial.revisions import readable
from specdecode_operator.trial.status_view import (
    NO_VIEW,
    TrialsView,
    overridden_message,
    view,
)
from specdecode_operator.trial.stored import RecordMemory, mark_of, mark_to_store, recorded
from specdecode_operator.update_strategy import SURGE, UpdateStrategy

NO_ROUTERS = (
    "router: this operator permits no routers; remove it, or install the chart with "
    "router.enabled: true"
)
NO_INFERENCE_POOLS = (
    "inferencePool: this operator permits no InferencePools; remove it, or install the chart with "
    "inferencePool.enabled: true"
)


class Cause(StrEnum):
    """Why an owned object is written."""

    MISSING = "missing"
    CHANGED = "changed"
    DRIFTED = "drifted"


class RefusalReason(StrEnum):
    """Why a spec is rejected; also the reason in the condition."""

    INVALID = "Invalid"


@dataclass(frozen=True, slots=True)
class Write:
    """An owned object to write. If not `is_present`, an unowned object may have its name."""

    manifest: Manifest
    cause: Cause
    is_present: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """A rejected spec, with messages for the user."""

    reason: RefusalReason
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """What becomes of the InferencePool, after the engines' objects, which never wait for it."""

    is_wanted: bool
    writes: tuple[Write, ...] = ()
    prunes: tuple[Manifest, ...] = ()
    """An InferencePool that is no longer needed, or whose selector others extended."""


NO_POOL = PoolPlan(is_wanted=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """The next actions for one custom resource."""

    config_hash: str | None = None
    writes: tuple[Write, ...] = ()
    prunes: tuple[Manifest, ...] = ()
    models: tuple[ModelStatus, ...] = ()
    """Download status of the models."""
    refused: Refused | None = None
    is_ending: bool = False
    step: Step | None = None
    """State of trials; None for a rejected spec."""
    trial_writes: tuple[Write, ...] = ()
    """Objects of trials, written after all others and after the state of trials."""
    objects: TrialObjects = NO_OBJECTS
    """Requests for SpecDecodeTrials and revisions, the state of trials."""
    memory: RecordMemory | None = None
    """State of trials for the next reconcile."""
    view: TrialsView = NO_VIEW
    """Status of trials, which contains their state."""
    has_new_state: bool = False
    """Whether the state of trials differs from what is stored."""
    overridden: str = ""
    """Message of condition SpecOverridden."""
    lost: str = ""
    """Message of condition StateLost."""
    strategy: UpdateStrategy = SURGE
    exchange: DraftExchange | None = None
    """How running pods come to use another draft; None where no draft is exchanged."""
    ignored: tuple[str, ...] = ()
    """Fields of the spec that this older operator does not know."""
    has_routers: bool = False
    """Whether the resource has routers, which need a token."""
    pool: PoolPlan = NO_POOL


def plan(
    observed: Observed,
    settings: Settings,
    now_s: float = 0.0,
    snapshot: EngineSnapshot | None = None,
    memory: RecordMemory | None = None,
    may_roll: Callable[[], bool] = lambda: True,
) -> Plan:
    """Compare the observed state with the desired state.

    A rejected spec results in no writes: the owned objects of the last valid spec stay.

    Args:
        now_s: seconds since 1970.
        snapshot: the readings of the pods, if they were observed.
        memory: what the previous plan returned.
        may_roll: whether pods may be replaced for a new default engine image now.
    """
    if observed.resource["metadata"].get("deletionTimestamp"):
        return Plan(is_ending=True)
    try:
        wanted = parse_stored(observed.resource)
        if refused := _not_allowed(wanted, settings):
            return Plan(refused=Refused(RefusalReason.INVALID, refused))
        revisions = readable(observed)
        record = recorded(observed, revisions, memory)
        image = engine_image(observed, wanted, settings, may_roll, record)
        found = recover(observed, wanted, record, revisions, image)
        if found.lost:
            return Plan(lost=found.lost, ignored=wanted.ignored)
        step = trial.advance(
            observed, found.record, snapshot, now_s, image, has_trials=settings.has_trials
        )
        stable = stable_pods(observed, step, found.record.trial, image)
        resource, built, pins = stable.resource, stable.built, stable.pins
        objects = trial_objects(observed, step, image)
        written = _trial_objects(observed, step, image)
        if stable.is_block:
            written += boot_files(observed, step.now, image)
    except ResourceError as error:
        return Plan(refused=Refused(RefusalReason.INVALID, error.sentences))
    owned = naming_revision(built.children, step, objects.in_force)
    usual = _defaulted(_with_routers(observed, wanted, owned, settings), settings)
    others = _defaulted(_not_in(usual, written), settings)
    decided = Plan(
        config_hash=built.config_hash,
        writes=_writes(observed, usual, is_known=_is_reported(observed, resource)),
        trial_writes=_writes(observed, others, is_known=False),
        prunes=tuple(_prunes(observed, (*usual, *others), built.pods_hash)),
        models=tuple(downloads.statuses(observed, resource, pins)),
        step=step,
        strategy=stable.strategy,
        exchange=stable.exchange,
        ignored=wanted.ignored,
        has_routers=wanted.spec.router is not None,
        pool=_pool(observed, wanted),
    )
    return _with_state(decided, observed, step, objects, now_s)


def _with_routers(
    observed: Observed, wanted: Resource, built: Iterable[Manifest], settings: Settings
) -> list[Manifest]:
    """Add the objects of routers, as the user wants them now; engines may still change to that."""
    is_serving = is_router_serving(observed)
    return children.routed([*built], wanted, settings.router_image, is_serving=is_serving)


def _pool(observed: Observed, wanted: Resource) -> PoolPlan:
    """Compare the InferencePool with the one that the user wants now."""
    desired = children.inference_pools(wanted)
    live = observed.owned(INFERENCE_POOL)
    if live is None or (desired and not children.has_foreign_labels(live, desired[0])):
        is_known = live is not None and _is_reported(observed, wanted)
        return PoolPlan(bool(desired), _writes(observed, desired, is_known=is_known))
    created = tuple(Write(each, Cause.DRIFTED, is_present=False) for each in desired)
    return PoolPlan(bool(desired), created, (live,))


def _with_state(
    decided: Plan, observed: Observed, step: Step, objects: TrialObjects, now_s: float
) -> Plan:
    """The plan with the state of trials that is to be stored."""
    shown = view(step, observed.resource.get("status") or {}, now_s, objects.in_force)
    mark = mark_to_store(step.record.trial, shown.effective or {}, shown.exploration or {})
    return replace(
        decided,
        objects=objects,
        memory=RecordMemory(mark, step.record),
        view=shown,
        has_new_state=mark != mark_of(observed, step.record.trial),
        overridden=overridden_message(step, objects.in_force),
    )


def _not_in(children: Iterable[Manifest], written: Iterable[Manifest]) -> tuple[Manifest, ...]:
    """Objects of trials that are not owned objects of the configuration in force, each once."""
    usual = {identify(child) for child in children}
    return tuple({identify(each): each for each in written if identify(each) not in usual}.values())


def _defaulted(found: Iterable[Manifest], settings: Settings) -> list[Manifest]:
    return [children.defaulted(each, settings.pod_defaults) for each in found]


def _is_reported(observed: Observed, resource: Resource) -> bool:
    """Whether the status already reported this generation."""
    status = observed.resource.get("status", {})
    return bool(status.get("observedGeneration") == resource.generation)


def _writes(
    observed: Observed, desired: Iterable[Manifest], *, is_known: bool
) -> tuple[Write, ...]:
    found = (_write(observed, each, is_known) for each in desired)
    return tuple(write for write in found if write is not None)


def _not_allowed(wanted: Resource, settings: Settings) -> tuple[str, ...]:
    refused = children.access_refusals(
        wanted.spec.template,
        is_allowed=settings.has_template,
        has_host_access=settings.allows_host_access,
    )
    if wanted.spec.router is not None and not settings.has_routers:
        refused = (*refused, NO_ROUTERS)
    if wanted.spec.inference_pool is not None and not settings.has_inference_pools:
        refused = (*refused, NO_INFERENCE_POOLS)
    return refused


def _trial_objects(observed: Observed, step: Step, image: str) -> list[Manifest]:
    """Owned objects of trials: pods of other roles."""
    found: list[Manifest] = []
    if step.baseline is not None:
        pins = downloads.pins(observed, step.now.resource)
        tuned = step.now.tuned_table
        built = children.build(step.baseline, image, pins, tuned=tuned, role=names.ROLE_BASELINE)
        found += built.children
    if step.canary is not None:
        own_pins = downloads.pins(observed, step.canary)
        built = children.build(step.canary, image, own_pins, role=names.ROLE_CANARY)
        found += built.children
    return found


def _write(observed: Observed, desired: Manifest, is_known: bool) -> Write | None:
    """The write that an owned object needs, if any.

    The stamped hash detects a change of the desired object, removed fields included; the
    comparison detects a change of the live object. An object that is missing although the status
    already reported this generation was deleted by others.
    """
    live = observed.children.get(identify(desired))
    if live is None or not is_controlled_by(live, observed.uid):
        was_there = is_known and _was_reported(observed, desired)
        return Write(desired, Cause.DRIFTED if was_there else Cause.MISSING, is_present=False)
    stamp = (live["metadata"].get("annotations") or {}).get(names.ANNOTATION_DESIRED_HASH)
    if stamp != desired["metadata"]["annotations"][names.ANNOTATION_DESIRED_HASH]:
        is_drift = stamp is None and is_known
        return Write(desired, Cause.DRIFTED if is_drift else Cause.CHANGED, is_present=True)
    if not matching.is_subset(desired, live):
        return Write(desired, Cause.DRIFTED, is_present=True)
    return None


def _was_reported(observed: Observed, desired: Manifest) -> bool:
    status = observed.resource.get("status") or {}
    return bool(status.get("configHash")) and _hash_of(desired) in (None, status["configHash"])


def _hash_of(manifest: Manifest) -> str | None:
    annotations = manifest["metadata"].get("annotations") or {}
    return annotations.get(names.ANNOTATION_CONFIG_HASH)


def _prunes(observed: Observed, wanted: Iterable[Manifest], config_hash: str) -> list[Manifest]:
    """Owned objects that are no longer needed: of a finished trial, of routers, budgets.

    Also boot files without pods.
    """
    desired = {identify(child) for child in wanted}
    needed = _needed_hashes(observed, config_hash)
    return [
        live
        for child, live in observed.children.items()
        if child not in desired
        and child.kind != INFERENCE_POOL.kind
        and is_controlled_by(live, observed.uid)
        and (child.kind != CONFIG_MAP.kind or (needed is not None and _hash_of(live) not in needed))
    ]


def _needed_hashes(observed: Observed, desired_hash: str) -> set[str | None] | None:
    """Hashes whose boot file a pod uses or may start with; None while unknown.

    Until the Deployment runs only the desired template, its older pods may be replaced by equal
    ones at any time, for example on another node.
    """
    live = observed.owned(DEPLOYMENT)
    if live is None or _hash_of(live["spec"]["template"]) != desired_hash:
        return None
    if rollout(live) is not Rollout.COMPLETE:
        return None
    left = (pod for pod in observed.pods if not pods.has_ended(pod))
    return {desired_hash, *map(_hash_of, left)}
