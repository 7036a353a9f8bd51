"""Parts of one step are chunks of their own, and clients see each call end once."""

import json
from typing import Any

import pytest

from specdecode_engine.batch.request import FinishReason, Output
from specdecode_engine.serve.openai.chat_formatter import ChatFormatter
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.formatting import ResponseHead
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.message import ParserContext
from specdecode_engine.serve.parsers.reasoning import THINK
from specdecode_engine.serve.parsers.tool_formats import TOOL_FORMATS
from specdecode_engine.serve.text.tokenizer import Vocabulary
from tests.engine.serve.internal.conftest import unused_port
from tests.engine.serve.internal.router_client import TOKEN, Call, run
from tests.engine.serve.scripted import scripted_server
from tests.engine.serve.test_tool_calls import CALL, PARIS, SECOND, TOOLS

SIZES = (1, 2, 3, 7, 16, 64, 1000)
TEXT = f"<think>\nboth\n</think>\n\nthe fox\n{CALL}\n{SECOND}"
EXPECTED = [("get_weather", PARIS), ("get_time", "{}")]


def chunks(byte_level, text: str, size: int, end: FinishReason, **fields: Any) -> list[Any]:
    """Return the choices of a stream whose steps add `size` tokens each."""
    vocabulary = Vocabulary(byte_level)
    body = ChatBody.model_validate({"messages": [{"role": "user", "content": "a"}], **fields})
    formatter = ChatFormatter(body, ResponseHead("r", 7, "m"), vocabulary)
    formats = MessageFormats(THINK, TOOL_FORMATS["hermes"])
    parser = formats.make_parser(ParserContext(parameters={"get_weather": {}}))
    choice = OutputProcessor(0, vocabulary, parser=parser)
    ids = byte_level.encode(text, add_special_tokens=False).ids
    found: list[Any] = []
    for start in range(0, len(ids), size):
        reason = end if start + size >= len(ids) else None
        choice.push(Output("a", tuple(ids[start : start + size]), finish_reason=reason))
        if choice.has_changed:
            found += [event["choices"][0] for event in formatter.events(choice)]
        choice.clear()
    for delta in (each["delta"] for each in found):
        assert delta.pop("reasoning", None) == delta.get("reasoning_content")
    return found


@pytest.mark.parametrize("end", [FinishReason.STOP, FinishReason.LENGTH])
@pytest.mark.parametrize("text", [TEXT, CALL, f"{CALL} after", "<think>\nwhy", "the fox"])
@pytest.mark.parametrize("size", SIZES)
def test_a_chunk_has_one_part_when_a_step_adds_several(byte_level, size, text, end) -> None:
    found = chunks(byte_level, text, size, end)
    for choice in found:
        assert len(choice["delta"]) <= 1
        assert len(choice["delta"].get("tool_calls", ())) <= 1
        assert not (choice["finish_reason"] and "tool_calls" in choice["delta"])
    reasons = [choice["finish_reason"] for choice in found]
    assert [each for each in reasons if each] == reasons[-1:]
    single = chunks(byte_level, text, 1, end)
    assert _joined(found) == _joined(single)


def _joined(choices: list[Any]) -> list[Any]:
    """Join the deltas of neighbours of one kind: the parts of the message in order."""
    parts: list[Any] = []
    for choice in choices:
        for name, value in choice["delta"].items():
            key = name if isinstance(value, str) else value[0]["index"]
            text = value if isinstance(value, str) else value[0]["function"]["arguments"]
            if parts and parts[-1][0] == key:
                parts[-1][1] += text
            else:
                parts.append([key, text])
    return [*parts, choices[-1]["finish_reason"]]


def helped(client: Any, text: str) -> tuple[list[tuple[str, str]], list[tuple[str, str]]]:
    """Return the calls whose end the helpers of chat and of Responses report."""
    chat: list[tuple[str, str]] = []
    messages = [{"role": "user", "content": text}]
    with client.chat.completions.stream(model="echo", messages=messages, tools=TOOLS) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                chat.append((event.name, event.arguments))
    flat: Any = [{"type": "function", "name": name} for name, _ in EXPECTED]
    with client.responses.stream(model="echo", input=text, tools=flat) as stream:
        done = [each for each in stream if each.type == "response.function_call_arguments.done"]
    return chat, [(each.name, each.arguments) for each in done]


def test_each_call_ends_once_when_a_step_has_all_of_it(write_model, tmp_path) -> None:
    (tmp_path / "token").write_text(TOKEN)
    options: dict[str, Any] = {
        "tool_parser": "hermes",
        "router_token_path": str(tmp_path / "token"),
    }
    options["management_port"] = unused_port()
    with scripted_server(write_model, tmp_path / "m", 64, **options) as server:
        for text, expected in ((CALL, EXPECTED[:1]), (f"{CALL}\n{SECOND}", EXPECTED)):
            assert helped(server.client, text) == (expected, expected)
        body = {"messages": [{"role": "user", "content": CALL}], "tools": TOOLS, "stream": True}
        public = run(server, Call("/v1/chat/completions", body)).public
    events = [line.removeprefix("data: ") for line in public.split("\n\n")[:-2]]
    choices = [json.loads(event)["choices"][0] for event in events]
    assert [each["delta"] for each in choices if each["finish_reason"]] == [{}]
