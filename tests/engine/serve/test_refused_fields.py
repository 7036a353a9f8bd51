"""Fields by which an engine changes an answer are honoured or refused, and the rest is counted."""

import logging
from typing import Any

import pytest
from pydantic import BaseModel

from specdecode_engine.serve.anthropic.messages_protocol import MessagesBody
from specdecode_engine.serve.anthropic.messages_refusals import MESSAGES as MESSAGES_FIELDS
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.ignored_fields import MAX_LOGGED_NAMES, IgnoredFields
from specdecode_engine.serve.openai.protocol import CompletionBody
from specdecode_engine.serve.openai.refused_fields import (
    CHAT,
    COMMON,
    COMPLETIONS,
    DETOKENIZE,
    IGNORED,
    RESPONSES,
    TOKENIZE,
    RefusedFields,
)
from specdecode_engine.serve.openai.responses.protocol import ResponsesBody

MESSAGES = [{"role": "user", "content": "the fox"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "the quick brown fox", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/responses": {"input": "the fox", "max_output_tokens": 1},
    "/tokenize": {"prompt": "the fox"},
    "/detokenize": {"tokens": [1, 2]},
}
OWN: dict[str, RefusedFields] = {
    "/v1/completions": {**COMMON, **COMPLETIONS},
    "/v1/chat/completions": {**COMMON, **CHAT},
    "/v1/responses": {**COMMON, **RESPONSES},
    "/tokenize": TOKENIZE,
    "/detokenize": DETOKENIZE,
}
CHAT_PATH, RESPONSES_PATH = "/v1/chat/completions", "/v1/responses"
FUNCTION: dict[str, Any] = {"name": "f", "parameters": {"type": "object", "properties": {}}}
SCHEMA = {
    "type": "object",
    "properties": {"zz": {"const": 1}},
    "required": ["zz"],
    "additionalProperties": False,
}


def refused(server, path, fields):
    answer = server.post(path, json=BODIES[path] | fields)
    assert answer.status_code == 400, (path, fields, answer.text)
    error = answer.json()["error"]
    assert len(error["message"]) > len(error["param"]) + 15, "a remedy"
    return error["param"]


def accept(server, path, fields):
    answer = server.post(path, json=BODIES[path] | fields)
    assert answer.status_code == 200, (path, fields, answer.text)
    return answer.json()


@pytest.mark.parametrize("path", OWN)
def test_a_field_that_changes_answers_is_refused_by_name(echo_server, path):
    for name in OWN[path]:
        assert refused(echo_server, path, {name: 7}) == name


@pytest.mark.parametrize("path", OWN)
def test_a_refused_field_is_accepted_with_values_that_change_nothing(echo_server, path):
    for index in (0, -1):
        off = {name: refusal.unless[index] for name, refusal in OWN[path].items()}
        assert off
        accept(echo_server, path, off)


def test_the_tables_name_no_field_that_is_read_or_ignored():
    declared: dict[str, type[BaseModel]] = {
        "/v1/completions": CompletionBody,
        "/v1/chat/completions": ChatBody,
        "/v1/responses": ResponsesBody,
        "/v1/messages": MessagesBody,
    }
    tables = {**OWN, "/v1/messages": MESSAGES_FIELDS}
    for path, body in declared.items():
        names = set(body.model_fields)
        names |= {field.alias for field in body.model_fields.values() if field.alias}
        assert not (names - {"best_of"}) & tables[path].keys() - {"stop"}
    assert not IGNORED & (COMMON.keys() | CHAT.keys() | COMPLETIONS.keys() | RESPONSES.keys())
    assert not IGNORED & MESSAGES_FIELDS.keys()


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        (CHAT_PATH, {"tools": [{"type": "function", "function": FUNCTION | {"schema": {"a": 1}}}]},
         "tools[0].function.schema"),
        (CHAT_PATH, {"tools": [{"type": "function", "function": FUNCTION, "strict": True}]},
         "tools[0].strict"),
        (RESPONSES_PATH, {"tools": [{"type": "function", **FUNCTION, "input_schema": {"a": 1}}]},
         "tools[0].input_schema"),
        (RESPONSES_PATH, {"max_tokens": 4}, "max_tokens"),
        (RESPONSES_PATH, {"prompt_cache_options": {"mode": "implicit", "prewarm": True}},
         "prompt_cache_options.prewarm"),
        (RESPONSES_PATH, {"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        (CHAT_PATH, {"thinking": {"type": "enabled", "budget_tokens": 9}},
         "thinking.budget_tokens"),
        (RESPONSES_PATH, {"text": {"format": {"type": "text", "schema": SCHEMA}}},
         "text.format.schema"),
        (RESPONSES_PATH, {"text": {"format": {"type": "json_object", "json_schema": SCHEMA}}},
         "text.format.json_schema"),
        (CHAT_PATH, {"response_format": {"type": "json_object", "json_schema": {"schema": SCHEMA}}},
         "response_format.json_schema"),
        (CHAT_PATH, {"response_format": {"type": "text", "schema": SCHEMA}},
         "response_format.schema"),
        (CHAT_PATH, {"response_format": {"type": "json_object", "jsonschema": SCHEMA}},
         "response_format.jsonschema"),
        (CHAT_PATH, {"response_format": {"type": "json_schema",
                                         "json_schema": {"schema": {}, "strikt": True}}},
         "response_format.json_schema.strikt"),
        (CHAT_PATH, {"structured_outputs": {}}, "structured_outputs"),
        (CHAT_PATH, {"structured_outputs": {"json": None}}, "structured_outputs"),
        (CHAT_PATH, {"structured_outputs": {"jsonschema": SCHEMA}},
         "structured_outputs.jsonschema"),
        (CHAT_PATH, {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " "}},
         "structured_outputs.whitespace_pattern"),
    ],
)  # fmt: skip
def test_a_constraint_inside_an_object_is_refused_by_its_path(echo_server, path, fields, param):
    assert refused(echo_server, path, fields) == param


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (CHAT_PATH, {"response_format": {"type": "json_object", "schema": SCHEMA}}),
        (CHAT_PATH, {"response_format": {"type": "json_schema", "schema": SCHEMA, "name": "s"}}),
        (CHAT_PATH, {"response_format": {"type": "json_schema", "json_schema":
                                         {"name": "s", "description": "d", "schema": SCHEMA}}}),
        (CHAT_PATH, {"json_schema": SCHEMA}),
        (CHAT_PATH, {"structured_outputs": {"json": SCHEMA, "disable_fallback": True}}),
        (CHAT_PATH, {"grammar": 'root ::= "{\\"zz\\":1}"'}),
        (RESPONSES_PATH, {"text": {"format": {"type": "json_object", "schema": SCHEMA}}}),
        (RESPONSES_PATH, {"text": {"format": {"type": "json_schema", "name": "s",
                                              "description": "d", "schema": SCHEMA}}}),
    ],
)  # fmt: skip
def test_a_constraint_in_the_form_of_a_peer_is_followed(built_server, path, fields):
    limit = {"max_output_tokens": 60} if path == RESPONSES_PATH else {"max_tokens": 60}
    answer = accept(built_server, path, fields | limit | {"temperature": 1.0, "seed": 2})
    if path == RESPONSES_PATH:
        text = answer["output"][-1]["content"][0]["text"]
    else:
        text = answer["choices"][0]["message"]["content"]
    assert "".join(text.split()) == '{"zz":1}'


UNASKED: dict[str, Any] = {
    "prompt_cache_key": "k", "client_metadata": {"a": 1}, "store": False, "service_tier": "auto",
    "prediction": {"type": "content", "content": "x"}, "chat_id": "1", "metadata": {"a": "b"},
    "options": {"num_ctx": 2048}, "keep_alive": "5m", "think": True, "num_ctx": 2048,
    "repeat_penalty": 1.0, "user": "u", "parallel_tool_calls": True, "verbosity": "medium",
    "xyzzy": [1],
}  # fmt: skip


def test_what_clients_send_unasked_is_accepted(echo_server):
    tool = {"type": "function", "function": FUNCTION | {"strict": False}, "cache_control": {}}
    accept(echo_server, "/v1/completions", UNASKED)
    accept(echo_server, CHAT_PATH, UNASKED)
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema"} | SCHEMA
    accept(
        echo_server,
        CHAT_PATH,
        {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}},
    )
    accept(
        echo_server,
        RESPONSES_PATH,
        UNASKED
        | {
            "reasoning": {"summary": "auto"},
            "include": ["reasoning.encrypted_content"],
            "text": {"verbosity": "low"},
        },
    )
    body = ChatBody.model_validate({"messages": MESSAGES, "tools": [tool]})
    assert body.tools is not None
    assert body.tools[0].for_template() == {
        "type": "function",
        "function": FUNCTION | {"strict": False},
    }


def test_ignored_fields_are_counted_by_known_names_only(echo_server):
    def counts():
        lines = echo_server.get("/metrics").text.splitlines()
        prefix = "specdecode_ignored_fields_total{"
        return {
            line.split('field="')[1].split('"')[0]: float(line.split()[-1])
            for line in lines
            if line.startswith(prefix)
        }

    seen = []
    for path, fields in (
        (CHAT_PATH, {"rid": "r", "xyzzy": 1, "plugh": 2}),
        (CHAT_PATH, {"stream": True, "stream_options": {"include_obfuscation": True}}),
        (RESPONSES_PATH, {"reasoning": {"summary": "auto"}, "text": {"verbosity": "low"}}),
        ("/tokenize", {"rid": "r"}),
        ("/detokenize", {"xyzzy": 1}),
    ):
        before = counts()
        answer = echo_server.post(path, json=BODIES[path] | fields)
        assert answer.status_code == 200, answer.text
        seen.append({k: v - before.get(k, 0) for k, v in counts().items() if v != before.get(k, 0)})
    assert seen == [
        {"rid": 1, "other": 2},
        {"include_obfuscation": 1},
        {"summary": 1, "verbosity": 1},
        {"rid": 1},
        {"other": 1},
    ]


def test_an_ignored_name_is_logged_once_without_its_value(caplog):
    caplog.set_level(logging.INFO)
    noted = IgnoredFields(lambda label, number: None)
    for number in range(3):
        noted.note(CompletionBody.model_validate({"prompt": "x", "xyz\nzy": f"secret{number}"}))
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert "'xyz\\nzy'" in lines[0]
    assert "secret" not in lines[0]
    for number in range(2 * MAX_LOGGED_NAMES):
        noted.note(CompletionBody.model_validate({"prompt": "x", f"name{number}": 1}))
    assert len(caplog.records) == MAX_LOGGED_NAMES


def test_special_tokens_of_a_text_prompt_are_left_out_on_request(echo_server):
    counts = [
        accept(echo_server, "/v1/completions", {"add_special_tokens": adds})["usage"][
            "prompt_tokens"
        ]
        for adds in (True, False)
    ]
    expected = [
        accept(
            echo_server,
            "/tokenize",
            {"prompt": BODIES["/v1/completions"]["prompt"], "add_special_tokens": adds},
        )["count"]
        for adds in (True, False)
    ]
    assert counts == expected
