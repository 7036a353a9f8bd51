"""Whether a live object matches the desired one."""

import copy

import pytest

from specdecode_operator.plan.matching import is_subset


@pytest.mark.parametrize(
    ("live", "desired", "is_contained"),
    [
        ({"a": 1, "b": 2}, {"a": 1}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": 1}, {"b": 1}, False),
        ({}, {"a": {}}, False),
        ({"a": {}}, {"a": {}}, True),
        ({"a": ["x", "y"]}, {"a": ["x", "y"]}, True),
        ({"a": ["x", "y"]}, {"a": ["x"]}, False),
        ({"a": ["y", "x"]}, {"a": ["x", "y"]}, False),
        ({"a": "x"}, {"a": ["x"]}, False),
        ({"env": [{"name": "A", "value": "1"}, {"name": "B"}]}, {"env": [{"name": "A"}]}, True),
        ({"env": [{"name": "A", "value": "2"}]}, {"env": [{"name": "A", "value": "1"}]}, False),
        ({"limits": {"cpu": "1", "memory": "1Gi"}}, {"limits": {"cpu": "1000m"}}, True),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1024Mi"}}, True),
        ({"requests": {"cpu": "1"}}, {"requests": {"cpu": "2"}}, False),
        ({"requests": {}}, {"requests": {"cpu": "2"}}, False),
        ({"requests": {"cpu": "a1"}}, {"requests": {"cpu": "a1"}}, True),
        ({"value": "1"}, {"value": "1000m"}, False),
        ({"a": True}, {"a": 1}, False),
        ({"a": None}, {"a": None}, True),
    ],
)
def test_table(live, desired, is_contained):
    assert is_subset(desired, live) is is_contained


@pytest.mark.parametrize("name", ["specdecode", "standalone", "gpu"])
def test_any_edit_of_a_wanted_field_is_seen(name, example, build, live):
    for kind, child in build(example(name, replicas=2)).items():
        have = live(child)
        assert is_subset(child, have), kind
        for path in leaves(child):
            changed = copy.deepcopy(have)
            place = changed
            for part in path[:-1]:
                place = place[part]
            place[path[-1]] = "changed by somebody"
            assert not is_subset(child, changed), (kind, path)


def leaves(data, path=()):
    items = data.items() if isinstance(data, dict) else enumerate(data)
    for key, value in items:
        if isinstance(value, (dict, list)) and value:
            yield from leaves(value, (*path, key))
        else:
            yield (*path, key)


@pytest.mark.parametrize(
    ("live", "desired", "is_same"),
    [
        ({}, {"value": ""}, True),
        ({}, {"hostNetwork": False, "readOnly": False}, True),
        ({}, {"automountServiceAccountToken": False}, False),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1024Mi"}}, True),
        ({"emptyDir": {"sizeLimit": "1Gi"}}, {"emptyDir": {"sizeLimit": "1Mi"}}, False),
        ({"name": "tmp"}, {"name": "tmp", "emptyDir": {}}, False),
    ],
)
def test_what_the_api_server_leaves_out_or_spells_anew_is_no_difference(live, desired, is_same):
    assert is_subset(desired, live) is is_same


@pytest.mark.parametrize(
    ("live", "desired", "is_same"),
    [
        ({}, {"initialDelaySeconds": 0, "hostPort": 0, "paused": False}, True),
        ({}, {"nodeSelector": {}, "overhead": {}, "matchLabels": {}, "volumeAttributes": {}}, True),
        ({"resources": {}}, {"resources": {"limits": {}, "requests": {}}}, True),
        ({"paused": True}, {"paused": False}, False),
        ({"initialDelaySeconds": 5}, {"initialDelaySeconds": 0}, False),
        ({"selector": {"a": "1", "version": "v2"}}, {"selector": {"a": "1"}}, False),
        ({"nodeSelector": {"a": "1"}}, {"nodeSelector": {"a": "1"}}, True),
    ],
)
def test_fields_that_are_empty_or_replaced_as_a_whole_are_compared_so(live, desired, is_same):
    assert is_subset(desired, live) is is_same
