"""The fuzzer: reproducible requests, hostile ones among them, and what it counts as a defect."""

import json
import random
import sys
from typing import Any

import pytest

from checks.fuzz.__main__ import FuzzResult
from checks.fuzz.attack import AttackTally, find_defect
from checks.fuzz.cases import CHAT, COMPLETIONS, Case, deep_recursion, draw_case
from checks.fuzz.fields import FIELDS, field_names, valid_body
from checks.fuzz.hostile import nested_schema, reference_chain
from checks.fuzz.mutations import json_chars
from checks.fuzz.stalls import SentRequest, Wait, describe_stall, longest
from checks.fuzz.stored import PATH, SOME_NAME, KnownNames, draw_stored
from checks.fuzz.streams import parse_stream
from checks.fuzz.watch import PhaseTimes
from checks.fuzz.wire import Delivery, WireReply, WireRequest
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.protocol import CompletionBody

SSE = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def chunked(*events: str) -> bytes:
    parts = [f"data: {event}\n\n".encode() for event in events]
    return SSE + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def test_a_request_is_drawn_from_seed_and_index_alone() -> None:
    assert [draw_case(3, index) for index in (5, 60)] == [draw_case(3, index) for index in (5, 60)]
    assert draw_case(3, 5) != draw_case(4, 5)


def test_every_kind_of_request_and_every_delivery_is_drawn() -> None:
    cases = [draw_case(1, index) for index in range(300)]
    assert len({case.kind for case in cases}) == 11
    assert {case.request.delivery for case in cases} == set(Delivery)
    assert max(len(case.request.body) for case in cases) >= 4 * 2**20


def test_requests_about_stored_responses_name_those_that_the_engine_sent() -> None:
    drawn = [draw_stored(random.Random(seed)) for seed in range(400)]
    assert {method for method, _, _ in drawn} == {"GET", "DELETE", "HEAD", "POST", "PUT"}
    parts = ("/input_items", "/cancel", "?limit=2", "?after=msg_")
    assert all(any(part in path for _, path, _ in drawn) for part in parts)
    assert sum(b"previous_response_id" in body for *_, body in drawn) > 50
    names, rng = KnownNames(), random.Random(1)
    request = WireRequest(f"GET {PATH}/resp_{SOME_NAME} x".encode(), SOME_NAME.encode())
    assert names.fill(request, rng) is request
    names.note(chunked(f'{{"response": {{"id":"resp_{"a" * 48}"}}}}'))
    filled = names.fill(request, rng)
    assert filled == WireRequest(f"GET {PATH}/resp_{'a' * 48} x".encode(), b"a" * 48)


def test_drawing_deep_bodies_leaves_the_recursion_limit_as_it_was() -> None:
    limit = sys.getrecursionlimit()
    drawn = [draw_case(1, index).request.body for index in range(600)]
    assert max(body.count(b"[[") for body in drawn) > limit
    assert sys.getrecursionlimit() == limit


def test_every_field_of_the_engines_bodies_is_drawn() -> None:
    required = {"model", "prompt", "messages"}
    assert set(field_names(CHAT)) >= set(ChatBody.model_fields) - required
    assert set(field_names(COMPLETIONS)) >= set(CompletionBody.model_fields) - required
    drawn = {name for seed in range(500) for name in valid_body(random.Random(seed), CHAT)}
    assert drawn >= set(FIELDS)


def test_most_bodies_without_mutation_satisfy_the_model() -> None:
    valid = 0
    for seed in range(200):
        rng = random.Random(seed)
        rest = {"model", "prompt", "max_tokens", "temperature", "seed", "stream", "logit_bias"}
        body = {k: v for k, v in valid_body(rng, COMPLETIONS).items() if k in rest}
        try:
            CompletionBody.model_validate_json(json.dumps(body))
            valid += 1
        except ValueError:
            pass
    assert valid > 160


def test_schemas_nest_and_refer_a_thousand_levels_deep() -> None:
    with deep_recursion():
        shown = [json.dumps(nested_schema(random.Random(seed))) for seed in range(60)]
    assert max(text.count("{") for text in shown) > 1000
    chains = [reference_chain(random.Random(seed)) for seed in range(60)]
    assert max(len(chain["$defs"]) for chain in chains) >= 1000


@pytest.mark.parametrize(
    ("data", "defect"),
    [
        (b"HTTP/1.1 500 x\r\n\r\n", "5xx: [500]"),
        (b"HTTP/1.1 503 x\r\n\r\n", "5xx: a 503 without Retry-After"),
        (b"HTTP/1.1 503 x\r\nRetry-After: 1\r\n\r\n", ""),
        (b"HTTP/1.1 400 x\r\n\r\n", ""),
        (SSE + b'data: {"error":{"type":"server_error"}}', "5xx: an event with a server error"),
        (b"", "unanswered: the connection was closed without a response"),
    ],
)
def test_what_breaks_a_promise_is_a_defect(data: bytes, defect: str) -> None:
    case = Case("valid", WireRequest(b"", b""))
    statuses = [int(data[9:12])] if data else []
    assert find_defect(case, WireReply(statuses, data)) == defect
    tally = AttackTally()
    tally.count(1, case, WireReply(statuses, data))
    assert (tally.status_5xx, tally.unanswered) == (defect[:3] == "5xx", defect[:3] == "una")


def test_a_client_that_sends_half_a_request_needs_no_answer() -> None:
    case = Case("bad_delivery", WireRequest(b"", b"", Delivery.CUT))
    assert find_defect(case, WireReply()) == ""


def test_the_text_of_a_stream_is_read_from_its_chunks() -> None:
    first, second = '{"choices":[{"text":"a"}]}', '{"choices":[{"delta":{"content":"b"}}]}'
    assert parse_stream(chunked(first, second, "[DONE]")).text == "ab"
    assert parse_stream(chunked(first)).error == "the stream was cut"
    assert parse_stream(chunked('{"error":{"message":"m"}}', "[DONE]")).error
    assert parse_stream(b"HTTP/1.1 429 x\r\n\r\nno").status == 429
    assert parse_stream(b"").error == "no response"


def test_of_waits_at_the_same_moment_the_longest_is_reported() -> None:
    streams = [Wait(f"stream {n}", 10.0, 10.3 + n / 100) for n in range(16)]
    health, later = Wait("/health", 10.25, 10.4), Wait("/health", 11.0, 11.1)
    assert longest([later, *streams, health]) == [streams[-1], later]
    assert longest([Wait("/health", n, n + 0.5) for n in range(9)], count=5)[-1].start_s == 4.0
    times = PhaseTimes(waits=[later], machine_waits=[health, later])
    assert times.longest_waits() == [later]
    assert times.machine_s == pytest.approx(0.15)
    assert PhaseTimes().machine_s == 0.0


def test_a_stall_names_the_requests_that_were_under_way() -> None:
    case = Case("huge", WireRequest(b"POST /v1/completions HTTP/1.1\r\n", b"x" * 99))
    before, during, meanwhile, after = (
        SentRequest.of(index, case, start_s, end_s)
        for index, (start_s, end_s) in enumerate([(1, 2), (4.5, 7), (5.2, 5.3), (5.5, 6)])
    )
    sent, machine = [before, during, meanwhile, after], [Wait("an idle thread", 5.1, 5.15)]
    document = describe_stall(Wait("stream 3", 5.0, 5.4), sent, machine, begin_s=1.0)
    requests = document.pop("requests")
    assert document == {"waited": "stream 3", "ms": 400.0, "at_s": 4.0, "machine_ms": 50.0}
    assert isinstance(requests, list)
    assert [each["index"] for each in requests] == [1, 2]
    assert requests[1] == {
        "index": 2, "kind": "huge", "path": "/v1/completions", "bytes": 99, "sent_ms": 200.0,
        "took_ms": 100.0,
    }  # fmt: skip


def test_a_slow_machine_may_stall_for_three_of_its_own_gaps() -> None:
    attack = {
        **dict.fromkeys(("status_5xx", "status_503", "unanswered", "given_up"), 0),
        "requests": 1,
    }

    def passes(quiet_s: float, fuzzed_s: float, *, checks_stall: bool = True) -> bool:
        phases = PhaseTimes(gap_s=quiet_s), PhaseTimes(gap_s=fuzzed_s)
        result = FuzzResult(attack, *phases, 0, (), 0, 1, 0.0)
        return result.has_passed(checks_stall)

    assert passes(0.02, 0.21)
    assert not passes(0.02, 0.23)
    assert passes(0.1, 0.39)
    assert not passes(0.1, 0.41)
    assert passes(0.1, 0.41, checks_stall=False)


def test_repetitions_of_repetitions_are_measured_unwritten() -> None:
    body: Any = {"a": ["x", 1.5, None, {"b": "é"}], "c": {}}
    written = len(json.dumps(body))
    assert written <= json_chars(body, {}) <= written + 10
    for _ in range(5):
        body = [body] * 1000
    assert json_chars(body, {}) > written * 1000**5
