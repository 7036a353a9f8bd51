"""Whether the Service of a resource leads to its routers. Pure.

It leads to the engines until a router is ready and all ready engines accept routers: earlier, all
requests would meet the first of them. Then it stays with the routers, which hold requests while no
engine is ready, until the resource has no routers any more.
"""

from specdecode_api import names
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import DEPLOYMENT, SERVICE, Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.owned import router_name
from specdecode_operator.owned.labels import router_selector
from specdecode_operator.owned.router_token import VOLUME


def ready_routers(observed: Observed) -> int:
    """Router pods that are ready, as their Deployment counts them."""
    name = observed.resource["metadata"]["name"]
    live = observed.owned(DEPLOYMENT, router_name(name))
    if live is None:
        return 0
    return int((live.get("status") or {}).get("availableReplicas") or 0)


def leads_to_routers(observed: Observed) -> bool:
    """Whether the Service leads to routers now."""
    name = observed.resource["metadata"]["name"]
    live = observed.owned(SERVICE)
    if live is None:
        return False
    selector = (live.get("spec") or {}).get("selector") or {}
    component = router_selector(name)[names.LABEL_COMPONENT]
    return bool(selector.get(names.LABEL_COMPONENT) == component)


def accept_routers(observed: Observed) -> bool:
    """Whether there are ready engines, and all of them accept routers."""
    ready = [pod for pod in observed.pods if pods.is_stable(pod) and pods.is_ready(pod)]
    return bool(ready) and all(map(_has_token, ready))


def is_router_serving(observed: Observed) -> bool:
    """Whether the Service should lead to the routers, which the resource has."""
    if leads_to_routers(observed):
        return True
    return ready_routers(observed) > 0 and accept_routers(observed)


def _has_token(pod: Manifest) -> bool:
    """Whether a pod accepts routers; one of another runtime does without a token."""
    if names.LABEL_RUNTIME in (pod["metadata"].get("labels") or {}):
        return True
    volumes = (pod.get("spec") or {}).get("volumes") or ()
    return any(volume.get("name") == VOLUME for volume in volumes)
