"""The parts of the operator in this process, against a real API server: what is hard to stage."""

import asyncio

import pytest

from specdecode_api import names
from specdecode_operator.cluster import cluster as cluster_module
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.objects.kinds import (
    CHILDREN,
    CONFIG_MAP,
    DEPLOYMENT,
    EVENT,
    OWNED_SELECTOR,
    RESOURCE,
    SECRET,
    SERVICE,
    WATCHED,
    Manifest,
)
from specdecode_operator.objects.observed import Key, is_controlled_by
from specdecode_operator.reconcile import LOOK_AFTER_CONFLICT_S, LOOK_AGAIN_S

pytestmark = pytest.mark.apiserver


def _writes(parts):
    return [method for method in parts.requests.methods if method != "GET"]


async def test_what_is_as_it_should_be_costs_no_request(parts, chat, namespace):
    chat(replicas=2)
    async with parts() as wired:
        await wired.resync.once()
        key = Key(namespace, "chat")
        assert wired.cache.known_keys() == [key]
        await wired.reconcile(key)
        # Five children, the token of engines, status, event.
        assert _writes(wired) == ["PATCH"] * 7 + ["POST"]
        wired.requests.methods.clear()
        assert await wired.reconcile(key) is None
        await wired.resync.once()
        wired.requests.methods.clear()
        await wired.reconcile(key)
        assert wired.requests.methods == []


async def test_an_edit_between_the_look_and_the_status_is_acted_on(parts, chat, namespace, api):
    """The status is refused, as one of an older version."""
    chat(replicas=2)
    key = Key(namespace, "chat")
    async with parts() as wired:
        await wired.resync.once()
        apply_status = wired.cluster.apply_status

        async def edited_meanwhile(resource, reported):
            edits.append(api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": 3}}))
            return await apply_status(resource, reported)

        edits: list[Manifest] = []
        wired.cluster.apply_status = edited_meanwhile
        assert await wired.reconcile(key) == LOOK_AFTER_CONFLICT_S
        assert wired.cache.put(edits[0]) == key
        wired.cluster.apply_status = apply_status
        await wired.reconcile(key)
    assert api.get(DEPLOYMENT, namespace, "chat")["spec"]["replicas"] == 3


async def test_what_happened_to_a_child_before_our_write_is_looked_at(parts, chat, namespace, api):
    chat(replicas=2)
    key = Key(namespace, "chat")
    async with parts() as wired:
        await wired.resync.once()
        await wired.reconcile(key)
        api.merge(DEPLOYMENT, namespace, "chat", {"status": {"replicas": 1}}, "/status")
        api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": 3}})
        wired.cache.put(api.get(RESOURCE, namespace, "chat"))
        assert await wired.reconcile(key) == 0.0
        assert await wired.reconcile(key) is None


async def test_hand_edits_that_end_traffic_and_rollouts_are_taken_back(parts, chat, namespace, api):
    chat()
    async with parts() as wired:
        await wired.resync.once()
        await wired.reconcile(Key(namespace, "chat"))
        selector = api.get(SERVICE, namespace, "chat")["spec"]["selector"]
        narrowed = {"spec": {"selector": {"version": "v2"}}}
        api.merge(SERVICE, namespace, "chat", narrowed)
        api.merge(DEPLOYMENT, namespace, "chat", {"spec": {"paused": True}})
        await wired.resync.once()
        await wired.reconcile(Key(namespace, "chat"))
        assert api.get(SERVICE, namespace, "chat")["spec"]["selector"] == selector
        assert "paused" not in api.get(DEPLOYMENT, namespace, "chat")["spec"]
        wired.requests.methods.clear()
        await wired.reconcile(Key(namespace, "chat"))
        assert wired.requests.methods == []


async def test_a_new_process_with_the_same_world_writes_nothing(parts, chat, namespace):
    chat()
    key = Key(namespace, "chat")
    async with parts() as wired:
        await wired.resync.once()
        await wired.reconcile(key)
    async with parts() as wired:
        await wired.resync.once()
        await wired.reconcile(key)
        assert _writes(wired) == []


async def test_a_crash_after_any_request_is_made_up_for(parts, chat, namespace, api):
    async with parts() as wired:
        chat("whole", replicas=2)
        await wired.resync.once()
        wired.requests.methods.clear()
        await wired.reconcile(Key(namespace, "whole"))
        count = len(wired.requests.methods)
    for step in range(1, count + 1):
        name = f"broken-{step}"
        api.delete(SECRET, namespace, names.ROUTER_SECRET)
        chat(name, replicas=2)
        key = Key(namespace, name)
        async with parts() as wired:
            await wired.resync.once()
            wired.requests.methods.clear()
            wired.requests.fail_at = step
            with pytest.raises(ConnectionError):
                await wired.reconcile(key)
        async with parts() as wired:  # the next process
            await wired.resync.once()
            await wired.reconcile(key)
            await wired.resync.once()
            wired.requests.methods.clear()
            await wired.reconcile(key)
            assert wired.requests.methods == [], f"after a crash at request {step}"
        selector = f"{OWNED_SELECTOR},{names.LABEL_DEPLOYMENT}={name}"
        kinds = [kind.kind for kind in CHILDREN if len(api.items(kind, namespace, selector)) == 1]
        assert kinds == [kind.kind for kind in CHILDREN]
        assert api.get(RESOURCE, namespace, name)["status"]["configHash"]


async def test_a_deletion_that_no_watch_reported_is_found_by_a_resync(parts, chat, namespace, api):
    chat("one")
    chat("two")
    async with parts() as wired:
        await wired.resync.once()
        for name in ("one", "two"):
            await wired.reconcile(Key(namespace, name))
        await wired.resync.once()
        wired.added.clear()
        api.delete(SERVICE, namespace, "one")
        api.delete(RESOURCE, namespace, "two")
        assert wired.cache.observe(Key(namespace, "two")), "no event received yet"

        await wired.resync.once()
        assert Key(namespace, "one") in wired.added
        assert Key(namespace, "two") in wired.added
        assert wired.cache.observe(Key(namespace, "two")) is None
        missed = wired.metrics.registry.get_sample_value
        name = "specdecode_operator_missed_delete_total"
        assert missed(name, {"kind": "Service"}) >= 1
        assert missed(name, {"kind": RESOURCE.kind}) == 1
        await wired.reconcile(Key(namespace, "one"))
        assert api.get(SERVICE, namespace, "one")
        assert await wired.reconcile(Key(namespace, "two")) is None


async def test_long_lists_come_in_pages(parts, chat, namespace, monkeypatch):
    monkeypatch.setattr(cluster_module, "PAGE", 2)
    for number in range(5):
        chat(f"chat-{number}")
    async with parts() as wired:
        await wired.resync.once()
        assert len(wired.cache.known_keys()) == 5
        assert len(wired.requests.methods) == len(WATCHED) + 2


async def test_a_stranger_who_comes_between_looking_and_writing_is_left_alone(
    parts, chat, namespace, api
):
    chat()
    async with parts() as wired:
        await wired.resync.once()
        look = wired.cluster.get

        async def look_then_be_overtaken(kind, *where):
            found = await look(kind, *where)
            if kind is SERVICE:
                ports = {"ports": [{"port": 443}], "selector": {"app": "theirs"}}
                metadata = {"name": "chat", "namespace": namespace}
                api.create(SERVICE, {"metadata": metadata, "spec": ports})
            return found

        wired.cluster.get = look_then_be_overtaken
        with pytest.raises(KubeApiError) as caught:
            await wired.reconcile(Key(namespace, "chat"))
        assert caught.value.is_transient, "the next look finds out"
        wired.cluster.get = look
        assert await wired.reconcile(Key(namespace, "chat")) == LOOK_AGAIN_S
    assert api.get(SERVICE, namespace, "chat")["spec"]["selector"] == {"app": "theirs"}
    (ready, *_) = api.get(RESOURCE, namespace, "chat")["status"]["conditions"]
    assert (ready["type"], ready["reason"]) == ("Ready", "NameConflict")


async def test_a_successor_does_not_keep_its_predecessors_status(parts, chat, namespace, api):
    chat()
    key = Key(namespace, "chat")
    async with parts() as wired:
        await wired.resync.once()
        api.delete(RESOURCE, namespace, "chat")
        uid = chat(pageSize=64)["metadata"]["uid"]
        await wired.reconcile(key)  # no event yet that the predecessor is deleted

        def has_all_of_its_own():
            observed = wired.cache.observe(key)
            return observed.uid == uid and all(
                is_controlled_by(child, uid) for child in observed.children.values()
            )

        async with asyncio.timeout(90):  # the garbage collector learns of new kinds every 30 s
            while not (has_all_of_its_own() and len(wired.cache.observe(key).children) == 4):
                await asyncio.sleep(0.05)
                await wired.resync.once()
                await wired.reconcile(key)
    config_hash = api.get(RESOURCE, namespace, "chat")["status"]["configHash"]
    (config_map,) = api.items(CONFIG_MAP, namespace, OWNED_SELECTOR)
    assert config_map["metadata"]["name"] == f"chat-{config_hash}"


async def test_a_resource_that_is_gone_is_no_reason_to_crash(parts, chat, namespace, api):
    chat()
    async with parts() as wired:
        await wired.resync.once()
        api.delete(RESOURCE, namespace, "chat")
        with pytest.raises(KubeApiError) as caught:
            await wired.reconcile(Key(namespace, "chat"))
        assert caught.value.code == 404
        await wired.resync.once()
        assert await wired.reconcile(Key(namespace, "chat")) is None


async def test_an_orphan_in_the_way_is_waited_for(parts, chat, namespace, api):
    uid = chat()["metadata"]["uid"]
    owner = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": "chat",
        "uid": "00000000-0000-0000-0000-000000000000",
        "controller": True,
    }
    finalizer = ["example.com/slow"]  # the collector cannot take it yet
    metadata = {"name": "chat", "namespace": namespace, "ownerReferences": [owner]}
    api.create(
        SERVICE,
        {"metadata": {**metadata, "finalizers": finalizer}, "spec": {"ports": [{"port": 80}]}},
    )
    async with parts() as wired:
        await wired.resync.once()
        await wired.reconcile(Key(namespace, "chat"))
        reported = api.get(RESOURCE, namespace, "chat")["status"]["conditions"]
        by_type = {each["type"]: each for each in reported}
        assert by_type["Ready"]["reason"] == "WaitingForGarbageCollection"
        assert by_type["Degraded"]["status"] == "False"
        api.merge(SERVICE, namespace, "chat", {"metadata": {"finalizers": None}})
        for _ in range(200):
            await wired.resync.once()
            await wired.reconcile(Key(namespace, "chat"))
            service = api.get(SERVICE, namespace, "chat")
            if service and service["metadata"]["ownerReferences"][0]["uid"] == uid:
                break
            await asyncio.sleep(0.05)
        else:
            pytest.fail("the orphan was never replaced")
        assert api.get(DEPLOYMENT, namespace, "chat")


async def test_an_event_is_posted_once_however_often_it_is_reported(parts, chat, namespace, api):
    resource = chat()
    async with parts() as wired:
        await wired.resync.once()
        stale = wired.cache.observe(Key(namespace, "chat"))
        await wired.reconcile(Key(namespace, "chat"))
        event = api.items(EVENT, namespace)[0]
        again = {k: event[k] for k in ("metadata", "involvedObject", "reason", "message", "type")}
        again["metadata"] = {k: again["metadata"][k] for k in ("name", "namespace")}
        await wired.cluster.post_event(again)
    assert stale.uid == resource["metadata"]["uid"]
    assert len(api.items(EVENT, namespace)) == 1


async def test_deleting_what_is_gone_or_somebody_elses_is_no_error(parts, namespace, api):
    metadata = {"name": "boot", "namespace": namespace}
    made = api.create(CONFIG_MAP, {"metadata": metadata}) | {"kind": "ConfigMap"}
    other = {**made, "metadata": {**made["metadata"], "uid": "another"}}
    async with parts() as wired:
        await wired.cluster.delete(other)
        assert api.get(CONFIG_MAP, namespace, "boot"), "its uid is that of another object"
        await wired.cluster.delete(made)
        await wired.cluster.delete(made)
    assert api.get(CONFIG_MAP, namespace, "boot") is None


async def test_a_verb_that_is_not_declared_is_refused_before_it_is_sent(parts, namespace):
    async with parts() as wired:
        pod = {"kind": "Pod", "metadata": {"name": "x", "namespace": namespace}}
        with pytest.raises(AssertionError, match="declare delete on pods"):
            await wired.cluster.delete(pod)
        assert wired.requests.methods == []
