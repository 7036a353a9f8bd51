"""Merges the user's template into the operator's pod template, or rejects it.

A strategic merge: objects are merged field by field, lists of named objects by name, tolerations
are added; other lists and single values are replaced. Null removes a field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from specdecode_api import names
from specdecode_api.v1alpha1 import TemplateSpec
from specdecode_api.v1alpha1.template import RESERVED_VARIABLES
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.owned import router_token
from specdecode_operator.owned.hashes import canonical
from specdecode_operator.owned.template_shape import shape_errors

MAX_BYTES: Final = 16 * 1024
PLACE: Final = "template"

_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "volumes": "name",
    "env": "name",
    "volumeMounts": "mountPath",
    "hostAliases": "ip",
    "imagePullSecrets": "name",
}
"""Merge keys of lists; lists under other names are replaced."""

_OF_OUR_CONTAINERS: Final = {
    "args": "the operator sets them; use engine",
    "command": "the operator sets it",
    "image": "use engine.image",
    "imagePullPolicy": "use engine.imagePullPolicy",
    "lifecycle": "use lifecycle.preStop and lifecycle.drainTimeout",
    "livenessProbe": "use lifecycle.stepTimeout",
    "ports": "the operator sets them",
    "readinessProbe": "the operator sets it",
    "resources": "use resources",
    "startupProbe": "use lifecycle.startupTimeout",
    "terminationMessagePath": "the operator sets it",
    "terminationMessagePolicy": "the operator sets it",
}


@dataclass(frozen=True, slots=True)
class ManagedFields:
    """What the operator manages in a pod template, each with the remedy.

    Attributes:
        place: the user's template in the spec.
        containers: names of the operator's containers.
        of_pod: fields of the pod.
        of_containers: fields of the operator's containers.
        variables: environment variables of these.
        volumes: further volumes that the operator adds.
    """

    place: str
    containers: tuple[str, ...]
    of_pod: Mapping[str, str]
    of_containers: Mapping[str, str]
    variables: Mapping[str, str]
    volumes: tuple[str, ...] = ()


OF_ENGINES: Final = ManagedFields(
    PLACE,
    (names.ENGINE_CONTAINER, names.FETCH_CONTAINER),
    {
        "restartPolicy": "it is Always",
        "terminationGracePeriodSeconds": "use lifecycle.terminationGracePeriod",
    },
    _OF_OUR_CONTAINERS,
    RESERVED_VARIABLES,
    ("boot", router_token.VOLUME),
)
_ACCOUNT: Final = "routers follow EndpointSlices with an account of their own"
OF_ROUTERS: Final = ManagedFields(
    f"router.{PLACE}",
    (names.ROUTER_CONTAINER,),
    {
        "restartPolicy": "it is Always",
        "terminationGracePeriodSeconds": "use lifecycle.preStop and lifecycle.drainTimeout",
        "serviceAccountName": _ACCOUNT,
        "serviceAccount": _ACCOUNT,
        "automountServiceAccountToken": _ACCOUNT,
    },
    {
        **dict.fromkeys(_OF_OUR_CONTAINERS, "the operator sets it"),
        "args": "the operator sets them; use router",
        "image": "it is the operator's setting --router-image",
        "ports": "the operator sets them",
        "resources": "use router.resources",
    },
    {"HOME": "it is /tmp"},
)
_OPEN_VOLUMES: Final = frozenset({"tmp", "shm"})
"""Volumes of the operator that may be patched, for example their size."""


_ACCESS: Final = (
    "serviceAccountName",
    "serviceAccount",
    "automountServiceAccountToken",
    "hostNetwork",
    "hostPID",
    "hostIPC",
)
"""Fields of a pod that lend it an identity or a part of its node."""

_ACCESS_REMEDY: Final = (
    "remove it, or run the operator with --template-host-access: whoever may create a "
    "SpecDecodeDeployment could then act as any ServiceAccount of the namespace and on nodes"
)


def access_refusals(
    patch: TemplateSpec, *, is_allowed: bool, has_host_access: bool, place: str = PLACE
) -> tuple[str, ...]:
    """Errors for a template, or for parts of it, that the operator's settings do not allow.

    Args:
        place: the template in the spec.
    """
    is_empty = not (patch.spec or patch.metadata.labels or patch.metadata.annotations)
    if not is_allowed and not is_empty:
        return (f"{place}: is disabled by the operator's setting --no-template; remove it",)
    return () if has_host_access else tuple(_access(patch.spec, f"{place}.spec"))


def _access(spec: Mapping[str, Any], template: str) -> Iterator[str]:
    for field in _ACCESS:
        if spec.get(field):
            yield f"{template}.{field}: is not allowed; {_ACCESS_REMEDY}"
    for volume in _objects(spec.get("volumes")):
        if "hostPath" in volume:
            place = f"{template}.volumes[{volume.get('name')}]"
            yield f"{place}.hostPath: is not allowed; {_ACCESS_REMEDY}"
    for field in ("containers", "initContainers"):
        for container in _objects(spec.get(field)):
            context = container.get("securityContext")
            if isinstance(context, Mapping) and context.get("privileged"):
                place = f"{template}.{field}[{container.get('name')}].securityContext"
                yield f"{place}.privileged: is not allowed; {_ACCESS_REMEDY}"


def _objects(items: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(items, list):
        yield from (item for item in items if isinstance(item, Mapping))


def patched(template: Manifest, patch: TemplateSpec) -> Manifest:
    """The template with a patch for which `refusals` is empty."""
    metadata = template["metadata"]
    labels = {**patch.metadata.labels, **metadata["labels"]}
    annotations = {**patch.metadata.annotations, **metadata.get("annotations", {})}
    more = {"annotations": annotations} if annotations else {}
    return {
        "metadata": {**metadata, "labels": labels, **more},
        "spec": _merged(template["spec"], patch.spec),
    }


def refusals(
    template: Manifest, patch: TemplateSpec, managed: ManagedFields = OF_ENGINES
) -> tuple[str, ...]:
    """Errors for parts of a patch that the operator manages: path, error and remedy."""
    return tuple(_refusals(template["spec"], patch.spec, managed))


def _refusals(spec: Manifest, patch: Mapping[str, Any], managed: ManagedFields) -> Iterator[str]:
    whole = f"{managed.place}.spec"
    size = len(canonical(patch))
    if size > MAX_BYTES:
        yield f"{whole}: {size} bytes; at most {MAX_BYTES}: move data into a ConfigMap"
        return
    if misshapen := tuple(shape_errors(patch, whole, managed.containers)):
        yield from misshapen
        return
    for name, remedy in managed.of_pod.items():
        if name in patch:
            yield f"{whole}.{name}: cannot be patched; {remedy}"
    ours = {item["name"] for item in spec["volumes"]} | set(managed.volumes)
    for item in patch.get("volumes", []):
        if item["name"] in ours - _OPEN_VOLUMES:
            place = f"{whole}.volumes[{item['name']}]"
            yield f"{place}: is managed by the operator; choose another name"
    for name in ("containers", "initContainers"):
        for item in patch.get(name, []):
            place = f"{whole}.{name}[{item['name']}]"
            yield from _of_container(spec.get(name, ()), item, place, managed)


def _of_container(
    ours: Sequence[Manifest], item: Mapping[str, Any], place: str, managed: ManagedFields
) -> Iterator[str]:
    known = next((each for each in ours if each["name"] == item["name"]), None)
    if known is None:
        if item["name"] in managed.containers:
            yield f"{place}: the name is reserved for containers of the operator; choose another"
        return
    for name, remedy in managed.of_containers.items():
        if name in item:
            yield f"{place}.{name}: cannot be patched; {remedy}"
    yield from _of_environment(item.get("env", []), f"{place}.env", managed.variables)
    paths = {mount["mountPath"] for mount in known["volumeMounts"]}
    for mount in item.get("volumeMounts", []):
        if mount["mountPath"].rstrip("/") in paths:
            yield (
                f"{place}.volumeMounts: {mount['mountPath']} is managed by the operator; "
                "use another path"
            )


def _of_environment(
    variables: Sequence[Mapping[str, Any]], place: str, reserved: Mapping[str, str]
) -> Iterator[str]:
    for name in (each["name"] for each in variables):
        if name in reserved:
            yield f"{place}[{name}]: is managed by the operator; {reserved[name]}"


def _merged(base: Any, patch: Any, name: str = "") -> Any:
    if isinstance(base, Mapping) and isinstance(patch, Mapping):
        changed = {
            key: _merged(base.get(key), value, key)
            for key, value in patch.items()
            if value is not None
        }
        kept = {key: value for key, value in base.items() if key not in patch}
        return {**kept, **changed}
    if isinstance(base, list) and isinstance(patch, list) and name == "tolerations":
        return [*base, *(each for each in patch if each not in base)]
    if isinstance(base, list) and isinstance(patch, list) and name in _KEYS:
        return _merged_by(_KEYS[name], base, patch)
    if isinstance(patch, Mapping):
        return _merged({}, patch, name)
    return patch


def _merged_by(key: str, base: list[Any], patch: list[Any]) -> list[Any]:
    """Items of `base` in their order with the changes of `patch`, then the added items."""
    given = {item.get(key): item for item in patch}
    known = {item.get(key) for item in base}
    changed = [_merged(item, given.get(item.get(key), {})) for item in base]
    return changed + [_merged({}, item) for item in patch if item.get(key) not in known]
