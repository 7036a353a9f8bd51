"""A trial's guard that does not go with the deployment's ends the trial, and stops nothing else."""

import random

import pytest
from pydantic import ValidationError

from specdecode_api.v1alpha1 import RolloutSpec, SpecDecodeTrial
from specdecode_operator.objects.kinds import DEPLOYMENT, SERVICE, ChildId
from specdecode_operator.trial.strategies.guard import contradiction, guard_of, guarded_as

NAME = "chat-standalone"
DURATIONS = ("0s", "30s", "1m", "5m", "10m", "30m", "1h", "2h", "5h")
FIELDS = {
    "minGain": ("0%", "3%", "99.99%"),
    "margin": ("0%", "2.5%", "50%"),
    "minRequests": (2, 200, 1_000_000),
    "minStratumRequests": (2, 20),
    "minDuration": DURATIONS,
    "maxDuration": DURATIONS,
    "warmUp": DURATIONS,
}


def random_guard(rng: random.Random) -> dict[str, object]:
    """A guard with some of the fields, two thirds of them with a duration."""
    found = {name: rng.choice(values) for name, values in FIELDS.items() if rng.random() < 0.3}
    return found or {"maxDuration": rng.choice(DURATIONS)}


def is_admitted(guard):
    spec = {"deployment": "c", "candidate": {"pageSize": 8}, "guard": guard}
    manifest = {"metadata": {"name": "t"}, "spec": spec}
    try:
        SpecDecodeTrial.from_resource(manifest)
    except ValidationError:
        return False
    return True


def deployment(made):
    return made.children[ChildId(DEPLOYMENT.kind, NAME)]


def delete_service_and_scale(made, replicas):
    del made.children[ChildId(SERVICE.kind, NAME)]
    made.edit(replicas=replicas)


def assert_kept(made, replicas):
    assert ChildId(SERVICE.kind, NAME) in made.children
    assert deployment(made)["spec"]["replicas"] == replicas


def test_every_admitted_guard_gives_a_guard_or_a_reason():
    rng = random.Random(5)
    seen = set()
    for _ in range(200):
        own, guard = random_guard(rng), random_guard(rng)
        try:
            rollout = RolloutSpec.from_resource({"guard": own})
        except ValidationError:
            continue
        if not is_admitted(guard):
            continue
        why = contradiction(rollout, guard)
        bounds = guard_of(guarded_as(rollout, guard))
        assert bounds.min_duration_s < bounds.max_duration_s
        fields = rollout.guard.model_dump(by_alias=True) | (guard if not why else {})
        assert guarded_as(rollout, guard).guard.model_dump(by_alias=True) == fields
        assert not why or ("in the trial" in why and "raise maxDuration" in why)
        seen.add(bool(why))
    assert seen == {True, False}


def test_a_guard_that_contradicts_the_deployments_ends_the_trial(world, try_out):
    made = world(guard={"minDuration": "10m"})
    try_out(made, guard={"maxDuration": "5m"})
    delete_service_and_scale(made, 3)
    made.run(30)
    assert_kept(made, 3)
    status = made.trials["mine"]["status"]
    assert (status["verdict"], status["reason"]) == ("Aborted", "InvalidCandidate")
    assert "minDuration is 10m in rollout.guard of the deployment" in status["message"]
    assert "maxDuration is 5m in the trial" in status["message"]


@pytest.mark.parametrize("strategy", ["Auto", "Switchback"])
@pytest.mark.parametrize("candidate", [None, {"pageSize": 32}])
def test_a_running_trial_is_superseded_when_guards_contradict(strategy, candidate, world, try_out):
    made = world(replicas=3, guard={"maxDuration": "9h"})
    spec = {"guard": {"minDuration": "1h"}, "explorationBudget": "Exempt"}
    try_out(made, candidate=candidate, strategy=strategy, **spec)
    assert made.run(60, until=lambda each: each.record.trial)
    rollout = made.resource["spec"]["rollout"]
    made.edit(rollout={**rollout, "guard": {**rollout["guard"], "maxDuration": "30m"}})
    delete_service_and_scale(made, 5)
    made.run(20)
    assert_kept(made, 5)
    assert made.run(600, until=lambda each: each.record.trial is None)
    status = made.trials["mine"]["status"]
    assert (status["verdict"], status["reason"]) == ("Superseded", "GuardChanged")
