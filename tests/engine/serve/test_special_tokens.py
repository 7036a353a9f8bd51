"""Formats whose markers are special tokens, which have no text for any other reader."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.engine.serve.conftest import RunningServer
from tests.engine.serve.scripted import scripted_server

HARMONY = ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"]
GEMMA = ["<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>']
COHERE = [
    "<|START_THINKING|>", "<|END_THINKING|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>",
    "<|START_ACTION|>", "<|END_ACTION|>",
]  # fmt: skip
MISTRAL = ["[THINK]", "[/THINK]", "[TOOL_CALLS]", "[ARGS]"]
OTHER = "<|other|>"
TOOL: Any = {"type": "function", "function": {"name": "get_weather"}}
PARIS = '{"city": "Paris"}'


@pytest.fixture(scope="module")
def write_special(write_model, byte_level) -> Callable[..., Path]:
    def write(folder: Path, chat_template: str) -> Path:
        write_model(folder, chat_template=chat_template)
        tokenizer = Tokenizer.from_str(byte_level.to_str())
        tokenizer.add_special_tokens([*HARMONY, *MISTRAL, *GEMMA, *COHERE, OTHER])
        tokenizer.save(str(folder / "tokenizer.json"))
        size = tokenizer.get_vocab_size(with_added_tokens=True)
        (folder / "config.json").write_text(json.dumps({"vocab_size": size}))
        return folder

    return write


@pytest.fixture(scope="module", params=[1, 7], ids=["one token a step", "seven tokens a step"])
def start(request, write_special, tmp_path_factory) -> Iterator[Callable[..., RunningServer]]:
    running = {}

    def started(tool_parser: str, reasoning_parser: str) -> RunningServer:
        names = (tool_parser, reasoning_parser)
        if names not in running:
            folder = tmp_path_factory.mktemp("special")
            server = scripted_server(
                write_special, folder, request.param,
                tool_parser=tool_parser, reasoning_parser=reasoning_parser,
            )  # fmt: skip
            running[names] = server, server.__enter__()
        return running[names][1]

    yield started
    for server, _ in running.values():
        server.__exit__(None, None, None)


def ask(server: RunningServer, text: str, **fields: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return server.client.chat.completions.create(model="echo", messages=messages, **fields)


def test_harmony_is_read_by_one_parser(start: Callable[..., RunningServer]) -> None:
    server = start("openai", "auto")
    analysis = "<|channel|>analysis<|message|>why not<|start|>assistant"
    final = f"{analysis}<|channel|>final<|message|>the{OTHER} fox"
    message = ask(server, final).choices[0].message
    assert (message.reasoning_content, message.content) == ("why not", "the fox")
    header = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>"
    answer = ask(server, f"{analysis}{header}{PARIS}<|call|>", tools=[TOOL])
    choice = answer.choices[0]
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", PARIS)
    assert (choice.message.reasoning_content, choice.message.content) == ("why not", None)
    assert choice.finish_reason == "tool_calls"
    count = len(server.service.text.encode("why not"))
    assert answer.usage.completion_tokens_details.reasoning_tokens == count


def test_mistrals_markers_separate_the_parts(start: Callable[..., RunningServer]) -> None:
    server = start("mistral", "mistral")
    text = f"[THINK]why{OTHER} not[/THINK]the fox[TOOL_CALLS]get_weather[ARGS]{PARIS}"
    choice = ask(server, text, tools=[TOOL]).choices[0]
    (call,) = choice.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("get_weather", PARIS)
    assert (choice.message.reasoning_content, choice.message.content) == ("why not", "the fox")
    chunks = list(ask(server, text, tools=[TOOL], stream=True))
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert "".join(delta.content or "" for delta in deltas) == "the fox"
    calls = [call for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(call.function.arguments for call in calls) == PARIS


def test_the_strings_of_gemma_are_between_special_tokens(
    start: Callable[..., RunningServer],
) -> None:
    server = start("gemma4", "gemma4")
    call = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'
    text = f"<|channel>thought\nwhy{OTHER} not\n<channel|>the fox{call}"
    choice = ask(server, text, tools=[TOOL]).choices[0]
    (found,) = choice.message.tool_calls
    assert (found.function.name, found.function.arguments) == ("get_weather", PARIS)
    assert (choice.message.reasoning_content, choice.message.content) == ("why not", "the fox")
    assert choice.finish_reason == "tool_calls"


def test_the_content_of_cohere_is_between_markers_without_tools_too(
    start: Callable[..., RunningServer],
) -> None:
    server = start("cohere_command3", "cohere_command3")
    thought = "<|START_THINKING|>why not<|END_THINKING|>"
    text = f"{thought}<|START_RESPONSE|>the{OTHER} fox<|END_RESPONSE|>"
    for fields in ({}, {"tools": [TOOL]}):
        message = ask(server, text, **fields).choices[0].message
        assert (message.reasoning_content, message.content) == ("why not", "the fox")
    call = '[{"tool_call_id": "0", "tool_name": "get_weather", "parameters": PARIS}]'
    action = f"<|START_ACTION|>{call.replace('PARIS', PARIS)}<|END_ACTION|>"
    (found,) = ask(server, thought + action, tools=[TOOL]).choices[0].message.tool_calls
    assert (found.function.name, found.function.arguments) == ("get_weather", PARIS)
    chunks = list(ask(server, thought + action, tools=[TOOL], stream=True))
    calls = [call for each in chunks for call in each.choices[0].delta.tool_calls or ()]
    assert "".join(call.function.arguments for call in calls) == PARIS


def test_without_a_format_special_tokens_have_no_text(start: Callable[..., RunningServer]) -> None:
    server = start("none", "none")
    text = f"[THINK]why not[/THINK]the{OTHER} fox"
    assert ask(server, text).choices[0].message.content == "why notthe fox"


def test_special_tokens_are_text_if_they_are_not_skipped(
    start: Callable[..., RunningServer],
) -> None:
    server = start("none", "none")
    text = f"[THINK]why not[/THINK]the{OTHER} fox"
    kept: dict[str, Any] = {"extra_body": {"skip_special_tokens": False}}
    assert ask(server, text, **kept).choices[0].message.content == text
    chunks = list(ask(server, text, stream=True, **kept))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    skipped = {"extra_body": {"skip_special_tokens": True}}
    assert ask(server, text, **skipped).choices[0].message.content == "why notthe fox"


def test_a_special_token_that_stops_an_answer_is_not_text(
    start: Callable[..., RunningServer],
) -> None:
    server = start("none", "none")
    vocabulary = server.service.text.vocabulary
    (stop,) = vocabulary.special_tokens([OTHER])
    kept = {"extra_body": {"skip_special_tokens": False, "stop_token_ids": [stop]}}
    answer = ask(server, f"[THINK]why{OTHER} not", **kept)
    assert answer.choices[0].message.content == "[THINK]why"


def test_calls_are_read_next_to_other_special_tokens(start: Callable[..., RunningServer]) -> None:
    server = start("mistral", "mistral")
    text = f"[THINK]why{OTHER} not[/THINK]the fox[TOOL_CALLS]get_weather[ARGS]{PARIS}"
    kept = {"extra_body": {"skip_special_tokens": False}}
    message = ask(server, text, tools=[TOOL], **kept).choices[0].message
    assert (message.reasoning_content, message.content) == (f"why{OTHER} not", "the fox")
    assert message.tool_calls[0].function.arguments == PARIS
