"""The pod of vLLM: its container, environment, volumes, and how it ends."""

import math
from typing import Final

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import LifecycleSpec, Spec
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.owned.models import Mounts
from specdecode_operator.owned.runtimes.vllm import arguments, hub_models
from specdecode_operator.owned.security import CONTAINER_SECURITY, GROUP_ID, pod_security

STARTUP_PERIOD_SECONDS: Final = 2
SHARED_MEMORY_GIB: Final = 2
"""Of each rank, for the messages between processes and NCCL."""
_CACHE: Final = "model-cache"

PRE_STOP: Final = """\
import http.client, sys, time, urllib.request
base, wait, limit = "http://127.0.0.1:" + sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
def read(path):
    with urllib.request.urlopen(base + path, timeout=5) as response:
        return response.read().decode()
def busy():
    names = ("vllm:num_requests_running{", "vllm:num_requests_waiting{")
    lines = [line for line in read("/metrics").splitlines() if line.startswith(names)]
    return sum(float(line.split()[-1]) for line in lines) > 0
try:
    read("/health")
    end = time.monotonic() + wait + limit
    time.sleep(wait)
    while time.monotonic() < end and busy():
        time.sleep(0.5)
except (OSError, ValueError, http.client.HTTPException):
    pass
"""
"""Waits until endpoints are updated, then until no request runs or waits.

It ends at once if nothing answers, as vLLM listens only when it is ready, or if the answer cannot
be read: an error would be an event FailedPreStopHook, and end the pod all the same.
"""

_ENVIRONMENT: Final = {
    "HOME": "/tmp",
    # Some libraries look up the name of the user, which the image does not know.
    "USER": "vllm",
    "XDG_CACHE_HOME": "/tmp/cache",
    "VLLM_CACHE_ROOT": "/tmp/cache/vllm",
    "VLLM_CONFIG_ROOT": "/tmp/config/vllm",
    "TRITON_CACHE_DIR": "/tmp/cache/triton",
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/cache/inductor",
    "FLASHINFER_WORKSPACE_BASE": "/tmp/cache",
    "VLLM_NO_USAGE_STATS": "1",
}


def container(name: str, spec: Spec, image: str, mounts: Mounts, resources: Manifest) -> Manifest:
    """The container of an engine. Its serving port also has metrics and health."""
    lifecycle = spec.lifecycle
    return {
        "name": names.ENGINE_CONTAINER,
        "image": image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": ["vllm"],
        "args": arguments(name, spec, mounts),
        "env": _environment(spec),
        "ports": [
            {
                "name": names.ENGINE_PORT_NAME,
                "containerPort": names.ENGINE_PORT,
                "protocol": "TCP",
            }
        ],
        "resources": resources,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **_probes(lifecycle),
        "lifecycle": {"preStop": {"exec": {"command": _pre_stop(lifecycle)}}},
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shm", "mountPath": "/dev/shm"},
            *mounts.volume_mounts,
            *([{"name": _CACHE, "mountPath": names.CACHE_FOLDER}] if hub_models(spec) else []),
        ],
    }


def volumes(spec: Spec, mounts: Mounts) -> list[Manifest]:
    """Volumes of the pod.

    Raises:
        ResourceError: a claim would be mounted twice.
    """
    limit = f"{SHARED_MEMORY_GIB * spec.parallelism.world_size}Gi"
    found: list[Manifest] = [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": limit}},
        *mounts.volumes,
    ]
    if not hub_models(spec):
        return found
    claim = spec.download.cache_claim
    claims = [each.get("persistentVolumeClaim", {}).get("claimName") for each in mounts.volumes]
    if claim is not None and claim in claims:
        raise ResourceError(
            f"download.cacheClaim: the claim {claim} also has a model of pvc://, and vLLM would "
            "need it twice; use another claim for downloads"
        )
    return [*found, {"name": _CACHE, **_cache(spec)}]


def security(spec: Spec) -> Manifest:
    """Security context of the pod: vLLM's image would run as root."""
    return {
        **pod_security(has_group=bool(hub_models(spec))),
        "runAsUser": GROUP_ID,
        "runAsGroup": GROUP_ID,
    }


def _cache(spec: Spec) -> Manifest:
    download = spec.download
    if download.cache_claim is not None:
        return {"persistentVolumeClaim": {"claimName": download.cache_claim}}
    limit = download.cache_size_limit
    return {"emptyDir": {} if limit is None else {"sizeLimit": limit}}


def _environment(spec: Spec) -> list[Manifest]:
    download, is_downloading = spec.download, bool(hub_models(spec))
    plain = dict(_ENVIRONMENT)
    if not is_downloading:
        plain["HF_HUB_OFFLINE"] = "1"
    else:
        plain |= {"HF_HOME": f"{names.CACHE_FOLDER}/vllm", "HF_HUB_DISABLE_TELEMETRY": "1"}
        if download.endpoint is not None:
            plain["HF_ENDPOINT"] = download.endpoint
    if spec.serving.tracing is not None:
        # vLLM would send spans by gRPC.
        plain["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"] = "http/protobuf"
    found: list[Manifest] = [{"name": key, "value": text} for key, text in plain.items()]
    if is_downloading and download.token_secret is not None:
        key = {"name": download.token_secret.name, "key": download.token_secret.key}
        found.append({"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": key}})
    return found


def _probes(lifecycle: LifecycleSpec) -> Manifest:
    attempts = math.ceil(duration_s(lifecycle.startup_timeout) / STARTUP_PERIOD_SECONDS)
    return {
        "startupProbe": _probe(STARTUP_PERIOD_SECONDS, attempts),
        "readinessProbe": _probe(2, 2),
        "livenessProbe": _probe(10, 6),
    }


def _probe(period_seconds: int, failures: int) -> Manifest:
    return {
        "httpGet": {"path": names.PATH_HEALTH, "port": names.ENGINE_PORT_NAME},
        "periodSeconds": period_seconds,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _pre_stop(lifecycle: LifecycleSpec) -> list[str]:
    times = (duration_s(lifecycle.pre_stop), duration_s(lifecycle.drain_timeout))
    words = [f"{seconds:g}" for seconds in times]
    return ["python3", "-c", PRE_STOP, str(names.ENGINE_PORT), *words]
