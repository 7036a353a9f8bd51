"""Settings of the operator: environment variables, overridden by flags."""

import json
import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_operator.objects.pod_defaults import NO_DEFAULTS, PodDefaults, pod_defaults

ENVIRONMENT_PREFIX = "SPECDECODE_"
NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
LEASE_NAME = "specdecode-operator"
LABEL_VALUE = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"


def version() -> str:
    """Version of the installed operator."""
    return metadata.version("specdecode-operator")


def default_engine_image() -> str:
    """Image of the engine that was released together with this operator."""
    return f"specdecode-engine:{version()}"


DEFAULT_VLLM_IMAGE = "vllm/vllm-openai:v0.32.0"
"""Image of runtime VLLM, of a supported version."""


def default_router_image() -> str:
    """Image of the router that was released together with this operator."""
    return f"specdecode-router:{version()}"


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of an operator process."""

    engine_image: str
    router_image: str = field(default_factory=lambda: default_router_image())
    vllm_image: str = DEFAULT_VLLM_IMAGE
    metrics_from: tuple[Mapping[str, Any], ...] = ()
    """Peers of a NetworkPolicy that may read metrics of engines of runtime VLLM."""
    namespaces: tuple[str, ...] = ()
    """Namespaces to watch; empty means all."""
    operator_class: str = ""
    """Class of this operator: it reconciles the custom resources with this class in their label;
    empty means those without the label."""
    kubeconfig: str | None = None
    health_port: int = 8080
    metrics_port: int = 9090
    workers: int = 8
    resync_seconds: float = 300.0
    start_timeout_seconds: float = 60.0
    request_timeout_seconds: float = 30.0
    leader_election: bool = True
    lease_namespace: str | None = None
    """Namespace of the Lease; default: the pod's namespace, else the first watched one."""
    lease_name: str = LEASE_NAME
    own_namespace: str = ""
    """Namespace of the operator's pod; empty outside of a cluster."""
    identity: str | None = None
    """Holder identity in the Lease; default: the pod's name, else a unique name."""
    upgrade_policy: Literal["Pinned", "Roll"] = "Pinned"
    """What a new default engine image does, if `engine.upgradePolicy` is absent."""
    max_concurrent_rollouts: int = 2
    """Resources whose pods are replaced for a new default engine image at the same time."""
    has_template: bool = True
    """Whether custom resources may contain spec.template."""
    allows_host_access: bool = False
    """Whether spec.template may name a ServiceAccount, the node's network or folders."""
    has_routers: bool = True
    """Whether custom resources may have routers, which takes permissions on roles and a Secret."""
    has_inference_pools: bool = True
    """Whether custom resources may have InferencePools, which takes permissions on them."""
    has_trials: bool = True
    """Whether trials may run; without, engines keep the configuration in force."""
    pod_defaults: PodDefaults = NO_DEFAULTS
    """What is set in the pods of all engines."""
    log_level: str = "INFO"
    log_format: str = "json"

    def __post_init__(self) -> None:
        if self.operator_class and not re.fullmatch(LABEL_VALUE, self.operator_class):
            raise ValueError(
                f"the operator class is {self.operator_class!r}; use the value of a label: at most "
                "63 letters, digits, '-', '_' and '.', with a letter or digit at both ends"
            )


def image_of(settings: Settings, runtime: RuntimeName) -> str:
    """Default image of a runtime."""
    return settings.vllm_image if runtime == "VLLM" else settings.engine_image


def lease_namespace(settings: Settings, file: Path = NAMESPACE_FILE) -> str:
    """Namespace of the Lease: as configured, else the pod's, else the first watched one."""
    if settings.lease_namespace:
        return settings.lease_namespace
    if file.exists():
        return file.read_text(encoding="utf-8").strip()
    return settings.namespaces[0] if settings.namespaces else "default"


def _own_namespace(file: Path = NAMESPACE_FILE) -> str:
    return file.read_text(encoding="utf-8").strip() if file.exists() else ""


def identity(settings: Settings, environment: Mapping[str, str] = os.environ) -> str:
    """Holder identity: as configured, else the pod's name, else a unique name.

    A restarted container of the same pod keeps its identity: the previous process has ended, so
    its Lease need not expire first.
    """
    if settings.identity:
        return settings.identity
    host = socket.gethostname()
    return host if "KUBERNETES_SERVICE_HOST" in environment else f"{host}_{uuid.uuid4().hex[:8]}"


def from_environment(environment: Mapping[str, str] = os.environ) -> Settings:
    """Read settings from environment variables.

    Raises:
        ValueError: a variable is invalid; the message contains name and value.
    """
    return Settings(
        engine_image=_read(environment, "ENGINE_IMAGE") or default_engine_image(),
        router_image=_read(environment, "ROUTER_IMAGE") or default_router_image(),
        vllm_image=_read(environment, "VLLM_IMAGE") or DEFAULT_VLLM_IMAGE,
        metrics_from=_peers(environment, "VLLM_METRICS_FROM"),
        namespaces=tuple(_read(environment, "NAMESPACES").split()),
        operator_class=_read(environment, "OPERATOR_CLASS"),
        kubeconfig=environment.get("KUBECONFIG") or None,
        health_port=int(_number(environment, "HEALTH_PORT", 8080)),
        metrics_port=int(_number(environment, "METRICS_PORT", 9090)),
        workers=int(_number(environment, "WORKERS", 8)),
        resync_seconds=_number(environment, "RESYNC_SECONDS", 300),
        start_timeout_seconds=_number(environment, "START_TIMEOUT_SECONDS", 60),
        leader_election=_truth(environment, "LEADER_ELECTION", default=True),
        lease_namespace=_read(environment, "LEASE_NAMESPACE") or None,
        lease_name=_read(environment, "LEASE_NAME") or LEASE_NAME,
        own_namespace=_own_namespace(),
        identity=_read(environment, "IDENTITY") or None,
        upgrade_policy=_upgrade_policy(environment),
        max_concurrent_rollouts=int(_number(environment, "MAX_CONCURRENT_ROLLOUTS", 2)),
        has_template=_truth(environment, "TEMPLATE", default=True),
        allows_host_access=_truth(environment, "TEMPLATE_HOST_ACCESS", default=False),
        has_routers=_truth(environment, "ROUTERS", default=True),
        has_inference_pools=_truth(environment, "INFERENCE_POOLS", default=True),
        has_trials=_truth(environment, "TRIALS", default=True),
        pod_defaults=pod_defaults(
            _read(environment, "POD_SECURITY_CONTEXT"),
            _read(environment, "CONTAINER_SECURITY_CONTEXT"),
            _read(environment, "CA_BUNDLE"),
        ),
        log_level=_read(environment, "LOG_LEVEL").upper() or "INFO",
        log_format=_read(environment, "LOG_FORMAT").lower() or "json",
    )


def _peers(environment: Mapping[str, str], name: str) -> tuple[Mapping[str, Any], ...]:
    text = _read(environment, name)
    try:
        found = json.loads(text or "[]")
    except ValueError:
        found = None
    if not isinstance(found, list) or not all(isinstance(each, dict) for each in found):
        variable = ENVIRONMENT_PREFIX + name
        raise ValueError(f"{variable} is {text!r}; set it to a JSON list of NetworkPolicy peers")
    return tuple(found)


def _upgrade_policy(environment: Mapping[str, str]) -> Literal["Pinned", "Roll"]:
    match _read(environment, "UPGRADE_POLICY"):
        case "Pinned" | "":
            return "Pinned"
        case "Roll":
            return "Roll"
        case text:
            raise ValueError(f"SPECDECODE_UPGRADE_POLICY is {text!r}; set it to Pinned or Roll")


def _read(environment: Mapping[str, str], name: str) -> str:
    return environment.get(ENVIRONMENT_PREFIX + name, "").strip()


def _truth(environment: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = _read(environment, name).lower()
    if text not in ("", "true", "false"):
        variable = ENVIRONMENT_PREFIX + name
        raise ValueError(f"{variable} is {text!r}; set it to true or false or leave it out")
    return text == "true" if text else default


def _number(environment: Mapping[str, str], name: str, default: float) -> float:
    text = _read(environment, name)
    try:
        return float(text) if text else default
    except ValueError:
        variable = ENVIRONMENT_PREFIX + name
        raise ValueError(f"{variable} is {text!r}; set it to a number or leave it out") from None
