"""A change of the runtime: which pods are left, and which ones routers use. Pure."""

from specdecode_api import names
from specdecode_api.v1alpha1.runtimes import RuntimeName
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import DEPLOYMENT, NETWORK_POLICY, Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.objects.rollout import Rollout, rollout


def has_vllm_pods(observed: Observed) -> bool:
    """Whether pods with vLLM run, or a Deployment may still make one.

    While its rollout lasts, an older ReplicaSet replaces a pod that ends, with the older runtime.
    """
    live = observed.owned(DEPLOYMENT)
    if live is not None and _may_make_one(observed, live):
        return True
    return any(pods.is_other_runtime(pod) and not pods.has_ended(pod) for pod in observed.pods)


def runtime_of_routers(observed: Observed, wanted: RuntimeName) -> RuntimeName:
    """The runtime whose engines routers use: the wanted one once an engine with it is ready.

    Until then, engines of the earlier runtime serve. With no ready engine, routers are changed too,
    and hold requests.
    """
    ready = [pod for pod in observed.pods if pods.is_stable(pod) and pods.is_ready(pod)]
    found: set[RuntimeName] = {
        "VLLM" if pods.is_other_runtime(pod) else "Specdecode" for pod in ready
    }
    return wanted if wanted in found or not found else found.pop()


def _may_make_one(observed: Observed, deployment: Manifest) -> bool:
    if names.LABEL_RUNTIME in (deployment["spec"]["template"]["metadata"].get("labels") or {}):
        return True
    has_policy = any(child.kind == NETWORK_POLICY.kind for child in observed.children)
    return has_policy and rollout(deployment) is not Rollout.COMPLETE
