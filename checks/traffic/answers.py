"""Reads the answers of each API, whole or event by event, into parts that can be compared."""

import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from checks.traffic.questions import Api

END_OF_STREAM = "data: [DONE]"
CONTENT, REASONING = "content", "reasoning"


@dataclass(slots=True)
class Parts:
    """Text, reasoning, and name and arguments of each call; complete once the end was read."""

    texts: defaultdict[str, str]
    is_complete: bool = False

    def add(self, name: str, text: str | None) -> None:
        """Add text to a part; no text makes no part."""
        if text:
            self.texts[name] += text

    def add_call(self, index: int, name: str | None, arguments: str | None) -> None:
        """Add to a call, which is named by its place."""
        self.add(f"tool {index}", name)
        self.add(f"arguments {index}", arguments)

    def text(self) -> str:
        """Return the text; of an answer that has other parts, all of them as JSON."""
        if self.texts.keys() <= {CONTENT}:
            return self.texts.get(CONTENT, "")
        read = {
            name: json.loads(text) if self.is_complete and name.startswith("arguments") else text
            for name, text in self.texts.items()
        }
        return json.dumps(read, sort_keys=True)


@dataclass(frozen=True, slots=True)
class AnswerReader:
    """How an API's answers are read."""

    add_whole: Callable[[Parts, Mapping[str, Any]], None]
    add_event: Callable[[Parts, Mapping[str, Any]], None]


def _add_choice(parts: Parts, choice: Mapping[str, Any]) -> None:
    """Add a choice of completions or chat, or what is new in it."""
    parts.is_complete |= choice["finish_reason"] is not None
    parts.add(CONTENT, choice.get("text"))
    message = choice.get("delta") or choice.get("message") or {}
    parts.add(REASONING, message.get("reasoning_content"))
    parts.add(CONTENT, message.get("content"))
    for number, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        parts.add_call(call.get("index", number), function.get("name"), function.get("arguments"))


def _add_choices(parts: Parts, document: Mapping[str, Any]) -> None:
    for choice in document["choices"]:
        _add_choice(parts, choice)


def _add_response(parts: Parts, document: Mapping[str, Any]) -> None:
    parts.is_complete = document["status"] in ("completed", "incomplete")
    for index, item in enumerate(document["output"]):
        if item["type"] == "function_call":
            parts.add_call(index, item["name"], item["arguments"])
            continue
        name = REASONING if item["type"] == "reasoning" else CONTENT
        for part in item["content"]:
            parts.add(name, part["text"])


def _add_response_event(parts: Parts, event: Mapping[str, Any]) -> None:
    match event["type"]:
        case "response.output_text.delta":
            parts.add(CONTENT, event["delta"])
        case "response.reasoning_text.delta":
            parts.add(REASONING, event["delta"])
        case "response.function_call_arguments.delta":
            parts.add_call(event["output_index"], None, event["delta"])
        case "response.output_item.added" if event["item"]["type"] == "function_call":
            parts.add_call(event["output_index"], event["item"]["name"], None)
        case "response.completed" | "response.incomplete":
            parts.is_complete = True


def _add_message(parts: Parts, document: Mapping[str, Any]) -> None:
    parts.is_complete = document["stop_reason"] is not None
    for index, block in enumerate(document["content"]):
        parts.add(CONTENT, block.get("text"))
        parts.add(REASONING, block.get("thinking"))
        if block["type"] == "tool_use":
            parts.add_call(index, block["name"], json.dumps(block["input"]))


def _add_message_event(parts: Parts, event: Mapping[str, Any]) -> None:
    match event["type"]:
        case "content_block_start":
            parts.add_call(event["index"], event["content_block"].get("name"), None)
        case "content_block_delta":
            delta = event["delta"]
            parts.add(CONTENT, delta.get("text"))
            parts.add(REASONING, delta.get("thinking"))
            parts.add_call(event["index"], None, delta.get("partial_json"))
        case "message_stop":
            parts.is_complete = True


READERS: Mapping[Api, AnswerReader] = MappingProxyType(
    {
        Api.COMPLETIONS: AnswerReader(_add_choices, _add_choices),
        Api.CHAT: AnswerReader(_add_choices, _add_choices),
        Api.RESPONSES: AnswerReader(_add_response, _add_response_event),
        Api.MESSAGES: AnswerReader(_add_message, _add_message_event),
    }
)
