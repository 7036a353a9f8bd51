"""What `status` prints, given the API server's answers."""

import pytest

from specdecode_operator.plugin.diagnosis import device_text, diagnose, pod_state
from specdecode_operator.plugin.status_view import draw_diagnosis, draw_list

CREATED = "2026-11-21T11:00:00Z"


@pytest.fixture
def resource(example):
    """The example with this `Ready` condition in its status, and these other conditions."""

    def make(ready=None, *others, generation=1, **spec):
        manifest = example(**spec)
        manifest["metadata"] |= {"creationTimestamp": CREATED, "generation": generation}
        if ready is not None:
            manifest["status"] = {
                "observedGeneration": 1,
                "readyReplicas": 1,
                "configHash": "v1-new",
                "address": {"url": "http://chat.default.svc"},
                "conditions": [condition("Ready", *ready), *others],
            }
        return manifest

    return make


def condition(kind, status, reason, message=""):
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-11-21T11:55:00Z",
    }


def event(reason, message, at, kind="SpecDecodeDeployment", name="chat", **more):
    return {
        "reason": reason,
        "message": message,
        "lastTimestamp": at,
        "involvedObject": {"kind": kind, "name": name},
        **more,
    }


def test_a_crashing_engine_in_full(resource, pod, states, now, paint):
    words = "engine terminated with exit code 2: no checkpoint in /models/target"
    manifest = resource(
        ("False", "EngineCrashing", words),
        condition("Available", "True", "EnginesServe", "1 of 2 engines serve"),
        condition("Progressing", "True", "RollingOut"),
        condition("Degraded", "True", "EngineCrashing", words),
        replicas=2,
    )
    found = [
        pod("chat-5f-a", **states["CrashLoopBackOff"]),
        pod("chat-77-b", config="v1-old", **states["Ready"]),
    ]
    events = [
        event("BackOff", "Back-off restarting\nfailed container", "2026-11-21T11:59:30Z", "Pod",
              "chat-5f-a", type="Warning", count=12),
        event("Starting", "0 of 2 engines serve", "2026-11-21T11:00:01Z", type="Normal"),
    ]  # fmt: skip
    assert paint(draw_diagnosis(diagnose(manifest, found, events, now))) == (
        """\
default/chat  Not ready: EngineCrashing  60m old
engine terminated with exit code 2: no checkpoint in /models/target

Model        pvc://models/target
Draft        pvc://models/eagle3
Speculation  EAGLE3, chain, 3 steps
Replicas     1 of 2 ready, on CPU
Config       v1-new, run by 1 of 2 pods
Endpoint     http://chat.default.svc

Conditions
  TYPE         STATUS  REASON          SINCE  MESSAGE
  Ready        False   EngineCrashing  5m0s   engine terminated with exit code 2: no checkpoint in
                                              /models/target
  Available    True    EnginesServe    5m0s   1 of 2 engines serve
  Progressing  True    RollingOut      5m0s
  Degraded     True    EngineCrashing  5m0s   engine terminated with exit code 2: no checkpoint in
                                              /models/target

Pods
  NAME       STATE             RESTARTS  CONFIG        NODE    AGE  WHY
  chat-5f-a  CrashLoopBackOff  4         v1-new        node-1  60m  engine terminated with exit code 2: no
                                                                    checkpoint in /models/target
  chat-77-b  Ready             0         v1-old (old)  node-1  60m

Events
  AGE  REASON    ABOUT                      MESSAGE
  59m  Starting  SpecDecodeDeployment/chat  0 of 2 engines serve
  30s  BackOff   Pod/chat-5f-a              Back-off restarting failed container (×12)
"""  # noqa: E501
    )


def test_a_resource_that_nobody_looked_at(resource, now, paint):
    text = paint(draw_diagnosis(diagnose(resource(), (), (), now)), width=60)
    assert text.startswith("default/chat  Not reconciled  60m old\n")
    assert "does it watch namespace default?" in " ".join(text.split())
    assert text.endswith("Pods\n  none\n\nEvents\n  none\n")


@pytest.mark.parametrize(
    ("ready", "generation", "headline", "is_ready", "why"),
    [
        (("True", "Serving", "1 of 1 engines serve"), 1, "Ready: Serving", True, "1 of 1"),
        (("False", "Starting", "0 of 1"), 1, "Not ready: Starting", False, "0 of 1"),
        (("True", "Serving", ""), 2, "Outdated; last state: Serving", False, "latest 1 change "),
        (("True", "Serving", ""), 4, "Outdated; last state: Serving", False, "latest 3 changes"),
    ],
)
def test_the_headline(ready, generation, headline, is_ready, why, resource, now):
    story = diagnose(resource(ready, generation=generation), (), (), now)
    assert (story.headline, story.is_ready) == (headline, is_ready)
    assert why in story.why


def test_a_resource_that_is_being_deleted(resource, now):
    manifest = resource(("True", "Serving"))
    manifest["metadata"]["deletionTimestamp"] = CREATED
    assert diagnose(manifest, (), (), now).headline == "Being deleted"


def test_pods_are_called_by_their_state(pod, states):
    for name, state in states.items():
        assert pod_state(pod(**state)) == name
    ending = pod(**states["Ready"])
    ending["metadata"]["deletionTimestamp"] = CREATED
    assert pod_state(ending) == "Terminating"


def test_only_the_newest_events_are_shown_and_in_order(resource, now):
    events = [event(f"R{n}", "", f"2026-11-21T11:{n:02}:00Z") for n in reversed(range(30))]
    events.append(event("New", "", None, eventTime="2026-11-21T11:59:00.000001Z"))
    reasons = [line.reason for line in diagnose(resource(), (), events, now).events]
    assert reasons == [*(f"R{n}" for n in range(21, 30)), "New"]


@pytest.mark.parametrize(
    ("speculation", "text"),
    [
        ({"algorithm": "NONE"}, "NONE, no draft"),
        ({}, "NONE, no draft"),
        ({"algorithm": "EAGLE", "topk": 4}, "EAGLE, tree of topk 4, 3 steps"),
        ({"algorithm": "EAGLE3", "numSteps": 0}, "EAGLE3, chain, 0 steps"),
        (
            {
                "algorithm": "STANDALONE",
                "adaptive": {
                    "policy": "Static",
                    "batchSizes": [
                        {"from": 8, "candidateSteps": [1]},
                        {"from": 1, "candidateSteps": [3, 5]},
                    ],
                },
            },
            "STANDALONE, chain, steps by batch size (Static) 1: 3/5, 8: 1",
        ),
    ],
)
def test_speculation_in_a_few_words(speculation, text, resource, now):
    story = diagnose(resource(speculation=speculation), (), (), now)
    assert dict(story.facts)["Speculation"] == text


def test_a_list(resource, now, paint):
    good, bad = (
        resource(("True", "Serving", "1 of 1 engines serve")),
        resource(("False", "Starting", "0 of 2 engines serve"), replicas=2),
    )
    bad["metadata"]["name"] = "other"
    diagnoses = [diagnose(each, (), (), now) for each in (good, bad)]
    assert paint(draw_list(diagnoses, with_namespace=False)) == (
        """\
NAME   STATE                REPLICAS  SPECULATION             AGE  WHY
chat   Ready: Serving       1 of 1    EAGLE3, chain, 3 steps  60m
other  Not ready: Starting  1 of 2    EAGLE3, chain, 3 steps  60m  0 of 2 engines serve
"""
    )
    assert paint(draw_list(diagnoses, with_namespace=True)).splitlines()[1].startswith("default")


@pytest.mark.parametrize(
    ("kind", "status", "is_good"),
    [
        ("Available", "True", True), ("Available", "False", False),
        ("Degraded", "False", True), ("Degraded", "True", False),
        ("Stalled", "False", True), ("Stalled", "True", False),
        ("StateLost", "True", False),
        ("Progressing", "True", None), ("Reconciling", "False", None),
        ("SpecOverridden", "True", None), ("RecommendationReady", "False", None),
        ("CanaryHealthy", "True", True), ("CanaryHealthy", "Unknown", None),
    ],
)  # fmt: skip
def test_conditions_are_good_or_bad_by_their_kind(kind, status, is_good, resource, now):
    found = diagnose(resource(("True", "Serving"), condition(kind, status, "Why")), (), (), now)
    assert [each.is_good for each in found.conditions] == [True, is_good]


@pytest.mark.parametrize(
    ("spec", "text"),
    [
        ({}, "GPU"),
        ({"parallelism": {"tensor": 1}}, "GPU"),
        ({"parallelism": {"tensor": 4}}, "4 GPUs each"),
        ({"engine": {"device": "CPU"}, "parallelism": {}}, "CPU"),
        ({"engine": {"device": "CPU"}, "parallelism": {"tensor": 2}}, "CPU, 2 ranks each"),
    ],
)
def test_the_device_of_an_engine_has_its_ranks(spec, text):
    assert device_text(spec) == text
