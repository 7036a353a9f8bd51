"""How an engine gets the keys that its clients must show: a Secret as a volume, never a variable.

A volume follows the Secret, so a new key counts without a restart. It is optional: an engine that
finds no key says so as its last words, where a pod that waits for a volume can say nothing.
"""

from specdecode_api import names
from specdecode_api.v1alpha1 import Spec
from specdecode_operator.kinds import Manifest

VOLUME = "api-keys"


def volumes(spec: Spec) -> list[Manifest]:
    """The Secret's volume, if keys are asked for."""
    keys = spec.serving.api_keys
    if keys is None:
        return []
    items = {"items": [{"key": keys.key, "path": keys.key}]} if keys.key is not None else {}
    secret = {"secretName": keys.secret_name, "optional": True, **items}
    return [{"name": VOLUME, "secret": secret}]


def volume_mounts(spec: Spec) -> list[Manifest]:
    """Its mount in the engine."""
    if spec.serving.api_keys is None:
        return []
    return [{"name": VOLUME, "mountPath": names.API_KEYS_FOLDER, "readOnly": True}]


def path(spec: Spec) -> str | None:
    """Where the engine finds the keys."""
    return names.API_KEYS_FOLDER if spec.serving.api_keys is not None else None
