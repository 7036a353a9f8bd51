"""Conditions of a custom resource, with the times of their transitions."""

from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum
from typing import Any, Final

from specdecode_api.report import Degradation, Degraded
from specdecode_operator.objects.parts import PartFailure, joined
from specdecode_operator.objects.pods import Trouble
from specdecode_operator.objects.rollout import Rollout
from specdecode_operator.plan.plan import Refused
from specdecode_operator.status import served
from specdecode_operator.status.create_errors import CreateFailure
from specdecode_operator.status.outcome import Blocked, BlockReason

MAX_MESSAGE = 4096
EXCHANGING = "ExchangingDraft"
DRAFT_REFUSED = "DraftRefused"
TABLE_WARNINGS = "TableWarnings"

ROUTERS_NOT_READY: Final = "RoutersNotReady"
"""Reason of a Service that leads to routers of which none is ready."""


class Type(StrEnum):
    """Types of conditions, in the order in which they are listed."""

    READY = "Ready"
    AVAILABLE = "Available"
    PROGRESSING = "Progressing"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    DEGRADED = "Degraded"
    MODEL_READY = "ModelReady"
    CONFIG_RESOLVED = "ConfigResolved"
    ROUTER_READY = "RouterReady"
    INFERENCE_POOL_READY = "InferencePoolReady"
    DEFINITION_CURRENT = "DefinitionCurrent"
    STATE_LOST = "StateLost"
    PART_FAILED = "PartFailed"
    SPEC_OVERRIDDEN = "SpecOverridden"
    DRAFT_HEALTHY = "DraftHealthy"
    CANARY_HEALTHY = "CanaryHealthy"
    RECOMMENDATION_READY = "RecommendationReady"


@dataclass(frozen=True, slots=True)
class Check:
    """The current state of one condition."""

    status: bool | None
    """None: not known yet."""
    reason: str
    message: str = ""

    @property
    def shown_status(self) -> str:
        """The status as Kubernetes writes it."""
        return "Unknown" if self.status is None else str(self.status)


@dataclass(frozen=True, slots=True)
class Facts:
    """The inputs of all conditions."""

    wanted: int
    """Replicas the user wants."""
    available: int
    updated: int
    """Replicas of the newest template that the Deployment's controller has seen."""
    rollout: Rollout | None
    """None while there is no owned Deployment."""
    rollout_message: str
    failure: CreateFailure | None
    """Why the Deployment cannot create pods, for example a quota."""
    trouble: Trouble | None
    refused: Refused | None
    blocked: Blocked | None
    has_loaded_model: bool
    """Whether a pod of the newest configuration is ready."""
    are_pods_converged: bool = False
    """Whether the pods are as many as wanted, ready, and of the newest configuration; counted from
    pods, because the Deployment's status is late."""
    has_fetched_models: bool = False
    """Whether every model is downloaded in every pod."""
    degraded: tuple[tuple[str, Degradation], ...] = ()
    """Degradations of serving engines, with the name of the pod."""
    has_draft: bool = False
    """Whether a draft model is configured."""
    most_unavailable: int = 0
    """How many replicas a rollout may stop before it has replaced them."""
    exchange: str = ""
    """How far running engines have come in exchanging their draft; empty where none does."""
    draft_refusal: str = ""
    """Why running engines keep the old draft; empty where none refuses the new one."""
    strategy: str = "Auto"
    is_in_place: bool = False
    """Whether the newest rollout terminates engines before it starts their replacements."""
    coming_node: str = ""
    """Who announced a node for which the rollout waits."""
    lacking: tuple[str, ...] = ()
    """Fields and values that the served CRD would drop or reject."""
    ignored: tuple[str, ...] = ()
    """Fields of the spec that this older operator does not know."""
    warnings: tuple[str, ...] = ()
    """What the speculation table is warned of; the spec is carried out all the same."""
    lost: str = ""
    """Message of condition StateLost."""
    overridden: str = ""
    """Message of condition SpecOverridden."""
    router: Check | None = None
    """None without routers."""
    pool: Check | None = None
    """None without an InferencePool."""
    trial: Check | None = None
    """None without a trial."""
    recommendation: Check | None = None
    """None if nothing is learned."""
    failures: tuple[PartFailure, ...] = ()
    """Parts of the reconcile that failed."""


def checks(facts: Facts) -> dict[Type, Check]:
    """The current conditions; optional ones are absent if unknown."""
    found = {
        Type.READY: _ready(facts),
        Type.AVAILABLE: _available(facts),
        Type.PROGRESSING: _progressing(facts),
        Type.RECONCILING: _reconciling(facts),
        Type.STALLED: _stalled(facts),
        Type.DEGRADED: _degraded(facts),
        Type.CONFIG_RESOLVED: _config_resolved(facts),
    }
    if facts.lacking:
        check = Check(False, "DefinitionOutdated", served.sentence(facts.lacking))
        found[Type.DEFINITION_CURRENT] = check
    if facts.lost:
        found[Type.STATE_LOST] = Check(True, "ConfigurationUnexplained", facts.lost)
    if facts.failures:
        first = facts.failures[0]
        found[Type.PART_FAILED] = Check(True, first.reason, joined(facts.failures))
    if facts.overridden:
        found[Type.SPEC_OVERRIDDEN] = Check(True, "Promoted", facts.overridden)
    optional = {
        Type.ROUTER_READY: facts.router,
        Type.INFERENCE_POOL_READY: facts.pool,
        Type.MODEL_READY: _model_ready(facts),
        Type.DRAFT_HEALTHY: _draft_healthy(facts),
        Type.CANARY_HEALTHY: facts.trial,
        Type.RECOMMENDATION_READY: facts.recommendation,
    }
    return found | {kind: check for kind, check in optional.items() if check is not None}


def merge(
    found: dict[Type, Check], previous: list[dict[str, Any]], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """Write checks as conditions; `lastTransitionTime` moves only when the status does."""
    before = {condition["type"]: condition for condition in previous}
    merged = []
    for kind in Type:
        if kind not in found:
            continue
        check = found[kind]
        status = check.shown_status
        old = before.get(kind.value, {})
        has_moved = old.get("status") != status
        merged.append(
            {
                "type": kind.value,
                "status": status,
                "reason": check.reason,
                "message": check.message[:MAX_MESSAGE],
                "lastTransitionTime": timestamp(now) if has_moved else old["lastTransitionTime"],
                "observedGeneration": generation,
            }
        )
    return merged


def timestamp(now: datetime) -> str:
    """A time as Kubernetes writes it."""
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def _ready(facts: Facts) -> Check:
    """True if the spec is served, or an earlier revision serves while a rollout is healthy."""
    if cut_off := _cut_off(facts):
        return cut_off
    if error := _error(facts):
        return replace(error, status=False)
    serving = f"{facts.available} of {facts.wanted} engines serve"
    if facts.exchange and facts.available:
        return Check(True, "Updating", facts.exchange)
    if facts.rollout is Rollout.COMPLETE:
        if facts.wanted == 0:
            return Check(True, "ScaledToZero", "spec.replicas is 0")
        return Check(True, "Serving", serving)
    wait = facts.trouble.message + _way_out(facts) if facts.trouble else ""
    if facts.available >= max(1, facts.wanted - facts.most_unavailable):
        return Check(True, "Updating", "; ".join(filter(None, (_progress(facts), wait))))
    if facts.trouble:
        return Check(False, facts.trouble.reason, wait)
    if not facts.available:
        return Check(False, "Starting", serving)
    return Check(False, "Updating", _progress(facts))


def _cut_off(facts: Facts) -> Check | None:
    """That the Service leads to routers of which none is ready, if it does."""
    router = facts.router
    return router if router is not None and router.reason == ROUTERS_NOT_READY else None


def _error(facts: Facts) -> Check | None:
    """Why the newest change does not proceed until something is repaired."""
    if facts.refused:
        return Check(True, facts.refused.reason, "; ".join(facts.refused.sentences))
    if facts.blocked:
        return Check(True, facts.blocked.reason, facts.blocked.message)
    if facts.draft_refusal:
        return Check(True, DRAFT_REFUSED, facts.draft_refusal)
    if facts.rollout is Rollout.COMPLETE:
        return None
    if facts.failure:
        return Check(True, facts.failure.reason, facts.failure.message)
    if facts.trouble and facts.trouble.is_error:
        return Check(True, facts.trouble.reason, facts.trouble.message + _way_out(facts))
    if facts.rollout is Rollout.STUCK:
        trouble = facts.trouble
        if trouble:
            return Check(True, trouble.reason, trouble.message + _way_out(facts))
        return Check(True, "ProgressDeadlineExceeded", _too_long(facts))
    return None


def _reconciling(facts: Facts) -> Check:
    """The condition of this name in kstatus: whether the state approaches the spec."""
    stalled = _stall(facts)
    if not stalled and facts.router is not None and not facts.router.status:
        return replace(facts.router, status=True)
    if stalled or facts.are_pods_converged:
        return Check(False, "AtRest", "no change is being rolled out")
    if facts.exchange:
        return Check(True, EXCHANGING, facts.exchange)
    if facts.rollout is Rollout.COMPLETE:
        return Check(True, "PodsNotReady", "a pod is starting, terminating or not ready")
    progressing = _progressing(facts)
    return replace(progressing, status=True, message=progressing.message or _progress(facts))


def _stalled(facts: Facts) -> Check:
    """The condition of this name in kstatus: whether a change waits for a repair."""
    return _stall(facts) or Check(False, "AsExpected", "no change waits for a repair")


def _stall(facts: Facts) -> Check | None:
    """An error that needs a repair; a container that crashed once may recover."""
    error, trouble = _error(facts), facts.trouble
    if error and trouble and trouble.is_restarted and error.reason == trouble.reason:
        return None
    return error


_CLAIM_IN_USE = "; a ReadWriteOnce PVC is free once the old engine on another node has stopped: "
_CLAIM_REMEDIES = {
    "Surge": "set updateStrategy.type to Auto or InPlace, or use a ReadWriteMany PVC",
    "Auto": "after updateStrategy.surgeTimeout the rollout continues in place, unless events of "
    "the pod name another reason",
}


def _way_out(facts: Facts) -> str:
    """How a rollout proceeds whose new engine cannot be scheduled, or not mount its PVC."""
    trouble = facts.trouble
    if trouble is None:
        return ""
    if trouble.reason not in ("InsufficientGPU", "Unschedulable") and not trouble.waits_for_claim:
        return ""
    if facts.is_in_place:
        return "; engines are replaced in place: an old one terminates before a new one starts"
    if facts.updated == facts.wanted and not facts.available:
        return ""  # there is no old engine to terminate
    if trouble.waits_for_claim:
        return _CLAIM_IN_USE + _CLAIM_REMEDIES["Surge" if facts.strategy == "Surge" else "Auto"]
    if facts.strategy == "Surge":
        return "; the rollout waits for capacity; updateStrategy.type: Auto would continue in place"
    if facts.coming_node:
        return f"; {facts.coming_node}, for which the rollout waits longer than surgeTimeout"
    return (
        "; if the pod stays unscheduled for updateStrategy.surgeTimeout, the rollout continues in "
        "place"
    )


def _too_long(facts: Facts) -> str:
    return (
        f"{facts.rollout_message}; old engines keep serving; check the log of the newest pod, and "
        "raise lifecycle.startupTimeout if it only needs more time"
    )


def _progress(facts: Facts) -> str:
    serving = f"{facts.available} of {facts.wanted} engines serve"
    if facts.rollout is Rollout.UNSEEN:
        return f"the rollout of a change is about to start; {serving}"
    return f"{facts.updated} of {facts.wanted} engines are up to date; {serving}"


def _available(facts: Facts) -> Check:
    if cut_off := _cut_off(facts):
        return cut_off
    if facts.available:
        return Check(True, "EnginesServe", f"{facts.available} of {facts.wanted} engines serve")
    if facts.wanted == 0:
        return Check(True, "ScaledToZero", "spec.replicas is 0")
    return Check(False, "NoRoutableEndpoints", "no engine is ready to serve")


def _progressing(facts: Facts) -> Check:
    if facts.refused:
        return Check(False, facts.refused.reason, "the spec is rejected")
    if facts.blocked:
        return Check(False, facts.blocked.reason, facts.blocked.message)
    if facts.draft_refusal:
        return Check(False, DRAFT_REFUSED, facts.draft_refusal)
    if facts.exchange:
        return Check(True, EXCHANGING, facts.exchange)
    if facts.rollout is Rollout.COMPLETE:
        message = "every engine runs the newest configuration"
        return Check(True, "NewReplicaSetAvailable", message)
    if facts.rollout is Rollout.STUCK:
        return Check(False, "ProgressDeadlineExceeded", _too_long(facts))
    if facts.trouble and not facts.trouble.is_error:
        return Check(True, facts.trouble.reason, facts.trouble.message + _way_out(facts))
    if facts.is_in_place:
        return Check(True, "ReplacingInPlace", facts.rollout_message)
    return Check(True, "RollingOut", facts.rollout_message)


def _degraded(facts: Facts) -> Check:
    if facts.blocked and facts.blocked.reason is not BlockReason.WAITING_FOR_GARBAGE_COLLECTION:
        return Check(True, facts.blocked.reason, facts.blocked.message)
    if facts.failure:
        return Check(True, facts.failure.reason, facts.failure.message)
    if facts.trouble and facts.trouble.is_error:
        return Check(True, facts.trouble.reason, facts.trouble.message + _way_out(facts))
    if facts.draft_refusal:
        return Check(True, DRAFT_REFUSED, facts.draft_refusal)
    if facts.rollout is Rollout.STUCK:
        return Check(True, "ProgressDeadlineExceeded", _too_long(facts))
    if cut_off := _cut_off(facts):
        return replace(cut_off, status=True)
    if facts.pool and not facts.pool.status:
        return replace(facts.pool, status=True)
    if facts.degraded:
        pod, first = facts.degraded[0]
        others = len({name for name, _ in facts.degraded}) - 1
        more = f" (and {others} more)" if others else ""
        return Check(True, first.reason, f"{pod}{more}: {first.message}")
    return Check(False, "AsExpected", "no degradation is known")


def _model_ready(facts: Facts) -> Check | None:
    loaded = Check(True, "Loaded", "an engine of the newest configuration has loaded the model")
    if facts.has_loaded_model and facts.rollout is Rollout.COMPLETE:
        return loaded  # earlier failures of replaced pods no longer matter
    if facts.trouble and facts.trouble.is_about_model:
        return Check(False, facts.trouble.reason, facts.trouble.message)
    if facts.has_loaded_model:
        return loaded
    if facts.has_fetched_models:
        return Check(True, "Downloaded", "all models are downloaded and verified")
    return None


def _draft_healthy(facts: Facts) -> Check | None:
    """Whether the draft fits the target, as far as serving engines have tested it."""
    if not facts.has_draft or not facts.available:
        return None
    unfit = [(pod, each) for pod, each in facts.degraded if each.reason == Degraded.DRAFT_UNFIT]
    if unfit:
        pod, first = unfit[0]
        return Check(False, first.reason, f"{pod}: {first.message}")
    return Check(True, "AsExpected", "no engine reports that the draft does not fit the target")


def _config_resolved(facts: Facts) -> Check:
    if facts.refused:
        return Check(False, facts.refused.reason, "; ".join(facts.refused.sentences))
    if facts.blocked and facts.blocked.reason is BlockReason.TEMPLATE_REJECTED:
        return Check(False, facts.blocked.reason, facts.blocked.message)
    if facts.ignored:
        shown = ", ".join(facts.ignored)
        message = f"this operator is older than the CRD and ignores {shown}; upgrade the operator"
        return Check(True, "FieldsIgnored", "; ".join((message, *facts.warnings)))
    if facts.warnings:
        return Check(True, TABLE_WARNINGS, "; ".join(facts.warnings))
    return Check(True, "Resolved", "the spec can be carried out")
