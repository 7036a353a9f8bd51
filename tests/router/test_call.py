"""A call as far as it is answered: what the next engine gets, and when there can be none."""

import json
from typing import Any

import pytest

from specdecode_router.call import Call, UnresumableReason, error_event, unresumable_reason

START: Any = {
    "resume_id": "one",
    "max_tokens": [9],
    "choices": 2,
    "is_stream": True,
    "is_resumable": True,
}


def start(**changes: Any) -> Any:
    return {**START, **changes}


def begun(**changes) -> Call:
    call = Call("/v1/chat/completions", "abc", 5, 7)
    call.begin(start(**changes))
    return call


def add(call, index, ids, characters, finished=None, events=0):
    choice = {"index": index, "ids": ids, "sent_characters": characters, "finished": finished}
    call.add({"choice": choice, "public": "x", "events": events})


def test_the_envelope_has_all_that_was_sent():
    call = begun()
    add(call, 1, [4, 5], 3)
    add(call, 1, [6], 3, "stop", events=4)
    envelope = call.envelope()
    assert envelope.model_dump() == {
        "path": "/v1/chat/completions",
        "id": "abc",
        "created": 5,
        "seed": 7,
        "resume": (
            {"ids": (), "sent_characters": 0, "finished": None},
            {"ids": (4, 5, 6), "sent_characters": 3, "finished": "stop"},
        ),
        "resume_id": "one",
        "max_tokens": (9,),
        "sent_events": 4,
    }


def test_a_later_start_changes_nothing():
    call = begun()
    add(call, 0, [1], 1)
    call.begin(start(resume_id="two", max_tokens=[1]))
    assert call.resume_id == "one"
    assert call.envelope().max_tokens == (9,)
    assert call.num_tokens == 1


def test_a_call_that_has_not_begun_resumes_nothing():
    call = Call("/v1/completions", "abc", 5, 7)
    assert call.envelope().resume == ()
    assert not call.has_sent
    assert unresumable_reason(call, 2, ["two"]) is None


def test_breaks_count_until_a_new_token():
    call = begun()
    call.breaks = 2
    assert unresumable_reason(call, 2, ["one"]) is None
    call.breaks = 3
    assert unresumable_reason(call, 2, ["one"]) is UnresumableReason.RETRIES
    add(call, 0, [1], 1)
    assert unresumable_reason(call, 2, ["one"]) is None
    call.breaks = 1
    assert unresumable_reason(call, 0, ["one"]) is UnresumableReason.RETRIES


@pytest.mark.parametrize(
    ("known", "reason"),
    [
        (["one"], None),
        (["two", "one"], None),
        (["two", None], None),  # one is starting
        (["two"], UnresumableReason.RESUME_ID),
        ([], UnresumableReason.RESUME_ID),
    ],
)
def test_a_stream_continues_only_where_the_text_is_the_same(known, reason):
    assert unresumable_reason(begun(), 2, known) is reason


def test_a_stream_of_an_unknown_engine_cannot_continue():
    reason = unresumable_reason(begun(resume_id=None), 2, ["one"])
    assert reason is UnresumableReason.UNKNOWN_ID


def test_a_response_in_one_piece_can_always_start_over():
    call = begun(is_stream=False, is_resumable=False)
    assert call.must_start_over
    assert unresumable_reason(call, 2, ["two"]) is None
    call.start_over()
    assert call.envelope().resume == ()
    assert not begun(is_stream=False).must_start_over
    failed = begun(is_stream=False)
    add(failed, 0, [], 0, "error")
    assert failed.must_start_over


def test_errors_have_the_form_of_the_api():
    error = {"message": "m", "type": "server_error", "param": None, "code": "c"}
    chunk = error_event("/v1/completions", 3, error)
    assert json.loads(chunk.removeprefix(b"data: ")) == {"error": error}
    event = error_event("/v1/messages", 3, error).decode()
    assert event.startswith('event: error\ndata: {"type":"error","error":{"type":"api_error"')
    name, data = error_event("/v1/responses", 3, error).decode().split("\n", 1)
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: ")) == {
        "type": "error", "code": "c", "message": "m", "param": None, "sequence_number": 3,
    }  # fmt: skip
