"""Faulty trials and parts that raise on a real API server: everything else is reconciled."""

import pytest

from specdecode_api import names
from specdecode_operator.objects.kinds import DEPLOYMENT, EVENT, RESOURCE, SERVICE, TRIAL
from specdecode_operator.objects.observed import Key
from specdecode_operator.status.activity import ActivityLog
from specdecode_operator.trial.steps import machine

pytestmark = pytest.mark.apiserver

CANDIDATE = {"speculation": {"adaptive": {"batchSizes": [{"from": 1, "candidateSteps": [0, 2]}]}}}
SPECULATION = {
    "algorithm": "STANDALONE",
    "draft": {"uri": "pvc://models/draft"},
    "adaptive": {"policy": "Goodput", "batchSizes": [{"from": 1, "candidateSteps": [0, 1, 2]}]},
}


@pytest.fixture
def try_out(api, namespace):
    """Create a SpecDecodeTrial as a user does."""

    def create(name="mine", deployment="chat", candidate=CANDIDATE, **spec):
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND_TRIAL,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"deployment": deployment, "candidate": candidate, **spec},
        }
        return api.create(TRIAL, manifest)

    return create


@pytest.fixture
def steps(api, namespace):
    """Reconcile a resource until nothing is due at once; what others wrote is listed before."""

    async def go(wired, name="chat", most=12):
        await wired.resync.once()
        for _ in range(most):
            if await wired.reconcile(Key(namespace, name)) != 0.0:
                return
        pytest.fail(f"still due after {most} reconciles")

    return go


@pytest.fixture
def assert_kept_up(api, namespace, steps):
    """Delete the Service and scale, and expect that both are repaired by the next reconciles."""

    async def check(wired, replicas, name="chat"):
        api.delete(SERVICE, namespace, name)
        api.merge(RESOURCE, namespace, name, {"spec": {"replicas": replicas}})
        await steps(wired, name)
        assert api.get(SERVICE, namespace, name) is not None
        assert api.get(DEPLOYMENT, namespace, name)["spec"]["replicas"] == replicas

    return check


@pytest.fixture
def ended(api, namespace):
    def read(name="mine"):
        status = api.get(TRIAL, namespace, name)["status"]
        return status.get("verdict"), status.get("reason")

    return read


async def test_a_contradicting_guard_ends_the_trial(
    chat, parts, steps, try_out, assert_kept_up, ended
):
    chat(replicas=2, speculation=SPECULATION)
    async with parts() as wired:
        await steps(wired)
        try_out(guard={"maxDuration": "5m"})
        await assert_kept_up(wired, 3)
        assert ended() == ("Aborted", "InvalidCandidate")


async def test_a_later_guard_of_the_deployment_ends_the_trial(
    chat, parts, steps, try_out, assert_kept_up, ended, api, namespace
):
    chat(replicas=3, speculation=SPECULATION)
    async with parts() as wired:
        await steps(wired)
        try_out(guard={"minDuration": "1h"})
        await steps(wired)
        assert api.get(RESOURCE, namespace, "chat")["status"]["activeTrial"] == "mine"
        guard = {"spec": {"rollout": {"guard": {"maxDuration": "30m"}}}}
        api.merge(RESOURCE, namespace, "chat", guard)
        await assert_kept_up(wired, 5)
        assert ended() == ("Superseded", "GuardChanged")


async def test_parts_that_raise_become_condition_event_and_metric(
    chat, parts, steps, assert_kept_up, condition, api, namespace, monkeypatch
):
    chat(replicas=2, speculation=SPECULATION)

    def raising(*_, **__):
        raise ValueError("planted")

    async with parts() as wired:
        await steps(wired)
        monkeypatch.setattr(machine, "advise", raising)
        monkeypatch.setattr(ActivityLog, "extended", raising)
        await assert_kept_up(wired, 4)
        status, reason, message = condition("PartFailed")
        assert (status, reason) == ("True", "MetricsFailed")
        assert "status.activity: ValueError: planted" in message
        assert "the recommendation: ValueError: planted" in message
        posted = [each["message"] for each in api.items(EVENT, namespace)]
        assert any("ValueError: planted" in each for each in posted)
        count = wired.metrics.part_failures
        assert count.labels(part="Metrics")._value.get() >= 1.0
        assert count.labels(part="Recommendation")._value.get() >= 1.0
        monkeypatch.undo()
        await steps(wired)
        with pytest.raises(StopIteration):
            condition("PartFailed")
