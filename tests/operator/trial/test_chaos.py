"""Whatever happens in whatever order: at most one canary, enough pods, and an end."""

import copy
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from specdecode_api import names
from specdecode_operator.trial.record.stored import KEPT_TRIALS, state_of

HAPPENINGS = st.lists(
    st.sampled_from([
        "table", "deep", "page", "revert", "scale up", "scale down", "pause", "resume", "abort",
        "promote", "restart", "kill", "silence", "speech", "slower", "faster", "refuse", "full",
        "unguard", "guard", "end operator", "wait", "wait long",
    ]),
    min_size=1,
    max_size=10,
)  # fmt: skip


COMMANDS: dict[str, dict[str, Any]] = {
    "pause": {"state": "Paused"},
    "resume": {"state": "Running"},
    "abort": {"state": "Aborted"},
    "promote": {"promote": True},
}


def command(made, name, verb):
    if made.trials[name]["spec"]["state"] != "Aborted":  # which is final
        made.command(name, **COMMANDS[verb])


def happen(made, what, speculate, first):
    trial = made.record.trial
    rollout = made.resource["spec"]["rollout"]
    match what:
        case "table":
            made.edit(speculation=speculate(3))
        case "deep":
            made.edit(speculation=speculate(1, 7))
        case "page":
            made.edit(pageSize=32)
        case "revert":
            made.edit(**copy.deepcopy(first))
        case "scale up":
            made.edit(replicas=3)
        case "scale down":
            made.edit(replicas=1)
        case "pause" | "resume" | "abort" | "promote":
            if trial is not None and trial.name in made.trials:
                command(made, trial.name, what)
        case "restart":
            for engine in list(made.engines.values())[:1]:
                made.restart(engine)
        case "kill":
            for name in list(made.engines)[:1]:
                del made.engines[name]
        case "silence" | "speech":
            made.is_silent = what == "silence"
        case "slower" | "faster":
            made.speeds = {3: 0.03 if what == "slower" else 0.01}
        case "refuse":
            made.refuses = "a restart is needed"
        case "full":
            made.has_room = {names.ROLE_STABLE}
        case "unguard" | "guard":
            made.edit(
                rollout=rollout | {"editPolicy": "Guarded" if what == "guard" else "Immediate"}
            )
        case "end operator":
            made.end_operator()
        case "wait long":
            made.run(200, step_s=20)


def check(made, spec):
    deployments = [each["metadata"]["name"] for each in made._deployments()]
    assert len([name for name in deployments if name.endswith("-canary")]) <= 1
    stable = made.children[("Deployment", "chat-standalone")]
    assert stable["spec"]["replicas"] == made.resource["spec"]["replicas"]
    assert made.resource["spec"] == spec
    trial = made.record.trial
    if trial is not None and trial.is_published:
        stored = made.trials[trial.name]["status"]["state"]
        made.end_operator()
        assert state_of(made.record.trial) == stored
    running = [each for each in made.trials.values() if "state" in (each.get("status") or {})]
    assert len(running) <= 1
    assert len(made.trials) <= KEPT_TRIALS + 1


@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
@given(happenings=HAPPENINGS)
def test_invariants_hold_and_every_trial_ends(world, speculate, happenings):
    made = world(guard={"maxDuration": "10m"})
    first = {"speculation": made.resource["spec"]["speculation"], "pageSize": 16}
    for what in happenings:
        happen(made, what, speculate, first)
        spec = copy.deepcopy(made.resource["spec"])
        made.run(40, step_s=20)
        check(made, spec)
    if made.record.trial is not None:
        command(made, made.record.trial.name, "resume")
    assert made.run(8000, step_s=40, until=lambda w: w.record.trial is None)
    made.run(80, step_s=40)
    if made.record.trial is None:
        assert [each["metadata"]["name"] for each in made._deployments()] == ["chat-standalone"]
