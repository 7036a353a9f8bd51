"""Limits of emptyDir volumes, which replace no pods."""

import copy

import pytest

from specdecode_operator import owned
from specdecode_operator.objects.resource import parse


@pytest.fixture
def deployment(example):
    """The Deployment of a resource with models of the hub, on a GPU."""

    def of(**spec):
        manifest = example("hub", engine={"device": "GPU"}, **spec)
        children = owned.build(parse(manifest), "engine:test").children
        return next(each for each in children if each["kind"] == "Deployment")

    return of


def limits_of(found):
    volumes = found["spec"]["template"]["spec"]["volumes"]
    empty = {each["name"]: each["emptyDir"] for each in volumes if "emptyDir" in each}
    return {name: each.get("sizeLimit") for name, each in empty.items()}


def test_volumes_have_limits_and_those_of_users_count(deployment):
    volumes = [{"name": "tmp", "emptyDir": {"sizeLimit": "32Gi"}}]
    plain = deployment(template={"spec": {"volumes": volumes}})
    found = limits_of(owned.size_limited(plain, None))
    own = plain["spec"]["template"]["spec"]["volumes"]
    assert found["tmp"] == "32Gi"
    assert (found["shm"], found["model-links"]) == ("1Gi", "16Mi")
    assert any("sizeLimit" not in each.get("emptyDir", {"sizeLimit": 0}) for each in own)


def test_running_pods_keep_volumes_without_limits(deployment):
    before = deployment()
    assert owned.size_limited(before, before) is before
    changed = deployment(pageSize=64)
    assert limits_of(owned.size_limited(changed, before))["tmp"] == "16Gi"
    limited = owned.size_limited(before, None)
    assert owned.size_limited(copy.deepcopy(before), limited) == limited


def test_an_exchange_of_the_draft_adds_no_limits(deployment):
    """Its configuration is in an annotation of the Deployment; the pods stay."""
    before, after = deployment(), deployment()
    after["metadata"].setdefault("annotations", {})["specdecode.io/config-hash"] = "v1-exchanged"
    assert owned.size_limited(after, before) is after


def test_other_objects_have_no_volumes(example):
    children = owned.build(parse(example()), "engine:test").children
    others = [each for each in children if each["kind"] != "Deployment"]
    assert [owned.size_limited(each, None) for each in others] == others
