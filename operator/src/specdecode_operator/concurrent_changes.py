"""Detects changes by others in the API server's response to the operator's own write.

The response goes into the cache, so the watch events of those changes are older than the cached
version and queue nothing. Without this check nobody would act on them.
"""

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest

_METADATA = ("generation", "labels", "annotations", "deletionTimestamp")


def changed_concurrently(before: Manifest, answer: Manifest) -> bool:
    """Whether others changed the part of an object that the operator reads but does not write.

    The operator writes the status of custom resources, and everything but the status of owned
    objects.

    Args:
        before: the object as observed before the write.
        answer: the API server's response to the write.
    """
    if answer["kind"] != names.KIND:
        return _deletion(before) != _deletion(answer) or before.get("status") != answer.get(
            "status"
        )
    old, new = before["metadata"], answer["metadata"]
    return any(old.get(name) != new.get(name) for name in _METADATA)


def _deletion(manifest: Manifest) -> object:
    return manifest["metadata"].get("deletionTimestamp")
