"""Hashes that decide whether pods are replaced and whether a child is written again."""

import hashlib
import json
from typing import Any

from specdecode_api.document import CHANGE_KEY, Change
from specdecode_api.v1alpha1 import BatchSizeEntry
from specdecode_operator.kinds import Manifest

HASH_VERSION = "v1"
"""Raise it when the way of hashing changes; it is part of the hash, so pods are replaced then."""


def canonical(data: Any) -> bytes:
    """JSON that is equal for equal data, whatever the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def digest(data: Any) -> str:
    """Sixteen hexadecimal digits that stand for `data`."""
    return hashlib.sha256(canonical(data)).hexdigest()[:16]


def config_hash(pod_template: Manifest, boot: Manifest) -> str:
    """Hash of all that running pods cannot take over: their template and the boot file.

    Replicas are in neither. Fields that the contract marks as hot are left out of the boot file.
    """
    return f"{HASH_VERSION}-{digest([HASH_VERSION, pod_template, _without_hot(boot)])}"


def _hot_fields() -> frozenset[str]:
    return frozenset(
        name
        for name, info in BatchSizeEntry.model_fields.items()
        if isinstance(info.json_schema_extra, dict)
        and info.json_schema_extra.get(CHANGE_KEY) == Change.HOT
    )


def _without_hot(boot: Manifest) -> Manifest:
    hot = _hot_fields()
    speculation = {**boot.get("speculation", {})}
    speculation.pop("tuned", None)  # taken up by running engines, with depths they have prepared
    speculation["table"] = {
        bound: {name: value for name, value in entry.items() if name not in hot}
        for bound, entry in speculation.get("table", {}).items()
    }
    return {**boot, "speculation": speculation}
