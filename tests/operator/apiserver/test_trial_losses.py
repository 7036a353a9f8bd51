"""State of trials that is lost, on a real API server: nothing is rolled."""

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import CONTROLLER_REVISION, DEPLOYMENT, RESOURCE, TRIAL
from specdecode_operator.objects.observed import Key

pytestmark = pytest.mark.apiserver


@pytest.fixture
def settle(namespace):
    """Reconcile until nothing is due at once, as an operator that has just started."""

    async def reconcile(wired):
        await wired.resync.once()
        for _ in range(20):
            due_s = await wired.reconcile(Key(namespace, "chat"))
            await wired.resync.once()
            if due_s is None or due_s > 0:
                return

    return reconcile


@pytest.fixture(params=["Immediate", "Guarded"])
def promote(request, chat, api, namespace, parts, settle):
    """A resource with a promoted page size in the place of the spec's."""

    async def promoted():
        chat(rollout={"editPolicy": request.param, "mode": "Manual"})
        async with parts() as wired:
            await settle(wired)
            api.create(TRIAL, trial(namespace, {"pageSize": 32}))
            await settle(wired)
        assert api.get(TRIAL, namespace, "better")["status"]["verdict"] == "Promoted"
        status = api.get(RESOURCE, namespace, "chat")["status"]
        assert status["effective"]["reason"] == "Promoted"
        assert config_of(api.get(DEPLOYMENT, namespace, "chat")) == status["configHash"]

    return promoted


def trial(namespace, candidate):
    return {
        "apiVersion": TRIAL.api_version,
        "kind": TRIAL.kind,
        "metadata": {"name": "better", "namespace": namespace},
        "spec": {"deployment": "chat", "candidate": candidate, "promote": True},
    }


def config_of(deployment):
    return deployment["spec"]["template"]["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]


def delete_revisions(api, namespace):
    for each in api.items(CONTROLLER_REVISION, namespace):
        api.delete(CONTROLLER_REVISION, namespace, each["metadata"]["name"])


def clear_status(api, namespace):
    nothing = dict.fromkeys(api.get(RESOURCE, namespace, "chat")["status"])
    api.merge(RESOURCE, namespace, "chat", {"status": nothing}, "/status")
    assert not api.get(RESOURCE, namespace, "chat").get("status")


async def test_a_resource_restored_without_status_keeps_what_serves(
    promote, parts, api, namespace, condition, settle
):
    await promote()
    before = api.get(DEPLOYMENT, namespace, "chat")["spec"]
    clear_status(api, namespace)
    async with parts() as wired:
        await settle(wired)
    assert api.get(DEPLOYMENT, namespace, "chat")["spec"] == before
    status, reason, message = condition("SpecOverridden")
    assert (status, reason) == ("True", "Promoted")
    assert "in place of pageSize" in message
    assert "kubectl specdecode adopt chat" in message


async def test_deleted_revisions_roll_nothing_until_the_spec_is_accepted(
    promote, parts, api, namespace, condition, settle
):
    await promote()
    before = api.get(DEPLOYMENT, namespace, "chat")["spec"]
    delete_revisions(api, namespace)
    async with parts() as wired:
        await settle(wired)
        assert api.get(DEPLOYMENT, namespace, "chat")["spec"] == before
        status, reason, message = condition("StateLost")
        assert (status, reason) == ("True", "ConfigurationUnexplained")
        name, value = message.rpartition(" ")[2].split("=")
        api.merge(RESOURCE, namespace, "chat", {"metadata": {"annotations": {name: value}}})
        await settle(wired)
    assert config_of(api.get(DEPLOYMENT, namespace, "chat")) == value
    conditions = api.get(RESOURCE, namespace, "chat")["status"]["conditions"]
    assert "StateLost" not in {each["type"] for each in conditions}


async def test_the_loss_of_revisions_trials_and_their_status_rolls_nothing(
    promote, parts, api, namespace, condition, settle
):
    """The config hash stays in the status, as of a resource that never had a trial."""
    await promote()
    before = api.get(DEPLOYMENT, namespace, "chat")["spec"]
    revision = api.get(RESOURCE, namespace, "chat")["status"]["effective"]["revision"]
    delete_revisions(api, namespace)
    for each in api.items(TRIAL, namespace):
        api.delete(TRIAL, namespace, each["metadata"]["name"])
    lost = dict.fromkeys(("effective", "lastTrial", "exploration"))
    api.merge(RESOURCE, namespace, "chat", {"status": lost}, "/status")
    status = api.get(RESOURCE, namespace, "chat")["status"]
    assert status["configHash"]
    assert not status.keys() & lost.keys()
    async with parts() as wired:
        await settle(wired)
    assert api.get(DEPLOYMENT, namespace, "chat")["spec"] == before
    state, reason, message = condition("StateLost")
    assert (state, reason) == ("True", "ConfigurationUnexplained")
    assert f"restore ControllerRevision {revision} from a backup" in message


async def test_a_resource_with_a_new_uid_rolls_nothing_of_the_old_one(
    promote, parts, api, namespace, condition, settle, until
):
    await promote()
    saved = api.get(RESOURCE, namespace, "chat")
    deployment = api.get(DEPLOYMENT, namespace, "chat")
    old_trial = api.get(TRIAL, namespace, "better")
    revisions = api.items(CONTROLLER_REVISION, namespace)
    path, orphan = RESOURCE.path(namespace, "chat"), {"propagationPolicy": "Orphan"}
    api.client.delete(path, params=orphan).raise_for_status()
    until(lambda: api.get(RESOURCE, namespace, "chat") is None)
    metadata = {name: saved["metadata"][name] for name in ("name", "namespace")}
    head = {"apiVersion": RESOURCE.api_version, "kind": RESOURCE.kind}
    restored = api.create(RESOURCE, head | {"metadata": metadata, "spec": saved["spec"]})
    assert restored["metadata"]["uid"] != saved["metadata"]["uid"]
    async with parts() as wired:
        await settle(wired)
    assert api.get(DEPLOYMENT, namespace, "chat")["spec"] == deployment["spec"]
    assert api.get(TRIAL, namespace, "better")["status"] == old_trial["status"]
    assert [each["data"] for each in api.items(CONTROLLER_REVISION, namespace)] == [
        each["data"] for each in revisions
    ]
    status, reason, message = condition("Ready")
    assert (status, reason) == ("False", "NameConflict")
    assert "is not controlled by this resource, so it is not changed" in message


async def test_an_edit_of_a_promoted_field_ends_its_override_only(
    chat, parts, api, namespace, condition, settle
):
    chat(rollout={"editPolicy": "Immediate", "mode": "Manual"})
    scheduler = {"scheduler": {"maxRunningRequests": 32}}
    async with parts() as wired:
        await settle(wired)
        api.create(TRIAL, trial(namespace, {"pageSize": 32, "engine": scheduler}))
        await settle(wired)
        message = condition("SpecOverridden")[2]
        assert "in place of engine.scheduler.maxRunningRequests, pageSize " in message
        api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 8}})
        await settle(wired)
    message = condition("SpecOverridden")[2]
    assert "in place of engine.scheduler.maxRunningRequests " in message
    resource = api.get(RESOURCE, namespace, "chat")
    name = resource["status"]["effective"]["revision"]
    data = api.get(CONTROLLER_REVISION, namespace, name)["data"]
    assert data["spec"]["pageSize"] == 8
    assert data["spec"]["engine"]["scheduler"]["maxRunningRequests"] == 32
    assert config_of(api.get(DEPLOYMENT, namespace, "chat")) == resource["status"]["configHash"]


async def test_a_trial_deleted_while_it_runs_ends_and_is_not_tried_again(
    chat, parts, api, namespace, settle
):
    chat(rollout={"editPolicy": "Guarded", "mode": "Manual", "strategy": "Canary"})
    async with parts() as wired:
        await settle(wired)
        stable = api.get(DEPLOYMENT, namespace, "chat")["spec"]
        api.merge(RESOURCE, namespace, "chat", {"spec": {"pageSize": 32}})
        await settle(wired)
        (running,) = api.items(TRIAL, namespace)
        name = running["metadata"]["name"]
        assert running["status"]["state"]
        assert api.get(RESOURCE, namespace, "chat")["status"]["activeTrial"] == name
        assert api.get(DEPLOYMENT, namespace, "chat-canary") is not None
        api.delete(TRIAL, namespace, name)
        await settle(wired)
    async with parts() as wired:
        await settle(wired)
    status = api.get(RESOURCE, namespace, "chat")["status"]
    last = status["lastTrial"]
    assert (last["name"], last["verdict"], last["reason"]) == (name, "Aborted", "TrialDeleted")
    assert "activeTrial" not in status
    assert api.items(TRIAL, namespace) == []
    assert api.get(DEPLOYMENT, namespace, "chat")["spec"] == stable
    assert api.get(DEPLOYMENT, namespace, "chat-canary") is None
