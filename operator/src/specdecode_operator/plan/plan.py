"""Decides which objects to write and to delete. Pure: (observed, settings) → plan."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from specdecode_api import names
from specdecode_api.v1alpha1 import ModelStatus
from specdecode_operator import owned, trial
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import CONFIG_MAP, DEPLOYMENT, INFERENCE_POOL, Manifest
from specdecode_operator.objects.kinds import child_id as identify
from specdecode_operator.objects.observed import Observed, is_controlled_by
from specdecode_operator.objects.parts import Failures, Part, PartFailure
from specdecode_operator.objects.resource import Resource, ResourceError, parse_stored
from specdecode_operator.objects.rollout import Rollout, rollout
from specdecode_operator.plan.held import held_objects
from specdecode_operator.plan.stable_pods import (
    StablePods,
    boot_files,
    engine_image,
    naming_revision,
    stable_pods,
)
from specdecode_operator.plan.writes import Cause, Write, hash_of, is_reported, needed_writes
from specdecode_operator.settings import Settings
from specdecode_operator.trial import EngineSnapshot, Record, Step
from specdecode_operator.trial.record.revisions import readable
from specdecode_operator.trial.record.stored import RecordMemory, mark_of, mark_to_store, recorded
from specdecode_operator.trial.steps.loss import recover
from specdecode_operator.trial.view.projection import NO_OBJECTS, TrialObjects, trial_objects
from specdecode_operator.trial.view.status_view import NO_VIEW, TrialsView, overridden_message, view
from specdecode_operator.updates import downloads
from specdecode_operator.updates.draft_exchange import DraftExchange
from specdecode_operator.updates.router_switch import is_router_serving
from specdecode_operator.updates.runtime_change import has_vllm_pods, runtime_of_routers
from specdecode_operator.updates.update_strategy import SURGE, UpdateStrategy

NO_ROUTERS = (
    "router: this operator permits no routers; remove it, or install the chart with "
    "router.enabled: true"
)
NO_INFERENCE_POOLS = (
    "inferencePool: this operator permits no InferencePools; remove it, or install the chart with "
    "inferencePool.enabled: true"
)


class RefusalReason(StrEnum):
    """Why a spec is rejected; also the reason in the condition."""

    INVALID = "Invalid"
    INTERNAL_ERROR = "InternalError"


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
    warnings: tuple[str, ...] = ()
    """What the tables of the spec and of the configuration in force are warned of."""
    has_routers: bool = False
    """Whether the resource has routers, which need a token."""
    pool: PoolPlan = NO_POOL
    held: tuple[Write, ...] = ()
    """What is written in place of `writes` if the API server refuses the template of pods."""
    failures: tuple[PartFailure, ...] = ()
    """Parts that failed, which stopped no other."""


def plan(
    observed: Observed,
    settings: Settings,
    now_s: float = 0.0,
    snapshot: EngineSnapshot | None = None,
    memory: RecordMemory | None = None,
    may_roll: Callable[[], bool] = lambda: True,
) -> Plan:
    """Compare the observed state with the desired state.

    Pods of a rejected spec stay as they are, with all that serves, in the number of `replicas`.

    Args:
        now_s: seconds since 1970.
        snapshot: the readings of the pods, if they were observed.
        memory: what the previous plan returned.
        may_roll: whether pods may be replaced for a new default engine image now.
    """
    if observed.resource["metadata"].get("deletionTimestamp"):
        return Plan(is_ending=True)
    failures = Failures()
    try:
        decided = _decided(observed, settings, now_s, snapshot, memory, may_roll, failures)
    except ResourceError as error:
        decided = Plan(refused=Refused(RefusalReason.INVALID, error.sentences))
    except Exception as error:
        failures.add(Part.CONFIGURATION, "the spec", error)
        why = failures.found[-1].message
        decided = Plan(refused=Refused(RefusalReason.INTERNAL_ERROR, (why,)))
    if decided.step is None or owned.templates(observed.resource):
        kept = held_objects(observed, settings)
        held = needed_writes(observed, kept, failures, is_known=is_reported(observed))
        decided = replace(decided, held=held, writes=decided.writes if decided.step else held)
    return replace(decided, failures=tuple(failures.found))


def _decided(
    observed: Observed,
    settings: Settings,
    now_s: float,
    snapshot: EngineSnapshot | None,
    memory: RecordMemory | None,
    may_roll: Callable[[], bool],
    failures: Failures,
) -> Plan:
    """The plan for a spec that can be carried out.

    Raises:
        ResourceError: it cannot.
    """
    wanted = parse_stored(observed.resource)
    if refused := _not_allowed(wanted, settings):
        raise ResourceError(*refused)
    revisions = readable(observed)
    record = recorded(observed, revisions, memory)
    image = engine_image(observed, wanted, settings, may_roll, record)
    found = recover(observed, wanted, record, revisions, image)
    if found.lost:
        return Plan(lost=found.lost, ignored=wanted.ignored)
    step = trial.advance(
        observed,
        found.record,
        snapshot,
        now_s,
        image,
        has_trials=settings.has_trials,
        failures=failures,
    )
    try:
        tried = _tried(observed, step, found.record, image)
    except Exception as error:
        step = trial.ended(step, error, now_s, failures)
        tried = _tried(observed, step, found.record, image)
    stable, objects = tried.stable, tried.objects
    manifests = naming_revision(stable.built.children, step, objects.in_force)
    usual = _defaulted(observed, _with_routers(observed, wanted, manifests, settings), settings)
    others = _defaulted(observed, _not_in(usual, tried.written), settings)
    is_known = is_reported(observed)
    decided = Plan(
        config_hash=stable.built.config_hash,
        writes=needed_writes(observed, usual, failures, is_known=is_known),
        trial_writes=needed_writes(observed, others, failures, is_known=False),
        prunes=tuple(_prunes(observed, (*usual, *others), stable.built.pods_hash)),
        models=tuple(downloads.statuses(observed, stable.resource, stable.pins)),
        step=step,
        strategy=stable.strategy,
        exchange=stable.exchange,
        ignored=wanted.ignored,
        warnings=_warnings(wanted, step.now.resource),
        has_routers=wanted.spec.router is not None,
        pool=_pool(observed, wanted, failures),
    )
    return _with_state(decided, observed, step, objects, now_s)


@dataclass(frozen=True, slots=True)
class _Tried:
    """What depends on a trial: the stable pods, its objects, and pods of other roles."""

    stable: StablePods
    objects: TrialObjects
    written: list[Manifest]


def _tried(observed: Observed, step: Step, stored: Record, image: str) -> _Tried:
    stable = stable_pods(observed, step, stored.trial, image)
    written = _trial_objects(observed, step, image)
    if stable.is_block:
        written += boot_files(observed, step.now, image)
    return _Tried(stable, trial_objects(observed, step, image), written)


def _warnings(*resources: Resource) -> tuple[str, ...]:
    """The warnings of all tables, each once."""
    found = (text for each in resources for text in each.spec.speculation.warnings)
    return tuple(dict.fromkeys(found))


def _with_routers(
    observed: Observed, wanted: Resource, built: Iterable[Manifest], settings: Settings
) -> list[Manifest]:
    """Add the objects of routers, as the user wants them now; engines may still change to that.

    They stay with the engines of an earlier runtime until one of the wanted runtime is ready.
    """
    is_serving = is_router_serving(observed)
    policies = owned.network_policies(
        wanted,
        settings.own_namespace,
        settings.metrics_from,
        has_vllm_pods=has_vllm_pods(observed),
    )
    with_policies = [*policies, *built]
    return owned.routed(
        with_policies,
        wanted,
        settings.router_image,
        is_serving=is_serving,
        runtime=runtime_of_routers(observed, wanted.spec.engine.runtime),
    )


def _pool(observed: Observed, wanted: Resource, failures: Failures) -> PoolPlan:
    """Compare the InferencePool with the one that the user wants now."""
    desired = owned.inference_pools(wanted)
    live = observed.owned(INFERENCE_POOL)
    if live is None or (desired and not owned.has_foreign_labels(live, desired[0])):
        is_known = live is not None and is_reported(observed)
        writes = needed_writes(observed, desired, failures, is_known=is_known)
        return PoolPlan(bool(desired), writes)
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


def _defaulted(observed: Observed, found: Iterable[Manifest], settings: Settings) -> list[Manifest]:
    live = observed.children
    known = owned.with_token(found, live.values(), observed.uid, is_wanted=settings.has_routers)
    limited = (owned.size_limited(each, live.get(identify(each))) for each in known)
    return [owned.defaulted(each, settings.pod_defaults) for each in limited]


def _not_allowed(wanted: Resource, settings: Settings) -> tuple[str, ...]:
    refused = owned.access_refusals(
        wanted.spec.template,
        is_allowed=settings.has_template,
        has_host_access=settings.allows_host_access,
    )
    if wanted.spec.router is not None:
        refused += owned.access_refusals(
            wanted.spec.router.template,
            is_allowed=settings.has_template,
            has_host_access=settings.allows_host_access,
            place=owned.OF_ROUTERS.place,
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
        built = owned.build(step.baseline, image, pins, tuned=tuned, role=names.ROLE_BASELINE)
        found += built.children
    if step.canary is not None:
        own_pins = downloads.pins(observed, step.canary)
        built = owned.build(step.canary, image, own_pins, role=names.ROLE_CANARY)
        found += built.children
    return found


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
        and (child.kind != CONFIG_MAP.kind or (needed is not None and hash_of(live) not in needed))
    ]


def _needed_hashes(observed: Observed, desired_hash: str) -> set[str | None] | None:
    """Hashes whose boot file a pod uses or may start with; None while unknown.

    Until the Deployment runs only the desired template, its older pods may be replaced by equal
    ones at any time, for example on another node.
    """
    live = observed.owned(DEPLOYMENT)
    if live is None or hash_of(live["spec"]["template"]) != desired_hash:
        return None
    if rollout(live) is not Rollout.COMPLETE:
        return None
    left = (pod for pod in observed.pods if not pods.has_ended(pod))
    return {desired_hash, *map(hash_of, left)}
