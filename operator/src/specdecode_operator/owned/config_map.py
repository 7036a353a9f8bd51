"""The ConfigMap with the boot file of one configuration and the pinned commits of its models.

Its name contains the config hash: pods of the previous configuration that restart during a rollout
still find their boot file. `plan` removes it when no pod needs it. Pins are not part of the hash,
because running pods already use the pinned commit.
"""

import json
from collections.abc import Mapping

from specdecode_api import names
from specdecode_api.boot import EngineBoot
from specdecode_operator.objects.kinds import CONFIG_MAP, Manifest
from specdecode_operator.owned.labels import child_labels


def config_map_name(name: str, config_hash: str) -> str:
    """Name of the ConfigMap of one configuration."""
    return f"{name}-{config_hash}"


def boot_text(boot: EngineBoot) -> str:
    """The boot file as text: indented, keys in the order of the contract.

    Defaults are left out, so that an engine of an older release, which a resource may be pinned to,
    does not reject an unused new field.
    """
    fields = boot.model_dump(mode="json", exclude_defaults=True)
    return json.dumps({"version": boot.version} | fields, indent=2) + "\n"


def config_map(name: str, config_hash: str, boot: EngineBoot, pins: Mapping[str, str]) -> Manifest:
    """ConfigMap with the boot file, and with the commits of models that name a branch or a tag."""
    pinned = {names.PINS_FILE_NAME: json.dumps(dict(pins), indent=2) + "\n"} if pins else {}
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {
            "name": config_map_name(name, config_hash),
            "labels": child_labels(name),
            "annotations": {names.ANNOTATION_CONFIG_HASH: config_hash},
        },
        "data": {names.BOOT_FILE_NAME: boot_text(boot), **pinned},
    }
