"""What the answer to an own write tells besides it: what others changed since we looked.

The answer goes into the cache, so the events of those changes, which are older than it, are no
news there any more. Without a look at the answer nobody would act on them.
"""

from specdecode_api import names
from specdecode_operator.kinds import Manifest

_METADATA = ("generation", "labels", "annotations", "deletionTimestamp")


def tells_more(before: Manifest, answer: Manifest) -> bool:
    """Whether others changed what concerns us of an object.

    Of a resource we write the status, of a child all but that.

    Args:
        before: the object as it was looked at.
        answer: what the API server gave back for our write.
    """
    if answer["kind"] != names.KIND:
        return _deletion(before) != _deletion(answer) or before.get("status") != answer.get(
            "status"
        )
    old, new = before["metadata"], answer["metadata"]
    return any(old.get(name) != new.get(name) for name in _METADATA)


def _deletion(manifest: Manifest) -> object:
    return manifest["metadata"].get("deletionTimestamp")
