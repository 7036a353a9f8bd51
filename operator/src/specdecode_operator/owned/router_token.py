"""The tokens by which engines know routers and the operator: a Secret mounted as a volume.

The kubelet updates the volume with the Secret. In engines it is optional: they serve without it,
and refuse routers until it is there. With routers it is part of the configuration; `change_token`
adds it to other engines.
"""

from typing import Final

from specdecode_api import names
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.objects.kinds import Manifest

VOLUME: Final = "router-token"


def volumes(spec: Spec) -> list[Manifest]:
    """The Secret's volume in an engine's pod, if there are routers."""
    return [] if spec.router is None else [volume()]


def volume() -> Manifest:
    """The Secret's volume in any engine's pod."""
    return {"name": VOLUME, "secret": {"secretName": names.ROUTER_SECRET, "optional": True}}


def volume_mounts(spec: Spec) -> list[Manifest]:
    """The mount of the volume in the engine."""
    return [] if spec.router is None else [mount()]


def mount() -> Manifest:
    """Mount of the volume in an engine or a router."""
    return {"name": VOLUME, "mountPath": names.ROUTER_TOKEN_FOLDER, "readOnly": True}


def path(spec: Spec) -> str | None:
    """Path of the tokens in the engine's container."""
    return None if spec.router is None else names.ROUTER_TOKEN_FOLDER
