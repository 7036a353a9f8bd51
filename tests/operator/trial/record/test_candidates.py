"""Candidates that patch the spec in force, and ended trials that are deleted."""

import pytest

from specdecode_operator.objects.resource import ResourceError
from specdecode_operator.trial.record.candidate import patched
from specdecode_operator.trial.record.stored import KEPT_TRIALS, has_ended, surplus_trials


def test_a_candidate_changes_what_it_names(example):
    manifest = example(speculation={"algorithm": "NONE"})
    after = patched(manifest, {"pageSize": 32})
    assert after.spec.page_size == 32
    assert after.spec.model.uri == manifest["spec"]["model"]["uri"]


def test_null_removes_a_field_of_the_spec_in_force(example):
    manifest = example(pageSize=64)
    assert patched(manifest, {"pageSize": None}).spec.page_size == 16


@pytest.mark.parametrize(
    ("candidate", "message"),
    [
        ({"pageSize": 3}, "pageSize must be a power of two"),
        (
            {"speculation": {"topK": 2}},
            "spec.speculation.topK of the candidate is not a known field",
        ),
        ({"speculation": {"topk": 99}}, "topk"),
        ({"pageSize": 64}, "spec.candidate changes nothing"),
        ({}, "spec.candidate changes nothing"),
    ],
)
def test_a_candidate_that_cannot_be_tried_is_an_error(candidate, message, example):
    with pytest.raises(ResourceError) as caught:
        patched(example(pageSize=64), candidate)
    assert message in str(caught.value)


def test_a_candidate_has_to_go_with_the_ranks_in_force(example):
    assistant = {"algorithm": "FROZEN_KV_MTP", "draft": {"uri": "pvc://models/assistant"}}
    with pytest.raises(ResourceError, match="to 1, or choose another algorithm"):
        patched(example(parallelism={"tensor": 2}), {"speculation": assistant})


def trial(number, phase="Ended"):
    return {
        "metadata": {"name": f"chat-{number:02}"},
        "status": {"phase": phase, "endedAt": f"2026-01-{number:02}T00:00:00Z"},
    }


def test_the_latest_ended_trials_and_those_that_run_are_kept():
    trials = [*map(trial, range(1, 14)), trial(20, "Measuring"), {"metadata": {"name": "new"}}]
    names = [each["metadata"]["name"] for each in surplus_trials(trials)]
    assert names == ["chat-03", "chat-02", "chat-01"]
    assert surplus_trials(trials[:KEPT_TRIALS]) == ()
    assert [has_ended(each) for each in trials[-3:]] == [True, False, False]
