"""Reasoning over HTTP: a part of its own, whole and streamed, with any tokens per step."""

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from specdecode_engine.serve.openai.chat import prepare_chat
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.scripted import scripted_server

TEXT = "<think>\nthe fox, or\nthe dog\n</think>\n\nthe quick fox"
REASONING, CONTENT = "the fox, or\nthe dog", "the quick fox"


@pytest.fixture(scope="module", params=[1, 7], ids=["one token a step", "seven tokens a step"])
def server(request, write_model, tmp_path_factory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("reasoning")
    with scripted_server(write_model, folder, request.param, reasoning_parser="qwen3") as running:
        yield running


def ask(server: RunningServer, text: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    extra = {"chat_template_kwargs": fields.pop("kwargs", {}), **fields.pop("extra", {})}
    client = server.connect(is_strict=False)
    return client.chat.completions.create(
        model="echo", messages=messages, extra_body=extra, **fields
    )


def parts(answer: Any) -> tuple[str | None, str | None]:
    """Return reasoning and content of a response."""
    message = answer.choices[0].message
    return getattr(message, "reasoning_content", None), message.content


def streamed(server: RunningServer, text: str, **fields: Any) -> tuple[str, str, Any]:
    """Return reasoning and content of a stream, and its usage."""
    options = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(ask(server, text, **options, **fields))
    deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
    reasoning = "".join(getattr(delta, "reasoning_content", None) or "" for delta in deltas)
    assert reasoning == "".join(getattr(delta, "reasoning", None) or "" for delta in deltas)
    return reasoning, "".join(delta.content or "" for delta in deltas), chunks[-1].usage


def test_reasoning_is_a_part_of_its_own(server: RunningServer) -> None:
    answer = ask(server, TEXT)
    assert parts(answer) == (REASONING, CONTENT)
    assert answer.choices[0].finish_reason == "stop"
    assert streamed(server, TEXT) == (REASONING, CONTENT, answer.usage)


def test_each_choice_has_its_own(server: RunningServer) -> None:
    choices = ask(server, TEXT, n=2).choices
    assert [choice.message.content for choice in choices] == [CONTENT] * 2
    assert [choice.message.reasoning_content for choice in choices] == [REASONING] * 2
    assert [choice.message.reasoning for choice in choices] == [REASONING] * 2


def test_a_text_without_reasoning_is_content(server: RunningServer) -> None:
    answer = ask(server, "the <think> fox")
    assert parts(answer) == (None, "the <think> fox")
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0


def test_a_template_may_open_the_reasoning(server: RunningServer) -> None:
    text = TEXT.removeprefix("<think>\n")
    assert parts(ask(server, text, kwargs={"is_open": True})) == (REASONING, CONTENT)
    assert parts(ask(server, text)) == (None, text)


@pytest.mark.parametrize(("start", "is_open"), [("<think>\nthe", True), ("the", False)])
def test_a_continued_message_may_end_inside_reasoning(
    server: RunningServer, start: str, is_open: bool
) -> None:
    fields = {"add_generation_prompt": False, "continue_final_message": True}
    body = ChatBody.model_validate(
        {"messages": [{"role": "assistant", "content": f"{start} fox"}]} | fields
    )
    parser = prepare_chat(body, server.service).make_parser()
    assert parser.in_reasoning is is_open


def test_its_tokens_are_counted_without_the_tags(server: RunningServer) -> None:
    usage = ask(server, TEXT).usage
    count = len(server.service.text.encode(f"\n{REASONING}\n"))
    # The closing tag is spelled in several tokens, of which only the last one is known to be it.
    closing = len(server.service.text.encode("</think>"))
    assert 0 <= usage.completion_tokens_details.reasoning_tokens - count < closing
    assert usage.completion_tokens == len(server.service.text.encode(TEXT)) + 1


def test_it_is_left_out_on_request(server: RunningServer) -> None:
    hidden = {"extra": {"include_reasoning": False}}
    answer = ask(server, TEXT, **hidden)
    assert parts(answer) == (None, CONTENT)
    assert answer.usage == ask(server, TEXT).usage
    assert streamed(server, TEXT, **hidden) == ("", CONTENT, answer.usage)


def test_a_stop_string_ends_the_content_alone(server: RunningServer) -> None:
    answer = ask(server, TEXT, stop=["fox"])
    assert parts(answer) == (REASONING, "the quick ")
    assert streamed(server, TEXT, stop=["fox"]) == (REASONING, "the quick ", answer.usage)


def test_reasoning_cut_by_the_limit_has_no_content(server: RunningServer) -> None:
    answer = ask(server, TEXT, max_tokens=12)
    reasoning, content = parts(answer)
    assert content is None
    assert reasoning
    assert REASONING.startswith(reasoning)
    assert answer.choices[0].finish_reason == "length"


def test_logprobs_have_every_token(server: RunningServer) -> None:
    answer = ask(server, TEXT, logprobs=True)
    tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == TEXT


def test_effort_and_variables_reach_the_template(server: RunningServer) -> None:
    def shown(effort: str, **kwargs: object) -> str | None:
        return parts(ask(server, "", kwargs={"show": "effort", **kwargs}, reasoning_effort=effort))[
            1
        ]

    assert shown("high") == "high "
    assert shown("high", enable_thinking=True) == "high True"
    assert shown("none") == "none False"
    assert shown("none", enable_thinking=True) == "none True"


@pytest.mark.parametrize(
    ("mode", "effort", "shown"),
    [
        ("enabled", None, " True"),
        ("adaptive", "low", "low True"),
        ("disabled", None, "none False"),
        ("disabled", "high", "high False"),
    ],
)
def test_the_field_thinking_reaches_the_template(server: RunningServer, mode, effort, shown):
    extra = {"thinking": {"type": mode}, "reasoning_effort": effort}
    assert parts(ask(server, "", kwargs={"show": "effort"}, extra=extra))[1] == shown
    variables = {"show": "effort", "enable_thinking": "as set"}
    assert str(parts(ask(server, "", kwargs=variables, extra=extra))[1]).endswith(" as set")


def test_earlier_reasoning_reaches_the_template(server: RunningServer) -> None:
    messages = [
        {"role": "user", "content": "the fox"},
        {"role": "assistant", "content": "the dog", "reasoning_content": "why"},
        {"role": "developer", "content": "sleeps"},
    ]
    answer = server.client.chat.completions.create(
        model="echo",
        messages=messages,  # type: ignore[arg-type]
        extra_body={"chat_template_kwargs": {"show": "messages"}},
    )
    shown = json.loads(answer.choices[0].message.content or "")
    assert shown[1]["reasoning_content"] == "why"
    assert shown[2]["role"] == "system"


@pytest.mark.parametrize("name", ["tokenize", "chat_template", "tools", "messages", "kwargs"])
def test_what_is_no_variable_of_templates_is_refused(server: RunningServer, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{name} is not a variable"):
        ask(server, "the fox", kwargs={name: True})
