"""SpecDecodeTrial: what Python and the real API server take, refuse, and let nobody change."""

from typing import Any

import pytest
from pydantic import ValidationError

from specdecode_api import names
from specdecode_api.base import CHANGE_KEY
from specdecode_api.descriptions import field_descriptions
from specdecode_api.rules import VALIDATIONS_KEY
from specdecode_api.schema import trial_definition, trial_schema
from specdecode_api.v1alpha1 import SpecDecodeTrial
from specdecode_api.v1alpha1.trial import REFUSED
from specdecode_api.validation_errors import validation_errors

ROWS = [row for row in field_descriptions(trial_schema()) if row.path[0] in ("spec", "status")]
TABLE = {"adaptive": {"batchSizes": [{"from": 1, "candidateSteps": [0, 1, 3]}]}}

GOOD: dict[str, dict[str, Any]] = {
    "least": {},
    "a table": {"candidate": {"speculation": TABLE}},
    "no draft": {"candidate": {"speculation": {"algorithm": "NONE", "draft": None}}},
    "an image": {"candidate": {"engine": {"image": "engine@sha256:0", "kvCache": {"size": None}}}},
    "by null nothing": {"candidate": {"pageSize": 32, "speculation": None}, "guard": None},
    "everything spelled out": {
        "candidate": {"speculation": {"topk": 2}, "engine": {"threads": 2}, "pageSize": 8},
        "origin": "Recommendation",
        "strategy": "Switchback",
        "guard": {
            "minGain": "1%",
            "margin": "2.5%",
            "minRequests": 100,
            "minStratumRequests": 10,
            "minDuration": "5m",
            "maxDuration": "1h30m",
            "warmUp": "30s",
        },
        "onSuccess": "Promote",
        "state": "Paused",
        "promote": True,
    },
    "aborted from the start": {"state": "Aborted"},
    "half a guard": {"guard": {"minDuration": "5h"}},
}

_NOT_YOURS = "a trial can change speculation, pageSize and engine only"
VALUES: dict[str, Any] = {name: {"x": 1} for name in REFUSED} | {"replicas": 3}

# Part of the spec, place of the error, and a part of the message of both sides.
BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    **{
        f"candidate with {name}": (
            {"candidate": {"pageSize": 32, name: value}},
            "spec.candidate",
            _NOT_YOURS,
        )
        for name, value in VALUES.items()
    },
    "nothing to try": ({"candidate": {}}, "spec.candidate", "there is nothing to try"),
    "only null": ({"candidate": {"engine": None}}, "spec.candidate", "there is nothing to try"),
    "page size of three": (
        {"candidate": {"pageSize": 3}},
        "spec.candidate.pageSize",
        "pageSize must be a power of two",
    ),
    "no duration": (
        {"guard": {"minDuration": "5 minutes"}},
        "spec.guard.minDuration",
        "a duration counts hours, minutes and seconds",
    ),
    "no percentage": (
        {"guard": {"minGain": "0.03"}},
        "spec.guard.minGain",
        "a percentage is a number below 100",
    ),
    "least longer than longest": (
        {"guard": {"minDuration": "2h", "maxDuration": "1h"}},
        "spec.guard.maxDuration",
        "minDuration must be below maxDuration",
    ),
    "a longest duration of nothing": (
        {"guard": {"maxDuration": "0h0s"}},
        "spec.guard.maxDuration",
        "no minDuration is below a maxDuration of 0",
    ),
    "promoted and aborted": (
        {"promote": True, "state": "Aborted"},
        "spec.promote",
        "promote and state: Aborted contradict each other",
    ),
    "name in capitals": ({"deployment": "Chat"}, "spec.deployment", "write the name of an object"),
}

_NO_GUARD = "guard cannot be changed"

# Spec before, change, message.
CHANGES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "deployment": ({}, {"deployment": "other"}, "deployment cannot be changed"),
    "page size": ({}, {"candidate": {"pageSize": 64}}, "candidate cannot be changed"),
    "inside the candidate": (
        {"candidate": {"speculation": {"topk": 2}}},
        {"candidate": {"speculation": {"topk": 4}}},
        "candidate cannot be changed",
    ),
    "more in the candidate": (
        {"candidate": {"engine": {"kvCache": {"dtype": "auto"}}}},
        {"candidate": {"engine": {"kvCache": {"size": "1Gi"}}}},
        "candidate cannot be changed",
    ),
    "strategy": ({}, {"strategy": "Hot"}, "strategy cannot be changed"),
    "budget": ({}, {"explorationBudget": "Exempt"}, "explorationBudget cannot be changed"),
    "origin": ({}, {"origin": "Edit"}, "origin cannot be changed"),
    "a guard": ({"guard": {"minGain": "1%"}}, {"guard": {"minGain": "2%"}}, _NO_GUARD),
    "a guard added": ({}, {"guard": {"minGain": "1%"}}, _NO_GUARD),
    "more in a guard": ({"guard": {"minGain": "1%"}}, {"guard": {"margin": "2%"}}, _NO_GUARD),
    "a guard removed": ({"guard": {"minGain": "1%"}}, {"guard": None}, _NO_GUARD),
    "on success": ({}, {"onSuccess": "Promote"}, "onSuccess cannot be changed"),
    "on success removed": (
        {"onSuccess": "Promote"},
        {"onSuccess": None},
        "onSuccess cannot be changed",
    ),
    "aborted after a promotion": (
        {"promote": True},
        {"state": "Aborted"},
        "promote and state: Aborted contradict each other",
    ),
    "promoted after an abort": (
        {"state": "Aborted"},
        {"promote": True},
        "promote and state: Aborted contradict each other",
    ),
    "after an abort": (
        {"state": "Aborted"},
        {"state": "Running"},
        "an aborted trial cannot be resumed",
    ),
    "promotion taken back": (
        {"promote": True},
        {"promote": False},
        "a promotion cannot be withdrawn",
    ),
    "promotion removed": ({"promote": True}, {"promote": None}, "a promotion cannot be withdrawn"),
}


LATE = "this trial has ended, and a promotion would change nothing"
"""Message of the rule about promotions after the end."""


def trial(name="chat-1", **spec):
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND_TRIAL,
        "metadata": {"name": name},
        "spec": {"deployment": "chat", "candidate": {"pageSize": 32}} | spec,
    }


@pytest.mark.parametrize("spec", GOOD.values(), ids=GOOD)
def test_good_trial_is_taken_by_python(spec):
    read = SpecDecodeTrial.from_resource(trial(**spec))
    written = read.model_dump(by_alias=True, exclude_unset=True, mode="json")
    assert SpecDecodeTrial.from_resource(written) == read


def test_a_null_inside_the_candidate_is_kept():
    read = SpecDecodeTrial.from_resource(trial(**GOOD["no draft"]))
    assert read.spec.candidate.speculation == {"algorithm": "NONE", "draft": None}


@pytest.mark.parametrize(("spec", "place", "message"), BAD.values(), ids=BAD)
def test_bad_trial_is_refused_by_python_with_place_and_remedy(spec, place, message):
    with pytest.raises(ValidationError) as refusal:
        SpecDecodeTrial.from_resource(trial(**spec))
    (sentence,) = validation_errors(refusal.value, SpecDecodeTrial)
    assert sentence.startswith(f"{place}: ")
    assert message in sentence


def test_every_field_is_described():
    assert len(ROWS) > 50
    for row in ROWS:
        description = row.schema.get("description", "")
        assert description[:1].isupper(), row.path
        assert description.endswith("."), row.path


def test_every_rule_has_a_bad_trial_or_a_refused_change():
    expected = [message for _, _, message in (*BAD.values(), *CHANGES.values())] + [LATE]
    rules = [rule["message"] for row in ROWS for rule in row.schema.get(VALIDATIONS_KEY, ())]
    assert len(rules) > 10
    assert [rule for rule in rules if not any(message in rule for message in expected)] == []


def test_the_change_flag_is_not_in_the_definition():
    assert CHANGE_KEY not in str(trial_definition())


@pytest.fixture
def create(server):
    """Create trials; what was created goes with the test."""
    created = []

    def post(manifest, **params):
        answer = server.client.post(
            server.trials, params={"fieldValidation": "Strict"} | params, json=manifest
        )
        if answer.is_success and not params:
            created.append(manifest["metadata"]["name"])
        return answer

    yield post
    for name in created:
        server.client.delete(f"{server.trials}/{name}").raise_for_status()


def merge(server, name, patch, subresource=""):
    return server.client.patch(
        f"{server.trials}/{name}{subresource}",
        json=patch,
        headers={"Content-Type": "application/merge-patch+json"},
    )


@pytest.mark.apiserver
@pytest.mark.parametrize("spec", GOOD.values(), ids=GOOD)
def test_good_trial_is_admitted(spec, create):
    answer = create(trial(**spec), dryRun="All")
    assert answer.status_code == 201, answer.json()["message"]
    stored = answer.json()["spec"]
    filled = SpecDecodeTrial.from_resource(trial(**spec)).spec
    assert SpecDecodeTrial.from_resource(answer.json()).spec == filled
    assert stored["state"] == filled.state


@pytest.mark.apiserver
def test_nulls_inside_the_candidate_reach_the_operator(create):
    stored = create(trial(**GOOD["no draft"]), dryRun="All").json()
    assert stored["spec"]["candidate"] == GOOD["no draft"]["candidate"]


@pytest.mark.apiserver
@pytest.mark.parametrize(("spec", "place", "message"), BAD.values(), ids=BAD)
def test_bad_trial_is_refused_by_the_server_with_place_and_remedy(spec, place, message, create):
    answer = create(trial(**spec), dryRun="All")
    assert answer.status_code == 422, answer.text
    causes = answer.json()["details"]["causes"]
    echo = "some validation rules were not checked"
    causes = [cause for cause in causes if echo not in cause["message"]]
    assert [cause["field"] for cause in causes] == [place]
    assert message in causes[0]["message"]


@pytest.mark.apiserver
def test_an_unknown_field_of_the_candidate_is_refused(create):
    answer = create(trial(candidate={"pagesize": 32}), dryRun="All")
    assert answer.status_code == 400
    assert 'unknown field "spec.candidate.pagesize"' in answer.json()["message"]


@pytest.mark.apiserver
@pytest.mark.parametrize(("before", "change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_change_is_refused_with_the_remedy(before, change, message, create, server):
    assert create(trial(**before)).status_code == 201
    answer = merge(server, "chat-1", {"spec": change})
    assert answer.status_code == 422, answer.text
    assert message in answer.json()["message"]


@pytest.mark.apiserver
def test_commands_are_changes_of_the_spec(create, server):
    create(trial(candidate={"speculation": {"topk": 2}}))
    for change in ({"state": "Paused"}, {"state": "Running"}, {"promote": True}):
        answer = merge(server, "chat-1", {"spec": change})
        assert answer.status_code == 200, answer.text
    assert answer.json()["metadata"]["generation"] == 4


# Origin, verdict, whether a promotion counts after it.
ENDS: list[tuple[str, str, bool]] = [
    ("User", "Passed", True),
    ("User", "RolledBack", True),
    ("User", "Inconclusive", True),
    ("User", "Superseded", True),
    ("User", "Promoted", False),
    ("User", "Aborted", False),
    ("Edit", "RolledBack", True),
    ("Edit", "Aborted", False),
    ("Recommendation", "Inconclusive", False),
    ("Recommendation", "Promoted", False),
]


@pytest.mark.apiserver
@pytest.mark.parametrize(("origin", "verdict", "counts"), ENDS)
def test_a_promotion_after_the_end_counts_or_is_refused(origin, verdict, counts, create, server):
    create(trial(origin=origin))
    ended = {"phase": "Ended", "verdict": verdict}
    merge(server, "chat-1", {"status": ended}, "/status").raise_for_status()
    answer = merge(server, "chat-1", {"spec": {"promote": True}})
    assert answer.is_success is counts, answer.text
    assert counts or LATE in answer.json()["message"]
    status = merge(server, "chat-1", {"status": ended | {"message": "m"}}, "/status")
    assert status.is_success, "the rule does not stop what the operator writes"


@pytest.mark.apiserver
def test_status_is_a_subresource_and_a_stale_version_is_a_conflict(create, server):
    version = create(trial()).json()["metadata"]["resourceVersion"]
    status = {"phase": "Measuring", "evidence": {"rows": [1, 2]}, "state": {"turn": {"number": 3}}}
    patch = {"metadata": {"resourceVersion": version}, "status": status}
    stored = merge(server, "chat-1", patch, "/status").json()
    assert stored["status"] == status
    assert stored["metadata"]["generation"] == 1
    assert merge(server, "chat-1", patch, "/status").status_code == 409
    answer = merge(server, "chat-1", {"status": {"phase": "Begun"}}, "/status")
    assert answer.status_code == 422


@pytest.mark.apiserver
def test_kubectl_get_shows_the_columns(create, server):
    create(trial())
    status = {
        "phase": "Ended",
        "strategy": "Hot",
        "verdict": "Passed",
        "interval": {"gain": "0.051", "low": "0.012", "high": "0.09"},
    }
    merge(server, "chat-1", {"status": status}, "/status").raise_for_status()
    accept = {"Accept": "application/json;as=Table;g=meta.k8s.io;v=v1"}
    table = server.client.get(server.trials, headers=accept).json()
    columns = table["columnDefinitions"]
    shown = [column["name"] for column in columns if not column["priority"]]
    assert shown == ["Name", "Deployment", "Strategy", "Phase", "Verdict", "Gain", "Age"]
    assert table["rows"][0]["cells"][1:6] == ["chat", "Hot", "Ended", "Passed", "0.051"]


@pytest.mark.apiserver
def test_every_field_of_a_trial_is_explained(server):
    openapi = server.client.get(f"/openapi/v3/apis/{names.API_VERSION}").json()
    name = f"io.specdecode.{names.VERSION}.{names.KIND_TRIAL}"
    served = field_descriptions(openapi["components"]["schemas"][name])
    paths = {row.path: row.schema.get("description") for row in served}
    assert [row.path for row in ROWS if not paths.get(row.path)] == []


@pytest.mark.apiserver
def test_the_short_name_is_discovered(server):
    found = server.client.get(f"/apis/{names.API_VERSION}").json()["resources"]
    ours = next(item for item in found if item["name"] == names.PLURAL_TRIAL)
    assert ours["shortNames"] == ["sdt"]
    assert ours["categories"] == ["specdecode"]
