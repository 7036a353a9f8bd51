"""Every field of requests that vLLM, SGLang and two SDKs define: it works, is ignored or refused.

The rows are those of checks/peer_fields/request_fields.toml; the engine is a real one.
"""

import ast
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from checks.peer_fields.places import CHAT, COMPLETIONS, MESSAGES, RESPONSES
from checks.peer_fields.table import RequestField, Verdict, read_request_fields

ROOT = Path(__file__).parents[3]
TABLE = read_request_fields()
HERE = "tests/engine/serve/test_request_fields.py::test_an_answer_changes_with_a_field_that_works"

CONVERSATION = {"messages": [{"role": "user", "content": "the fox"}], "max_tokens": 12}
BODIES: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "the quick brown fox", "max_tokens": 12},
    CHAT: CONVERSATION,
    RESPONSES: {"input": "the fox", "max_output_tokens": 12},
    MESSAGES: CONVERSATION,
}
LENGTHS = {RESPONSES: "max_output_tokens"}
SCHEMA = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
OTHER_SCHEMA = {"type": "object", "properties": {"b": {"const": 2}}, "required": ["b"]}
NOT_ENFORCED = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
FUNCTION = {"name": "f", "description": "it looks", "parameters": NOT_ENFORCED}
TOOLS: dict[str, list[dict[str, Any]]] = {
    CHAT: [{"type": "function", "function": FUNCTION}],
    RESPONSES: [{"type": "function", **FUNCTION}],
    MESSAGES: [{"type": "custom", "name": "f", "description": "a", "input_schema": NOT_ENFORCED}],
}
FORMAT = {"type": "json_schema", "json_schema": {"schema": NOT_ENFORCED}}
OBJECTS: dict[str, dict[str, Any]] = {
    "stream_options": {"stream": True, "stream_options": {"include_usage": True}},
    "response_format": {"response_format": FORMAT},
    "text": {"text": {"format": {"type": "json_schema", "name": "s", "schema": NOT_ENFORCED}}},
    "thinking": {"thinking": {"type": "enabled"}},
}
"""What a body contains in which a field of an object is set."""


@dataclass(frozen=True)
class Probe:
    """A value that changes the answer to a body with `context`; `length` is that of the answer."""

    value: object
    context: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    length: int = 12


DRAWN = {"temperature": 2.0, "seed": 1}
LETTERS = ["a", "e", "i", "o", "t", " "]
LETTER_A, END, SPECIAL = 67, 2, 1
WORDS = {"logit_bias": {str(LETTER_A): 100}}
PROBES: dict[str, Probe] = {
    "add_generation_prompt": Probe(False),
    "allowed_token_ids": Probe([5]),
    "bad_words": Probe(["a"], WORDS),
    "continue_final_message": Probe(
        True,
        {
            "messages": [*CONVERSATION["messages"], {"role": "assistant", "content": "it"}],  # type: ignore[misc]
            "add_generation_prompt": False,
        },
    ),
    "ebnf": Probe('root ::= "x"'),
    "echo": Probe(True),
    "frequency_penalty": Probe(2, {"ignore_eos": True}, length=60),
    "ignore_eos": Probe(True, {"logit_bias": {str(END): 100}}),
    "include_stop_str_in_output": Probe(True, {"stop": LETTERS}),
    "input": Probe("the dog"),
    "instructions": Probe("answer"),
    "json_schema": Probe(json.dumps(SCHEMA)),
    "logit_bias": Probe({"5": 100}),
    "logprobs": Probe(1),
    "max_completion_tokens": Probe(3),
    "max_output_tokens": Probe(3),
    "max_tokens": Probe(3),
    "messages": Probe([{"role": "user", "content": "the dog"}]),
    "min_p": Probe(1.0, DRAWN),
    "min_tokens": Probe(5, WORDS | {"stop_token_ids": [LETTER_A]}),
    "model": Probe("other", status=404),
    "n": Probe(2),
    "no_stop_trim": Probe(True, {"stop": LETTERS}),
    "output_config": Probe({"format": {"type": "json_schema", "schema": SCHEMA}}),
    "output_config.format": Probe({"type": "json_schema", "schema": SCHEMA}),
    "presence_penalty": Probe(2, {"ignore_eos": True}, length=60),
    "prompt": Probe("the dog"),
    "prompt_logprobs": Probe(1),
    "regex": Probe("[0-9]{3}"),
    "repetition_penalty": Probe(10, {"ignore_eos": True}, length=60),
    "response_format": Probe({"type": "json_object"}),
    "response_format.json_schema": Probe(
        {"schema": OTHER_SCHEMA},
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
    ),
    "response_format.json_schema.schema": Probe(SCHEMA),
    "response_format.json_schema.strict": Probe(True, status=400),
    "response_format.type": Probe("json_object", {"response_format": {"type": "text"}}),
    "return_token_ids": Probe(True),
    "seed": Probe(2, DRAWN),
    "skip_special_tokens": Probe(False, {"logit_bias": {str(SPECIAL): 100}}),
    "stop": Probe(LETTERS),
    "stop_sequences": Probe(LETTERS),
    "stop_token_ids": Probe([LETTER_A], WORDS),
    "stream": Probe(True),
    "stream_options": Probe({"include_usage": True}, {"stream": True}),
    "stream_options.continuous_usage_stats": Probe(True),
    "stream_options.include_usage": Probe(False),
    "structured_outputs": Probe({"regex": "[0-9]{3}"}),
    "system": Probe("answer"),
    "temperature": Probe(2.0, {"seed": 1}),
    "text": Probe({"format": {"type": "json_object"}}),
    "text.format": Probe({"type": "json_object"}, {"text": {}}),
    "text.format.schema": Probe(SCHEMA),
    "text.format.strict": Probe(True, status=400),
    "text.format.type": Probe("json_object", {"text": {"format": {"type": "text"}}}),
    "tools[].description": Probe("it looks at many things"),
    "tools[].format": Probe(
        {"type": "grammar", "definition": "a"}, {"tools": [{"type": "custom", "name": "f"}]}
    ),
    "tools[].function": Probe({"name": "another"}),
    "tools[].function.description": Probe("it looks at many things"),
    "tools[].function.name": Probe("another"),
    "tools[].function.parameters": Probe(SCHEMA),
    "tools[].function.strict": Probe(True, status=400),
    "tools[].input_schema": Probe(SCHEMA),
    "tools[].name": Probe("another"),
    "tools[].parameters": Probe(SCHEMA),
    "tools[].strict": Probe(True, status=400),
    "tools[].type": Probe("mcp", status=400),
    "top_k": Probe(1, DRAWN),
    "top_logprobs": Probe(2, {"logprobs": True}),
    "top_p": Probe(0, DRAWN),
    "truncate_prompt_tokens": Probe(2),
    "truncation_side": Probe("right", {"truncate_prompt_tokens": 2}),
}
"""By the name of the field; a probe of one path is in PATH_PROBES."""
PATH_PROBES: dict[tuple[str, str], Probe] = {
    (CHAT, "logprobs"): Probe(True),
    (CHAT, "tools"): Probe(TOOLS[CHAT]),
    (RESPONSES, "tools"): Probe(TOOLS[RESPONSES]),
    (MESSAGES, "tools"): Probe(TOOLS[MESSAGES]),
    (CHAT, "tool_choice"): Probe("none", {"tools": TOOLS[CHAT]}),
    (RESPONSES, "tool_choice"): Probe("none", {"tools": TOOLS[RESPONSES]}),
    (MESSAGES, "tool_choice"): Probe({"type": "none"}, {"tools": TOOLS[MESSAGES]}),
}


@pytest.fixture(scope="module")
def client(built_server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=built_server.url, timeout=30) as client:
        yield client


def rows(verdict: Verdict) -> list[Any]:
    return [
        pytest.param(row, id=f"{row.path}:{row.name}")
        for row in TABLE.rows
        if row.verdict is verdict and row.test in (None, HERE)
    ]


def context_of(row: RequestField) -> dict[str, Any]:
    """Return what a body needs in which the row's field is set."""
    first, _, nested = row.name.partition(".")
    if first == "tools[]":
        return {"tools": TOOLS[row.path]}
    is_whole = not nested and row.verdict is not Verdict.IGNORED
    return {} if is_whole else OBJECTS.get(first, {})


NAMES_OF_ONE_CALL = {"id", "created", "created_at", "completed_at", "item_id", "call_id"}


def stable(value: Any) -> Any:
    """Return what an answer consists of, without what differs in every call."""
    if isinstance(value, dict):
        return {key: stable(each) for key, each in value.items() if key not in NAMES_OF_ONE_CALL}
    return [stable(each) for each in value] if isinstance(value, list) else value


def ask(client: httpx.Client, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    """Return the status and the answer; of a response only what the model and the engine made."""
    answer = client.post(path, json=BODIES[path] | {"temperature": 0} | body)
    if answer.headers["content-type"].startswith("text/event-stream"):
        lines = answer.text.split("\n")
        data = [line[6:] for line in lines if line.startswith("data: {")]
        return answer.status_code, stable([json.loads(each) for each in data])
    found = answer.json()
    if path == RESPONSES and "output" in found:
        found = {name: found[name] for name in ("output", "usage", "status")}
    return answer.status_code, stable(found)


@pytest.mark.parametrize("row", rows(Verdict.WORKS))
def test_an_answer_changes_with_a_field_that_works(client, row: RequestField) -> None:
    probe = PATH_PROBES.get((row.path, row.name)) or PROBES[row.name]
    length = {LENGTHS.get(row.path, "max_tokens"): probe.length}
    body = length | context_of(row) | probe.context
    status, without = ask(client, row.path, body)
    assert status == 200, without
    status, changed = ask(client, row.path, row.set_in(body, probe.value))
    assert status == probe.status, changed
    assert changed != without


def counted(client: httpx.Client) -> dict[str, float]:
    prefix = "specdecode_ignored_fields_total{"
    lines = [line for line in client.get("/metrics").text.splitlines() if line.startswith(prefix)]
    return {line.split('field="')[1].split('"')[0]: float(line.split()[-1]) for line in lines}


@pytest.mark.parametrize("row", rows(Verdict.IGNORED))
def test_an_answer_does_not_depend_on_an_ignored_field(client, row: RequestField) -> None:
    body = context_of(row)
    without = ask(client, row.path, body)
    before = counted(client)
    assert ask(client, row.path, row.set_in(body, row.value)) == without
    assert without[0] == 200
    *_, last = row.name.split(".")
    if row.name not in DECLARED:
        assert counted(client)[last] == before.get(last, 0) + 1


DECLARED = {
    "include", "stream_options", "thinking.budget_tokens", "response_format.json_schema.name",
    "response_format.json_schema.description", "text.format.name", "text.format.description",
}  # fmt: skip
"""Ignored fields that are read, checked and not counted."""


@pytest.mark.parametrize("row", rows(Verdict.REFUSED))
def test_a_refused_field_is_named_with_a_remedy(client, row: RequestField) -> None:
    status, found = ask(client, row.path, row.set_in(context_of(row), row.value))
    assert status == 400
    message = found["error"]["message"]
    name = row.name.replace("[]", "[0]")
    assert message.startswith(name)
    assert len(message) > len(name) + 15, "a remedy"
    if row.path != MESSAGES:
        assert found["error"]["param"] == name


def test_the_test_of_each_field_that_works_exists() -> None:
    named = {row.test for row in TABLE.rows if row.test is not None}
    for file in sorted({name.partition("::")[0] for name in named}):
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        tests = {f"{file}::{node.name}" for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert not {name for name in named if name.startswith(f"{file}::")} - tests


def test_no_probe_is_left_without_a_row() -> None:
    names = {row.name for row in TABLE.rows if row.test == HERE}
    assert PROBES.keys() | {name for _, name in PATH_PROBES} == names
