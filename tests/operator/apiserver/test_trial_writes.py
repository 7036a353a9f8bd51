"""Refused writes of trials on a real API server: they stop the trial and nothing else."""

import pytest

from specdecode_api import names
from specdecode_operator.kinds import CONFIG_MAP, DEPLOYMENT, RESOURCE, ResourceKind
from specdecode_operator.observed import Key

pytestmark = pytest.mark.apiserver

QUOTA = ResourceKind("", "v1", "ResourceQuota", "resourcequotas", ())
GUARDED = {"editPolicy": "Guarded", "mode": "Manual"}
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


async def test_a_write_of_an_older_version_of_the_state_is_refused(
    parts, chat, api, namespace, settle
):
    chat(rollout=GUARDED)
    async with parts() as wired:
        await settle(wired)
        name = "chat-rollout"
        stale = wired.cache.observe(Key(namespace, "chat")).children[("ConfigMap", name)]
        text = stale["data"][names.RECORD_FILE_NAME]
        newer = {"metadata": {"annotations": {"by": "a newer leader"}}}
        api.merge(CONFIG_MAP, namespace, name, newer)
        api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 32}})
        resource = api.get(RESOURCE, namespace, "chat")
        wired.cache.put(resource)
        await wired.reconcile(Key(namespace, "chat"))
        assert api.get(CONFIG_MAP, namespace, name)["data"][names.RECORD_FILE_NAME] == text
        await settle(wired)
        assert api.get(CONFIG_MAP, namespace, name)["data"][names.RECORD_FILE_NAME] != text
