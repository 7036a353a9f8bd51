"""GET /openapi.json: it is valid, names every route, and real responses match its schemas."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter

from specdecode_engine.serve import app
from specdecode_engine.serve.openai import response_models as models
from specdecode_engine.serve.openapi import OPERATIONS, Operation, build_document

CHAT = {"messages": [{"role": "user", "content": "the fox"}], "max_tokens": 3}
TEXT = {"prompt": "the fox", "max_tokens": 3}


@pytest.fixture(scope="module")
def document(echo_server) -> dict[str, Any]:
    answer = echo_server.get("/openapi.json")
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = answer.json()
    return found


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for each in value.values():
            yield from references(each)
    elif isinstance(value, list):
        for each in value:
            yield from references(each)


def test_every_reference_leads_to_a_schema(document):
    schemas = document["components"]["schemas"]
    found = {each.removeprefix("#/components/schemas/") for each in references(document)}
    assert found <= set(schemas)
    assert {"CompletionBody", "ChatBody", "TokenizeChatBody", "ErrorResponse"} <= found


def test_every_route_of_the_api_is_in_it_and_nothing_else(document):
    routes = {
        (route.path.replace(":path", ""), method.lower())
        for router in app.API
        for route in router.routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    listed = {(path, method) for path, item in document["paths"].items() for method in item}
    assert listed == routes


def test_ids_of_operations_are_unique():
    paths = build_document()["paths"]
    ids = [operation["operationId"] for item in paths.values() for operation in item.values()]
    assert len(ids) == len(set(ids)) == len(OPERATIONS)


def operation(path: str) -> Operation:
    return next(each for each in OPERATIONS if each.path == path)


def matches(model: type[BaseModel], value: object) -> None:
    """Check a response: it is valid, and its model has all of its fields."""
    parsed = TypeAdapter(model).validate_python(value, strict=True)
    assert undocumented(parsed, value) == []


def undocumented(parsed: object, value: object, place: str = "") -> list[str]:
    found: list[str] = []
    if isinstance(parsed, BaseModel) and isinstance(value, dict):
        for name, each in value.items():
            if not hasattr(parsed, name):
                found.append(f"{place}.{name}")
            else:
                found += undocumented(getattr(parsed, name), each, f"{place}.{name}")
    elif isinstance(parsed, list) and isinstance(value, list):
        for one, each in zip(parsed, value, strict=True):
            found += undocumented(one, each, f"{place}[]")
    return found


def test_a_field_without_a_model_is_noticed():
    with pytest.raises(AssertionError):
        matches(models.VersionResponse, {"version": "1", "more": 2})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", TEXT | {"logprobs": 2, "echo": True, "n": 2}),
        ("/v1/completions", TEXT),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 2}),
        ("/v1/chat/completions", CHAT),
        ("/v1/messages", CHAT),
        ("/v1/messages/count_tokens", CHAT),
        ("/tokenize", {"prompt": "the fox", "return_token_strs": True}),
        ("/tokenize", {"messages": CHAT["messages"]}),
        ("/detokenize", {"tokens": [5, 9]}),
    ],
)
def test_a_response_matches_its_schema(server, path, body):
    answer = server.post(path, json=body)
    assert answer.status_code == 200, answer.text
    matches(operation(path).response, answer.json())


@pytest.mark.parametrize("body", [{"logprobs": 1}, {"stream_options": {"include_usage": True}}])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_the_events_of_a_stream_match_their_schema(echo_server, path, body):
    base = CHAT if "chat" in path else TEXT
    body = {name: bool(value) if "chat" in path else value for name, value in body.items()} | (
        {} if "logprobs" in body else body
    )
    answer = echo_server.post(path, json=base | body | {"stream": True})
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    event = operation(path).event
    assert event is not None
    for each in events[:-1]:
        matches(event, json.loads(each))


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", TEXT),
        ("/v1/chat/completions", CHAT),
        ("/v1/responses", {"input": "the fox", "max_output_tokens": 3}),
        ("/v1/messages", CHAT),
    ],
)
def test_server_sent_events_are_documented_with_their_data(
    echo_server, document, path: str, body: dict[str, Any]
) -> None:
    """As OpenAPI models them: an object with `event` and `data`, whose text is JSON."""
    content = document["paths"][path]["post"]["responses"]["200"]["content"]
    schema = content["text/event-stream"]["schema"]
    data, *end = schema["properties"]["data"]["anyOf"]
    whole = {"components": document["components"]}
    answer = echo_server.post(path, json=body | {"stream": True})
    events = [
        dict(line.split(": ", 1) for line in event.splitlines())
        for event in answer.text.split("\n\n")[:-1]
    ]
    assert len(events) >= 2
    for event in events:
        jsonschema.validate(event, whole | schema)
    if end:
        assert events.pop() == {"data": end[0]["const"]}
    for event in events:
        jsonschema.validate(json.loads(event["data"]), whole | data["contentSchema"])


@pytest.mark.parametrize(
    "path", [each.path for each in OPERATIONS if each.method == "get" and "{" not in each.path]
)
def test_what_is_read_matches_its_schema(echo_server, path):
    answer = echo_server.get(path)
    assert answer.status_code == 200
    matches(operation(path).response, answer.json())


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/v1/completions", {"prompt": 5}, 400),
        ("/v1/chat/completions", CHAT | {"model": "other"}, 404),
        ("/v1/messages", CHAT | {"model": "other"}, 404),
        ("/v1/messages/count_tokens", {"thread": {}}, 400),
        ("/tokenize", {}, 400),
        ("/detokenize", {"tokens": [320]}, 400),
    ],
)
def test_an_error_matches_its_schema_and_its_status_is_listed(
    echo_server, document, path, body, status
):
    answer = echo_server.post(path, json=body)
    assert answer.status_code == status
    matches(operation(path).error, answer.json())
    assert str(status) in document["paths"][path]["post"]["responses"]
