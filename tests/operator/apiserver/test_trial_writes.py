"""Refused writes of trials on a real API server: they stop the trial and nothing else."""

import pytest

from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.objects.kinds import DEPLOYMENT, RESOURCE, TRIAL, ResourceKind
from specdecode_operator.objects.observed import Key

pytestmark = pytest.mark.apiserver

QUOTA = ResourceKind("", "v1", "ResourceQuota", "resourcequotas", ())
GUARDED = {"editPolicy": "Guarded", "mode": "Manual", "strategy": "Canary"}
HARD = {"count/deployments.apps": "1"}


@pytest.fixture
def limit_deployments(api, namespace):
    """Allow no more Deployments than there are; the controller of quotas is played."""

    def limit():
        metadata = {"name": "deployments", "namespace": namespace}
        api.create(QUOTA, {"metadata": metadata, "spec": {"hard": HARD}})
        status = {"status": {"hard": HARD, "used": HARD}}
        api.merge(QUOTA, namespace, "deployments", status, "/status")

    return limit


@pytest.fixture
def settle(namespace):
    """Reconcile until nothing is due at once."""

    async def reconcile(wired):
        await wired.resync.once()
        for _ in range(10):
            due_s = await wired.reconcile(Key(namespace, "chat"))
            if due_s is None or due_s > 0:
                return

    return reconcile


async def test_a_canary_refused_by_a_quota_leaves_the_resource_alone(
    parts, chat, api, namespace, condition, limit_deployments, settle
):
    chat(rollout=GUARDED)
    async with parts() as wired:
        await settle(wired)
        stable = api.get(DEPLOYMENT, namespace, "chat")["spec"]
        ready = condition("Ready")
        limit_deployments()
        api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 32}})
        await settle(wired)
        assert api.get(DEPLOYMENT, namespace, "chat")["spec"] == stable
        assert api.get(DEPLOYMENT, namespace, "chat-canary") is None
        assert condition("Ready") == ready
        status, reason, message = condition("CanaryHealthy")
        assert (status, reason) == ("False", "WriteFailed")
        assert "exceeded quota" in message
        api.merge(RESOURCE, namespace, "chat", {"spec": {"replicas": 3}})
        await settle(wired)
        assert api.get(DEPLOYMENT, namespace, "chat")["spec"]["replicas"] == 3


async def test_a_trial_refused_by_a_quota_does_not_begin(
    parts, chat, api, namespace, condition, settle
):
    chat(rollout=GUARDED)
    async with parts() as wired:
        await settle(wired)
        stable = api.get(DEPLOYMENT, namespace, "chat")["spec"]
        ready = condition("Ready")
        name = "count/specdecodetrials.specdecode.io"
        limit = {"hard": {name: "0"}}
        api.create(QUOTA, {"metadata": {"name": "trials", "namespace": namespace}, "spec": limit})
        status = {"status": limit | {"used": {name: "0"}}}
        api.merge(QUOTA, namespace, "trials", status, "/status")
        api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 32}})
        await settle(wired)
        assert api.items(TRIAL, namespace) == []
        assert api.get(DEPLOYMENT, namespace, "chat")["spec"] == stable
        assert api.get(DEPLOYMENT, namespace, "chat-canary") is None
        assert condition("Ready") == ready
        status, reason, message = condition("CanaryHealthy")
        assert (status, reason) == ("False", "WriteFailed")
        assert "exceeded quota" in message
        api.delete(QUOTA, namespace, "trials")
        await settle(wired)
        assert len(api.items(TRIAL, namespace)) == 1


async def test_a_status_of_an_older_version_of_the_resource_is_refused(
    parts, chat, api, namespace, settle
):
    chat(rollout=GUARDED)
    async with parts() as wired:
        await settle(wired)
        stale = wired.cache.observe(Key(namespace, "chat")).resource
        newer = {"metadata": {"annotations": {"by": "a newer leader"}}}
        api.merge(RESOURCE, namespace, "chat", newer)
        with pytest.raises(KubeApiError) as caught:
            await wired.cluster.apply_status(stale, {"replicas": 7})
        assert caught.value.code == 409
        api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 32}})
        await settle(wired)
        status = api.get(RESOURCE, namespace, "chat")["status"]
        assert status["activeTrial"] == api.items(TRIAL, namespace)[0]["metadata"]["name"]


async def test_state_that_an_older_definition_drops_is_not_written_at_once_again(
    parts, chat, namespace, monkeypatch
):
    chat(rollout=GUARDED)
    write = Cluster.apply_status

    async def without_effective(cluster, resource, status):
        kept = {name: value for name, value in status.items() if name != "effective"}
        return await write(cluster, resource, kept)

    monkeypatch.setattr(Cluster, "apply_status", without_effective)
    async with parts() as wired:
        await wired.resync.once()
        dues_s = [await wired.reconcile(Key(namespace, "chat")) for _ in range(6)]
    assert dues_s[0] == 0
    assert all(due_s is None or due_s > 0 for due_s in dues_s[3:])


async def test_a_trial_begins_at_once_after_one_that_is_refused(
    parts, chat, api, namespace, settle
):
    """A trial that is refused changes no state of the resource, and causes no event."""
    chat()
    async with parts() as wired:
        await settle(wired)
        for name in ("first", "second", "third"):
            spec = {"deployment": "chat", "candidate": {"pageSize": 16}}
            head = {"apiVersion": TRIAL.api_version, "kind": TRIAL.kind}
            metadata = {"name": name, "namespace": namespace}
            api.create(TRIAL, head | {"metadata": metadata, "spec": spec})
        await settle(wired)
    for name in ("first", "second", "third"):
        assert api.get(TRIAL, namespace, name)["status"]["reason"] == "InvalidCandidate"
