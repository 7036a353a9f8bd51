"""Hashes that decide whether pods are replaced and whether an owned object is written."""

import hashlib
import json
from typing import Any

from specdecode_api.base import CHANGE_KEY, Change, HotRecord, ResourceRecord
from specdecode_api.v1alpha1 import Adaptive, BatchSizeEntry
from specdecode_operator.objects.kinds import Manifest

HASH_VERSION = "v1"
"""Part of every config hash; changing it replaces all pods."""


def canonical(data: Any) -> bytes:
    """Canonical JSON: equal for equal data, independent of the order of keys."""
    text = json.dumps(data, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode()


def digest(data: Any) -> str:
    """Sixteen hexadecimal digits of the SHA-256 of `data`."""
    return hashlib.sha256(canonical(data)).hexdigest()[:16]


def config_hash(pod_template: Manifest, boot: Manifest) -> str:
    """Hash of everything that only a restart can change: the pod template and the boot file.

    Both exclude replicas. Fields that the contract marks as hot are excluded from the boot file.
    """
    return f"{HASH_VERSION}-{digest([HASH_VERSION, pod_template, _without_hot(boot)])}"


def exchange_hash(pod_template: Manifest, boot: Manifest) -> str:
    """Hash of all that an exchange of the draft leaves as it is: all but the path of the draft."""
    speculation = {**boot.get("speculation", {})}
    speculation.pop("draft_path", None)
    return config_hash(pod_template, {**boot, "speculation": speculation})


def _hot_fields(record: type[ResourceRecord]) -> frozenset[str]:
    """Names of the fields that running engines adopt, which is the default of a `HotRecord`."""
    default = Change.HOT if issubclass(record, HotRecord) else Change.RESTART
    extras = {name: info.json_schema_extra for name, info in record.model_fields.items()}
    return frozenset(
        name
        for name, extra in extras.items()
        if (extra.get(CHANGE_KEY, default) if isinstance(extra, dict) else default) == Change.HOT
    )


def _without_hot(boot: Manifest) -> Manifest:
    hot = _hot_fields(BatchSizeEntry)
    # Running engines apply a tuned table with draft steps that they have prepared.
    others = {"tuned", *_hot_fields(Adaptive)}
    speculation = {
        name: value for name, value in boot.get("speculation", {}).items() if name not in others
    }
    speculation["table"] = {
        bound: {name: value for name, value in entry.items() if name not in hot}
        for bound, entry in speculation.get("table", {}).items()
    }
    return {**boot, "speculation": speculation}
