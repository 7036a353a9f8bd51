"""Models that pods fetch: how far they are, what stops them, and which commit is kept to."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest

from specdecode_api import names
from specdecode_api.report import (
    ModelReport,
    ModelRole,
    ModelState,
    Progress,
    TerminationMessage,
    TerminationReason,
)
from specdecode_operator.objects import pods
from specdecode_operator.objects.kinds import child_id
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings
from specdecode_operator.status import events
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status

SETTINGS = Settings(engine_image="specdecode-engine:test")
NOW = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
TARGET = "hf://org/target"
COMMIT, OTHER = "0" * 40, "f" * 40


@pytest.fixture
def observe(example, build, live, config_hash):
    """A resource with its target on the hub, its children, and pods whose download is at `states`.

    A state is the status of the container that fetches; `progress` is what pods answer.
    """

    def make(*states, uri=TARGET, progress=None, commit=None, is_serving=False, **status):
        manifest = example(model={"uri": uri})
        children = {kind: live(child) for kind, child in build(manifest).items()}
        if commit is not None:
            pinned = json.dumps({uri: commit})
            children["ConfigMap"]["data"][names.PINS_FILE_NAME] = pinned
        children["Deployment"]["status"] = {"observedGeneration": 1, "replicas": 1, **status}
        hashed = config_hash(manifest)
        made = tuple(pod(f"chat-{n}", state, hashed) for n, state in enumerate(states))
        reported = {
            f"chat-{n}": Progress(models=(each,))
            for n, each in enumerate(progress or ())
            if each is not None
        }
        by_id = {child_id(child): child for child in children.values()}
        return Observed(manifest, by_id, made, reported)

    return make


def pod(name, fetch, config_hash):
    annotations = {names.ANNOTATION_CONFIG_HASH: config_hash}
    fetching = {"name": "fetch", "image": "engine:1", "ready": False, **fetch}
    waiting = {"waiting": {"reason": "PodInitializing"}}
    engine = {"name": "engine", "ready": False, "state": waiting, "image": "engine:1"}
    return {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "status": {
            "phase": "Pending",
            "podIP": "10.0.0.1",
            "initContainerStatuses": [fetching],
            "containerStatuses": [engine],
        },
    }


def report(state=ModelState.DOWNLOADING, done=0, total=None, revision=None, uri=TARGET):
    return ModelReport(
        role=ModelRole.TARGET,
        uri=uri,
        state=state,
        bytes_done=done,
        bytes_total=total,
        revision=revision,
    )


def ended(reason, message="", code=1, models=()):
    text = TerminationMessage(reason=reason, message=message, models=models).encode().decode()
    return {"terminated": {"exitCode": code, "message": text, "reason": "Error"}}


RUNNING: dict[str, Any] = {"state": {"running": {}}}


def fetched(revision=COMMIT, uri=TARGET):
    model = report(ModelState.READY, 10, 10, revision, uri)
    return {"ready": True, "state": ended(TerminationReason.FETCHED, "done", 0, (model,))}


def failed(reason, message, is_running=False):
    state = {"running": {}} if is_running else {"waiting": {"reason": "CrashLoopBackOff"}}
    return {"state": state, "lastState": ended(reason, message)}


def status_of(observed):
    return status(observed, plan(observed, SETTINGS), Outcome(), NOW)


def conditions(reported):
    return {each["type"]: (each["status"], each["reason"]) for each in reported["conditions"]}


def message(reported, kind):
    return next(each["message"] for each in reported["conditions"] if each["type"] == kind)


def test_a_resource_without_downloads_reports_none(example):
    assert "models" not in status_of(Observed(example(), {}))


def test_nothing_has_begun(observe):
    (model,) = status_of(observe())["models"]
    assert (model["role"], model["uri"], model["state"]) == ("target", TARGET, "Pending")
    assert "revision" not in model


def test_a_download_reports_how_far_it_is(observe):
    going = report(done=3_200_000_000, total=16_000_000_000, revision=COMMIT)
    reported = status_of(observe(RUNNING, progress=[going]))
    (model,) = reported["models"]
    assert (model["bytesDone"], model["bytesTotal"]) == (3_200_000_000, 16_000_000_000)
    assert (model["state"], model["revision"]) == ("Downloading", COMMIT)
    found = conditions(reported)
    assert found["Ready"] == found["ModelReady"] == ("False", "Downloading")
    assert found["Degraded"] == ("False", "AsExpected")
    assert message(reported, "ModelReady") == "target: 3.20 of 16.00 GB (20 %)"


def test_a_small_model_is_counted_in_smaller_units(observe):
    reported = status_of(observe(RUNNING, progress=[report(done=1_000_000, total=4_000_000)]))
    assert message(reported, "ModelReady") == "target: 1.00 of 4.00 MB (25 %)"


def test_a_download_that_does_not_answer_is_still_a_download(observe):
    reported = status_of(observe(RUNNING))
    assert conditions(reported)["ModelReady"] == ("False", "Downloading")
    assert "no progress is available" in message(reported, "ModelReady")


def test_the_pod_that_is_furthest_behind_counts(observe):
    observed = observe(
        fetched(),
        RUNNING,
        RUNNING,
        progress=[None, report(done=8, total=10), report(done=5, total=10)],
    )
    (model,) = status_of(observed)["models"]
    assert (model["state"], model["bytesDone"]) == ("Downloading", 5)


def test_a_pod_that_waits_for_another_reports_it(observe):
    reported = status_of(observe(RUNNING, progress=[report(ModelState.WAITING)]))
    assert "another pod downloads it" in message(reported, "ModelReady")


def test_a_complete_model_is_ready_before_the_engine_is(observe):
    reported = status_of(observe(fetched()))
    found = conditions(reported)
    assert found["ModelReady"] == ("True", "Downloaded")
    assert found["Ready"] == ("False", "Starting")
    (model,) = reported["models"]
    assert (model["state"], model["revision"]) == ("Ready", COMMIT)


@pytest.mark.parametrize(
    "reason",
    [
        TerminationReason.UNAUTHORIZED,
        TerminationReason.MODEL_NOT_FOUND,
        TerminationReason.REVISION_NOT_FOUND,
        TerminationReason.HUB_UNREACHABLE,
        TerminationReason.CHECKSUM_MISMATCH,
        TerminationReason.OUT_OF_SPACE,
        TerminationReason.CACHE_NOT_WRITABLE,
    ],
)
def test_every_fault_of_a_download_is_a_reason(reason, observe):
    reported = status_of(observe(failed(reason, "what it is; what to do")))
    for kind in ("Ready", "ModelReady"):
        assert conditions(reported)[kind] == ("False", reason)
        assert message(reported, kind) == "what it is; what to do"
    assert conditions(reported)["Degraded"] == ("True", reason)


def test_a_fault_stays_reported_until_the_next_try_moves(observe):
    again = failed(TerminationReason.UNAUTHORIZED, "no", is_running=True)
    assert conditions(status_of(observe(again)))["ModelReady"] == ("False", "Unauthorized")
    moving = observe(again, progress=[report(done=1, total=2)])
    assert conditions(status_of(moving))["ModelReady"] == ("False", "Downloading")


@pytest.mark.parametrize(
    ("state", "reason", "words"),
    [
        (
            {"state": {"waiting": {"reason": "CreateContainerConfigError", "message": text}}},
            "TokenSecretMissing",
            "download.tokenSecret",
        )
        for text in ('secret "hub" not found', "couldn't find key HF_TOKEN in Secret a/hub")
    ]
    + [
        (
            {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such tag"}}},
            "ImagePullFailed",
            "no such tag",
        ),
        (
            {
                "state": {"waiting": {"reason": "CrashLoopBackOff"}},
                "lastState": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
            },
            "DownloadCrashing",
            "fetch ran out of memory",
        ),
    ],
)
def test_what_keeps_a_download_from_starting_is_reported(state, reason, words, observe):
    reported = status_of(observe(state))
    assert conditions(reported)["Ready"] == ("False", reason)
    assert words in message(reported, "Ready")


def test_progress_makes_no_events(observe):
    first = observe(RUNNING, progress=[report(done=1, total=10)])
    reported = status_of(first)
    (event,) = events.transitions(first.resource, reported, NOW)
    assert (event["reason"], event["type"]) == ("Downloading", "Normal")
    later = observe(RUNNING, progress=[report(done=2, total=10)])
    later.resource["status"] = reported
    assert status_of(later) != reported
    assert events.transitions(later.resource, status_of(later), NOW) == ()


def pins_of(observed):
    (config_map,) = [
        write.manifest
        for write in plan(observed, SETTINGS).writes
        if write.manifest["kind"] == "ConfigMap"
    ]
    return json.loads(config_map["data"].get(names.PINS_FILE_NAME, "{}"))


def test_the_first_pod_that_comes_through_pins_a_branch(observe):
    observed = observe(fetched())
    assert pins_of(observed) == {TARGET: COMMIT}
    (write,) = plan(observed, SETTINGS).writes
    assert write.manifest["kind"] == "ConfigMap", "no pod is replaced"


def test_a_download_on_its_way_pins_nothing(observe):
    observed = observe(RUNNING, progress=[report(done=1, total=2, revision=COMMIT)])
    assert plan(observed, SETTINGS).writes == ()


def test_a_commit_needs_no_pin(observe):
    uri = f"{TARGET}@{COMMIT}"
    assert plan(observe(fetched(COMMIT, uri), uri=uri), SETTINGS).writes == ()
    (model,) = status_of(observe(uri=uri))["models"]
    assert model["revision"] == COMMIT


def test_a_pin_stays_whatever_pods_report_and_outlives_them(observe):
    observed = observe(fetched(OTHER), commit=COMMIT)
    assert pins_of(observed) == {TARGET: COMMIT}
    assert pins_of(observe(commit=COMMIT)) == {TARGET: COMMIT}
    (model,) = status_of(observe(commit=COMMIT))["models"]
    assert (model["state"], model["revision"]) == ("Pending", COMMIT)


def test_a_new_configuration_keeps_the_pin(observe):
    observed = observe(commit=COMMIT)
    observed.resource["status"] = {"configHash": "v1-before"}
    observed.resource["spec"]["pageSize"] = 64
    assert pins_of(observed) == {TARGET: COMMIT}


def test_another_uri_drops_the_pin(observe):
    observed = observe(commit=COMMIT)
    observed.resource["status"] = {"configHash": "v1-before"}
    observed.resource["spec"]["model"]["uri"] = f"{TARGET}@v2"
    assert pins_of(observed) == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"hf://org/target": "main"}', '{"x": 1}'])
def test_a_pin_that_is_none_is_ignored_and_put_right(text, observe):
    observed = observe()
    config_map = observed.children[next(k for k in observed.children if k.kind == "ConfigMap")]
    config_map["data"][names.PINS_FILE_NAME] = text
    # Its author owns that key; ours appears with the first pod that has fetched.
    assert plan(observed, SETTINGS).writes == ()


def test_pods_of_two_commits_are_reported(observe):
    (model,) = status_of(observe(fetched(COMMIT), fetched(OTHER)))["models"]
    assert "pods serve 2 different commits: name one of them" in model["message"]


def test_only_pods_that_run_their_download_are_asked():
    asked = [pods.is_fetching(pod("p", state, "h")) for state in (RUNNING, fetched(), {})]
    assert asked == [True, False, False]
    leaving = pod("p", RUNNING, "h")
    leaving["metadata"]["deletionTimestamp"] = "2026-11-21T12:00:00Z"
    assert not pods.is_fetching(leaving)
