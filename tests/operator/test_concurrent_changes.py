"""Concurrent changes, detected in the response to the operator's own write."""

import copy

import pytest

from specdecode_api import names
from specdecode_operator.concurrent_changes import changed_concurrently


def _changed(manifest, *path, value):
    changed = copy.deepcopy(manifest)
    place = changed
    for name in path[:-1]:
        place = place.setdefault(name, {})
    place[path[-1]] = value
    return changed


RESOURCE = {
    "kind": names.KIND,
    "metadata": {"name": "chat", "generation": 1, "resourceVersion": "1"},
    "spec": {"replicas": 1},
    "status": {"replicas": 0},
}
CHILD = {
    "kind": "Deployment",
    "metadata": {"name": "chat", "generation": 1, "resourceVersion": "1"},
    "spec": {"replicas": 1},
    "status": {"replicas": 0},
}


@pytest.mark.parametrize(
    ("before", "path", "value", "is_more"),
    [
        (RESOURCE, ("metadata", "resourceVersion"), "2", False),
        (RESOURCE, ("status", "replicas"), 1, False),
        (RESOURCE, ("metadata", "generation"), 2, True),
        (RESOURCE, ("metadata", "annotations"), {"a": "b"}, True),
        (RESOURCE, ("metadata", "deletionTimestamp"), "2026-11-21T00:00:00Z", True),
        (CHILD, ("metadata", "resourceVersion"), "2", False),
        (CHILD, ("metadata", "generation"), 2, False),
        (CHILD, ("spec", "replicas"), 2, False),
        (CHILD, ("status", "replicas"), 1, True),
        (CHILD, ("metadata", "deletionTimestamp"), "2026-11-21T00:00:00Z", True),
    ],
)
def test_own_part_is_no_news_and_the_rest_is(before, path, value, is_more):
    assert not changed_concurrently(before, copy.deepcopy(before))
    assert changed_concurrently(before, _changed(before, *path, value=value)) is is_more
