"""The kinds of objects that the operator uses, and the verbs on each.

The chart grants exactly these verbs (a test compares), and `cluster` refuses any other.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from specdecode_api import names

Manifest = dict[str, Any]
"""A Kubernetes object as JSON: the one place where the operator handles untyped data."""


@dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of object: where the API server keeps it and what the operator does with it."""

    group: str
    version: str
    kind: str
    plural: str
    verbs: tuple[str, ...]
    status_verbs: tuple[str, ...] = ()
    only: str | None = None
    """Name of the only object that the verbs are for; None for all objects."""

    @property
    def api_version(self) -> str:
        """`apiVersion` in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str | None, name: str | None = None) -> str:
        """Path of the collection, or of one object, on the API server."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{namespace}" if namespace else ""
        leaf = f"/{name}" if name else ""
        return f"{root}{scope}/{self.plural}{leaf}"


_KEEP_AND_PRUNE = ("create", "delete", "get", "list", "patch", "watch")

RESOURCE = ResourceKind(
    names.GROUP, names.VERSION, names.KIND, names.PLURAL, ("create", "list", "watch"), ("patch",)
)
"""Created in dry runs only, of candidates; never changed."""
SERVICE_ACCOUNT = ResourceKind("", "v1", "ServiceAccount", "serviceaccounts", _KEEP_AND_PRUNE)
CONFIG_MAP = ResourceKind("", "v1", "ConfigMap", "configmaps", _KEEP_AND_PRUNE)
SERVICE = ResourceKind("", "v1", "Service", "services", _KEEP_AND_PRUNE)
DISRUPTION_BUDGET = ResourceKind(
    "policy", "v1", "PodDisruptionBudget", "poddisruptionbudgets", _KEEP_AND_PRUNE
)
DEPLOYMENT = ResourceKind("apps", "v1", "Deployment", "deployments", _KEEP_AND_PRUNE)
POD = ResourceKind("", "v1", "Pod", "pods", ("list", "watch"))
ENDPOINT_SLICE = ResourceKind(
    "discovery.k8s.io", "v1", "EndpointSlice", "endpointslices", ("list", "watch")
)
"""Made for the Service by the control plane, which copies the Service's labels."""
TRIAL = ResourceKind(
    names.GROUP,
    names.VERSION,
    names.KIND_TRIAL,
    names.PLURAL_TRIAL,
    ("create", "delete", "list", "patch", "watch"),
    ("patch",),
)
"""Of users and of the operator."""
CONTROLLER_REVISION = ResourceKind(
    "apps",
    "v1",
    "ControllerRevision",
    "controllerrevisions",
    ("create", "delete", "list", "patch", "watch"),
)
"""Accepted configurations."""
EVENT = ResourceKind("", "v1", "Event", "events", ("create", "list"))
"""Listed about pods that wait for a node: autoscalers announce nodes by events."""
LEASE = ResourceKind("coordination.k8s.io", "v1", "Lease", "leases", ("create", "get", "update"))
"""In the operator's own namespace, where a Role of its own grants it."""

ROLE = ResourceKind("rbac.authorization.k8s.io", "v1", "Role", "roles", _KEEP_AND_PRUNE)
"""Of routers. The operator can grant only what it may do itself."""
ROLE_BINDING = ResourceKind(
    "rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", _KEEP_AND_PRUNE
)
SECRET = ResourceKind(
    "", "v1", "Secret", "secrets", ("create", "get", "patch"), only=names.ROUTER_SECRET
)
"""The tokens of routers, and no other Secret; it is not watched."""

NETWORK_POLICY = ResourceKind(
    "networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies", _KEEP_AND_PRUNE
)
"""Of engines whose serving port can change them, which only routers may reach."""

INFERENCE_POOL = ResourceKind(
    "inference.networking.k8s.io",
    "v1",
    "InferencePool",
    "inferencepools",
    ("create", "delete", "get", "list", "patch"),
)
"""Of the Gateway API Inference Extension, whose CRD a cluster may lack. It is listed and not
watched: Kopf would not notice that the CRD is installed later."""

CHILDREN = (SERVICE_ACCOUNT, CONFIG_MAP, SERVICE, DISRUPTION_BUDGET, DEPLOYMENT)
"""Kinds of owned objects, in the order of writing: the workload last, after its dependencies."""

ROUTER_CHILDREN = (ROLE, ROLE_BINDING)
"""Kinds of owned objects that only resources with routers have."""

RUNTIME_CHILDREN = (NETWORK_POLICY,)
"""Kinds of owned objects that only resources with another runtime have, which needs routers."""

WATCHED = (
    RESOURCE, *CHILDREN, *ROUTER_CHILDREN, *RUNTIME_CHILDREN, POD, ENDPOINT_SLICE, TRIAL,
    CONTROLLER_REVISION,
)  # fmt: skip
ALL = (*WATCHED, INFERENCE_POOL, EVENT, SECRET)
OPTIONAL = frozenset({INFERENCE_POOL})
"""Kinds that the API server may not serve."""
_OF_ROUTERS = frozenset((*ROUTER_CHILDREN, *RUNTIME_CHILDREN, SECRET))

BY_KIND = {kind.kind: kind for kind in ALL}

OWNED_SELECTOR = f"{names.LABEL_MANAGED_BY}={names.FIELD_MANAGER}"
"""Server-side filter for owned objects, pods and endpoint slices."""


def permitted(
    kinds: tuple[ResourceKind, ...], *, has_routers: bool, has_inference_pools: bool
) -> tuple[ResourceKind, ...]:
    """Return the kinds that an operator uses which permits routers and InferencePools, or not."""
    left_out = (frozenset() if has_routers else _OF_ROUTERS) | (
        frozenset() if has_inference_pools else OPTIONAL
    )
    return tuple(kind for kind in kinds if kind not in left_out)


def selector_of(kind: ResourceKind, operator_class: str = "") -> str | None:
    """Label selector by which a kind is listed and watched; None for trials.

    A SpecDecodeDeployment belongs to the operator of its class; one without, to that without.
    """
    if kind is TRIAL:
        return None
    if kind is not RESOURCE:
        return OWNED_SELECTOR
    label = names.LABEL_OPERATOR_CLASS
    return f"{label}={operator_class}" if operator_class else f"!{label}"


class ChildId(NamedTuple):
    """Identity of an owned object within the namespace of its resource."""

    kind: str
    name: str


def child_id(manifest: Manifest) -> ChildId:
    """Identity of an owned object's manifest."""
    return ChildId(manifest["kind"], manifest["metadata"]["name"])


def log_fields(manifest: Manifest) -> dict[str, str]:
    """Fields that name an object in a log record."""
    metadata = manifest["metadata"]
    return {"kind": manifest["kind"], "namespace": metadata["namespace"], "child": metadata["name"]}
