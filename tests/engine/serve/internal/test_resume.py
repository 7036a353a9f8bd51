"""An answer that a second engine continues is the unbroken one, in every part of every API."""

import json
import random
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx
import pytest

from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.internal.router_client import Call, post, run
from tests.streamed_answers import Answer, events_of, plain_usage, read_answer

CHAT, COMPLETIONS, RESPONSES = "/v1/chat/completions", "/v1/completions", "/v1/responses"
BLOCKS = "/v1/messages"
Engines = tuple[RunningServer, RunningServer]
MESSAGES = [{"role": "user", "content": "Which animal do you see?"}]
TOOL = {
    "name": "see",
    "parameters": {
        "type": "object",
        "properties": {
            "note": {"type": "string", "maxLength": 8},
            "legs": {"type": "integer", "minimum": 0, "maximum": 8},
        },
        "required": ["note", "legs"],
        "additionalProperties": False,
    },
    "strict": True,
}
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 1},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
COUNTED = {"type": "string", "maxLength": 500, "pattern": r"^(?:\S+\s+){0,49}\S+$"}
NOTES = {
    "type": "object",
    "properties": dict.fromkeys(("first", "second"), COUNTED),
    "required": ["first", "second"],
    "additionalProperties": False,
}
FILTERS = {"temperature": 1, "top_p": 0.95, "top_k": 40, "min_p": 0.01}
PENALTIES = {"presence_penalty": 0.5, "frequency_penalty": 0.4, "repetition_penalty": 1.1}
WORDS = "the quick brown fox jumps over the lazy dog and"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "text": (COMPLETIONS, {"prompt": WORDS, "max_tokens": 24, "temperature": 0}),
    "all filters": (
        COMPLETIONS,
        {"prompt": WORDS, "max_tokens": 30, **FILTERS, **PENALTIES, "logprobs": 3},
    ),
    "token rules": (
        CHAT,
        {
            "messages": MESSAGES, "max_tokens": 30, "min_tokens": 20, "temperature": 1,
            "bad_words": [" the", "a dog"], "logprobs": True, "top_logprobs": 2,
        },
    ),
    "default length": (CHAT, {"messages": MESSAGES, "temperature": 1, "ignore_eos": False}),
    "four choices": (
        CHAT,
        {
            "messages": MESSAGES, "n": 4, "max_tokens": 40, "temperature": 1.3, "logprobs": True,
            "return_token_ids": True,
        },
    ),
    "two prompts and an echo": (
        COMPLETIONS,
        {
            "prompt": [WORDS, "a cat"], "n": 2, "echo": True, "max_tokens": 12, "temperature": 1,
            "return_token_ids": True,
        },
    ),
    "echo with logprobs": (
        COMPLETIONS, {"prompt": WORDS, "echo": True, "logprobs": 2, "max_tokens": 10}
    ),
    "arguments of a tool": (
        CHAT,
        {
            "messages": MESSAGES, "max_tokens": 120, "temperature": 1,
            "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required",
        },
    ),
    "JSON schema": (
        CHAT,
        {
            "messages": MESSAGES, "max_tokens": 120, "temperature": 1, "logprobs": True,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True},
            },
        },
    ),
    "counted words": (
        CHAT,
        {
            "messages": MESSAGES, "n": 2, "max_tokens": 100, "temperature": 1,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "notes", "schema": NOTES, "strict": True},
            },
        },
    ),
    "reasoning": (
        CHAT,
        {
            "messages": MESSAGES, "max_tokens": 60, "temperature": 1,
            "structured_outputs": {"regex": "<think>[a-z ]{8,20}</think>[a-z]{6}STOP[a-z]{3}"},
            "stop": ["STOP"],
        },
    ),
    "blocks": (
        BLOCKS,
        {
            "messages": MESSAGES, "max_tokens": 60, "temperature": 1,
            "structured_outputs": {"regex": "<think>[a-z ]{8,20}</think>[a-z]{6}STOP[a-z]{3}"},
            "stop_sequences": ["STOP"],
        },
    ),
    "call blocks": (
        BLOCKS,
        {
            "messages": MESSAGES, "max_tokens": 120, "temperature": 1,
            "tools": [{"name": "see", "input_schema": TOOL["parameters"], "strict": True}],
            "tool_choice": {"type": "any"},
        },
    ),
    "items": (RESPONSES, {"input": "Which animal do you see?", "max_output_tokens": 40}),
    "call items": (
        RESPONSES,
        {
            "input": "Which animal do you see?", "max_output_tokens": 120, "temperature": 1,
            "tools": [{"type": "function", **TOOL}], "tool_choice": "required",
        },
    ),
}  # fmt: skip


def streamed(path: str, body: dict[str, Any], **changes: Any) -> Call:
    has_own_usage = path in (RESPONSES, BLOCKS)
    options = {} if has_own_usage else {"stream_options": {"include_usage": True}}
    return Call(path, {**body, "stream": True, **options, **changes})


@pytest.fixture(scope="module")
def unbroken(engines: Engines) -> Callable[[str, int], Call]:
    """The call of a case with a seed, answered by one engine alone."""

    @cache
    def call_of(name: str, seed: int = 77) -> Call:
        call = streamed(*CASES[name])
        call.seed = seed
        return run(engines[1], call)

    return call_of


def answer_of(call: Call) -> Answer:
    answer = read_answer(call.public)
    assert not answer.errors
    assert answer.is_complete
    assert call.is_ended
    return answer


def assert_same(call: Call, whole: Call) -> None:
    got, expected = answer_of(call), answer_of(whole)
    assert got.choices == expected.choices
    assert got.ids == expected.ids
    assert got.items == expected.items
    assert got.usage == expected.usage
    assert got.sequence_numbers == list(range(len(got.sequence_numbers)))


def without_ids(answer: Answer) -> Any:
    choices = [each for _, each in sorted(answer.choices.items())]
    calls = [[call[1:] for call in each.calls.values()] for each in choices]
    parts = [(each.content, each.reasoning, each.scored, each.token_ids) for each in choices]
    return calls, parts, [each.prompt_ids for each in choices]


@pytest.mark.parametrize("name", CASES)
def test_a_call_through_the_internal_endpoint_has_the_answer_of_the_api_port(
    engines, unbroken, name
):
    call = unbroken(name, 77)
    public = httpx.post(engines[1].url + call.path, json=call.body | {"seed": 77}, timeout=60)
    expected = read_answer(public.text)
    got = answer_of(call)
    assert without_ids(got) == without_ids(expected)
    finishes = [choice.finish_reason for choice in got.choices.values()]
    assert finishes == [choice.finish_reason for choice in expected.choices.values()]
    assert got.usage == expected.usage


@pytest.mark.parametrize("name", CASES)
def test_a_stream_broken_anywhere_continues_with_the_same_answer(engines, unbroken, name):
    whole = unbroken(name, 77)
    last = whole.received
    # The start alone, the first token, the middle, and everything but the end.
    for at in sorted({1, 2, 3, last // 2, last - 1}):
        call = streamed(*CASES[name])
        run(engines[1], call, at)
        assert not call.is_ended
        assert_same(run(engines[0], call), whole)


def test_fifty_random_breaks_change_nothing(engines, unbroken):
    draw = random.Random(2311)
    names = sorted(
        CASES.keys() - {"counted words"}
    )  # a long answer, of which the test above has five
    breaks = 0
    while breaks < 50:
        name, seed = draw.choice(names), draw.randrange(4)
        whole = unbroken(name, seed)
        call = streamed(*CASES[name])
        call.seed = seed
        for _ in range(draw.randrange(1, 4)):
            run(draw.choice(engines), call, draw.randrange(1, max(2, whole.received)))
            if call.is_ended:
                break
            breaks += 1
        if not call.is_ended:
            run(draw.choice(engines), call)
        assert_same(call, whole)


def test_a_character_and_a_stop_string_across_the_break_are_whole(engines):
    body = {
        "prompt": WORDS,
        "max_tokens": 80,
        "structured_outputs": {"regex": "😀é北京 [a-c]{4}, 😀STOP it[d-f]{5}"},
        "stop": ["STOP it"],
        "logprobs": 1,
    }
    whole = run(engines[1], streamed(COMPLETIONS, body))
    expected = answer_of(whole)
    assert expected.content.startswith("😀é北京 ")
    assert expected.content.endswith(", 😀")
    for at in range(1, whole.received):
        call = streamed(COMPLETIONS, body)
        run(engines[1], call, at)
        assert_same(run(engines[0], call), whole)


def test_choices_of_different_length_keep_their_own_ends(engines, unbroken):
    whole = unbroken("four choices", 77)
    ends = {len(choice["ids"]) for choice in whole.choices.values()}
    assert len(ends) > 1, "the choices are all of one length: choose another seed"
    at = next(
        number
        for number in range(1, whole.received)
        if any(c["finished"] for c in run(engines[1], streamed(*CASES["four choices"]), number)
               .choices.values())
    )  # fmt: skip
    call = run(engines[1], streamed(*CASES["four choices"]), at)
    assert_same(run(engines[0], call), whole)


@pytest.mark.parametrize(
    "name", ["text", "four choices", "arguments of a tool", "items", "blocks", "call blocks"]
)
def test_a_response_in_one_piece_continues_too(engines, name):
    path, body = CASES[name]
    body = {key: value for key, value in body.items() if key != "logprobs"}
    whole = run(engines[1], Call(path, body))
    assert whole.start is not None
    assert whole.start["is_resumable"]
    for at in (1, 2, whole.received // 2, whole.received - 1):
        call = Call(path, body)
        run(engines[1], call, at)
        run(engines[0], call)
        assert strip(call) == strip(whole)


def strip(call: Call) -> Any:
    """The response without the figures of speculation."""
    response = httpx.Response(200, content=call.whole).json()
    return response, plain_usage(response.pop("usage"))


def test_a_response_with_logprobs_in_one_piece_is_to_be_generated_again(engines):
    path, body = CASES["JSON schema"]
    call = run(engines[0], Call(path, body), 1)
    assert call.start is not None
    assert not call.start["is_resumable"]


def test_another_model_refuses_to_continue_and_adds_nothing(engines, other_engine, unbroken):
    call = run(engines[0], streamed(*CASES["text"]), 6)
    kept = call.copy()
    response = post(other_engine, call)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "resume_id_differs")
    assert call == kept
    assert_same(run(engines[1], call), unbroken("text", 77))


WRONG: dict[str, dict[str, Any]] = {
    "fewer characters": {"sent_characters": 1},
    "more characters": {"sent_characters": 4000},
    "another end": {"finished": "stop"},
    "an unknown token": {"ids": [2**31 - 1]},
    "too many tokens": {"ids": [9] * 24},
    "tokens after the end": {"ids": [9, 9, 9]},
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_resume_that_does_not_fit_its_text_is_refused(engines, wrong):
    call = run(engines[0], streamed(*CASES["text"]), 6)
    call.choices[0] |= WRONG[wrong]
    response = post(engines[1], call)
    assert response.status_code == 409
    assert response.json()["error"]["code"] == "resume_mismatch"


def test_a_resume_has_an_entry_for_every_choice(engines):
    call = run(engines[0], streamed(*CASES["four choices"]), 6)
    response = post(engines[1], call, resume=call.envelope()["resume"][:3])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "resume")
    response = post(engines[1], call, max_tokens=[5, 5])
    assert (response.status_code, response.json()["error"]["param"]) == (400, "max_tokens")


def test_the_prompt_and_the_answer_so_far_are_read_from_the_prefix_cache(engines):
    engine = engines[1]
    body = {"prompt": WORDS * 6, "max_tokens": 100, "temperature": 0, "ignore_eos": True}
    call = run(engine, streamed(COMPLETIONS, body), 60)
    counted = engine.snapshot()
    run(engine, call)
    prefilled = total(engine.snapshot(), "prompt_tokens") - total(counted, "prompt_tokens")
    assert len(call.choices[0]["ids"]) == 100
    assert 1 <= prefilled <= 2 * 16  # the rest of a page, and what was in flight at the break
    usage = read_usage(call)
    assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]


def total(snapshot: Any, short: str) -> float:
    (found,) = [each for each in snapshot.values if each.short == short]
    return float(sum(snapshot.values[found].values()))


def read_usage(call: Call) -> Any:
    (usage,) = [
        chunk["usage"]
        for data in events_of(call.public)
        if data != "[DONE]" and (chunk := json.loads(data))["usage"]
    ]
    return usage


def test_tokens_of_a_resumed_answer_are_counted_where_they_were_generated(engines):
    def counted(server: RunningServer) -> float:
        text = httpx.get(server.management_url + "/metrics", timeout=10).text
        name = "specdecode_request_completion_tokens_total "
        (line,) = [each for each in text.splitlines() if each.startswith(name)]
        return float(line.removeprefix(name))

    before = counted(engines[1])
    call = run(engines[0], streamed(*CASES["text"]), 8)
    known = len(call.choices[0]["ids"])
    run(engines[1], call)
    assert counted(engines[1]) - before == len(call.choices[0]["ids"]) - known


@pytest.mark.parametrize("name", ["text", "items", "all filters"])
def test_counts_of_events_after_a_break_are_of_the_tokens_after_it(engines, name):
    path, body = CASES[name]
    call = streamed(path, body, return_speculation=True)
    run(engines[1], call, 5)
    run(engines[0], call)
    lines = [line.removeprefix("data: ") for line in call.public.splitlines()]
    counts = [json.loads(line).get("speculation") for line in lines if line.startswith("{")]
    assert sum(each["tokens"] for each in counts if each) == len(call.choices[0]["ids"])
