"""Errors in the form of Anthropic's API: types by status, codes, and streams that break off."""

import json

import pytest

from specdecode_engine.batch.request import FinishReason, Output, QueueFull
from specdecode_engine.serve import errors
from specdecode_engine.serve.anthropic.messages_formatter import MessagesFormatter
from specdecode_engine.serve.anthropic.messages_protocol import MessagesBody
from specdecode_engine.serve.engine.core import EngineFailed, GrammarBusy
from specdecode_engine.serve.openai.formatting import ResponseHead, encode_event
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.parsers.message import ContentDelta, ReasoningDelta, ToolCallDelta
from specdecode_engine.serve.text.tokenizer import Vocabulary

PATH = "/v1/messages"
BODY = {"max_tokens": 5, "messages": [{"role": "user", "content": "a"}]}


@pytest.fixture
def formatter(byte_level) -> MessagesFormatter:
    body = MessagesBody.model_validate(BODY)
    return MessagesFormatter(body, ResponseHead("r", 7, "m", 3), Vocabulary(byte_level))


@pytest.fixture
def choice(byte_level) -> OutputProcessor:
    return OutputProcessor(0, Vocabulary(byte_level))


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (errors.invalid("a", "b"), 400, "invalid_request_error"),
        (errors.HttpError(401, "a", code="invalid_api_key"), 401, "authentication_error"),
        (errors.HttpError(403, "a"), 403, "permission_error"),
        (errors.model_not_found("a", "b"), 404, "not_found_error"),
        (errors.HttpError(413, "a"), 413, "request_too_large"),
        (QueueFull("a"), 429, "rate_limit_error"),
        (EngineFailed("a"), 500, "api_error"),
        (ValueError("a"), 500, "api_error"),
        (GrammarBusy("a"), 503, "overloaded_error"),
    ],
)
def test_the_type_of_an_error_follows_its_status(error, status, kind):
    response = errors.from_exception(error).response(PATH)
    body = json.loads(bytes(response.body))
    assert response.status_code == status
    assert (body["type"], body["error"]["type"]) == ("error", kind)
    assert int(response.headers.get("retry-after", 0)) <= 10
    elsewhere = json.loads(bytes(errors.from_exception(error).response("/v1/messagesx").body))
    assert elsewhere.keys() == {"error"}


def test_a_stream_that_fails_ends_with_an_error(formatter, choice) -> None:
    assert [event["type"] for event in formatter.first_events()] == ["message_start"]
    choice.deltas = [ReasoningDelta("why")]
    choice.grammar_fault = "it is too large"
    choice.finish_reason = FinishReason.ERROR
    kinds = [event["type"] for event in formatter.events(choice)]
    blocks = ["content_block_start", *["content_block_delta"] * 2, "content_block_stop"]
    assert kinds == [*blocks, "error"]
    assert list(formatter.last_events({})) == []


def test_a_message_that_fails_is_an_error(formatter, choice) -> None:
    choice.push(Output("r", (), finish_reason=FinishReason.ERROR))
    with pytest.raises(errors.HttpError) as failed:
        formatter.whole([choice], {})
    assert failed.value.status == 500


def test_an_error_event_has_the_form_of_the_api(formatter) -> None:
    event = formatter.error_event(errors.unavailable("stopped", "draining", 1).body)
    assert event == {
        "type": "error",
        "error": {
            "type": "api_error", "message": "stopped", "details": {"error_code": "draining"}
        },
    }  # fmt: skip


@pytest.mark.parametrize("text", ["the fox", 'a "quote"\n', "é😀\u2028\x00\x7f"])
def test_a_prepared_text_event_is_the_formatted_one(formatter, choice, text) -> None:
    choice.deltas = [ContentDelta("a")]
    assert formatter.text_event(choice) == b"", "no block is open"
    assert len(list(formatter.events(choice))) == 2
    choice.deltas = [ContentDelta(text)]
    prepared = formatter.text_event(choice)
    (event,) = formatter.events(choice)
    assert prepared == encode_event(event, is_named=True)
    assert formatter.num_events == 4


def test_a_stream_continues_where_another_formatter_was(byte_level, formatter, choice) -> None:
    first = [ReasoningDelta("a"), ContentDelta("b"), ToolCallDelta(0, "f", '{"x"')]
    rest = [ToolCallDelta(0, None, ": 1}"), ToolCallDelta(1, "g", "")]
    choice.deltas = first
    begun = list(formatter.events(choice))
    second = MessagesFormatter(
        MessagesBody.model_validate(BODY), ResponseHead("r", 7, "m", 3), Vocabulary(byte_level)
    )
    second.resume([choice], len(begun))
    choice.deltas = rest
    assert list(second.events(choice)) == list(formatter.events(choice))
    assert second.num_events == formatter.num_events


def test_a_key_is_read_from_either_header(start_server, tmp_path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("secret\n")
    server = start_server(api_key_path=keys)
    for headers in ({"x-api-key": "secret"}, {"authorization": "Bearer secret"}):
        assert server.post(PATH, json=BODY, headers=headers).status_code == 200
    for path in (PATH, f"{PATH}/count_tokens"):
        refused = server.post(path, json=BODY, headers={"x-api-key": "wrong"})
        assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
        assert refused.json()["error"]["type"] == "authentication_error"
        assert refused.json()["error"]["details"] == {"error_code": "invalid_api_key"}
