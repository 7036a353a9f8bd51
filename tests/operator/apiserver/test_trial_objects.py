"""Trials and revisions on a real API server, with the rights that the chart grants."""

import asyncio
import copy
import time

import pytest

from specdecode_api import names
from specdecode_operator.cluster.cache import Cache
from specdecode_operator.cluster.cluster import connect
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects import kinds
from specdecode_operator.objects.kinds import CONTROLLER_REVISION, RESOURCE, TRIAL
from specdecode_operator.objects.observed import Key
from specdecode_operator.objects.resource import parse_stored
from specdecode_operator.process.resync import Resync
from specdecode_operator.trial.record.revisions import read_revision, revision, revision_manifest

pytestmark = pytest.mark.apiserver


@pytest.fixture
def on_cluster(kubeconfig):
    """Run a coroutine function with a connection that has the operator's rights."""

    def run(body):
        async def connected():
            async with connect(str(kubeconfig), Metrics("test"), 30) as cluster:
                return await body(cluster)

        return asyncio.run(connected())

    return run


@pytest.fixture
def observe(namespace):
    """List everything, and return what is known of the resource."""

    async def listed(cluster):
        cache, metrics = Cache(), Metrics("test")
        resync = Resync(
            cluster, cache, (namespace,), lambda _: None, lambda *_: None, metrics, time.monotonic
        )
        await resync.once()
        return cache.observe(Key(namespace, "chat"))

    return listed


@pytest.fixture
def trial(namespace):
    def make(name="chat-1", **spec):
        return {
            "apiVersion": TRIAL.api_version,
            "kind": TRIAL.kind,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"deployment": "chat", "candidate": {"pageSize": 32}} | spec,
        }

    return make


def test_a_trial_of_a_user_is_seen_and_adopted(chat, api, namespace, trial, on_cluster, observe):
    resource = chat()
    created = api.create(TRIAL, trial())
    reference = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "name": "chat",
        "uid": resource["metadata"]["uid"],
        "controller": True,
    }
    owned = {"labels": {names.LABEL_DEPLOYMENT: "chat"}, "ownerReferences": [reference]}

    async def adopt(cluster):
        (seen,) = (await observe(cluster)).trials
        assert seen["metadata"]["uid"] == created["metadata"]["uid"]
        return await cluster.adopt_trial(seen, owned)

    metadata = on_cluster(adopt)["metadata"]
    assert metadata["labels"] == owned["labels"]
    assert [each["uid"] for each in metadata["ownerReferences"]] == [reference["uid"]]
    assert api.get(TRIAL, namespace, "chat-1")["spec"]["candidate"] == {"pageSize": 32}


def test_a_trial_that_was_recreated_is_not_adopted(chat, api, namespace, trial, on_cluster):
    chat()
    old = api.create(TRIAL, trial())
    api.delete(TRIAL, namespace, "chat-1")
    api.create(TRIAL, trial())

    async def adopt(cluster):
        await cluster.adopt_trial(old, {"labels": {}, "ownerReferences": []})

    with pytest.raises(KubeApiError, match=r"metadata\.uid: .* field is immutable"):
        on_cluster(adopt)


def test_a_status_of_a_stale_version_is_a_conflict(chat, api, namespace, trial, on_cluster):
    chat()

    async def write(cluster):
        created = await cluster.create_trial(trial(origin="Recommendation"))
        written = await cluster.apply_trial_status(created, {"phase": "Preparing"})
        status = {"phase": "Measuring", "state": {"seed": 3}, "pairs": 2}
        written = await cluster.apply_trial_status(written, status)
        with pytest.raises(KubeApiError) as caught:
            await cluster.apply_trial_status(created, {"phase": "Ended"})
        assert caught.value.code == 409
        assert caught.value.is_transient
        with pytest.raises(KubeApiError, match="already exists"):
            await cluster.create_trial(trial())
        return written

    assert on_cluster(write)["status"] == api.get(TRIAL, namespace, "chat-1")["status"]
    assert api.get(TRIAL, namespace, "chat-1")["status"]["state"] == {"seed": 3}


def test_trials_and_revisions_are_deleted_and_go_with_the_resource(
    chat, api, namespace, trial, on_cluster, observe, until
):
    resource = chat()
    owner = parse_stored(resource)
    accepted = revision("chat", 1, resource["spec"], "v1-a")

    async def keep(cluster):
        await cluster.apply(revision_manifest(accepted, owner), force=False)
        again = revision("chat", 4, resource["spec"], "v1-b")
        await cluster.apply(revision_manifest(again, owner), force=True)
        observed = await observe(cluster)
        assert [read_revision(each) for each in observed.revisions] == [again]
        mine = await cluster.create_trial(trial())
        await cluster.delete(mine)
        await cluster.delete(mine)
        return observed

    on_cluster(keep)
    assert api.items(TRIAL, namespace) == []
    api.delete(RESOURCE, namespace, "chat")
    until(lambda: api.items(CONTROLLER_REVISION, namespace) == [])


def test_the_data_of_a_revision_cannot_be_changed(chat, on_cluster):
    resource = chat()
    manifest = revision_manifest(
        revision("chat", 1, resource["spec"], "v1-a"), parse_stored(resource)
    )
    other = copy.deepcopy(manifest)
    other["data"]["spec"]["pageSize"] = 64

    async def change(cluster):
        await cluster.apply(manifest, force=False)
        await cluster.apply(other, force=True)

    with pytest.raises(KubeApiError, match="is invalid: data"):
        on_cluster(change)


def test_revisions_of_others_are_not_seen(chat, api, namespace, on_cluster, observe):
    chat()
    api.create(
        CONTROLLER_REVISION,
        {
            "apiVersion": "apps/v1",
            "kind": "ControllerRevision",
            "metadata": {"name": "database-1", "namespace": namespace},
            "revision": 1,
            "data": {},
        },
    )
    assert on_cluster(observe).revisions == ()
    assert kinds.selector_of(CONTROLLER_REVISION) == kinds.OWNED_SELECTOR
