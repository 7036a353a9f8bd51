"""The status of a resource: counts, address, hash and conditions, complete on every write."""

from dataclasses import replace
from datetime import datetime

from specdecode_api.report import ModelState
from specdecode_api.v1alpha1 import ModelStatus, Status
from specdecode_operator import conditions, pods
from specdecode_operator.children.labels import selector_text, service_selector
from specdecode_operator.children.service import url
from specdecode_operator.conditions import Facts
from specdecode_operator.creation import refusal
from specdecode_operator.kinds import DEPLOYMENT, ChildId, Manifest
from specdecode_operator.observed import Observed, is_controlled_by
from specdecode_operator.outcome import Outcome
from specdecode_operator.plan import Plan
from specdecode_operator.rollout import condition, rollout


def status(
    observed: Observed,
    plan: Plan,
    outcome: Outcome,
    now: datetime,
    lacking: tuple[str, ...] = (),
) -> Manifest:
    """The whole status after `plan` came to `outcome`; what is not in it is removed.

    `lacking` names what the served definition would drop.
    """
    seen = observed.with_children(outcome.written, outcome.removed)
    metadata = observed.resource["metadata"]
    previous = observed.resource.get("status") or {}
    deployment = _deployment(seen)
    counts = (deployment or {}).get("status") or {}
    config_hash = plan.config_hash or previous.get("configHash")
    facts = replace(_facts(seen, plan, outcome, deployment, config_hash), lacking=lacking)
    checks = conditions.checks(facts)
    merged = conditions.merge(checks, previous.get("conditions") or [], metadata["generation"], now)
    return as_manifest(
        Status.model_validate(
            {
                "observedGeneration": metadata["generation"],
                "replicas": counts.get("replicas", 0),
                "readyReplicas": counts.get("readyReplicas", 0),
                "routableReplicas": sum(map(pods.is_ready, seen.pods)),
                "updatedReplicas": counts.get("updatedReplicas", 0),
                "selector": selector_text(service_selector(metadata["name"])),
                "url": url(metadata["name"], metadata["namespace"]),
                "configHash": config_hash,
                "models": _models(plan, previous),
                "hold": conditions.hold(checks, previous.get("hold"), now),
                "conditions": merged,
            }
        )
    )


def as_manifest(record: Status) -> Manifest:
    """A status as the API server stores it."""
    return record.model_dump(by_alias=True, exclude_none=True, mode="json")


def _models(plan: Plan, previous: Manifest) -> list[ModelStatus] | None:
    """What is fetched; absent where nothing is. Of a refused spec nothing is known."""
    if plan.refused:
        return previous.get("models")
    return list(plan.models) or None


def _deployment(seen: Observed) -> Manifest | None:
    found = seen.children.get(ChildId(DEPLOYMENT.kind, seen.resource["metadata"]["name"]))
    return found if found is not None and is_controlled_by(found, seen.uid) else None


def _strategy(resource: Manifest) -> str:
    lifecycle = (resource.get("spec") or {}).get("lifecycle") or {}
    return str(lifecycle.get("updateStrategy") or "Auto")


def _facts(
    seen: Observed,
    plan: Plan,
    outcome: Outcome,
    deployment: Manifest | None,
    config_hash: str | None,
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
        failure=refusal(failing.get("message", "")) if failing.get("status") == "True" else None,
        trouble=pods.trouble(seen.pods, config_hash, seen.progress, seen.at),
        degraded=seen.degraded,
        strategy=_strategy(seen.resource),
        is_in_place=plan.pace.is_in_place,
        refused=plan.refused,
        ignored=plan.ignored,
        stopped=outcome.stopped,
        has_loaded_model=any(
            pods.is_ready(pod) and pods.config_hash_of(pod) == config_hash for pod in seen.pods
        ),
        has_fetched_models=bool(plan.models)
        and all(model.state is ModelState.READY for model in plan.models),
    )
