"""POST /v1/responses over HTTP with the official client: items, events, tools, refusals."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.scripted import scripted_server

TOOL = {
    "type": "function",
    "name": "get_weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": False,
}
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
TEXT = f"<think>\nwhy not\n</think>\n\nthe fox\n{CALL}\n{CALL}"


@pytest.fixture(scope="module", params=[1, 7], ids=["one token a step", "seven tokens a step"])
def server(request, write_model, tmp_path_factory) -> Iterator[RunningServer]:
    parsers = {"tool_parser": "hermes", "reasoning_parser": "qwen3"}
    folder = tmp_path_factory.mktemp("responses")
    with scripted_server(write_model, folder, request.param, **parsers) as running:
        yield running


def ask(server: RunningServer, value: Any, /, **fields: Any) -> Any:
    options: dict[str, Any] = {"model": "echo", "input": value} | fields
    return server.client.responses.create(**options)


def seen(server: RunningServer, value: Any, **fields: Any) -> Any:
    """Return the messages that the template got."""
    shown = {"chat_template_kwargs": {"show": "messages"}}
    return json.loads(ask(server, value, extra_body=shown, **fields).output_text)


def without_ids(response: Any) -> dict[str, Any]:
    """Return a response without what differs between two equal calls."""
    fields = response.model_dump(exclude={"id", "created_at"})
    for item in fields["output"]:
        item.pop("id")
        item.pop("call_id", None)
    return dict(fields)


def test_the_text_is_a_message(server: RunningServer) -> None:
    response = ask(server, "the quick fox", instructions="be brief", metadata={"team": "a"})
    assert (response.output_text, response.status) == ("the quick fox", "completed")
    assert [item.type for item in response.output] == ["message"]
    assert response.output[0].status == "completed"
    assert (response.object, response.model, response.store) == ("response", "echo", False)
    assert (response.instructions, response.metadata) == ("be brief", {"team": "a"})
    assert response.usage.output_tokens == len(server.service.text.encode("the quick fox")) + 1
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


def test_reasoning_text_and_calls_are_items(server: RunningServer) -> None:
    response = ask(server, TEXT, tools=[TOOL])
    reasoning, message, first, second = response.output
    assert (reasoning.type, reasoning.content[0].text) == ("reasoning", "why not")
    assert message.content[0].text == "the fox"
    assert [(call.name, call.arguments) for call in (first, second)] == [("get_weather", PARIS)] * 2
    assert first.call_id != second.call_id
    assert len({item.id for item in response.output}) == 4
    assert response.usage.output_tokens_details.reasoning_tokens > 0


def test_a_stream_builds_the_same_response(server: RunningServer) -> None:
    events = list(ask(server, TEXT, tools=[TOOL], stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    final = events[-1].response
    assert without_ids(final) == without_ids(ask(server, TEXT, tools=[TOOL]))
    for index, item in enumerate(final.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        assert own[0].type == "response.output_item.added"
        assert own[-1].type == "response.output_item.done"
        assert own[-1].item == item
        assert {getattr(event, "item_id", item.id) for event in own} == {item.id}


ORDER = {
    "message": ("output_text", "text"),
    "reasoning": ("reasoning_text", "text"),
    "function_call": ("function_call_arguments", "arguments"),
}


def test_the_events_of_each_item_come_in_the_documented_order(server: RunningServer) -> None:
    events = list(ask(server, TEXT, tools=[TOOL], stream=True))
    for index, item in enumerate(events[-1].response.output):
        own = [event for event in events if getattr(event, "output_index", None) == index]
        name, field = ORDER[item.type]
        has_part = item.type != "function_call"
        deltas = [event for event in own if event.type == f"response.{name}.delta"]
        expected = ["response.output_item.added"]
        expected += ["response.content_part.added"] if has_part else []
        expected += [f"response.{name}.delta"] * len(deltas) + [f"response.{name}.done"]
        expected += ["response.content_part.done"] if has_part else []
        assert [event.type for event in own] == [*expected, "response.output_item.done"]
        done = next(event for event in own if event.type == f"response.{name}.done")
        assert "".join(event.delta for event in deltas) == getattr(done, field) != ""


def test_the_clients_own_stream_helper_reads_it(server: RunningServer) -> None:
    with server.client.responses.stream(model="echo", input="the quick fox") as stream:
        text = "".join(each.delta for each in stream if each.type == "response.output_text.delta")
        assert text == stream.get_final_response().output_text == "the quick fox"


def test_the_stream_helper_of_a_limited_response_has_only_its_events(server: RunningServer) -> None:
    client = server.client
    with client.responses.stream(
        model="echo", input="the quick brown fox", max_output_tokens=2
    ) as stream:
        *_, last = stream
        assert last.type == "response.incomplete"
        assert last.response.output_text
        assert last.response.usage is not None
        with pytest.raises(RuntimeError, match=r"response\.completed"):
            stream.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
def test_a_limit_leaves_it_incomplete(server: RunningServer, stream: bool) -> None:
    answer = ask(server, "the quick brown fox", max_output_tokens=2, stream=stream)
    if stream:
        *_, last = answer
        assert last.type == "response.incomplete"
        answer = last.response
    assert answer.status == "incomplete"
    assert answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[-1].status == "incomplete"
    assert answer.usage.output_tokens == 2


def test_no_text_is_an_empty_message(server: RunningServer) -> None:
    response = ask(server, "")
    assert (response.output_text, [item.type for item in response.output]) == ("", ["message"])


def test_items_are_messages_of_the_template(server: RunningServer) -> None:
    first = ask(server, TEXT, tools=[TOOL])
    _, _, one, two = first.output
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "the weather"}]},
        *(item.model_dump(exclude_none=True) for item in first.output),
        {"type": "function_call_output", "call_id": one.call_id, "output": "sun"},
        {
            "type": "function_call_output",
            "call_id": two.call_id,
            "output": [{"type": "input_text", "text": "rain"}],
        },
        {"type": "message", "role": "developer", "content": "be brief"},
    ]
    messages = seen(server, items, instructions="you are a fox")
    roles = ["system", "user", "assistant", "tool", "tool", "system"]
    assert [message["role"] for message in messages] == roles
    assistant = messages[2]
    assert (assistant["reasoning_content"], assistant["content"]) == ("why not", "the fox")
    assert [call["id"] for call in assistant["tool_calls"]] == [one.call_id, two.call_id]
    assert assistant["tool_calls"][0]["function"]["arguments"] == json.loads(PARIS)
    assert [messages[3]["tool_call_id"], messages[3]["content"]] == [one.call_id, "sun"]
    assert messages[4]["content"] == "rain"


def test_turns_of_the_assistant_stay_apart(server: RunningServer) -> None:
    items = [
        {"role": "assistant", "content": "the fox"},
        {"role": "assistant", "content": "the dog"},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "why"}]},
        {"type": "function_call", "call_id": "b", "name": "f", "arguments": "{}"},
    ]
    messages = seen(server, items)
    assert [message["content"] for message in messages] == ["the fox", "the dog", ""]
    assert [len(message.get("tool_calls", ())) for message in messages] == [0, 1, 1]
    assert messages[2]["reasoning_content"] == "why"


def test_effort_reaches_the_template(server: RunningServer) -> None:
    shown = {"chat_template_kwargs": {"show": "effort"}}
    response = ask(server, "", reasoning={"effort": "low"}, extra_body=shown)
    assert response.output_text == "low "
    assert response.reasoning.effort == "low"


def test_reasoning_is_left_out_on_request(server: RunningServer) -> None:
    def types(wanted: bool) -> list[str]:
        answer = ask(server, TEXT, extra_body={"include_reasoning": wanted})
        return [item.type for item in answer.output]

    assert types(True) == ["reasoning", *types(False)]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"store": True}, "store", "with store: false"),
        ({"background": True}, "background", "remove it"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "earlier items"),
        ({"conversation": "conv_1"}, "conversation", "earlier items"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0]", "function, custom or namespace"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"tools": [TOOL, TOOL]}, "tools", "twice"),
        ({"include": ["message.output_text.logprobs"]}, "include", "/v1/chat/completions"),
        ({"extra_body": {"prompt_logprobs": 1}}, "prompt_logprobs", "/v1/chat/completions"),
        ({"truncation": "auto"}, "truncation", '"disabled"'),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema", ""),
        ({"input": []}, "input", "input"),
        (
            {"input": [{"type": "computer_call"}]},
            "input[0]",
            "reasoning or item_reference",
        ),
        ({"input": [{"type": "item_reference", "id": "a"}]}, "input[0]", "with store: false"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content",
            "only parts of text",
        ),
        ({"max_output_tokens": 10**6}, "max_output_tokens", "set max_output_tokens to at most"),
        ({"input": "the fox " * 4096}, "input", "shorten input"),
    ],
)
def test_a_field_that_cannot_be_served_is_named(
    server: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        server.client.responses.create(**{"model": "echo", "input": "x"} | fields)
    assert (caught.value.param, words in str(caught.value)) == (param, True), str(caught.value)


SCHEMA = {
    "type": "object",
    "properties": {"legs": {"type": "integer", "minimum": 0, "maximum": 8}},
    "required": ["legs"],
    "additionalProperties": False,
}


def test_the_text_follows_a_schema_on_the_real_core(built_server: RunningServer) -> None:
    wanted = {"format": {"type": "json_schema", "name": "legs", "schema": SCHEMA, "strict": True}}
    response = ask(built_server, "how many legs", text=wanted, max_output_tokens=60)
    assert response.status == "completed"
    assert 0 <= json.loads(response.output_text)["legs"] <= 8
    assert response.text.format.schema_ == SCHEMA


def test_an_invalid_schema_is_the_clients_fault(built_server: RunningServer) -> None:
    wanted = {"format": {"type": "json_schema", "name": "a", "schema": {"type": "fox"}}}
    with pytest.raises(openai.BadRequestError) as caught:
        ask(built_server, "x", text=wanted)
    assert caught.value.param == "text.format.schema"


def test_text_does_not_depend_on_speculation(
    built_server: RunningServer, drafting_server: RunningServer
) -> None:
    fields: dict[str, Any] = {"temperature": 1, "extra_body": {"seed": 5}, "max_output_tokens": 24}
    texts = [ask(each, "the fox", **fields).output_text for each in (built_server, drafting_server)]
    off = ask(drafting_server, "the fox", **fields | {"extra_body": {
        "seed": 5, "speculation": {"max_steps": 0}}})  # fmt: skip
    assert texts == [off.output_text] * 2
    assert off.output_text


def test_an_engine_that_fails_ends_the_stream_with_an_error(start_server, write_model, tmp_path):
    server = start_server(failing_step=3, tokens_per_step=1)
    events = list(ask(server, "the quick fox", stream=True))
    assert events[-1].type == "error"
    assert events[-1].code == "engine_failed"
    assert [event.sequence_number for event in events] == list(range(len(events)))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [(None, {}), ("", {}), ({"city": "Paris"}, {"city": "Paris"}), ("{a: 1", "{a: 1")],
)
def test_an_earlier_call_is_read_when_its_arguments_are_odd(server, arguments, expected) -> None:
    call = {"type": "function_call", "call_id": "a", "name": "get_weather", "arguments": arguments}
    (message,) = seen(server, [call])
    assert message["tool_calls"][0]["function"]["arguments"] == expected
