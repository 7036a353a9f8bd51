"""Objects of a resource whose spec cannot be carried out: what serves is kept up. Pure.

The pods stay as they are; the Service, the account and the budget do not depend on the part of a
spec that is refused, and the number of pods follows `replicas`.
"""

from dataclasses import replace

from specdecode_api import names
from specdecode_api.v1alpha1 import RouterSpec, RouterTemplateSpec
from specdecode_operator import owned
from specdecode_operator.objects.kinds import DEPLOYMENT, SERVICE, Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.resource import Owner, Resource, ResourceError, parse_stored
from specdecode_operator.owned.labels import child_labels, router_selector
from specdecode_operator.owned.service import service
from specdecode_operator.settings import Settings
from specdecode_operator.updates.router_switch import is_router_serving
from specdecode_operator.updates.runtime_change import runtime_of_routers

_KEPT_ANNOTATIONS = f"{names.GROUP}/"


def held_objects(observed: Observed, settings: Settings) -> list[Manifest]:
    """The owned objects of a resource that served before; none of one that never did."""
    live = observed.owned(DEPLOYMENT)
    status = observed.resource.get("status") or {}
    if live is None and not status.get("configHash"):
        return []
    metadata = observed.resource["metadata"]
    owner = Owner(metadata["name"], metadata["namespace"], observed.uid)
    replicas = _replicas(observed.resource)
    workload = [] if live is None else _scaled(live, replicas, owner)
    shared = owned.shared_objects(owner, replicas)
    others = _with_routers(observed, shared, owner, settings)
    return [*(owned.defaulted(each, settings.pod_defaults) for each in others), *workload]


def _replicas(resource: Manifest) -> int:
    return int((resource.get("spec") or {}).get("replicas", 1))


def _scaled(live: Manifest, replicas: int, owner: Owner) -> list[Manifest]:
    """The Deployment with the wanted number of pods; nothing where it has that."""
    if live["spec"].get("replicas", 1) == replicas:
        return []
    annotations = live["metadata"].get("annotations") or {}
    own = {name: text for name, text in annotations.items() if name.startswith(_KEPT_ANNOTATIONS)}
    metadata = {
        "name": live["metadata"]["name"],
        "labels": child_labels(owner.name),
        "annotations": own,
    }
    manifest = {
        "apiVersion": DEPLOYMENT.api_version,
        "kind": DEPLOYMENT.kind,
        "metadata": metadata,
        "spec": {**live["spec"], "replicas": replicas},
    }
    return [owned.restamped(owned.finished(manifest, owner))]


def _with_routers(
    observed: Observed, shared: list[Manifest], owner: Owner, settings: Settings
) -> list[Manifest]:
    """The objects in front of the engines, with those of routers; none are removed."""
    is_serving = is_router_serving(observed)
    wanted = _parsed(observed.resource)
    if wanted is not None and wanted.spec.router is not None and settings.has_routers:
        plain, has_template = _without_template(wanted, wanted.spec.router)
        runtime = runtime_of_routers(observed, wanted.spec.engine.runtime)
        found = owned.routed(
            shared, plain, settings.router_image, is_serving=is_serving, runtime=runtime
        )
        return [each for each in found if each["kind"] != DEPLOYMENT.kind or not has_template]
    if not is_serving:
        return shared
    front = owned.finished(service(owner.name, router_selector(owner.name)), owner)
    return [front if each["kind"] == SERVICE.kind else each for each in shared]


def _without_template(wanted: Resource, router: RouterSpec) -> tuple[Resource, bool]:
    """The resource without the template of routers, and whether it has one.

    What was refused may be that template: the Deployment of routers then stays as it is.
    """
    given = router.template
    plain = router.model_copy(update={"template": RouterTemplateSpec()})
    spec = wanted.spec.model_copy(update={"router": plain})
    return replace(wanted, spec=spec), given != RouterTemplateSpec()


def _parsed(manifest: Manifest) -> Resource | None:
    try:
        return parse_stored(manifest)
    except ResourceError:
        return None
