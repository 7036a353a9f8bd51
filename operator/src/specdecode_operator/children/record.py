"""The ConfigMap that holds the operator's record of trials; see `specdecode_operator.trial`."""

from specdecode_api import names
from specdecode_operator.children.labels import child_labels
from specdecode_operator.kinds import CONFIG_MAP, Manifest


def record_name(name: str) -> str:
    """Name of a resource's record."""
    return f"{name}-rollout"


def record_map(name: str, text: str) -> Manifest:
    """ConfigMap with the record, independent of any configuration."""
    return {
        "apiVersion": CONFIG_MAP.api_version,
        "kind": CONFIG_MAP.kind,
        "metadata": {"name": record_name(name), "labels": child_labels(name)},
        "data": {names.RECORD_FILE_NAME: text},
    }
