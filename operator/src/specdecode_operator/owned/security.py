"""Security contexts of engine pods, as Pod Security "restricted" demands them."""

from specdecode_operator.objects.kinds import Manifest

GROUP_ID = 65532
"""Group of the files in a cache PVC; the images run as this user and group."""

_GROUP = {"fsGroup": GROUP_ID, "fsGroupChangePolicy": "OnRootMismatch"}

CONTAINER_SECURITY: Manifest = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""Security context of the containers of engines, as Pod Security "restricted" demands."""


def pod_security(*, has_group: bool) -> Manifest:
    """Security context of engine pods.

    The image sets user and group; OpenShift replaces them with those of the namespace.

    Args:
        has_group: whether the pods' group owns the files of the cache.
    """
    return {
        "runAsNonRoot": True,
        "seccompProfile": {"type": "RuntimeDefault"},
        **(_GROUP if has_group else {}),
    }
