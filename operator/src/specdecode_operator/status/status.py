"""Builds the complete status of a custom resource: counts, URL, hash, conditions.

Whether pods are ready is read from the pods: the Deployment's controller counts them late after an
outage of the API server.
"""

from dataclasses import replace
from datetime import datetime

from specdecode_api.report import ModelState
from specdecode_api.speculation import Algorithm
from specdecode_api.v1alpha1 import (
    ModelStatus,
    RecommendationStatus,
    Status,
)
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.parts import Failures, Part
from specdecode_operator.objects.rollout import condition, most_unavailable, rollout
from specdecode_operator.owned import engines_service_name
from specdecode_operator.owned.labels import pod_selector, selector_text
from specdecode_operator.owned.service import url
from specdecode_operator.plan.plan import Plan
from specdecode_operator.status import conditions, draft_exchange_view
from specdecode_operator.status.conditions import Check, Facts
from specdecode_operator.status.create_errors import classify_create_error
from specdecode_operator.status.inference_pool_view import pool_check
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.trial import Step
from specdecode_operator.trial.steps import learning
from specdecode_operator.trial.strategies.restarts import is_tried
from specdecode_operator.trial.view.status_view import health
from specdecode_operator.updates.router_switch import (
    accept_routers,
    leads_to_routers,
    ready_routers,
)

SERVICE_LABEL = "kubernetes.io/service-name"


def status(
    observed: Observed,
    plan: Plan,
    outcome: Outcome,
    now: datetime,
    lacking: tuple[str, ...] = (),
    failures: Failures | None = None,
) -> Manifest:
    """The whole status after `plan` resulted in `outcome`; absent fields are removed.

    Args:
        lacking: fields that the served CRD would drop.
        failures: parts that have failed, by default those of the plan; parts of the status that
            cannot be computed are added, and stay as they were.
    """
    failures = Failures(plan.failures) if failures is None else failures
    seen = observed.with_children(outcome.written, outcome.removed)
    metadata = observed.resource["metadata"]
    previous = observed.resource.get("status") or {}
    deployment = seen.owned(DEPLOYMENT)
    counts = (deployment or {}).get("status") or {}
    config_hash = plan.config_hash or previous.get("configHash")
    recommendation = failures.attempt(
        Part.RECOMMENDATION,
        "status.recommendation",
        lambda: _recommendation(plan.step, metadata, previous, now),
        previous.get("recommendation"),
    )
    facts = _facts(seen, plan, outcome, deployment, config_hash, failures)
    facts = replace(facts, lacking=lacking, failures=tuple(failures.found))
    checks = conditions.checks(facts)
    merged = conditions.merge(checks, previous.get("conditions") or [], metadata["generation"], now)
    return as_manifest(
        Status.model_validate(
            {
                "observedGeneration": metadata["generation"],
                "replicas": counts.get("replicas", 0),
                "readyReplicas": sum(map(pods.is_ready, filter(pods.is_stable, seen.pods))),
                "routableReplicas": _routable(seen),
                "updatedReplicas": draft_exchange_view.updated(
                    plan.exchange, counts.get("updatedReplicas", 0)
                ),
                # Without pods of trials, which an autoscaler would count as replicas.
                "selector": selector_text(pod_selector(metadata["name"])),
                "router": _router(seen, plan),
                "address": {"url": url(metadata["name"], metadata["namespace"])},
                "configHash": config_hash,
                "speculation": _speculation(plan, previous),
                "models": _models(plan, previous),
                "draftExchange": draft_exchange_view.exchange_status(
                    plan.exchange, observed.resource, config_hash
                ),
                **_trials(plan, outcome, previous),
                "recommendation": recommendation,
                "measured": observed.measured,
                "activity": observed.activity,
                "conditions": merged,
            }
        )
    )


def as_manifest(record: Status) -> Manifest:
    """A status as stored by the API server."""
    return record.model_dump(by_alias=True, exclude_none=True, mode="json")


def _trials(plan: Plan, outcome: Outcome, previous: Manifest) -> Manifest:
    """Status of trials; unchanged for a rejected spec, and while its other parts are not stored."""
    if plan.step is None or not outcome.is_state_stored:
        kept = ("effective", "exploration", "activeTrial", "lastTrial")
        return {name: previous.get(name) for name in kept}
    return {
        "effective": plan.view.effective,
        "exploration": plan.view.exploration,
        "activeTrial": plan.view.active_trial,
        "lastTrial": plan.view.last_trial,
    }


def _speculation(plan: Plan, previous: Manifest) -> Manifest | None:
    """How the engines draft; unchanged for a rejected spec."""
    if plan.step is None:
        return previous.get("speculation")
    found = plan.step.now.built.boot.speculation
    return {
        "algorithm": found.algorithm,
        "policy": found.policy.value.capitalize(),
        "topk": found.topk,
        "numSteps": found.usual_steps,
        "table": learning.steps_of(plan.step.now.table) or None,
    }


def _models(plan: Plan, previous: Manifest) -> list[ModelStatus] | None:
    """Download status; absent without downloads, unchanged for a rejected spec."""
    if plan.refused:
        return previous.get("models")
    return list(plan.models) or None


def _routable(seen: Observed) -> int:
    """Engine pods to which the Service, or the routers, send requests.

    A pod has an endpoint per address family.
    """
    name = seen.resource["metadata"]["name"]
    service = engines_service_name(name) if leads_to_routers(seen) else name
    return len(
        {
            endpoint["targetRef"]["uid"]
            for each in seen.slices
            if (each["metadata"].get("labels") or {}).get(SERVICE_LABEL, service) == service
            for endpoint in each.get("endpoints") or ()
            if endpoint.get("targetRef") and (endpoint.get("conditions") or {}).get("ready")
        }
    )


def _router(seen: Observed, plan: Plan) -> Manifest | None:
    """Status of the routers; unchanged for a rejected spec."""
    if plan.refused:
        before: Manifest | None = (seen.resource.get("status") or {}).get("router")
        return before
    if not plan.has_routers:
        return None
    return {"readyReplicas": ready_routers(seen), "isServing": leads_to_routers(seen)}


def _router_check(seen: Observed, plan: Plan, outcome: Outcome) -> Check | None:
    """Condition of the routers; None without any."""
    if plan.refused or not plan.has_routers:
        return None
    ready = ready_routers(seen)
    if leads_to_routers(seen) and not ready:
        return Check(False, conditions.ROUTERS_NOT_READY, "no router is ready")
    if leads_to_routers(seen):
        return Check(True, "RoutersServe", f"{ready} routers serve")
    if not ready and outcome.token_error:
        return Check(False, "TokenNotWritten", outcome.token_error)
    if not ready:
        message = "the Service leads to the engines until a router is ready"
        return Check(False, "RoutersStarting", message)
    if accept_routers(seen):
        return Check(False, "Switching", "the Service is about to lead to the routers")
    message = "the Service leads to the engines until all that are ready accept routers"
    return Check(False, "WaitingForEngines", message)


def _trial_check(plan: Plan, outcome: Outcome, resource: Manifest) -> Check | None:
    """Condition of a running trial; its message changes when the state of the trial is stored.

    At every look it would be another one, and each a write.
    """
    if outcome.trial_error:
        return Check(False, "WriteFailed", outcome.trial_error)
    if plan.step is None or plan.step.record.trial is None:
        return None
    found = Check(*health(plan.step.record.trial))
    before = _condition(resource, conditions.Type.CANARY_HEALTHY)
    if plan.has_new_state or before is None:
        return found
    is_same = (before["status"], before["reason"]) == (found.shown_status, found.reason)
    return replace(found, message=before["message"]) if is_same else found


def _condition(resource: Manifest, kind: conditions.Type) -> Manifest | None:
    """A condition as it is stored."""
    stored = (resource.get("status") or {}).get("conditions") or ()
    return next((each for each in stored if each["type"] == kind), None)


def _recommendation(
    step: Step | None, metadata: Manifest, previous: Manifest, now: datetime
) -> RecommendationStatus | Manifest | None:
    """The recommendation; the previous one if the engines were not observed since."""
    before: Manifest = previous.get("recommendation") or {}
    if step is None:
        return before or None
    if not _learns(step):
        return None
    if step.advice is None:
        # In a block of a trial, the pods run another configuration for a while.
        is_tried = step.record.trial is not None
        is_same = is_tried or previous.get("configHash") == step.now.built.config_hash
        return before if before and is_same else None
    name = metadata["name"], metadata["namespace"]
    return learning.shown(step.advice, *name, before, conditions.timestamp(now))


def _recommendation_check(plan: Plan, resource: Manifest) -> Check | None:
    step = plan.step
    if step is None or not _learns(step):
        return None
    before = _condition(resource, conditions.Type.RECOMMENDATION_READY)
    if step.advice is None:
        was_ready = before is not None and before["status"] == "True"
        return Check(was_ready, before["reason"], before["message"]) if before else None
    found = learning.condition(step.advice, step.held)
    return Check(found.is_ready, found.reason, found.message)


def _learns(step: Step) -> bool:
    spec = step.now.resource.spec
    return spec.rollout.mode != "Manual" and bool(step.now.table)


def _are_converged(seen: Observed, config_hash: str | None) -> bool:
    active = [pod for pod in seen.pods if pods.is_stable(pod) and pods.is_active(pod)]
    wanted = (seen.resource.get("spec") or {}).get("replicas", 1)
    return len(active) == wanted and all(
        pods.is_ready(pod) and pods.config_hash_of(pod) == config_hash for pod in active
    )


def _strategy(resource: Manifest) -> str:
    strategy = (resource.get("spec") or {}).get("updateStrategy") or {}
    return str(strategy.get("type") or "Auto")


def _has_draft(resource: Manifest) -> bool:
    speculation = (resource.get("spec") or {}).get("speculation") or {}
    name = speculation.get("algorithm") or Algorithm.NONE
    return next((one.takes_draft for one in Algorithm if one == name), True)


def _pods_in_force(seen: Observed, plan: Plan) -> list[Manifest]:
    """Stable pods, without those of a trial's candidate: condition CanaryHealthy reports these."""
    trial = plan.step.record.trial if plan.step else None
    stable = filter(pods.is_stable, seen.pods)
    return [pod for pod in stable if not is_tried(trial, pod)]


def _facts(
    seen: Observed,
    plan: Plan,
    outcome: Outcome,
    deployment: Manifest | None,
    config_hash: str | None,
    failures: Failures,
) -> Facts:
    live = deployment or {}
    progress = rollout(deployment) if deployment else None
    failing = condition(live, "ReplicaFailure")
    return Facts(
        wanted=(seen.resource.get("spec") or {}).get("replicas", 1),
        available=(live.get("status") or {}).get("availableReplicas", 0),
        updated=(live.get("status") or {}).get("updatedReplicas", 0),
        rollout=progress,
        rollout_message=condition(live, "Progressing").get("message", ""),
        failure=classify_create_error(failing.get("message", ""))
        if failing.get("status") == "True"
        else None,
        trouble=pods.trouble(_pods_in_force(seen, plan), config_hash, seen.progress, seen.at),
        degraded=seen.degraded,
        has_draft=_has_draft(seen.resource),
        most_unavailable=most_unavailable(live),
        exchange=draft_exchange_view.progress(plan.exchange, seen.resource),
        draft_refusal=draft_exchange_view.refusal(plan.exchange, seen.resource),
        strategy=_strategy(seen.resource),
        is_in_place=plan.strategy.is_in_place,
        coming_node=plan.strategy.coming_node,
        refused=plan.refused,
        ignored=plan.ignored,
        warnings=plan.warnings,
        blocked=outcome.blocked,
        has_loaded_model=any(
            pods.is_ready(pod) and pods.config_hash_of(pod) == config_hash for pod in seen.pods
        ),
        are_pods_converged=_are_converged(seen, config_hash),
        has_fetched_models=bool(plan.models)
        and all(model.state is ModelState.READY for model in plan.models),
        lost=plan.lost,
        overridden=plan.overridden,
        router=_router_check(seen, plan, outcome),
        pool=pool_check(seen, plan, outcome),
        trial=failures.attempt(
            Part.TRIAL,
            "condition CanaryHealthy",
            lambda: _trial_check(plan, outcome, seen.resource),
            None,
        ),
        recommendation=failures.attempt(
            Part.RECOMMENDATION,
            "condition RecommendationReady",
            lambda: _recommendation_check(plan, seen.resource),
            None,
        ),
    )
