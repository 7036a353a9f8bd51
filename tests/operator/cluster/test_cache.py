"""The cache: the newest version of everything, whoever brings it."""

import pytest

from specdecode_operator.cluster.cache import Cache, identity_of
from specdecode_operator.objects.kinds import ChildId
from specdecode_operator.objects.observed import Key

KEY = Key("default", "chat")


@pytest.fixture
def cache(example):
    cache = Cache()
    cache.put(example())
    return cache


@pytest.fixture
def service(example, build, live):
    def at(version):
        return live(build(example())["Service"], resourceVersion=str(version))

    return at


def test_a_resource_is_seen_with_its_children(cache, service):
    assert cache.put(service(5)) == KEY
    observed = cache.observe(KEY)
    assert observed.resource["metadata"]["name"] == "chat"
    assert list(observed.children) == [ChildId("Service", "chat")]


@pytest.mark.parametrize(("kind", "field"), [("Pod", "pods"), ("EndpointSlice", "slices")])
def test_pods_and_endpoint_slices_are_no_children(kind, field, cache, service):
    manifest = service(5) | {"kind": kind}
    assert cache.put(manifest) == KEY
    observed = cache.observe(KEY)
    assert observed.children == {}
    assert getattr(observed, field) == (manifest,)


def test_trials_belong_to_the_deployment_that_they_name_and_come_by_age(cache):
    for number, (name, day) in enumerate([("b", 2), ("a", 2), ("c", 1)], 1):
        assert cache.put(trial(name, f"2026-01-0{day}T00:00:00Z", number)) == KEY
    assert cache.put(trial("d", "2026-01-01T00:00:00Z", 9, "other")) == Key("default", "other")
    observed = cache.observe(KEY)
    assert [each["metadata"]["name"] for each in observed.trials] == ["c", "a", "b"]
    assert observed.children == {}
    assert cache.remove(trial("a", "2026-01-02T00:00:00Z", 10)) == KEY
    assert [each["metadata"]["name"] for each in cache.observe(KEY).trials] == ["c", "b"]


def test_revisions_are_no_children(cache, service):
    manifest = service(5) | {"apiVersion": "apps/v1", "kind": "ControllerRevision"}
    assert cache.put(manifest) == KEY
    observed = cache.observe(KEY)
    assert (observed.children, observed.revisions) == ({}, (manifest,))


def trial(name, created, version, deployment="chat"):
    return {
        "kind": "SpecDecodeTrial",
        "metadata": {
            "name": name,
            "namespace": "default",
            "creationTimestamp": created,
            "resourceVersion": str(version),
        },
        "spec": {"deployment": deployment, "candidate": {"pageSize": 32}},
    }


def test_nothing_is_seen_of_an_unknown_resource(cache):
    assert cache.observe(Key("default", "other")) is None


def test_old_versions_and_echoes_are_no_news(cache, service):
    cache.put(service(5))
    assert cache.put(service(5)) is None
    assert cache.put(service(4)) is None
    assert cache.put(service(6)) == KEY


def test_a_removal_is_news_once(cache, service):
    cache.put(service(5))
    assert cache.remove(service(7)) == KEY
    assert cache.remove(service(7)) is None
    assert cache.observe(KEY).children == {}


def test_a_late_removal_does_not_hit_the_successor(cache, service):
    cache.put(service(5))
    cache.put(service(9))
    assert cache.remove(service(7)) is None
    assert cache.observe(KEY).children


def test_a_list_from_before_a_removal_brings_nothing_back(cache, service):
    cache.put(service(5))
    cache.remove(service(7))
    assert cache.put(service(5)) is None
    assert cache.put(service(8)) == KEY


def test_what_a_list_lacks_goes_but_not_what_came_after_it(cache, service):
    cache.put(service(5))
    assert cache.retain("Service", None, set(), version=4) == set()
    assert cache.retain("Service", "elsewhere", set(), version=9) == set()
    assert cache.retain("Service", None, {identity_of(service(5))}, version=9) == set()
    assert cache.retain("Service", None, set(), version=9) == {KEY}
    assert cache.observe(KEY).children == {}


def test_removals_are_not_remembered_for_ever(cache, service):
    cache.remove(service(7))
    cache.retain("Service", None, set(), version=8)
    assert cache.put(service(5)) == KEY


def test_an_edited_label_does_not_hide_a_child_from_its_owner(cache, service):
    cache.put(service(5))
    relabelled = service(6)
    relabelled["metadata"]["labels"]["specdecode.io/deployment"] = "other"
    assert cache.put(relabelled) == KEY
    assert cache.observe(KEY).children


def test_a_pod_belongs_to_the_resource_that_its_label_names(cache, service):
    pod = service(5) | {"kind": "Pod"}
    pod["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "name": "x", "controller": True}]
    assert cache.put(pod) == KEY


def test_a_child_that_is_handed_over_leaves_its_first_owner(cache, example, service):
    cache.put(service(5))
    moved = service(6)
    moved["metadata"]["ownerReferences"][0]["name"] = "other"
    assert cache.put(moved) == Key("default", "other")
    assert cache.observe(KEY).children == {}


def test_resources_are_listed(cache, example, service):
    cache.put(service(5))
    assert cache.known_keys() == [KEY]
    cache.remove(example())
    assert cache.known_keys() == []
