"""The pod template of an engine."""

import math

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import LifecycleSpec, Resources, Spec
from specdecode_operator.children import api_keys, fetch, router_token
from specdecode_operator.children.boot_file import threads
from specdecode_operator.children.labels import pod_labels
from specdecode_operator.children.models import Mounts
from specdecode_operator.children.patch import patched, refusals
from specdecode_operator.children.placement import GPU, tolerations, with_selectors
from specdecode_operator.children.security import CONTAINER_SECURITY, pod_security
from specdecode_operator.kinds import Manifest
from specdecode_operator.resource import ResourceError

STARTUP_PERIOD_SECONDS = 2
PORTS = {
    names.ENGINE_PORT_NAME: names.ENGINE_PORT,
    names.MANAGEMENT_PORT_NAME: names.MANAGEMENT_PORT,
}


def pod_template(name: str, spec: Spec, image: str, mounts: Mounts) -> Manifest:
    """Pod template without the volume `boot` and the config hash.

    `deployment` adds these two after hashing the template.

    Raises:
        ResourceError: the user's template sets a field that the operator manages.
    """
    template = _template(name, spec, image, mounts)
    if refused := refusals(template, spec.template):
        raise ResourceError(*refused)
    merged = patched(template, spec.template)
    return {**merged, "spec": with_selectors(name, merged["spec"])}


def _template(name: str, spec: Spec, image: str, mounts: Mounts) -> Manifest:
    on_gpu = spec.engine.device == "GPU"
    fetches = bool(fetch.fetched(spec))
    return {
        "metadata": {"labels": pod_labels(name)},
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": spec.lifecycle.grace_seconds,
            "securityContext": pod_security(has_group=fetch.shares_cache(spec)),
            **({"initContainers": [fetch.fetch_container(spec, image)]} if fetches else {}),
            "containers": [_container(spec, image, mounts)],
            "volumes": [
                {"name": "tmp", "emptyDir": {}},
                *([{"name": "shm", "emptyDir": {"medium": "Memory"}}] if on_gpu else []),
                *mounts.volumes,
                *api_keys.volumes(spec),
                *router_token.volumes(spec),
            ],
            **({"tolerations": tolerations(spec)} if on_gpu else {}),
        },
    }


def _container(spec: Spec, image: str, mounts: Mounts) -> Manifest:
    on_gpu = spec.engine.device == "GPU"
    return {
        "name": names.ENGINE_CONTAINER,
        "image": image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": ["specdecode-engine"],
        "args": ["--boot", f"{names.BOOT_FOLDER}/{names.BOOT_FILE_NAME}"],
        "env": _environment(spec),
        "ports": [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in PORTS.items()
        ],
        "resources": _resources(spec.resources, on_gpu),
        "securityContext": CONTAINER_SECURITY,
        # The engine writes why it ended there; without a reason the last log lines stand in.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(spec.lifecycle),
        "lifecycle": {"preStop": {"exec": {"command": _pre_stop(spec.lifecycle)}}},
        "volumeMounts": [
            {"name": "boot", "mountPath": names.BOOT_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *([{"name": "shm", "mountPath": "/dev/shm"}] if on_gpu else []),
            *mounts.volume_mounts,
            *api_keys.volume_mounts(spec),
            *router_token.volume_mounts(spec),
        ],
    }


def _environment(spec: Spec) -> list[Manifest]:
    count = threads(spec)
    environment = {
        "HOME": "/tmp",
        "HF_HUB_OFFLINE": "1",
        names.VARIABLE_TERMINATION_MESSAGE_PATH: names.TERMINATION_LOG,
        **({"OMP_NUM_THREADS": str(count)} if count is not None else {}),
    }
    return [{"name": name, "value": value} for name, value in environment.items()]


def _resources(resources: Resources, on_gpu: bool) -> Manifest:
    limits = dict(resources.limits)
    names_an_accelerator = any("/" in name for name in limits)
    if on_gpu and not names_an_accelerator:
        limits[GPU] = "1"
    requests = dict(resources.requests)
    return {
        **({"limits": limits} if limits else {}),
        **({"requests": requests} if requests else {}),
    }


def _probes(lifecycle: LifecycleSpec) -> Manifest:
    """Probes; liveness checks the scheduler's heartbeat and never generates tokens."""
    attempts = math.ceil(duration_s(lifecycle.startup_timeout) / STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": probe(names.PATH_STARTUP, STARTUP_PERIOD_SECONDS, attempts),
        "readinessProbe": probe(names.PATH_READY, 2, 2),
        "livenessProbe": probe(names.PATH_LIVE, 10, 6),
    }


def probe(path: str, period_seconds: int, failures: int) -> Manifest:
    """Return a probe of the management port."""
    return {
        "httpGet": {"path": path, "port": names.MANAGEMENT_PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _pre_stop(lifecycle: LifecycleSpec) -> list[str]:
    """The pod is not ready at once, and serves while endpoints are updated.

    The action `sleep` alone would leave it ready.
    """
    return ["specdecode-engine", "drain", "--timeout", f"{duration_s(lifecycle.pre_stop):g}"]
