"""The API keys of an engine: a Secret mounted as a volume, not as environment variables.

The kubelet updates the volume with the Secret, so a new key needs no restart. The volume is
optional: an engine without keys reports this in its termination message, whereas a pod that waits
for a volume reports nothing.
"""

from specdecode_api import names
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.objects.kinds import Manifest

VOLUME = "api-keys"


def volumes(spec: Spec) -> list[Manifest]:
    """The Secret's volume, if API keys are configured."""
    keys = spec.serving.api_keys
    if keys is None:
        return []
    items = {"items": [{"key": keys.key, "path": keys.key}]} if keys.key is not None else {}
    secret = {"secretName": keys.secret_name, "optional": True, **items}
    return [{"name": VOLUME, "secret": secret}]


def volume_mounts(spec: Spec) -> list[Manifest]:
    """The mount of the volume in the engine."""
    if spec.serving.api_keys is None:
        return []
    return [{"name": VOLUME, "mountPath": names.API_KEYS_FOLDER, "readOnly": True}]


def path(spec: Spec) -> str | None:
    """Path of the keys in the engine's container."""
    return names.API_KEYS_FOLDER if spec.serving.api_keys is not None else None
