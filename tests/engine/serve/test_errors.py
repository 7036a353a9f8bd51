"""Request errors have OpenAI's form: status, field, value, remedy."""

import json

import httpx
import openai
import pytest
from pydantic import BaseModel, ValidationError

from specdecode_engine.serve.anthropic.messages_protocol import MessagesBody
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.protocol import CompletionBody
from specdecode_engine.serve.openai.responses.protocol import ResponsesBody
from specdecode_engine.serve.tokenization import DetokenizeBody

PATH = "/v1/completions"
GOOD = {"model": "echo", "prompt": "the fox"}


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"temperature": 3}, "temperature", "3: Input should be less than or equal to 2"),
        ({"temperature": -0.1}, "temperature", "greater than or equal to 0"),
        ({"temperature": "hot"}, "temperature", '"hot"'),
        ({"top_p": -0.1}, "top_p", "greater than or equal to 0"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1"),
        ({"top_k": -2}, "top_k", "greater than or equal to -1"),
        ({"min_p": 2}, "min_p", "less than or equal to 1"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
        ({"max_tokens": 0}, "max_tokens", "echo: true"),
        ({"max_tokens": True}, "max_tokens", "true"),
        ({"max_tokens": 1.5}, "max_tokens", "integer"),
        ({"n": 129}, "n", "less than or equal to 128"),
        ({"n": 100}, "n", "at most 64"),
        ({"presence_penalty": -3}, "presence_penalty", "-2"),
        ({"frequency_penalty": 3}, "frequency_penalty", "2"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than 0"),
        ({"seed": 2**63}, "seed", "less than"),
        ({"logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"stop": ["x"] * 17}, "stop", "at most 16"),
        ({"stop": ""}, "stop[0]", "at least 1 character"),
        ({"logit_bias": {"5": 101}}, "logit_bias.5", "100"),
        ({"logit_bias": {"fox": 1}}, "logit_bias", "'fox' is not a token id"),
        ({"logit_bias": {"320": 1}}, "logit_bias", "0 to 319"),
        ({"stop_token_ids": [-1]}, "stop_token_ids[0]", "greater than or equal to 0"),
        ({"prompt": []}, "prompt", "a list of token ids"),
        ({"prompt": [1, "a"]}, "prompt", "a list of token ids"),
        ({"prompt": [True]}, "prompt", "a list of token ids"),
        ({"prompt": [[1], []]}, "prompt", "a list of token ids"),
        ({"prompt": ""}, "prompt", "no tokens"),
        ({"prompt": [320]}, "prompt", "0 to 319"),
        ({"prompt": [-1]}, "prompt", "0 to 319"),
        ({"prompt": [-1], "echo": True}, "prompt", "0 to 319"),
        ({"best_of": 3}, "best_of", "remove it"),
        ({"suffix": "x"}, "suffix", "remove it"),
        ({"echo": True, "logprobs": 21}, "logprobs", "less than or equal to 20"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream: true"),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_range(echo_server, fields, param, words):
    answer = echo_server.post(PATH, json=GOOD | fields)
    error = answer.json()["error"]
    assert answer.status_code == 400
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]
    assert error["param"] == param
    assert error["message"].startswith(param.split("[")[0].split(".")[0]) or param == "n"
    assert "the fox" not in error["message"]


@pytest.mark.parametrize("fields", [{"best_of": 1}, {"suffix": ""}, {"best_of": 2, "n": 2}])
def test_trivial_values_of_what_is_not_available_are_fine(echo_server, fields):
    assert echo_server.post(PATH, json=GOOD | fields).status_code == 200


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none_are_refused(echo_server, value):
    body = json.dumps(GOOD)[:-1] + f', "temperature": {value}}}'
    answer = echo_server.post(PATH, content=body)
    assert answer.status_code == 400
    assert "temperature" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[1, 2]",
        b'"text"',
        b"\xff\xfe",
        b'{"model": "echo", "prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 50_000,
        b"[" * 50_000,
    ],
)
def test_what_is_no_json_object_is_a_bad_request(echo_server, body):
    answer = echo_server.post(PATH, content=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["message"]


def test_a_missing_prompt_is_named(echo_server):
    error = echo_server.post(PATH, json={"model": "echo"}).json()["error"]
    assert error["param"] == "prompt"
    assert "required" in error["message"]


def test_a_long_value_is_not_repeated_in_full(echo_server):
    error = echo_server.post(PATH, json=GOOD | {"temperature": "x" * 10_000}).json()["error"]
    assert len(error["message"]) < 300


def test_a_very_large_body_is_refused_and_the_client_gets_the_reason(echo_server):
    body = b'{"prompt": "' + b"x" * (33 * 2**20) + b'"}'
    answer = echo_server.post(PATH, content=body)
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "body_too_large"


def test_unknown_paths_and_methods_have_the_same_form(echo_server):
    assert echo_server.get("/v1/nothing").json()["error"]["code"] == "not_found"
    answer = echo_server.get(PATH)
    assert answer.status_code == 405
    assert answer.json()["error"]["code"] == "method_not_allowed"


@pytest.mark.parametrize("stream", [False, True])
def test_a_full_queue_names_when_to_retry(start_server, stream):
    server = start_server(max_requests=2)
    with pytest.raises(openai.RateLimitError) as caught:
        server.client.completions.create(model="echo", prompt="the fox", n=3, stream=stream)
    assert caught.value.code == "queue_full"
    assert caught.value.response.headers["retry-after"] == "1"
    assert len(server.core.aborted) == 2
    assert server.client.completions.create(model="echo", prompt="the fox", n=2)


MESSAGE = {"role": "user", "content": "the fox"}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": [MESSAGE, MESSAGE | {"content": 5}]}, "messages[1].content"),
        ({"messages": [MESSAGE | {"role": "king"}]}, "messages[0].role"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [MESSAGE], "guided_json": 7}, "guided_json"),
        ({"messages": [MESSAGE], "response_format": {"type": "xml"}}, "response_format.type"),
        (
            {"messages": [MESSAGE], "response_format": {"type": "json_schema", "json_schema": {}}},
            "response_format.json_schema.schema",
        ),
        ({"messages": [MESSAGE], "structured_outputs": {"json": 7}}, "structured_outputs.json"),
        ({"messages": [MESSAGE], "stream_options": {"include_usage": 3}}, None),
    ],
)
def test_a_field_is_named_by_its_path_without_the_types_of_unions(echo_server, fields, param):
    answer = echo_server.post("/v1/chat/completions", json=fields)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == (param or "stream_options.include_usage")


@pytest.mark.parametrize(
    "fields", [{"logit_bias": {"k" * 9000: "x"}}, {"prompt": {"a": "b" * 9000}}]
)
def test_no_message_repeats_what_the_client_sent(echo_server, fields):
    error = echo_server.post(PATH, json=GOOD | fields).json()["error"]
    assert len(error["message"]) < 400
    assert len(error["param"]) < 100
    assert "bbb" not in error["message"]


@pytest.mark.parametrize(
    "content_type",
    ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", None],
)
def test_what_a_web_page_may_send_unasked_is_not_read(echo_server, content_type):
    """A page of any origin may POST these types, or none, to localhost without a preflight."""
    headers = {} if content_type is None else {"content-type": content_type}
    answer = httpx.post(echo_server.url + PATH, content=json.dumps(GOOD), headers=headers)
    assert answer.status_code == 415
    error = answer.json()["error"]
    assert error["code"] == "unsupported_media_type"
    assert "application/json" in error["message"]


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON"])
def test_json_is_read_with_any_parameters_and_letters(echo_server, content_type):
    headers = {"content-type": content_type}
    answer = httpx.post(echo_server.url + PATH, content=json.dumps(GOOD), headers=headers)
    assert answer.status_code == 200


def test_the_methods_of_a_path_are_named(echo_server):
    assert echo_server.get(PATH).headers["allow"] == "POST"


MANY = 20_000
USER = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ChatBody, {"messages": [1] * MANY}),
        (ChatBody, {"messages": [{}] * MANY}),
        (ChatBody, {"messages": [{"role": "assistant", "tool_calls": [1] * MANY}]}),
        (ChatBody, {"messages": USER, "tools": [1] * MANY}),
        (ChatBody, {"messages": USER, "stop": [1] * MANY}),
        (ChatBody, {"messages": USER, "stop_token_ids": ["a"] * MANY}),
        (ChatBody, {"messages": USER, "logit_bias": {str(i): "a" for i in range(MANY)}}),
        (ChatBody, {"messages": USER, "allowed_token_ids": [-1] * MANY}),
        (ChatBody, {"messages": USER, "speculation": {str(i): 1 for i in range(MANY)}}),
        (ResponsesBody, {"input": "a", "metadata": {str(i): 1 for i in range(MANY)}}),
        (ResponsesBody, {"input": [1] * MANY}),
        (ResponsesBody, {"input": [{"type": "function_call"}] * MANY}),
        (ResponsesBody, {"input": [{"role": "user", "content": [1] * MANY}]}),
        (ResponsesBody, {"input": "a", "tools": [1] * MANY}),
        (ResponsesBody, {"input": "a", "include": [1] * MANY}),
        (MessagesBody, {"max_tokens": 1, "messages": [1] * MANY}),
        (MessagesBody, {"max_tokens": 1, "messages": [{"role": "user", "content": [1] * MANY}]}),
        (MessagesBody, {"max_tokens": 1, "messages": USER, "system": [1] * MANY}),
        (MessagesBody, {"max_tokens": 1, "messages": USER, "tools": [1] * MANY}),
        (CompletionBody, {"prompt": ["a", 1] * MANY}),
        (DetokenizeBody, {"tokens": ["a"] * MANY}),
    ],
)
def test_a_list_with_many_errors_is_refused_at_the_first_few(
    model: type[BaseModel], body: dict[str, object]
) -> None:
    with pytest.raises(ValidationError) as refused:
        model.model_validate_json(json.dumps(body))
    assert refused.value.error_count() <= 2048


@pytest.mark.parametrize("field", ["model", "logit_bias"])
def test_a_long_value_is_cut_in_the_message(echo_server, field: str) -> None:
    long = "x" * 5000
    answer = echo_server.post(PATH, json=GOOD | {field: long if field == "model" else {long: 1}})
    assert answer.is_client_error
    assert answer.json()["error"]["param"] == field
    assert "x" * 80 in answer.text
    assert len(answer.text) < 400
