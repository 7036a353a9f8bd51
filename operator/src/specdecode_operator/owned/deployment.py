"""The Deployment of a resource's engines."""

import copy
import math
from collections.abc import Mapping
from types import MappingProxyType

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest
from specdecode_operator.owned import fetch
from specdecode_operator.owned.config_map import config_map_name
from specdecode_operator.owned.labels import child_labels, pod_selector

NO_ANNOTATIONS: Mapping[str, str] = MappingProxyType({})


def deployment_name(name: str, role: str = names.ROLE_STABLE) -> str:
    """Name of the Deployment of one role."""
    return name if role == names.ROLE_STABLE else f"{name}-{role}"


def deployment(
    name: str,
    spec: Spec,
    pod_template: Manifest,
    config_hash: str,
    *,
    is_in_place: bool = False,
    role: str = names.ROLE_STABLE,
    block: str = "",
    annotations: Mapping[str, str] = NO_ANNOTATIONS,
) -> Manifest:
    """Deployment that runs `pod_template` with the boot file of `config_hash`.

    In place, an engine terminates before its replacement starts; otherwise the replacement needs
    additional capacity. The annotation records the configuration for which this was decided.
    Another `block` of a trial has new pods, even of the same configuration.

    Args:
        annotations: others of the Deployment itself.
    """
    if is_in_place:
        annotations = {**annotations, names.ANNOTATION_IN_PLACE: config_hash}
    decided = {"annotations": dict(annotations)} if annotations else {}
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": {"name": deployment_name(name, role), "labels": child_labels(name), **decided},
        "spec": {
            "replicas": spec.replicas,
            "paused": False,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": _deadline_seconds(spec),
            "selector": {"matchLabels": pod_selector(name, role)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": _rolling_update(spec, is_in_place),
            },
            "template": _stamped(name, pod_template, config_hash, role, block),
        },
    }


def _deadline_seconds(spec: Spec) -> int:
    """Startup timeout with a margin, plus time to pull the image and download the models."""
    arrival = 300 + (fetch.ALLOWANCE_SECONDS if fetch.fetched(spec) else 0)
    return math.ceil(1.2 * duration_s(spec.lifecycle.startup_timeout)) + arrival


def _rolling_update(spec: Spec, is_in_place: bool) -> Manifest:
    """Limits of a rollout: those of the spec, else one engine at a time."""
    surge, unavailable = spec.update_strategy.max_surge, spec.update_strategy.max_unavailable
    if is_in_place:
        is_given = unavailable not in (None, 0, "0%")
        return {"maxSurge": 0, "maxUnavailable": unavailable if is_given else 1}
    return {
        "maxSurge": 1 if surge is None else surge,
        "maxUnavailable": 0 if unavailable is None else unavailable,
    }


def _stamped(
    name: str, pod_template: Manifest, config_hash: str, role: str, block: str
) -> Manifest:
    stamped = copy.deepcopy(pod_template)
    # After hashing: a canary's pods have the same hash as pods after its promotion.
    stamped["metadata"]["labels"] |= pod_selector(name, role)
    annotations = stamped["metadata"].setdefault("annotations", {})
    annotations[names.ANNOTATION_CONFIG_HASH] = config_hash
    if block:
        annotations[names.ANNOTATION_BLOCK] = block
    if names.LABEL_RUNTIME not in stamped["metadata"]["labels"]:
        boot = {"name": "boot", "configMap": {"name": config_map_name(name, config_hash)}}
        stamped["spec"]["volumes"].insert(0, boot)
    return stamped
