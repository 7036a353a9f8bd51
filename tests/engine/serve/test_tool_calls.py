"""Tool calls over HTTP with the official client: whole, streamed, parallel, and sent back."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import openai
import pytest

from specdecode_engine.serve.openai.chat_prompt import read_chat_prompt
from specdecode_engine.serve.openai.chat_protocol import ChatBody, ChatMessage
from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.scripted import scripted_server

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "the weather of a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
TOOLS = [WEATHER, TIME]
PARIS = '{"city": "Paris", "days": [1, 2]}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
SECOND = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
ID = re.compile(r"call_[0-9a-f]{24}")


@pytest.fixture(scope="module", params=[1, 7], ids=["one token a step", "seven tokens a step"])
def server(request, write_model, tmp_path_factory) -> Iterator[RunningServer]:
    parsers = {"tool_parser": "hermes", "reasoning_parser": "qwen3"}
    folder = tmp_path_factory.mktemp("tools")
    with scripted_server(write_model, folder, request.param, **parsers) as running:
        yield running


def ask(server: RunningServer, text: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    options: dict[str, Any] = {"messages": messages, "tools": TOOLS} | fields
    return server.client.chat.completions.create(model="echo", **options)


def calls(message: Any) -> list[tuple[str, str]]:
    """Return names and arguments of the calls in a message."""
    return [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]


def streamed(server: RunningServer, text: str, **fields: Any) -> dict[int, dict[str, Any]]:
    """Return the message of each choice, put together from a stream as clients do."""
    messages: dict[int, dict[str, Any]] = {}
    for chunk in ask(server, text, stream=True, **fields):
        choice = chunk.choices[0]
        message = messages.setdefault(choice.index, {"content": "", "calls": {}, "end": None})
        message["content"] += choice.delta.content or ""
        message["end"] = choice.finish_reason or message["end"]
        for delta in choice.delta.tool_calls or ():
            call = message["calls"].setdefault(delta.index, {"arguments": ""})
            if delta.id:
                assert not call["arguments"]
                call |= {"id": delta.id, "type": delta.type, "name": delta.function.name}
            call["arguments"] += delta.function.arguments
    return messages


def test_a_call_is_in_the_message(server: RunningServer) -> None:
    answer = ask(server, CALL)
    message = answer.choices[0].message
    assert calls(message) == [("get_weather", PARIS)]
    assert message.content is None
    assert ID.fullmatch(message.tool_calls[0].id)
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.usage.completion_tokens == len(server.service.text.encode(CALL)) + 1


def test_a_stream_has_the_same_call(server: RunningServer) -> None:
    message = streamed(server, f"the fox\n{CALL}")[0]
    assert message["content"] == "the fox"
    assert message["end"] == "tool_calls"
    (call,) = message["calls"].values()
    assert (call["name"], call["arguments"], call["type"]) == ("get_weather", PARIS, "function")
    assert ID.fullmatch(call["id"])


def test_parallel_calls_have_an_index_and_an_id_each(server: RunningServer) -> None:
    text = f"<think>\nboth\n</think>\n\n{CALL}\n{SECOND}"
    expected = [("get_weather", PARIS), ("get_time", "{}")]
    message = ask(server, text).choices[0].message
    assert calls(message) == expected
    assert (message.reasoning_content, message.content) == ("both", None)
    found = streamed(server, text)[0]["calls"]
    assert [(call["name"], call["arguments"]) for call in found.values()] == expected
    assert list(found) == [0, 1]
    assert found[0]["id"] != found[1]["id"]


def test_each_choice_has_its_own_calls(server: RunningServer) -> None:
    messages = [choice.message for choice in ask(server, CALL, n=2).choices]
    assert [calls(message) for message in messages] == [[("get_weather", PARIS)]] * 2
    assert len({message.tool_calls[0].id for message in messages}) == 2
    found = streamed(server, CALL, n=2)
    assert [found[index]["end"] for index in (0, 1)] == ["tool_calls"] * 2
    assert len({found[index]["calls"][0]["id"] for index in (0, 1)}) == 2


def test_an_answer_without_calls_is_plain(server: RunningServer) -> None:
    choice = ask(server, "the quick fox").choices[0]
    assert (choice.message.content, choice.message.tool_calls) == ("the quick fox", None)
    assert choice.finish_reason == "stop"


def test_a_call_cut_by_the_limit_ends_with_length(server: RunningServer) -> None:
    choice = ask(server, CALL, max_tokens=len(server.service.text.encode(CALL)) - 30).choices[0]
    assert choice.finish_reason == "length"
    ((name, arguments),) = calls(choice.message)
    assert name == "get_weather"
    assert PARIS.startswith(arguments)


def test_a_stop_string_in_arguments_ends_nothing(server: RunningServer) -> None:
    choice = ask(server, f"the fox {CALL}", stop=["Paris", "quick"]).choices[0]
    assert calls(choice.message) == [("get_weather", PARIS)]


@pytest.mark.parametrize("fields", [{"tool_choice": "none"}, {"tools": []}, {"tools": None}])
def test_without_tools_to_call_markup_is_content(
    server: RunningServer, fields: dict[str, Any]
) -> None:
    choice = ask(server, CALL, **fields).choices[0]
    assert (choice.message.content, choice.message.tool_calls) == (CALL, None)
    assert choice.finish_reason == "stop"


def test_tools_reach_the_template_unless_none_may_be_called(server: RunningServer) -> None:
    shown = {"extra_body": {"chat_template_kwargs": {"show": "tools"}}}
    content = ask(server, "", **shown).choices[0].message.content
    assert json.loads(content) == TOOLS
    assert ask(server, "", tool_choice="none", **shown).choices[0].message.content == "null"


def test_calls_and_results_reach_the_template(server: RunningServer) -> None:
    first = ask(server, CALL).choices[0].message
    broken = first.tool_calls[0].model_copy(deep=True)
    broken.function.arguments = '{"city": '
    messages = [
        {"role": "user", "content": "the weather of Paris"},
        first.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": first.tool_calls[0].id, "content": "sun"},
        {"role": "assistant", "content": None, "tool_calls": [broken.model_dump()]},
    ]
    shown = {"extra_body": {"chat_template_kwargs": {"show": "messages"}}}
    seen = json.loads(ask(server, "", messages=messages, **shown).choices[0].message.content)
    assert seen[1]["tool_calls"][0]["function"]["arguments"] == json.loads(PARIS)
    assert seen[1]["tool_calls"][0]["id"] == seen[2]["tool_call_id"]
    assert seen[2]["content"] == "sun"
    assert seen[3]["content"] == ""
    assert seen[3]["tool_calls"][0]["function"]["arguments"] == '{"city": '


def test_arguments_that_no_prompt_could_contain_stay_text(server: RunningServer) -> None:
    arguments = [r'{"city": "\ud800"}', "[" * 5000, '{"days": 1' + "0" * 5000 + "}", "[1]", "NaN"]
    calls = [
        {"id": "a", "type": "function", "function": {"name": "f", "arguments": each}}
        for each in arguments
    ]
    message = {"role": "assistant", "content": "", "tool_calls": calls}
    answer = ask(server, "", messages=[message, {"role": "user", "content": "the fox"}])
    assert answer.choices[0].message.content == "the fox"
    body = ChatMessage.model_validate(message)
    decoded = [
        call.function.for_template(as_text=False)["arguments"] for call in body.tool_calls or ()
    ]
    assert decoded == arguments


def test_ids_are_short_where_the_template_wants_that(server: RunningServer) -> None:
    text = replace(
        server.service.text,
        chat_template="Tool call IDs should be alphanumeric strings with length 9!",
        longest_token_chars=None,
    )
    long = "call_0123456789abcdef01234567"
    call = {"id": long, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    body = ChatBody.model_validate(
        {
            "messages": [
                {"role": "assistant", "tool_calls": [call, call | {"id": "a-1"}]},
                {"role": "tool", "tool_call_id": long, "content": "sun"},
            ],
            "chat_template_kwargs": {"show": "messages"},
        }
    )
    seen = json.loads(read_chat_prompt(body, text, 4096).text.removesuffix("<|end|>"))
    assert [each["id"] for each in seen[0]["tool_calls"]] == ["f01234567", "0000000a1"]
    assert seen[1]["tool_call_id"] == "f01234567"


def test_ids_count_the_calls_where_the_template_shows_them_to_the_model(
    server: RunningServer,
) -> None:
    text = replace(
        server.service.text,
        chat_template="<|tool_call_argument_begin|>",
        longest_token_chars=None,
    )

    def call(call_id: str, name: str) -> dict[str, Any]:
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": "{}"}}

    messages = [
        {"role": "assistant", "tool_calls": [call("call_a", "f"), call("call_b", "g")]},
        {"role": "tool", "tool_call_id": "call_b", "content": "sun"},
        {"role": "tool", "tool_call_id": "call_a", "content": "rain"},
        {"role": "assistant", "tool_calls": [call("functions.f:2", "f")]},
        {"role": "tool", "tool_call_id": "unknown", "content": "snow"},
    ]
    body = ChatBody.model_validate(
        {"messages": messages, "chat_template_kwargs": {"show": "messages"}}
    )
    seen = json.loads(read_chat_prompt(body, text, 4096).text.removesuffix("<|end|>"))
    calls = [call["id"] for message in seen for call in message.get("tool_calls", ())]
    assert calls == ["functions.f:0", "functions.g:1", "functions.f:2"]
    results = [message["tool_call_id"] for message in seen if message["role"] == "tool"]
    assert results == ["functions.g:1", "functions.f:0", "unknown"]


def test_reasoning_before_a_call_is_a_plan_where_the_template_calls_it_so(
    server: RunningServer,
) -> None:
    text = replace(server.service.text, chat_template="{{ message.tool_plan }}")
    message = {"role": "assistant", "content": "", "reasoning_content": "I look it up."}
    body = ChatBody.model_validate(
        {"messages": [message], "chat_template_kwargs": {"show": "messages"}}
    )
    (seen,) = json.loads(read_chat_prompt(body, text, 4096).text.removesuffix("<|end|>"))
    assert seen["tool_plan"] == seen["reasoning_content"] == "I look it up."


def test_content_before_a_call_takes_the_place_of_reasoning_where_both_are_refused(
    server: RunningServer,
) -> None:
    refusal = "{{ raise_exception('Cannot pass both content and thinking') }}"
    text = replace(server.service.text, chat_template=refusal)
    function = {"name": "f", "arguments": "{}"}
    calls = {"tool_calls": [{"id": "a", "type": "function", "function": function}]}
    messages = [
        {"role": "assistant", "content": "A moment.", "reasoning_content": "Why?", **calls},
        {"role": "assistant", "content": "A moment.", "thinking": "Why?", **calls},
        {"role": "assistant", "reasoning_content": "Why?", **calls},
        {"role": "assistant", "content": "Sun.", "reasoning_content": "Why?"},
    ]
    body = ChatBody.model_validate(
        {"messages": messages, "chat_template_kwargs": {"show": "messages"}}
    )
    seen = json.loads(read_chat_prompt(body, text, 4096).text.removesuffix("<|end|>"))
    assert [each.get("thinking") for each in seen] == [None, None, "Why?", "Why?"]
    assert [each["content"] for each in seen] == ["A moment.", "A moment.", "", "Sun."]


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"tools": [], "tool_choice": "required"}, "tool_choice", "there are no tools"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "f"}}},
            "tool_choice",
            "f, which is not in tools",
        ),
        ({"tools": [TIME, TIME]}, "tools", "get_time is there twice"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type", "'function'"),
        ({"tools": [{"type": "function", "function": {}}]}, "tools[0].function.name", "missing"),
        ({"functions": [{"name": "f"}]}, "functions", "use tools"),
        ({"function_call": "auto"}, "function_call", "use tools"),
        (
            {"messages": [{"role": "user", "content": "x", "tool_calls": [
                {"id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]}]},
            "messages[0].tool_calls",
            "remove them",
        ),
    ],
)  # fmt: skip
def test_a_field_that_cannot_be_served_is_named(
    server: RunningServer, fields: dict[str, Any], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, "x", **fields)
    assert (caught.value.param, words in str(caught.value)) == (param, True)


def test_a_client_that_leaves_amid_a_call_ends_it(server: RunningServer, eventually) -> None:
    stream = ask(server, CALL * 20, stream=True)
    for chunk in stream:
        if chunk.choices[0].delta.tool_calls:
            break
    stream.close()
    core: Any = server.core
    eventually(lambda: not core.has_work())
    assert calls(ask(server, CALL).choices[0].message) == [("get_weather", PARIS)]


def test_a_model_without_a_format_refuses_tools(echo_server: RunningServer) -> None:
    with pytest.raises(openai.BadRequestError, match=r"serving\.toolParser") as caught:
        ask(echo_server, "x")
    assert (caught.value.param, caught.value.code) == ("tools", "tools_not_supported")
    assert ask(echo_server, "the fox", tool_choice="none", max_tokens=4).choices
