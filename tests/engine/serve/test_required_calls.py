"""Calls over HTTP that a grammar constrains, written by the example model with a draft."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest

from tests.engine.serve.conftest import EXAMPLES, RunningServer, real_server

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "animal": {"type": "string", "enum": ["cat", "dog"]},
        "legs": {"type": "integer", "minimum": 0, "maximum": 8},
    },
    "required": ["animal", "legs"],
    "additionalProperties": False,
}
SEE = {
    "type": "function",
    "function": {"name": "see", "parameters": PARAMETERS, "strict": True},
}
NOW = {"type": "function", "function": {"name": "now"}}
NAMED = {"type": "function", "function": {"name": "see"}}


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    draft = {"algorithm": "STANDALONE", "draft_path": str(EXAMPLES / "draft"), "num_steps": 3}
    parsers: dict[str, Any] = {"tool_parser": "hermes", "reasoning_parser": "qwen3"}
    running = real_server(draft, context_length=768, **parsers)
    try:
        yield running.wait_ready()
    finally:
        running.close()


def ask(server: RunningServer, **fields: Any) -> Any:
    fields = {"max_completion_tokens": 200, "temperature": 1, "seed": 3} | fields
    messages: Any = [{"role": "user", "content": "Which animal do you see?"}]
    client = server.connect(is_strict=False)
    return client.chat.completions.create(model="echo", messages=messages, **fields)


def called(answer: Any) -> list[tuple[str, str]]:
    calls = answer.choices[0].message.tool_calls or ()
    return [(call.function.name, call.function.arguments) for call in calls]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_named_function_is_called_with_arguments_of_its_schema(server, seed: int) -> None:
    asked = {"tools": [NOW, SEE], "tool_choice": NAMED, "parallel_tool_calls": False, "seed": seed}
    answer = ask(server, **asked)
    ((name, arguments),) = called(answer)
    assert name == "see"
    jsonschema.validate(json.loads(arguments), PARAMETERS)
    assert answer.choices[0].finish_reason == "tool_calls"
    plain = ask(server, **asked, extra_body={"speculation": {"max_steps": 0}})
    assert called(plain) == [(name, arguments)]


def test_a_required_call_streams_and_is_the_same(server) -> None:
    asked = {"tools": [SEE, NOW], "tool_choice": "required", "parallel_tool_calls": False}
    whole = called(ask(server, **asked))
    assert len(whole) == 1
    name, arguments = "", ""
    for chunk in ask(server, **asked, stream=True):
        for call in chunk.choices[0].delta.tool_calls or ():
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert whole == [(name, arguments)]


@pytest.mark.parametrize("limit", [8, 20, 53])
def test_a_required_call_has_no_content_when_it_is_cut(server, limit: int) -> None:
    asked: dict[str, Any] = {
        "tools": [SEE],
        "tool_choice": "required",
        "parallel_tool_calls": False,
    }
    asked["max_completion_tokens"] = limit
    choice = ask(server, **asked).choices[0]
    assert choice.message.content is None
    chunks = [chunk.choices[0].delta for chunk in ask(server, **asked, stream=True)]
    assert not any(delta.content for delta in chunks)
    assert chunks[0].content is None
    flat: dict[str, Any] = {
        "type": "function",
        "name": "see",
        "parameters": PARAMETERS,
        "strict": True,
    }
    body: dict[str, Any] = {
        "input": "Which animal do you see?",
        "tools": [flat],
        "tool_choice": "required",
    }
    body |= {"max_output_tokens": limit, "temperature": 1, "seed": 3}
    response = server.post("/v1/responses", json=body).json()
    assert {item["type"] for item in response["output"]} <= {"reasoning", "function_call"}


def test_structured_content_follows_the_reasoning(server) -> None:
    fields = {"extra_body": {"guided_choice": ["a cat", "a dog"]}}
    message = ask(server, **fields).choices[0].message
    assert message.content in ("a cat", "a dog", None)
    if message.content is None:
        assert message.reasoning_content


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, r"tools[0]"),
        ({"type": "object", "properties": {"a": {"$ref": "#/$defs/none"}}}, r"tools[0]"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_named(server, parameters, words) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": parameters}}
    body = {
        "messages": [{"role": "user", "content": "a"}],
        "tools": [tool],
        "tool_choice": "required",
    }
    answer = server.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == "tools"
    assert words in error["message"]
