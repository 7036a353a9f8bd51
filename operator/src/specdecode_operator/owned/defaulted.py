"""Sets in engine pods what the administrator of the operator wants in all of them.

That is not part of a configuration: neither the config hash nor trials depend on it. A change
replaces the pods of all resources by rolling updates.
"""

from collections.abc import Mapping
from typing import Any

from specdecode_api import names
from specdecode_operator.objects.kinds import DEPLOYMENT, Manifest
from specdecode_operator.objects.pod_defaults import NO_DEFAULTS, CaBundle, PodDefaults
from specdecode_operator.owned.build import restamped
from specdecode_operator.owned.security import CONTAINER_SECURITY, pod_security

CA_FOLDER = "/etc/specdecode/ca"
_CA_VOLUME = "ca-bundle"
_CA_VARIABLE = "SSL_CERT_FILE"
_CONTAINERS = (names.ENGINE_CONTAINER, names.FETCH_CONTAINER, names.ROUTER_CONTAINER)


def defaulted(child: Manifest, defaults: PodDefaults) -> Manifest:
    """An owned object with the administrator's settings; only Deployments have pods.

    Fields of security contexts that spec.template sets or removes take precedence.
    """
    if child["kind"] != DEPLOYMENT.kind or defaults == NO_DEFAULTS:
        return child
    template = child["spec"]["template"]
    pod = _secured(_trusting(template["spec"], defaults.ca_bundle), defaults)
    return restamped({**child, "spec": {**child["spec"], "template": {**template, "spec": pod}}})


def _secured(pod: Manifest, defaults: PodDefaults) -> Manifest:
    found = pod.get("securityContext") or {}  # spec.template may have removed it
    own = pod_security(has_group="fsGroup" in found)
    containers: Manifest = {
        field: [_secured_container(each, defaults.container_security) for each in pod[field]]
        for field in ("containers", "initContainers")
        if field in pod
    }
    return _with_context({**pod, **containers}, _replaced(found, own, defaults.pod_security))


def _secured_container(container: Manifest, wanted: Mapping[str, Any]) -> Manifest:
    if container["name"] not in _CONTAINERS:
        return container
    found = container.get("securityContext") or {}
    return _with_context(container, _replaced(found, CONTAINER_SECURITY, wanted))


def _with_context(holder: Manifest, context: Manifest) -> Manifest:
    """A pod or container with a security context; the API server stores no empty one."""
    return {**holder, "securityContext": context} if context else holder


def _replaced(found: Manifest, own: Manifest, wanted: Mapping[str, Any]) -> Manifest:
    """The context `wanted` in place of the operator's, with what spec.template changed in that."""
    if not wanted:
        return found
    changed = {key: value for key, value in found.items() if own.get(key) != value}
    removed = own.keys() - found.keys()
    return {key: value for key, value in (dict(wanted) | changed).items() if key not in removed}


def _trusting(pod: Manifest, bundle: CaBundle | None) -> Manifest:
    """A pod whose download or router trusts the CA certificates.

    A container that trusts others by the user's template is left alone. Routers start without the
    ConfigMap: they call engines without TLS.
    """
    is_router = pod["containers"][0]["name"] == names.ROUTER_CONTAINER
    field = "containers" if is_router else "initContainers"
    name = names.ROUTER_CONTAINER if is_router else names.FETCH_CONTAINER
    containers = pod.get(field) or []
    found = [each for each in containers if each["name"] == name]
    if bundle is None or not found or _trusts_others(found[0]):
        return pod
    source: Manifest = {
        "name": bundle.config_map,
        "items": [{"key": bundle.key, "path": bundle.key}],
        **({"optional": True} if is_router else {}),
    }
    volume = {"name": _CA_VOLUME, "configMap": source}
    trusting = [
        _trusting_container(each, bundle) if each["name"] == name else each for each in containers
    ]
    return {**pod, field: trusting, "volumes": [*pod["volumes"], volume]}


def _trusts_others(container: Manifest) -> bool:
    return any(each["name"] == _CA_VARIABLE for each in container["env"])


def _trusting_container(container: Manifest, bundle: CaBundle) -> Manifest:
    place = {"name": _CA_VARIABLE, "value": f"{CA_FOLDER}/{bundle.key}"}
    mount = {"name": _CA_VOLUME, "mountPath": CA_FOLDER, "readOnly": True}
    return {
        **container,
        "env": [*container["env"], place],
        "volumeMounts": [*container["volumeMounts"], mount],
    }
