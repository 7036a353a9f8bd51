"""The output items of a response, and the events that build them.

Sources: OpenAI's reference of response events, and the types of its Python client.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from specdecode_engine.serve.openai.chat_formatter import tool_call_id
from specdecode_engine.serve.openai.formatting import Event
from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    MessageDelta,
    ReasoningDelta,
    ToolCallDelta,
)


@dataclass(frozen=True, slots=True)
class ItemKind:
    """How items of one type are written; `part_type` is None for items without parts."""

    id_prefix: str
    event: str
    part_type: str | None = None


MESSAGE = ItemKind("msg", "response.output_text", "output_text")
REASONING = ItemKind("rs", "response.reasoning_text", "reasoning_text")
CALL = ItemKind("fc", "response.function_call_arguments")


class ResponseItems:
    """The items of one response. A change between parts of the message begins the next item.

    Args:
        has_message: the response may have a message; otherwise it consists of calls.
    """

    def __init__(self, request_id: str, *, has_message: bool = True) -> None:
        self.done: list[dict[str, Any]] = []
        self._request_id = request_id
        self._has_message = has_message
        self._kind: ItemKind | None = None
        self._call = -1
        self._item: dict[str, Any] = {}
        self._pieces: list[str] = []

    def add(self, deltas: Sequence[MessageDelta]) -> list[Event]:
        """Add parts of the message; return the events, without sequence numbers."""
        events: list[Event] = []
        for (kind, call), group in groupby(deltas, key=_item_key):
            parts = list(group)
            if (kind, call) != (self._kind, self._call):
                events += self._close("completed")
                events += self._open(kind, call, parts[0])
            text = "".join(_text(part) for part in parts)
            if text:
                self._pieces.append(text)
                events.append(self._text_event("delta", delta=text))
        return events

    def finish(self, is_complete: bool) -> list[Event]:
        """End the last item; a response without any output has an empty message, if any."""
        is_empty = not self.done and self._kind is None and self._has_message
        events = self._open(MESSAGE, -1, ContentDelta("")) if is_empty else []
        return events + self._close("completed" if is_complete else "incomplete")

    def _open(self, kind: ItemKind, call: int, first: MessageDelta) -> list[Event]:
        self._kind, self._call, self._pieces = kind, call, []
        item_id = f"{kind.id_prefix}_{self._request_id}_{len(self.done)}"
        self._item = {"id": item_id} | self._new_item(kind, first)
        events: list[Event] = [self._event("response.output_item.added", item=self._item | {})]
        if kind.part_type is not None:
            events.append(self._part_event("response.content_part.added", ""))
        return events

    def _new_item(self, kind: ItemKind, first: MessageDelta) -> dict[str, Any]:
        item: dict[str, Any]
        if kind is MESSAGE:
            item = {"type": "message", "role": "assistant", "content": []}
        elif kind is REASONING:
            item = {"type": "reasoning", "summary": [], "content": []}
        else:
            assert isinstance(first, ToolCallDelta)
            item = {
                "type": "function_call",
                "call_id": tool_call_id(self._request_id, 0, first.index),
                "name": first.name,
                "arguments": "",
            }
        return item | {"status": "in_progress"}

    def _close(self, status: str) -> list[Event]:
        if self._kind is None:
            return []
        text, kind = "".join(self._pieces), self._kind
        if kind.part_type is None:
            self._item["arguments"] = text
            names = {"name": self._item["name"], "arguments": text}
            events = [self._text_event("done", **names)]
        else:
            self._item["content"] = [_part(kind, text)]
            events = [
                self._text_event("done", text=text),
                self._part_event("response.content_part.done", text),
            ]
        self._item["status"] = status
        events.append(self._event("response.output_item.done", item=self._item))
        self.done.append(self._item)
        self._kind, self._call = None, -1
        return events

    def _event(self, kind: str, **fields: Any) -> Event:
        return {"type": kind, "output_index": len(self.done), **fields}

    def _part_event(self, kind: str, text: str) -> Event:
        assert self._kind is not None
        part = _part(self._kind, text)
        return self._event(kind, item_id=self._item["id"], content_index=0, part=part)

    def _text_event(self, change: str, **fields: Any) -> Event:
        kind = self._kind
        assert kind is not None
        place = {} if kind.part_type is None else {"content_index": 0}
        logprobs: dict[str, Any] = {"logprobs": []} if kind is MESSAGE else {}
        event = f"{kind.event}.{change}"
        return self._event(event, item_id=self._item["id"], **place, **fields, **logprobs)


def _item_key(delta: MessageDelta) -> tuple[ItemKind, int]:
    match delta:
        case ContentDelta():
            return MESSAGE, -1
        case ReasoningDelta():
            return REASONING, -1
        case ToolCallDelta():
            return CALL, delta.index


def _text(delta: MessageDelta) -> str:
    return delta.arguments if isinstance(delta, ToolCallDelta) else delta.text


def _part(kind: ItemKind, text: str) -> dict[str, Any]:
    part = {"type": kind.part_type, "text": text}
    return part | {"annotations": [], "logprobs": []} if kind is MESSAGE else part
