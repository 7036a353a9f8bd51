"""The output items of a response, and the events that build them.

Sources: OpenAI's reference of response events, and the types of its Python client.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from specdecode_engine.serve.openai.chat_formatter import tool_call_id
from specdecode_engine.serve.openai.formatting import Event
from specdecode_engine.serve.openai.responses.tools import CalledTool, custom_input
from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    MessageDelta,
    PartKey,
    ReasoningDelta,
    ToolCallDelta,
    part_key,
    part_text,
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
CUSTOM_CALL = ItemKind("ctc", "response.custom_tool_call_input")
_CALL_FIELDS = {CALL: ("function_call", "arguments"), CUSTOM_CALL: ("custom_tool_call", "input")}
_KINDS = {ContentDelta: MESSAGE, ReasoningDelta: REASONING, ToolCallDelta: CALL}


class ResponseItems:
    """The items of one response. A change between parts of the message begins the next item.

    Args:
        tools: what the functions of calls are, by their names in chat.
        has_message: the response may have a message; otherwise it consists of calls.
    """

    def __init__(
        self, request_id: str, tools: Mapping[str, CalledTool], *, has_message: bool = True
    ) -> None:
        self.done: list[dict[str, Any]] = []
        self._request_id = request_id
        self._tools = tools
        self._has_message = has_message
        self._key: PartKey | None = None
        self._kind: ItemKind | None = None
        self._item: dict[str, Any] = {}
        self._pieces: list[str] = []

    def add(self, deltas: Sequence[MessageDelta]) -> list[Event]:
        """Add parts of the message; return the events, without sequence numbers."""
        events: list[Event] = []
        for key, group in groupby(deltas, key=part_key):
            parts = list(group)
            if key != self._key:
                events += self._close("completed")
                events += self._open(key, parts[0])
            text = "".join(map(part_text, parts))
            if text:
                self._pieces.append(text)
            if text and self._kind is not CUSTOM_CALL:  # its JSON is read when it is whole
                events.append(self._text_event("delta", delta=text))
        return events

    def finish(self, is_complete: bool) -> list[Event]:
        """End the last item; a response without any output has an empty message, if any."""
        is_empty = not self.done and self._kind is None and self._has_message
        empty = ContentDelta("")
        events = self._open(part_key(empty), empty) if is_empty else []
        return events + self._close("completed" if is_complete else "incomplete")

    def _open(self, key: PartKey, first: MessageDelta) -> list[Event]:
        self._key, self._pieces = key, []
        kind = self._kind = self._kind_of(key, first)
        item_id = f"{kind.id_prefix}_{self._request_id}_{len(self.done)}"
        self._item = {"id": item_id} | self._new_item(kind, first)
        events: list[Event] = [self._event("response.output_item.added", item=self._item | {})]
        if kind.part_type is not None:
            events.append(self._part_event("response.content_part.added", ""))
        return events

    def _kind_of(self, key: PartKey, first: MessageDelta) -> ItemKind:
        if isinstance(first, ToolCallDelta) and self._tool(first).is_custom:
            return CUSTOM_CALL
        return _KINDS[key[0]]

    def _tool(self, call: ToolCallDelta) -> CalledTool:
        name = call.name or ""
        return self._tools.get(name, CalledTool(name))

    def _new_item(self, kind: ItemKind, first: MessageDelta) -> dict[str, Any]:
        if isinstance(first, ToolCallDelta):
            return self._new_call(kind, first)
        if kind is MESSAGE:
            item: dict[str, Any] = {"type": "message", "role": "assistant", "content": []}
        else:
            item = {"type": "reasoning", "summary": [], "content": []}
        return item | {"status": "in_progress"}

    def _new_call(self, kind: ItemKind, first: ToolCallDelta) -> dict[str, Any]:
        tool = self._tool(first)
        item_type, field = _CALL_FIELDS[kind]
        item = {
            "type": item_type,
            "call_id": tool_call_id(self._request_id, 0, first.index),
            "name": tool.name,
            field: "",
            "status": "in_progress",
        }
        return item if tool.namespace is None else item | {"namespace": tool.namespace}

    def _close(self, status: str) -> list[Event]:
        if self._kind is None:
            return []
        text, kind = "".join(self._pieces), self._kind
        if kind is CALL:
            self._item["arguments"] = text
            names = {"name": self._item["name"], "arguments": text}
            events = [self._text_event("done", **names)]
        elif kind is CUSTOM_CALL:
            text = self._item["input"] = custom_input(text)
            events = [
                self._text_event("delta", delta=text),
                self._text_event("done", input=text),
            ]
        else:
            self._item["content"] = [_part(kind, text)]
            events = [
                self._text_event("done", text=text),
                self._part_event("response.content_part.done", text),
            ]
        self._item["status"] = status
        events.append(self._event("response.output_item.done", item=self._item))
        self.done.append(self._item)
        self._key = self._kind = None
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


def _part(kind: ItemKind, text: str) -> dict[str, Any]:
    part = {"type": kind.part_type, "text": text}
    return part | {"annotations": [], "logprobs": []} if kind is MESSAGE else part
