"""Stored responses over HTTP with the official client: read, continued, deleted, by their owner."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from specdecode_engine.serve.control.response_store import RECORD_BYTES
from specdecode_engine.serve.openai.responses.models import (
    DeletedResponse,
    InputItemList,
    ResponseObject,
)
from tests.engine.serve.conftest import RunningServer, real_server
from tests.engine.serve.scripted import scripted_server
from tests.engine.serve.test_openapi import matches
from tests.engine.serve.test_responses import CALL, TOOL

KEY, OTHER = "sk-first-3f9c1d77", "sk-other-b2e04a58"
MIB = 2**20


@pytest.fixture(scope="module")
def server(write_model: Callable[..., Path], tmp_path_factory: Any) -> Iterator[RunningServer]:
    """A server that answers with the last message, and stores it; it knows two keys."""
    folder = tmp_path_factory.mktemp("stored")
    (folder / "keys").write_text(f"{KEY}\n{OTHER}\n")
    options: dict[str, Any] = {"tool_parser": "hermes", "reasoning_parser": "qwen3"}
    options |= {"api_key_path": str(folder / "keys"), "response_store_bytes": MIB}
    with scripted_server(write_model, folder / "model", 3, **options) as running:
        yield running


@pytest.fixture(scope="module")
def storing_server() -> Iterator[RunningServer]:
    """A server on the real core without keys."""
    running = real_server({}, context_length=1024, response_store_bytes=MIB)
    yield running.wait_ready()
    running.close()


@pytest.fixture(scope="module")
def client(server: RunningServer) -> Any:
    return connect(server, KEY)


def connect(server: RunningServer, key: str = "none") -> Any:
    return server.connect(is_strict=True).with_options(api_key=key)


def messages(client: Any, value: Any, **fields: Any) -> Any:
    """Return the messages that the template got."""
    body = {"chat_template_kwargs": {"show": "messages"}}
    response = client.responses.create(model="echo", input=value, extra_body=body, **fields)
    return json.loads(response.output_text)


def not_found(call: Callable[[], object]) -> dict[str, Any]:
    with pytest.raises(openai.NotFoundError) as caught:
        call()
    error = caught.value.response.json()["error"]
    assert error["code"] == "response_not_found"
    return dict(error)


def test_a_response_is_kept_unless_store_is_false(client: Any) -> None:
    for fields in ({}, {"store": True}, {"store": None}):
        made = client.responses.create(model="echo", input="the fox", **fields)
        assert (made.store, made.previous_response_id) == (True, None)
        assert client.responses.retrieve(made.id) == made
    made = client.responses.create(model="echo", input="the fox", store=False)
    assert made.store is False
    not_found(lambda: client.responses.retrieve(made.id))


def test_an_id_has_128_random_bits_and_none_of_the_key(server: RunningServer) -> None:
    names = [connect(server, KEY).responses.create(model="echo", input="x").id for _ in range(3)]
    assert all(re.fullmatch("resp_[0-9a-f]{48}", each) for each in names)
    assert len({each[5:37] for each in names}) == 3


def test_a_streamed_response_can_be_read_at_its_last_event(client: Any) -> None:
    for event in client.responses.create(model="echo", input="the fox", stream=True):
        if event.type == "response.completed":
            assert client.responses.retrieve(event.response.id) == event.response
            assert event.response.store is True
            return
    raise AssertionError("the stream did not complete")


def test_a_deleted_response_is_gone(server: RunningServer, client: Any) -> None:
    made = client.responses.create(model="echo", input="the fox")
    url, headers = f"{server.url}/v1/responses/{made.id}", {"authorization": f"Bearer {KEY}"}
    body = httpx.delete(url, headers=headers).json()
    assert body == {"id": made.id, "object": "response", "deleted": True}
    not_found(lambda: client.responses.retrieve(made.id))
    not_found(lambda: client.responses.delete(made.id))


def test_a_response_continues_another_without_its_instructions(client: Any) -> None:
    first = client.responses.create(
        model="echo", input="the fox", instructions="be brief", tools=[TOOL]
    )
    second = client.responses.create(
        model="echo", input="the dog", previous_response_id=first.id, instructions="be kind"
    )
    assert second.previous_response_id == first.id
    client.responses.delete(first.id)
    assert messages(client, "the sun", previous_response_id=second.id) == [
        {"role": "user", "content": "the fox"},
        {"role": "assistant", "content": "the fox"},
        {"role": "user", "content": "the dog"},
        {"role": "assistant", "content": "the dog"},
        {"role": "user", "content": "the sun"},
    ]


def test_a_call_and_its_result_continue_a_response(client: Any) -> None:
    text = f"<think>\nwhy\n</think>\n\nfine\n{CALL}"
    first = client.responses.create(model="echo", input=text, tools=[TOOL])
    call = first.output[-1]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}
    whole = [{"role": "user", "content": text}, *(each.to_dict() for each in first.output), result]
    chained = messages(client, [result], previous_response_id=first.id, tools=[TOOL])
    assert chained == messages(client, whole, store=False, tools=[TOOL])
    assert [each["role"] for each in chained] == ["user", "assistant", "tool"]


def test_a_chained_answer_equals_that_to_the_conversation(storing_server: RunningServer) -> None:
    client, options = connect(storing_server), {"model": "echo", "max_output_tokens": 12}
    first = client.responses.create(input="the fox", temperature=0, **options)
    second = client.responses.create(
        input="the dog", previous_response_id=first.id, temperature=0, **options
    )
    whole: list[Any] = [{"role": "user", "content": "the fox"}]
    whole += [each.to_dict() for each in first.output]
    for chained_to, last in ((first, "the dog"), (second, "and then it sleeps")):
        whole.append({"role": "user", "content": last})
        sampled = {"temperature": 1.0, "extra_body": {"seed": 7}}
        chained = client.responses.create(
            input=last, previous_response_id=chained_to.id, **options, **sampled
        )
        alone = client.responses.create(input=whole, store=False, **options, **sampled)
        assert chained.output_text == alone.output_text != ""
        assert chained.usage.input_tokens == alone.usage.input_tokens
        whole += [each.to_dict() for each in second.output]


def test_items_of_stored_responses_are_resolved(client: Any) -> None:
    first = client.responses.create(model="echo", input=f"fine\n{CALL}", tools=[TOOL])
    (sent,) = client.responses.input_items.list(first.id).data
    references: list[Any] = [{"type": "item_reference", "id": sent.id}]
    references += [{"id": each.id} for each in first.output]
    got = messages(client, [*references, {"role": "user", "content": "so?"}], tools=[TOOL])
    assert [each["role"] for each in got] == ["user", "assistant", "user"]
    assert got[0]["content"] == f"fine\n{CALL}"
    assert [call["function"]["name"] for call in got[1]["tool_calls"]] == ["get_weather"]


def test_an_item_that_is_not_stored_is_named(client: Any) -> None:
    made = client.responses.create(model="echo", input="the fox")
    name = made.id.removeprefix("resp_")
    for wrong in (f"msg_{name}_7", f"msg_{name}_i9", f"msg_{'0' * 48}_0", "msg_1", "", made.id):
        value = [{"role": "user", "content": "x"}, {"type": "item_reference", "id": wrong}]
        error = not_found(partial(client.responses.create, model="echo", input=value))
        assert error["param"] == "input[1].id"
        assert repr(wrong) in error["message"]


def test_an_item_is_no_response_to_continue(client: Any) -> None:
    made = client.responses.create(model="echo", input="the fox")
    wrong = made.output[0].id
    not_found(partial(messages, client, "x", previous_response_id=wrong))
    not_found(partial(client.responses.retrieve, wrong))


def test_an_item_that_is_there_already_is_refused(client: Any) -> None:
    made = client.responses.create(model="echo", input="the fox")
    reference = {"type": "item_reference", "id": made.output[0].id}
    for fields in (
        {"input": [reference, reference]},
        {"input": [{"role": "user", "content": "x"}, reference], "previous_response_id": made.id},
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="echo", **fields)
        assert (caught.value.param, caught.value.code) == ("input[1].id", "duplicate_item")
        assert "remove it" in str(caught.value)


def test_references_to_more_than_a_body_may_have_are_refused(start_server: Any) -> None:
    options = {"response_store_bytes": MIB, "max_body_bytes": 2**14}
    client = connect(start_server(context_length=4096, options=options))
    references = []
    for number in range(5):
        made = client.responses.create(
            model="echo", input=f"{number} foxes" * 500, max_output_tokens=2
        )
        references += [{"id": each.id} for each in client.responses.input_items.list(made.id)]
    many = [{"id": str(number)} for number in range(1025)]
    for items, words in (
        (references, "at most 16384 are accepted"),
        (many, "at most 1024 are accepted"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="echo", input=items)
        assert caught.value.param == "input"
        assert words in str(caught.value)


def test_input_items_are_listed_in_pages(client: Any) -> None:
    value: Any = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "assistant", "content": "b"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "why"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "d"},
        {"type": "custom_tool_call", "call_id": "e", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "e", "output": "y"},
        {"role": "user", "content": "z"},
    ]
    first = client.responses.create(model="echo", input=value)
    second = client.responses.create(model="echo", input="end", previous_response_id=first.id)
    items = [*client.responses.input_items.list(second.id, limit=2, order="asc")]
    assert len(items) == len({each.id for each in items}) == len(value) + 2
    assert [each.type for each in items[3:8]] == [each["type"] for each in value[3:8]]
    assert (items[0].role, items[0].content[0].text) == ("developer", "be brief")
    assert items[2].content[0].type == "output_text"
    assert items[9].id == first.output[0].id
    newest = client.responses.input_items.list(second.id, limit=4)
    assert newest.data == items[::-1][:4]
    assert (newest.first_id, newest.last_id, newest.has_more) == (items[-1].id, items[-4].id, True)
    end = client.responses.input_items.list(second.id, after=items[0].id)
    assert (end.data, end.has_more) == ([], False)


def test_what_another_key_stored_is_as_an_unknown_id(server: RunningServer) -> None:
    own, other = connect(server, KEY), connect(server, OTHER)
    made = own.responses.create(model="echo", input="the secret fox")
    unknown = "resp_" + "0" * 48
    item: Any = [{"type": "item_reference", "id": made.output[0].id}]

    def bodies(name: str, item_id: str) -> list[str]:
        headers = {"authorization": f"Bearer {OTHER}"}
        url, path = f"{server.url}/v1/responses", f"{server.url}/v1/responses/{name}"
        reference = [{"type": "item_reference", "id": item_id}]
        answers = [
            httpx.get(path, headers=headers),
            httpx.delete(path, headers=headers),
            httpx.get(f"{path}/input_items", headers=headers),
            httpx.post(f"{path}/cancel", headers=headers),
            httpx.post(url, json={"input": "x", "previous_response_id": name}, headers=headers),
            httpx.post(url, json={"input": reference}, headers=headers),
        ]
        assert {each.status_code for each in answers} == {404}
        shown = [each.text.replace(item_id, "ITEM").replace(name, "ID") for each in answers]
        lengths = [each.headers["content-length"] for each in answers]
        return shown + lengths

    assert bodies(made.id, item[0]["id"]) == bodies(unknown, f"msg_{'0' * 48}_0")
    not_found(lambda: other.responses.create(model="echo", input=item))
    assert own.responses.retrieve(made.id) == made


@pytest.mark.parametrize(
    ("path", "param", "words"),
    [
        ("?stream=true", "stream", "remove it"),
        ("?starting_after=1", "starting_after", "remove it"),
        ("?include[]=message.output_text.logprobs", "include", "/v1/chat/completions"),
        ("/input_items?limit=0", "limit", "'0': send a number from 1 to 100"),
        ("/input_items?limit=101", "limit", "'101'"),
        ("/input_items?limit=²", "limit", "'²'"),
        ("/input_items?order=up", "order", "'up': send asc or desc"),
        ("/input_items?after=msg_1", "after", "'msg_1'"),
        ("/cancel", "response_id", "background"),
    ],
)
def test_a_bad_parameter_is_named(
    server: RunningServer, client: Any, path: str, param: str, words: str
) -> None:
    made = client.responses.create(model="echo", input="the fox")
    method = "POST" if path == "/cancel" else "GET"
    url = f"{server.url}/v1/responses/{made.id}{path}"
    answer = httpx.request(method, url, headers={"authorization": f"Bearer {KEY}"})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert words in error["message"]


@pytest.mark.parametrize("name", ["resp_1", "x", "resp_" + "g" * 48, "msg_" + "0" * 48, "é" * 300])
def test_an_id_may_be_anything(client: Any, name: str) -> None:
    assert not_found(lambda: client.responses.retrieve(name))["param"] == "response_id"


def test_a_response_that_exceeds_the_store_is_not_kept(start_server: Any) -> None:
    server = start_server(context_length=2**15, options={"response_store_bytes": MIB})
    client = connect(server)
    made = client.responses.create(
        model="echo",
        input="the fox",
        max_output_tokens=4,
        tools=[TOOL | {"description": "x" * MIB}],
        tool_choice="none",
    )
    assert made.store is False
    not_found(lambda: client.responses.retrieve(made.id))


def test_what_has_not_finished_is_not_kept(server: RunningServer, eventually: Any) -> None:
    store = server.service.responses
    assert store is not None
    client = connect(server, KEY)
    client.responses.create(model="echo", input="the fox")
    kept = len(store)
    stream = client.responses.create(model="echo", input="the fox " * 400, stream=True)
    made = next(iter(stream)).response
    stream.close()
    eventually(lambda: server.service.lifecycle.running_requests == 0)
    not_found(lambda: client.responses.retrieve(made.id))
    assert len(store) == kept


def test_a_conversation_that_is_too_large_is_refused(start_server: Any) -> None:
    server = start_server(
        context_length=4096, options={"response_store_bytes": MIB, "max_body_bytes": 2048}
    )
    made = connect(server).responses.create(
        model="echo", input="the fox " * 150, max_output_tokens=4
    )
    with pytest.raises(openai.BadRequestError) as caught:
        connect(server).responses.create(
            model="echo", input="the dog " * 150, previous_response_id=made.id
        )
    assert (caught.value.param, caught.value.code) == (
        "previous_response_id",
        "context_length_exceeded",
    )
    assert "at most 2048 are accepted" in str(caught.value)


def test_answers_match_their_schemas(server: RunningServer, client: Any) -> None:
    made = client.responses.create(model="echo", input="the fox")
    url, headers = f"{server.url}/v1/responses/{made.id}", {"authorization": f"Bearer {KEY}"}
    matches(ResponseObject, httpx.get(url, headers=headers).json())
    matches(InputItemList, httpx.get(f"{url}/input_items", headers=headers).json())
    matches(DeletedResponse, httpx.delete(url, headers=headers).json())


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"store": True}, "store"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"input": [{"role": "user", "content": "x"}, {"id": "msg_1"}]}, "input[1]"),
    ],
)
def test_without_a_store_the_flag_is_named(
    echo_server: RunningServer, fields: dict[str, Any], param: str
) -> None:
    answer = echo_server.post("/v1/responses", json={"input": "x"} | fields)
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param)
    assert "--response-store-bytes" in error["message"]
    assert "store: false" in error["message"]
    made = connect(echo_server).responses.create(model="echo", input="x", max_output_tokens=4)
    assert made.store is False
    found = not_found(lambda: connect(echo_server).responses.retrieve(made.id))
    assert "--response-store-bytes" in found["message"]


def test_a_revoked_key_loses_its_responses(
    start_server: Any, tmp_path: Path, eventually: Any
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"{KEY}\n{OTHER}\n")
    server = start_server(api_key_path=file, options={"response_store_bytes": MIB})
    made = {}
    for key in (KEY, OTHER):
        made[key] = connect(server, key).responses.create(
            model="echo", input="the fox", max_output_tokens=4
        )
    store = server.service.responses
    file.write_text(f"{OTHER}\n")
    eventually(lambda: len(store) == 1)
    assert connect(server, OTHER).responses.retrieve(made[OTHER].id) == made[OTHER]
    file.write_text(f"{KEY}\n{OTHER}\n")
    eventually(lambda: server.service.keys.allow(KEY))
    not_found(lambda: connect(server, KEY).responses.retrieve(made[KEY].id))


def test_nothing_of_a_response_is_logged(
    start_server: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "specdecode_engine")
    server = start_server(options={"response_store_bytes": MIB})
    client = connect(server)
    made = client.responses.create(model="echo", input="quick canary", max_output_tokens=4)
    client.responses.create(model="echo", input="x", previous_response_id=made.id)
    client.responses.retrieve(made.id)
    client.responses.delete(made.id)
    not_found(lambda: client.responses.delete(made.id))
    assert made.id not in caplog.text
    assert "canary" not in caplog.text


def test_the_end_of_a_server_forgets_all(start_server: Any) -> None:
    server = start_server(options={"response_store_bytes": MIB})
    connect(server).responses.create(model="echo", input="the fox", max_output_tokens=4)
    store = server.service.responses
    assert (len(store), store.num_bytes > RECORD_BYTES) == (1, True)
    metrics = server.get("/metrics").text
    assert "\nspecdecode_stored_responses 1.0\n" in metrics
    assert f"\nspecdecode_stored_response_bytes {float(store.num_bytes)}\n" in metrics
    server.close()
    assert (len(store), store.num_bytes) == (0, 0)


def test_pages_of_other_origins_may_delete(start_server: Any) -> None:
    server = start_server(options={"cors_origins": ("https://a.example",)})
    headers = {"origin": "https://a.example", "access-control-request-method": "DELETE"}
    answer = httpx.options(f"{server.url}/v1/responses/resp_1", headers=headers)
    assert answer.status_code == 200
