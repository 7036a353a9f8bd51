"""The pod template of an engine."""

import math

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import LifecycleSpec, Spec
from specdecode_api.v1alpha1.resources import WHOLE_GPU
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.owned import api_keys, fetch, router_token
from specdecode_operator.owned.boot_file import threads
from specdecode_operator.owned.labels import pod_labels, service_selector
from specdecode_operator.owned.models import Mounts
from specdecode_operator.owned.patch import patched, refusals
from specdecode_operator.owned.runtimes import vllm_pod
from specdecode_operator.owned.security import CONTAINER_SECURITY, pod_security

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
    return {**merged, "spec": with_selectors(merged["spec"], service_selector(name))}


def _template(name: str, spec: Spec, image: str, mounts: Mounts) -> Manifest:
    if spec.engine.runtime == "VLLM":
        return _vllm_template(name, spec, image, mounts)
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
                *_shared_memory(spec),
                *mounts.volumes,
                *api_keys.volumes(spec),
                *router_token.volumes(spec),
            ],
            **({"tolerations": tolerations(spec)} if spec.gpus else {}),
        },
    }


def _vllm_template(name: str, spec: Spec, image: str, mounts: Mounts) -> Manifest:
    """Without a boot file: the command line contains the whole configuration."""
    return {
        "metadata": {"labels": pod_labels(name) | {names.LABEL_RUNTIME: spec.engine.runtime}},
        "spec": {
            "serviceAccountName": name,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": spec.lifecycle.grace_seconds,
            "securityContext": vllm_pod.security(spec),
            "containers": [vllm_pod.container(name, spec, image, mounts, _resources(spec))],
            "volumes": vllm_pod.volumes(spec, mounts),
            **({"tolerations": tolerations(spec)} if spec.gpus else {}),
        },
    }


def _container(spec: Spec, image: str, mounts: Mounts) -> Manifest:
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
        "resources": _resources(spec),
        "securityContext": CONTAINER_SECURITY,
        # The engine writes why it ended there; without a reason the last log lines stand in.
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(spec.lifecycle),
        "lifecycle": {"preStop": {"exec": {"command": _pre_stop(spec.lifecycle)}}},
        "volumeMounts": [
            {"name": "boot", "mountPath": names.BOOT_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            *({"name": each["name"], "mountPath": "/dev/shm"} for each in _shared_memory(spec)),
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


def _shared_memory(spec: Spec) -> list[Manifest]:
    """The volume at /dev/shm; that of a container without one has 64 MiB.

    Several ranks exchange data through it where NCCL finds no better way. NCCL's documentation
    starts containers with `--shm-size=1g`; a limit of that for each rank also keeps what ranks that
    died left there from taking the memory of the pod.
    """
    tensor = spec.parallelism.tensor
    if not spec.gpus and tensor == 1:
        return []
    limit = {"sizeLimit": f"{tensor}Gi"} if tensor > 1 else {}
    return [{"name": "shm", "emptyDir": {"medium": "Memory", **limit}}]


def _resources(spec: Spec) -> Manifest:
    limits, requests = dict(spec.resources.limits), dict(spec.resources.requests)
    names_an_accelerator = any("/" in name for name in limits)
    if spec.gpus and not names_an_accelerator:
        limits[WHOLE_GPU] = str(spec.gpus)
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


def tolerations(spec: Spec) -> list[Manifest]:
    """GPU pods tolerate the `nvidia.com/gpu` taint automatically."""
    taint = {"key": WHOLE_GPU, "operator": "Exists", "effect": "NoSchedule"}
    return [taint] if spec.gpus else []


def with_selectors(pod: Manifest, selector: dict[str, str]) -> Manifest:
    """Have topology spread constraints without a selector count the pods of this resource."""
    constraints = pod.get("topologySpreadConstraints")
    if not constraints:
        return pod
    own = {"labelSelector": {"matchLabels": selector}}
    return {**pod, "topologySpreadConstraints": [{**own, **each} for each in constraints]}
