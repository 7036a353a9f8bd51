"""Forms of `tool_choice` that clients send, and what they mean for prompt, grammar and response."""

import json
from typing import Any

import pytest

from specdecode_engine.serve import errors
from specdecode_engine.serve.json_body import parse_json
from specdecode_engine.serve.openai import message_constraint
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.formatting import ResponseHead
from specdecode_engine.serve.openai.responses.api import as_chat
from specdecode_engine.serve.openai.responses.formatter import ResponsesFormatter
from specdecode_engine.serve.openai.responses.protocol import ResponsesBody
from specdecode_engine.serve.openai.tool_choice import ToolChoice
from specdecode_engine.serve.text.tokenizer import Vocabulary

CHAT_TOOLS = [{"type": "function", "function": {"name": name}} for name in ("f", "g", "h")]
FLAT_TOOLS = [{"type": "function", "name": name} for name in ("f", "g", "h")]
NAMED = ToolChoice("required", "f")
BOTH = ("f", "h")
FORMS: list[tuple[Any, ToolChoice | None]] = [
    (None, None),
    ("none", ToolChoice("none")),
    ("auto", ToolChoice("auto")),
    ("required", ToolChoice("required")),
    ("any", ToolChoice("required")),
    ({"type": "auto"}, ToolChoice("auto")),
    ({"type": "none"}, ToolChoice("none")),
    ({"type": "any"}, ToolChoice("required")),
    (
        {"type": "any", "disable_parallel_tool_use": True},
        ToolChoice("required", is_parallel=False),
    ),
    ({"type": "function", "function": {"name": "f"}}, NAMED),
    ({"type": "function", "name": "f"}, NAMED),
    ({"type": "tool", "name": "f"}, NAMED),
    (
        {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        ToolChoice("required", "f", is_parallel=False),
    ),
    (
        {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "required", "tools": [CHAT_TOOLS[0], CHAT_TOOLS[2]]},
        },
        ToolChoice("required", allowed=BOTH),
    ),
    (
        {"type": "allowed_tools", "mode": "auto", "tools": [FLAT_TOOLS[0], FLAT_TOOLS[2]]},
        ToolChoice("auto", allowed=BOTH),
    ),
]


def chat(choice: Any, **fields: Any) -> ChatBody:
    body = {"messages": [{"role": "user", "content": "a"}], "tools": CHAT_TOOLS, **fields}
    return parse_json(ChatBody, json.dumps({**body, "tool_choice": choice}).encode())


def responses(choice: Any) -> ResponsesBody:
    body = {"input": "a", "tools": FLAT_TOOLS, "tool_choice": choice}
    return parse_json(ResponsesBody, json.dumps(body).encode())


@pytest.mark.parametrize(("form", "meaning"), FORMS)
def test_a_choice_means_the_same_when_its_form_differs(form, meaning) -> None:
    assert chat(form).tool_choice == meaning
    assert responses(form).tool_choice == meaning
    assert as_chat(responses(form)).tool_choice == meaning


@pytest.mark.parametrize(
    ("choice", "offered", "callable_names", "is_required", "is_parallel"),
    [
        (FORMS[1][0], "", "", False, True),
        (FORMS[2][0], "fgh", "fgh", False, True),
        (FORMS[8][0], "fgh", "fgh", True, False),
        (FORMS[9][0], "fgh", "f", True, True),
        (FORMS[12][0], "fgh", "f", True, False),
        (FORMS[13][0], "fh", "fh", True, True),
        (FORMS[14][0], "fh", "fh", False, True),
    ],
)
def test_prompt_and_grammar_follow_when_tools_are_chosen(
    choice, offered, callable_names, is_required, is_parallel
) -> None:
    body = chat(choice)
    assert "".join(tool.function.name for tool in body.offered_tools) == offered
    assert (body.requires_calls, body.is_parallel) == (is_required, is_parallel)
    schemas = message_constraint.callable_tools(body)
    assert "".join(schema.name for schema in schemas) == callable_names
    for schema in schemas:  # the place is that in the request
        assert schema.place == f"tools[{'fgh'.index(schema.name)}].function.parameters"
    assert not chat(choice, parallel_tool_calls=False).is_parallel


def test_one_call_at_a_time_is_a_field_of_both_apis() -> None:
    body = {"input": "a", "tools": FLAT_TOOLS, "parallel_tool_calls": False}
    read = parse_json(ResponsesBody, json.dumps(body).encode())
    assert not as_chat(read).is_parallel
    assert not chat("auto", parallel_tool_calls=False).is_parallel


def test_a_custom_tool_is_chosen_in_responses_alone() -> None:
    choice = {"type": "custom", "name": "f"}
    assert responses(choice).tool_choice == NAMED
    with pytest.raises(errors.HttpError, match="no choice has this form"):
        chat(choice)


@pytest.mark.parametrize(
    "choice",
    [
        "sometimes",
        7,
        [],
        {},
        {"type": "web_search"},
        {"type": "custom", "name": ""},
        {"type": "function"},
        {"type": "function", "name": ""},
        {"type": "function", "function": {}},
        {"function": {"name": "f"}},
        {"type": "allowed_tools"},
        {"type": "allowed_tools", "mode": "auto", "tools": []},
        {"type": "allowed_tools", "mode": "none", "tools": [CHAT_TOOLS[0]]},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp", "server_label": "a"}]},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required"}},
    ],
)
def test_the_forms_are_shown_when_a_choice_has_another(choice) -> None:
    for read, form in (
        (chat, '{"type": "function", "function": {"name": …}}'),
        (responses, '{"type": "function", "name": …}'),
    ):
        with pytest.raises(errors.HttpError) as caught:
            read(choice)
        error = caught.value.body["error"]
        assert isinstance(error, dict)
        assert error["param"] == "tool_choice"
        assert form in error["message"]
        assert "required" in error["message"]
        assert "Input should be" not in error["message"]


@pytest.mark.parametrize("choice", [{"type": "tool", "name": "x"}, {**FORMS[13][0]}])
def test_a_choice_is_refused_when_it_names_no_tool(choice) -> None:
    with pytest.raises(errors.HttpError, match=r"not in tools|there are no tools"):
        chat(choice, tools=[CHAT_TOOLS[1]])
    with pytest.raises(errors.HttpError, match="tool_choice"):
        chat(choice, tools=[])


@pytest.mark.parametrize(("form", "meaning"), FORMS)
def test_a_response_repeats_the_choice_when_it_has_another_form(byte_level, form, meaning) -> None:
    head = ResponseHead("r", 7, "m")
    formatter = ResponsesFormatter(responses(form), head, Vocabulary(byte_level))
    (created, _) = formatter.first_events()
    shown = created["response"]["tool_choice"]
    assert responses(shown).tool_choice == (
        ToolChoice("auto")
        if meaning is None
        else ToolChoice(meaning.mode, meaning.named, meaning.allowed)
    )
    assert isinstance(shown, str) or "function" not in shown
