"""POST /v1/messages over HTTP: blocks, stop reasons, events in order, token counts, refusals."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from specdecode_engine.serve.anthropic.messages_refusals import MESSAGES
from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.scripted import scripted_server

PATH, CHAT = "/v1/messages", "/v1/chat/completions"
TOOL = {
    "name": "get_weather",
    "description": "Weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
PARIS = '{"city": "Paris"}'
CALL = f'<tool_call>\n{{"name": "get_weather", "arguments": {PARIS}}}\n</tool_call>'
TEXT = f"<think>\nwhy not\n</think>\n\nthe fox\n{CALL}\n{CALL}"
BOTH = pytest.mark.parametrize("stream", [False, True])


@pytest.fixture(scope="module", params=[1, 7], ids=["one token a step", "seven tokens a step"])
def server(request, write_model, tmp_path_factory) -> Iterator[RunningServer]:
    options = {"tool_parser": "hermes", "reasoning_parser": "qwen3", "prompt_tokens_details": True}
    folder = tmp_path_factory.mktemp("messages")
    with scripted_server(write_model, folder, request.param, **options) as running:
        yield running


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def post(server: RunningServer, messages: Any, path: str = PATH, **fields: Any) -> httpx.Response:
    given = user(messages) if isinstance(messages, str) else messages
    body = {"model": "echo", "max_tokens": 500, "messages": given} | fields
    return server.post(path, json={name: each for name, each in body.items() if each is not None})


def events_of(response: httpx.Response) -> list[dict[str, Any]]:
    """The events of a stream, whose names are the types of their data."""
    assert response.headers["content-type"].startswith("text/event-stream")
    found = []
    for part in response.text.removesuffix("\n\n").split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def message_of(events: list[dict[str, Any]]) -> dict[str, Any]:
    """Put a stream together as clients do; it has no other events, in no other order."""
    first, *middle, delta, last = events
    assert first["type"] == "message_start"
    assert (delta["type"], last) == ("message_delta", {"type": "message_stop"})
    message: dict[str, Any] = first["message"]
    assert (message["content"], message["stop_reason"]) == ([], None)
    content, is_open = message["content"], False
    for event in middle:
        match event["type"]:
            case "content_block_start":
                assert not is_open
                assert event["index"] == len(content)
                block = event["content_block"]
                given = {"type", "id", "name", "signature"}
                assert not any(block[name] for name in block.keys() - given)
                content.append(block | ({"input": ""} if block["type"] == "tool_use" else {}))
                is_open = True
            case "content_block_delta":
                assert (is_open, event["index"]) == (True, len(content) - 1)
                _add(content[-1], event["delta"])
            case "content_block_stop":
                assert (is_open, event["index"]) == (True, len(content) - 1)
                is_open = False
            case other:
                raise AssertionError(other)
    assert not is_open
    return {**message, **delta["delta"], "usage": delta["usage"]}


FIELDS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "input",
}
PARTS = {"input_json_delta": "partial_json"}


def _add(block: dict[str, Any], delta: dict[str, Any]) -> None:
    field = FIELDS[delta["type"]]
    block[field] += delta[PARTS.get(delta["type"], field)]


def ask(
    server: RunningServer, messages: Any, stream: bool = False, **fields: Any
) -> dict[str, Any]:
    """Return the message, however it is sent, with the inputs of its calls as objects."""
    response = post(server, messages, stream=stream or None, **fields)
    assert response.status_code == 200, response.text
    if not stream:
        return dict(response.json())
    message = message_of(events_of(response))
    for block in message["content"]:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["input"] or "{}")
    return message


def seen(server: RunningServer, messages: Any, **fields: Any) -> Any:
    """Return the messages that the template got."""
    shown: dict[str, Any] = {"chat_template_kwargs": {"show": "messages"}}
    return json.loads(ask(server, messages, **shown, **fields)["content"][0]["text"])


@BOTH
def test_text_is_a_block(server: RunningServer, stream: bool) -> None:
    message = ask(server, "the quick fox", stream=stream, system="be brief")
    assert message["content"] == [{"type": "text", "text": "the quick fox"}]
    assert (message["stop_reason"], message["stop_sequence"]) == ("end_turn", None)
    assert (message["type"], message["role"], message["model"]) == ("message", "assistant", "echo")
    assert message["id"].startswith("msg_")


@BOTH
def test_thinking_text_and_calls_are_blocks(server: RunningServer, stream: bool) -> None:
    message = ask(server, TEXT, stream=stream, tools=[TOOL])
    thinking, text, first, second = message["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "why not")
    assert len(thinking["signature"]) > 20
    assert text == {"type": "text", "text": "the fox"}
    for call in (first, second):
        named = call["type"], call["name"], call["input"]
        assert named == ("tool_use", "get_weather", json.loads(PARIS))
        assert call["id"].startswith("toolu_")
    assert first["id"] != second["id"]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] > 0


@BOTH
def test_an_answer_without_text_has_no_block(server: RunningServer, stream: bool) -> None:
    message = ask(server, "", stream=stream)
    assert (message["content"], message["stop_reason"]) == ([], "end_turn")


@BOTH
@pytest.mark.parametrize(
    ("fields", "reason", "sequence", "text"),
    [
        ({}, "end_turn", None, "the quick brown fox"),
        ({"max_tokens": 2}, "max_tokens", None, None),
        ({"stop_sequences": ["zebra", " brown"]}, "stop_sequence", " brown", "the quick"),
        ({"stop_sequences": ["zebra"]}, "end_turn", None, "the quick brown fox"),
    ],
)
def test_the_stop_reason_names_what_ended_the_text(server, stream, fields, reason, sequence, text):
    message = ask(server, "the quick brown fox", stream=stream, **fields)
    assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)
    (block,) = message["content"]
    assert text is None or block["text"] == text


@pytest.mark.parametrize(
    ("arguments", "complete"),
    [
        ('{"city": "Paris", "days": 12', {"city": "Paris"}),
        ('{"city": "Par', {}),
        ('{"days": 12, "city": {"name": "Paris", "code": 7', {"days": 12}),
        ('{"days": [1, 2], "now": true', {"days": [1, 2], "now": True}),
    ],
)
def test_a_cut_call_has_its_complete_members_only(server, arguments, complete):
    cut = f'<tool_call>\n{{"name": "get_weather", "arguments": {arguments}'
    tokens = len(server.service.text.encode(cut))
    message = ask(server, cut + "5}" * 9, tools=[TOOL], max_tokens=tokens)
    assert message["stop_reason"] == "max_tokens"
    (call,) = message["content"]
    assert call["input"] == complete


def test_usage_counts_the_tokens_of_the_cache_apart(server: RunningServer) -> None:
    counted = post(server, "the fox", path=f"{PATH}/count_tokens", max_tokens=None).json()
    direct = ask(server, "the fox")["usage"]
    events = events_of(post(server, "the fox", stream=True))
    (delta,) = [event for event in events if event["type"] == "message_delta"]
    for usage in (direct, delta["usage"]):
        prompt = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert prompt == counted["input_tokens"] > 0
        assert usage["cache_creation_input_tokens"] == 0
        assert usage["output_tokens"] == len(server.service.text.encode("the fox")) + 1
    started = events[0]["message"]["usage"]
    assert (started["input_tokens"], started["output_tokens"]) == (counted["input_tokens"], 0)


CONVERSATION = [
    {"role": "user", "content": [{"type": "text", "text": "the weather"}]},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "why not", "signature": "anything"},
            {"type": "redacted_thinking", "data": "anything"},
            {"type": "text", "text": "the fox"},
            {"type": "tool_use", "id": "toolu_1", "name": "get_weather", "input": {"b": 1.0}},
            {"type": "tool_use", "id": "toolu_2", "name": "get_weather", "input": {}},
        ],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "sun"},
            {
                "type": "tool_result", "tool_use_id": "toolu_2", "is_error": True,
                "content": [{"type": "text", "text": "no"}, {"type": "text", "text": "city"}],
            },
            {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
        ],
    },
    {"role": "system", "content": "now"},
]  # fmt: skip
SYSTEM = [{"type": "text", "text": "you"}, {"type": "text", "text": "are a fox"}]
CALLS = [
    {"id": "toolu_1", "type": "function",
     "function": {"name": "get_weather", "arguments": '{"b": 1.0}'}},
    {"id": "toolu_2", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}},
]  # fmt: skip
AS_CHAT = [
    {"role": "system", "content": "you\nare a fox"},
    {"role": "user", "content": "the weather"},
    {
        "role": "assistant", "content": "the fox", "reasoning_content": "why not",
        "tool_calls": CALLS,
    },
    {"role": "tool", "tool_call_id": "toolu_1", "content": "sun"},
    {"role": "tool", "tool_call_id": "toolu_2", "content": "no\ncity", "is_error": True},
    {"role": "user", "content": "be brief"},
    {"role": "system", "content": "now"},
]  # fmt: skip


def test_a_conversation_is_that_of_chat(server: RunningServer) -> None:
    shown: dict[str, Any] = {"chat_template_kwargs": {"show": "messages"}, "max_tokens": 900}
    ours = ask(server, CONVERSATION, system=SYSTEM, tools=[TOOL], **shown)
    function = {
        "name": TOOL["name"],
        "description": TOOL["description"],
        "parameters": TOOL["input_schema"],
    }
    tools = [{"type": "function", "function": function}]
    body = {"messages": AS_CHAT, "tools": tools, **shown}
    theirs = server.post(CHAT, json=body).json()["choices"][0]["message"]
    assert ours["content"] == [{"type": "text", "text": theirs["content"]}]
    messages = json.loads(theirs["content"])
    roles = ["system", "user", "assistant", "tool", "tool", "user", "system"]
    assert [message["role"] for message in messages] == roles
    assert messages[4]["is_error"] is True
    given = {"system": SYSTEM, "tools": [TOOL], **shown}
    counted = post(server, CONVERSATION, path=f"{PATH}/count_tokens", **given).json()
    usage = ours["usage"]
    total = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted["input_tokens"] == total


def test_an_answer_is_accepted_back(server: RunningServer) -> None:
    content = ask(server, TEXT, tools=[TOOL])["content"]
    results = [
        {"type": "tool_result", "tool_use_id": block["id"], "content": "sun"}
        for block in content
        if block["type"] == "tool_use"
    ]
    history = [*user("q"), {"role": "assistant", "content": content}, *user(results)]
    messages = seen(server, history, max_tokens=900)
    assert [message["role"] for message in messages] == ["user", "assistant", "tool", "tool"]
    assert messages[1]["reasoning_content"] == "why not"
    calls = [call["id"] for call in messages[1]["tool_calls"]]
    assert calls == [message["tool_call_id"] for message in messages[2:]]


def test_a_last_message_of_the_assistant_is_continued(server: RunningServer) -> None:
    prefilled = [*user("q"), {"role": "assistant", "content": "the quick"}]
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    chat = server.post(CHAT, json={"messages": prefilled, "max_tokens": 5, **continued})
    assert chat.status_code == 200
    message = ask(server, prefilled, max_tokens=5)
    texts = [block["text"] for block in message["content"]]
    assert "".join(texts) == (chat.json()["choices"][0]["message"]["content"] or "")


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({"output_config": {"effort": "max"}}, "max "),
        ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, " True"),
        ({"thinking": {"type": "adaptive", "display": "summarized"}}, " True"),
        ({"thinking": {"type": "between_tools"}, "output_config": {"effort": "low"}}, "low True"),
        ({"thinking": {"type": "disabled"}}, "none False"),
        ({"thinking": {"type": "disabled"}, "output_config": {"effort": "high"}}, "high False"),
    ],
)
def test_thinking_and_effort_reach_the_template(server: RunningServer, fields, shown) -> None:
    options: dict[str, Any] = {"chat_template_kwargs": {"show": "effort"}}
    assert ask(server, "", **options, **fields)["content"][0]["text"] == shown


def test_thinking_is_left_out_when_its_display_is_omitted(server: RunningServer) -> None:
    thinking = {"type": "enabled", "display": "omitted"}
    message = ask(server, TEXT, tools=[TOOL], thinking=thinking)
    assert [block["type"] for block in message["content"]] == ["text", "tool_use", "tool_use"]


def test_tools_are_shown_as_those_of_chat(server: RunningServer) -> None:
    options: dict[str, Any] = {"chat_template_kwargs": {"show": "tools"}}
    tool = TOOL | {"type": "custom", "cache_control": {"type": "ephemeral"}}
    shown = json.loads(ask(server, "", tools=[tool], **options)["content"][0]["text"])
    assert shown == [
        {
            "type": "function",
            "function": {
                "name": TOOL["name"],
                "description": TOOL["description"],
                "parameters": TOOL["input_schema"],
            },
        }
    ]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "king", "content": "a"}]}, "messages[0].role"),
        (
            {"messages": [{"role": "system", "content": [{"type": "thinking", "thinking": "a"}]}]},
            "role system has no thinking",
        ),
        ({"messages": user([{"type": "image", "source": {}}])}, "messages[0].content[0].type"),
        ({"messages": user([{"type": "document"}])}, "'document'"),
        ({"messages": user([{"type": "text"}])}, "messages[0].content[0].text is missing"),
        (
            {"messages": user([{"type": "tool_use", "id": "a", "name": "f", "input": {}}])},
            "role user has no tool_use",
        ),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "web_search_20250305"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema is missing"),
        ({"tools": [TOOL | {"parameters": {"a": 1}}]}, "use input_schema"),
        ({"tools": [TOOL, TOOL]}, "twice"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "not in tools"),
        ({"tool_choice": {"type": "sometimes"}}, '"any"'),
        ({"thinking": {"type": "often"}}, "thinking.type"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": [{"url": "a"}]}, "mcp_servers"),
        ({"context_management": {"edits": [{"type": "compact"}]}}, "context_management"),
        ({"output_format": {"type": "json_schema"}}, "output_config.format"),
        ({"output_config": {"task_budget": {"total": 5}}}, "output_config.task_budget"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"stop": ["a"]}, "use stop_sequences"),
        ({"n": 2}, "n: "),
        ({"max_tokens": 10**6}, "set max_tokens to at most"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(echo_server, fields, words):
    response = post(echo_server, fields.pop("messages", "the fox"), **fields)
    assert response.status_code == 400, response.text
    body = response.json()
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert words in body["error"]["message"]


def test_each_refused_field_is_named_unless_it_changes_nothing(echo_server) -> None:
    for name, refusal in MESSAGES.items():
        wrong: dict[str, Any] = {name: 7}
        refused = post(echo_server, "the fox", **wrong)
        assert refused.status_code == 400
        assert refused.json()["error"]["message"].startswith(f"{name}: it is not supported")
        body = {"max_tokens": 2, "messages": user("the fox"), name: refusal.unless[-1]}
        assert echo_server.post(PATH, json=body).status_code == 200


def test_a_schema_that_cannot_be_enforced_is_named_by_its_field(server: RunningServer) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    tools = [TOOL, {"name": "f", "input_schema": schema, "strict": True}]
    refused = post(server, "the fox", tools=tools).json()["error"]["message"]
    assert "tools[1].input_schema: at $.properties.a" in refused
    config = {"format": {"type": "json_schema", "schema": schema}}
    refused = post(server, "the fox", output_config=config).json()["error"]["message"]
    assert refused.startswith("output_config.format.schema: at $.properties.a")


@pytest.mark.parametrize("thread", [{"type": "create"}, {"type": "continue"}])
@pytest.mark.parametrize("path", [PATH, f"{PATH}?beta=true", f"{PATH}/count_tokens"])
def test_threads_are_refused_with_the_code_that_clients_know(echo_server, path, thread):
    response = post(echo_server, "the fox", path=path, thread=thread)
    assert response.status_code == 400
    assert response.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


UNASKED: dict[str, Any] = {
    "metadata": {"user_id": "a"}, "service_tier": "auto", "speed": "fast", "diagnostics": {"a": 1},
    "inference_geo": "us", "stop_sequences": [], "system": [], "tools": [], "thread": None,
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
}  # fmt: skip


def test_what_clients_send_unasked_is_accepted(echo_server) -> None:
    for headers in ({}, {"anthropic-version": "2023-06-01", "anthropic-beta": "a,b"}):
        body = {"max_tokens": 5, "messages": user("the fox"), **UNASKED}
        response = echo_server.post(f"{PATH}?beta=true", json=body, headers=headers)
        assert response.status_code == 200, response.text


@pytest.mark.parametrize(
    ("path", "options", "status", "kind"),
    [
        (PATH, {"json": {"model": "other", "max_tokens": 1, "messages": user("a")}}, 404,
         "not_found_error"),
        (f"{PATH}/count_tokens", {"json": {"model": "other", "messages": user("a")}}, 404,
         "not_found_error"),
        (f"{PATH}/batches", {"json": {}}, 404, "not_found_error"),
        (PATH, {"content": b"{"}, 400, "invalid_request_error"),
        (PATH, {"content": b"{}", "headers": {"content-type": "text/plain"}}, 415,
         "invalid_request_error"),
        (PATH, {"content": b" " * (33 * 2**20)}, 413, "request_too_large"),
        (PATH, {"json": {}, "headers": {"x-request-id": "a b"}}, 400, "invalid_request_error"),
    ],
)  # fmt: skip
def test_every_failure_has_the_form_of_the_api(echo_server, path, options, status, kind):
    response = echo_server.post(path, **options)
    assert response.status_code == status
    body = response.json()
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert body["error"]["message"]
    assert body.keys() | body["error"].keys() == {"type", "error", "message", "details"} & (
        body.keys() | body["error"].keys()
    )


def test_another_method_is_refused_in_the_form_of_the_api(echo_server) -> None:
    response = echo_server.get(PATH)
    assert (response.status_code, response.json()["type"]) == (405, "error")


@BOTH
def test_structured_output_is_text_that_fits(built_server, stream: bool) -> None:
    schema = {
        "type": "object",
        "properties": {"legs": {"type": "integer", "minimum": 4, "maximum": 5}},
        "required": ["legs"],
        "additionalProperties": False,
    }
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = ask(built_server, "the fox", stream=stream, max_tokens=40, output_config=config)
    assert json.loads(message["content"][0]["text"])["legs"] in (4, 5)


def test_the_text_is_that_of_chat_on_a_real_model(built_server, drafting_server) -> None:
    sampling = {"max_tokens": 24, "temperature": 1, "top_p": 0.9, "seed": 5}
    body = {"messages": user("Which animal do you see?"), **sampling}
    choice = built_server.post(CHAT, json=body).json()["choices"][0]
    for server in (built_server, drafting_server):
        for stream in (False, True):
            message = ask(server, body["messages"], stream=stream, **sampling)
            assert (
                "".join(block["text"] for block in message["content"])
                == (choice["message"]["content"])
            )
