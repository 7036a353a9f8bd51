"""The routers of a resource, and everything they need: account, permission, endpoints, budget.

Router pods have no label by which the operator lists pods: a Deployment's status is all that it
needs of them.
"""

from collections.abc import Sequence
from typing import Final

from specdecode_api import names
from specdecode_api.duration import duration_s
from specdecode_api.v1alpha1 import RouterSpec, Spec
from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_operator.objects.kinds import (
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    ENDPOINT_SLICE,
    ROLE,
    ROLE_BINDING,
    SERVICE,
    SERVICE_ACCOUNT,
    Manifest,
)
from specdecode_operator.objects.resource import Resource, ResourceError
from specdecode_operator.owned import api_keys
from specdecode_operator.owned.build import finished
from specdecode_operator.owned.labels import (
    ROUTER,
    child_labels,
    router_labels,
    router_selector,
    runtime_selector,
    service_selector,
)
from specdecode_operator.owned.patch import OF_ENGINES, OF_ROUTERS, patched, refusals
from specdecode_operator.owned.pod import probe, with_selectors
from specdecode_operator.owned.router_token import VOLUME, mount
from specdecode_operator.owned.security import CONTAINER_SECURITY, pod_security
from specdecode_operator.owned.service import service

SPARE_SECONDS: Final = 15
"""Of a pod's grace period, beyond what its requests have."""
_RBAC: Final = "rbac.authorization.k8s.io"


def router_name(name: str) -> str:
    """Name of the routers' objects."""
    return f"{name}-router"


def engines_service_name(name: str) -> str:
    """Name of the headless Service by which routers find the engines."""
    return f"{name}-engines"


def templates(manifest: Manifest) -> dict[str, str]:
    """Where a resource has a template of pods, by the name of the Deployment that it changes."""
    spec, name = manifest.get("spec") or {}, manifest["metadata"]["name"]
    places = {
        name: (OF_ENGINES.place, spec.get("template")),
        router_name(name): (OF_ROUTERS.place, (spec.get("router") or {}).get("template")),
    }
    return {of: place for of, (place, given) in places.items() if (given or {}).get("spec")}


def routed(
    objects: Sequence[Manifest],
    resource: Resource,
    image: str,
    *,
    is_serving: bool,
    runtime: RuntimeName | None = None,
) -> list[Manifest]:
    """Return the owned objects of a resource with those of its routers.

    Args:
        is_serving: whether the Service leads to the routers.
        runtime: of the engines that routers use now; None: that of the spec.

    Raises:
        ResourceError: the user's template of routers sets a field that the operator manages.
    """
    router, name = resource.spec.router, resource.name
    if router is None:
        return [*objects]
    runtime = runtime or resource.spec.engine.runtime
    others = [each for each in objects if not (is_serving and each["kind"] == SERVICE.kind)]
    front = [service(name, router_selector(name))] if is_serving else []
    budget = [_budget(name)] if router.replicas > 1 else []
    added = [
        *front,
        _service_account(name),
        _role(name),
        _role_binding(name, resource.namespace),
        _engines_service(name, runtime),
        *budget,
        _deployment(name, resource.namespace, resource.spec, router, image, runtime),
    ]
    return [*(finished(each, resource) for each in added), *others]


def _metadata(name: str, of: str) -> Manifest:
    own = {names.LABEL_NAME: ROUTER, names.LABEL_COMPONENT: names.COMPONENT_ROUTER}
    return {"name": of, "labels": child_labels(name) | own}


def _service_account(name: str) -> Manifest:
    return {
        "apiVersion": SERVICE_ACCOUNT.api_version,
        "kind": SERVICE_ACCOUNT.kind,
        "metadata": _metadata(name, router_name(name)),
        "automountServiceAccountToken": False,
    }


def _role(name: str) -> Manifest:
    """What routers may do: follow the endpoints of engines. The operator may do it too."""
    rule = {
        "apiGroups": [ENDPOINT_SLICE.group],
        "resources": [ENDPOINT_SLICE.plural],
        "verbs": ["list", "watch"],
    }
    return {
        "apiVersion": ROLE.api_version,
        "kind": ROLE.kind,
        "metadata": _metadata(name, router_name(name)),
        "rules": [rule],
    }


def _role_binding(name: str, namespace: str) -> Manifest:
    account = {"kind": "ServiceAccount", "name": router_name(name), "namespace": namespace}
    return {
        "apiVersion": ROLE_BINDING.api_version,
        "kind": ROLE_BINDING.kind,
        "metadata": _metadata(name, router_name(name)),
        "roleRef": {"apiGroup": _RBAC, "kind": ROLE.kind, "name": router_name(name)},
        "subjects": [account],
    }


def _engines_service(name: str, runtime: RuntimeName) -> Manifest:
    """Headless Service of all engine pods, those of trials included, with the port for routers.

    Of another runtime that is the port of the API, and pods with Specdecode are left out: they
    check keys, which routers no longer pass on to engines.
    """
    is_own = runtime == "Specdecode"
    port_name = names.MANAGEMENT_PORT_NAME if is_own else names.ENGINE_PORT_NAME
    port = {
        "name": port_name,
        "port": names.MANAGEMENT_PORT if is_own else names.ENGINE_PORT,
        "protocol": "TCP",
        "targetPort": port_name,
    }
    return {
        "apiVersion": SERVICE.api_version,
        "kind": SERVICE.kind,
        "metadata": _metadata(name, engines_service_name(name)),
        "spec": {
            "type": "ClusterIP",
            "clusterIP": "None",
            "selector": service_selector(name) if is_own else runtime_selector(name, runtime),
            "ports": [port],
        },
    }


def _budget(name: str) -> Manifest:
    return {
        "apiVersion": DISRUPTION_BUDGET.api_version,
        "kind": DISRUPTION_BUDGET.kind,
        "metadata": _metadata(name, router_name(name)),
        "spec": {
            "maxUnavailable": 1,
            "selector": {"matchLabels": router_selector(name)},
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
        },
    }


def _deployment(
    name: str, namespace: str, spec: Spec, router: RouterSpec, image: str, runtime: RuntimeName
) -> Manifest:
    return {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": _metadata(name, router_name(name)),
        "spec": {
            "replicas": router.replicas,
            "paused": False,
            "revisionHistoryLimit": 2,
            "selector": {"matchLabels": router_selector(name)},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
            },
            "template": _patched_template(name, namespace, spec, router, image, runtime),
        },
    }


def _patched_template(
    name: str, namespace: str, spec: Spec, router: RouterSpec, image: str, runtime: RuntimeName
) -> Manifest:
    """Pod template with the user's changes.

    Raises:
        ResourceError: they set a field that the operator manages.
    """
    template = _template(name, namespace, spec, router, image, runtime)
    if refused := refusals(template, router.template, OF_ROUTERS):
        raise ResourceError(*refused)
    merged = patched(template, router.template)
    return {**merged, "spec": with_selectors(merged["spec"], router_selector(name))}


def _template(
    name: str, namespace: str, spec: Spec, router: RouterSpec, image: str, runtime: RuntimeName
) -> Manifest:
    spread = {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
    }
    lifecycle = spec.lifecycle
    grace = duration_s(lifecycle.pre_stop) + duration_s(lifecycle.drain_timeout) + SPARE_SECONDS
    return {
        "metadata": {"labels": router_labels(name)},
        "spec": {
            "serviceAccountName": router_name(name),
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": grace,
            "securityContext": pod_security(has_group=False),
            "topologySpreadConstraints": [spread],
            **_pull_secrets(spec),
            "containers": [_container(name, namespace, spec, router, image, runtime)],
            "volumes": [
                {"name": "tmp", "emptyDir": {"sizeLimit": "64Mi"}},
                *_trust_volumes(spec, runtime),
            ],
        },
    }


def _pull_secrets(spec: Spec) -> Manifest:
    """Those of the engines, whose image usually comes from the same registry."""
    given = (spec.template.spec or {}).get("imagePullSecrets")
    return {"imagePullSecrets": given} if given else {}


def _container(
    name: str, namespace: str, spec: Spec, router: RouterSpec, image: str, runtime: RuntimeName
) -> Manifest:
    lifecycle, origins = spec.lifecycle, spec.serving.cors_origins
    resources = {
        kind: dict(found)
        for kind, found in (
            ("limits", router.resources.limits),
            ("requests", router.resources.requests),
        )
        if found
    }
    return {
        "name": names.ROUTER_CONTAINER,
        "image": image,
        "imagePullPolicy": spec.engine.image_pull_policy,
        "command": ["specdecode-router"],
        "args": [
            f"--service={engines_service_name(name)}",
            f"--namespace={namespace}",
            f"--deployment={name}",
            *_trust(spec, runtime),
            f"--retries={router.retries}",
            f"--timeout={duration_s(router.timeout):g}",
            f"--max-connections={router.max_connections}",
            f"--pre-stop={duration_s(lifecycle.pre_stop):g}",
            f"--drain-seconds={duration_s(lifecycle.drain_timeout):g}",
            *(["--cors-origins", *origins] if origins else []),
        ],
        "env": [{"name": "HOME", "value": "/tmp"}],
        "ports": [
            {"name": port, "containerPort": number, "protocol": "TCP"}
            for port, number in (
                (names.ENGINE_PORT_NAME, names.ENGINE_PORT),
                (names.MANAGEMENT_PORT_NAME, names.MANAGEMENT_PORT),
            )
        ],
        **({"resources": resources} if resources else {}),
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "startupProbe": probe(names.PATH_STARTUP, 1, 60),
        "readinessProbe": probe(names.PATH_READY, 2, 2),
        "livenessProbe": probe(names.PATH_LIVE, 10, 3),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            *_trust_mounts(spec, runtime),
        ],
    }


def _trust(spec: Spec, runtime: RuntimeName) -> list[str]:
    """Flags by which engines know a router, or by which it knows clients in their place."""
    if runtime == "Specdecode":
        return [f"--token-file={names.ROUTER_TOKEN_FOLDER}"]
    keys = api_keys.path(spec)
    return ["--runtime=vllm", *([f"--api-key-file={keys}"] if keys else [])]


def _trust_volumes(spec: Spec, runtime: RuntimeName) -> list[Manifest]:
    if runtime != "Specdecode":
        return api_keys.volumes(spec)
    return [{"name": VOLUME, "secret": {"secretName": names.ROUTER_SECRET}}]


def _trust_mounts(spec: Spec, runtime: RuntimeName) -> list[Manifest]:
    return [mount()] if runtime == "Specdecode" else api_keys.volume_mounts(spec)
