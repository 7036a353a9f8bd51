"""Custom tools, namespaces and searches in POST /v1/responses, with the official client."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from specdecode_engine.serve.openai.responses.tools import custom_arguments, custom_input
from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.scripted import scripted_server

PATCH = '*** Begin Patch\n+hi "there" é\n*** End Patch\n'
GRAMMAR = 'start: "*** Begin Patch" LF'
PARAMETERS = {"type": "object", "properties": {"task": {"type": "string"}}}
FUNCTION = {"type": "function", "name": "spawn", "parameters": PARAMETERS, "strict": False}
CUSTOM = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Change files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": GRAMMAR},
}
NAMESPACE = {
    "type": "namespace",
    "name": "agents",
    "description": "d",
    "tools": [FUNCTION, CUSTOM | {"name": "note"}],
}
SEARCH = {"type": "web_search", "external_web_access": False}
TOOLS = [CUSTOM, NAMESPACE, SEARCH]


def written(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture(scope="module", params=[1, 7], ids=["one token a step", "seven tokens a step"])
def server(request, write_model, tmp_path_factory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("tools")
    with scripted_server(write_model, folder, request.param, tool_parser="hermes") as running:
        yield running


def ask(server: RunningServer, value: Any, **fields: Any) -> Any:
    options: dict[str, Any] = {"model": "echo", "input": value, "tools": TOOLS} | fields
    return server.client.responses.create(**options)


def shown(server: RunningServer, what: str, value: Any = "x", **fields: Any) -> Any:
    extra = {"chat_template_kwargs": {"show": what}}
    return json.loads(ask(server, value, extra_body=extra, **fields).output_text)


def test_a_custom_tool_is_called_with_its_text(server: RunningServer) -> None:
    call = ask(server, written("apply_patch", custom_arguments(PATCH))).output[-1]
    assert (call.type, call.name, call.input) == ("custom_tool_call", "apply_patch", PATCH)
    assert call.namespace is None


def test_a_call_has_the_name_and_the_namespace_of_its_tool(server: RunningServer) -> None:
    text = written("agents__spawn", '{"task": "a"}') + written("agents__note", '{"input": "b"}')
    function, custom = ask(server, text).output
    assert (function.type, function.name, function.namespace) == (
        "function_call",
        "spawn",
        "agents",
    )
    assert json.loads(function.arguments) == {"task": "a"}
    assert (custom.type, custom.name, custom.namespace) == ("custom_tool_call", "note", "agents")
    assert custom.input == "b"


def test_a_stream_of_a_custom_call_has_its_own_events(server: RunningServer) -> None:
    text = written("apply_patch", custom_arguments(PATCH))
    events = list(ask(server, text, stream=True))
    own = [event for event in events if getattr(event, "output_index", None) == 0]
    kind = "response.custom_tool_call_input"
    assert [event.type for event in own] == [
        "response.output_item.added",
        f"{kind}.delta",
        f"{kind}.done",
        "response.output_item.done",
    ]
    assert own[0].item.input == ""
    assert own[1].delta == own[2].input == own[3].item.input == PATCH
    assert own[3].item == events[-1].response.output[0]


def test_a_cut_call_keeps_the_text_that_was_written(server: RunningServer) -> None:
    text = written("apply_patch", custom_arguments(PATCH))
    tokens = len(server.service.text.encode(text[: text.index("there")]))
    response = ask(server, text, max_output_tokens=tokens)
    call = response.output[-1]
    assert (response.status, call.type, call.status) == (
        "incomplete",
        "custom_tool_call",
        "incomplete",
    )
    assert PATCH.startswith(call.input)
    assert call.input.startswith("*** Begin")


def test_the_prompt_has_functions_and_no_search(server: RunningServer) -> None:
    functions = [tool["function"] for tool in shown(server, "tools")]
    assert [each["name"] for each in functions] == [
        "apply_patch",
        "agents__spawn",
        "agents__note",
    ]
    assert functions[0]["description"].startswith("Change files.\n\n")
    assert functions[0]["description"].endswith(GRAMMAR)
    assert functions[0]["parameters"]["required"] == ["input"]
    assert functions[1]["parameters"] == PARAMETERS


def test_a_search_is_counted_and_logged_at_most_once(
    server: RunningServer, caplog: pytest.LogCaptureFixture
) -> None:
    name = "specdecode_ignored_fields_total"

    def count() -> float:
        found = server.service.metrics.registry.get_sample_value(name, {"field": "web_search"})
        return found or 0.0

    before = count()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            ask(server, "x")
    assert count() == before + 2
    assert caplog.text.count("'web_search'") <= 1


def test_calls_of_custom_tools_and_namespaces_are_sent_back(server: RunningServer) -> None:
    items = [
        {"role": "user", "content": "go"},
        {"type": "custom_tool_call", "call_id": "a", "name": "apply_patch", "input": PATCH},
        {"type": "custom_tool_call_output", "call_id": "a", "output": "Success."},
        {
            "type": "function_call",
            "call_id": "b",
            "name": "spawn",
            "namespace": "agents",
            "arguments": "{}",
        },
        {"type": "function_call_output", "call_id": "b", "output": "started"},
    ]
    messages = shown(server, "messages", items)
    assert [message["role"] for message in messages] == [
        "user",
        "assistant",
        "tool",
        "assistant",
        "tool",
    ]
    first, second = (messages[index]["tool_calls"][0]["function"] for index in (1, 3))
    assert (first["name"], first["arguments"]) == ("apply_patch", {"input": PATCH})
    assert second["name"] == "agents__spawn"
    assert messages[2]["content"] == "Success."


@pytest.mark.parametrize(
    ("tools", "param", "words"),
    [
        ([{"type": "mcp"}], "tools[0]", "function, custom or namespace"),
        ([NAMESPACE | {"tools": [SEARCH]}], "tools[0].tools[0]", "function or custom"),
        ([NAMESPACE | {"name": "n" * 127}], "tools[0].name", "128 characters"),
        ([CUSTOM, CUSTOM], "tools", "twice"),
        ([NAMESPACE, FUNCTION | {"name": "agents__spawn"}], "tools", "twice"),
        ([CUSTOM | {"format": {"type": "image"}}], "tools[0].format.type", "'text' or 'grammar'"),
    ],
)
def test_tools_that_cannot_be_offered_are_named(
    server: RunningServer, tools: list[dict[str, Any]], param: str, words: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        ask(server, "x", tools=tools)
    assert (caught.value.param, words in str(caught.value)) == (param, True), str(caught.value)


def test_a_named_custom_tool_is_called_on_the_real_core(built_server: RunningServer) -> None:
    response = ask(
        built_server,
        "patch",
        tools=[{"type": "custom", "name": "note"}],
        tool_choice={"type": "custom", "name": "note"},
        max_output_tokens=40,
    )
    assert (response.output[0].type, response.output[0].name) == ("custom_tool_call", "note")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"input": "a\\nb"}', "a\nb"),
        ('{"input": "a\\nb', "a\nb"),
        ("{}", ""),
        ("", ""),
        ('{"input": 5}', '{"input": 5}'),
        ('{"path": "a", "input": "b"}', '{"path": "a", "input": "b"}'),
        ("rm -r", "rm -r"),
    ],
)
def test_the_input_of_other_arguments_is_their_text(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text
