"""The content blocks of an answer, and the events that build them."""

import hashlib
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any, Literal

from specdecode_engine.serve.anthropic.call_input import read_input
from specdecode_engine.serve.openai.chat_formatter import tool_call_id
from specdecode_engine.serve.openai.formatting import Event
from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    MessageDelta,
    PartKey,
    ReasoningDelta,
    ToolCallDelta,
    part_key,
    part_text,
)

BlockType = Literal["text", "thinking", "tool_use"]
_TYPES: Mapping[type[MessageDelta], BlockType] = {
    ContentDelta: "text",
    ReasoningDelta: "thinking",
    ToolCallDelta: "tool_use",
}
_DELTAS = {
    "text": ("text_delta", "text"),
    "thinking": ("thinking_delta", "thinking"),
    "tool_use": ("input_json_delta", "partial_json"),
}


class ContentBlocks:
    """The blocks of one message. A change between parts of the message begins the next block."""

    def __init__(self, request_id: str) -> None:
        self.done: list[dict[str, Any]] = []
        self._request_id = request_id
        self._key: PartKey | None = None
        self._type: BlockType | None = None
        self._block: dict[str, Any] = {}
        self._pieces: list[str] = []

    @property
    def text_index(self) -> int | None:
        """The index of the block of text that is open, if one is."""
        return len(self.done) if self._type == "text" else None

    def add_text(self, text: str) -> None:
        """Add to the open block of text, of whose event the caller takes care."""
        self._pieces.append(text)

    def add(self, deltas: Sequence[MessageDelta]) -> list[Event]:
        """Add parts of the message; return the events."""
        events: list[Event] = []
        for key, group in groupby(filter(_has_part, deltas), key=part_key):
            parts = list(group)
            kind = _TYPES[key[0]]
            if key != self._key:
                events += self.finish()
                self._key = key
                events.append(self._open(kind, parts[0]))
            if text := "".join(map(part_text, parts)):
                self._pieces.append(text)
                name, field = _DELTAS[kind]
                events.append(self._delta(name, **{field: text}))
        return events

    def finish(self) -> list[Event]:
        """End the open block, if there is one."""
        if self._type is None:
            return []
        events: list[Event] = []
        text, block = "".join(self._pieces), self._block
        if self._type == "tool_use":
            block["input"] = read_input(text)
        else:
            block[self._type] = text
        if self._type == "thinking":
            block["signature"] = self._signature()
            events.append(self._delta("signature_delta", signature=block["signature"]))
        events.append({"type": "content_block_stop", "index": len(self.done)})
        self.done.append(block)
        self._key = self._type = None
        return events

    def _open(self, kind: BlockType, first: MessageDelta) -> Event:
        self._type, self._pieces = kind, []
        if isinstance(first, ToolCallDelta):
            call_id = tool_call_id(self._request_id, 0, first.index).replace("call_", "toolu_", 1)
            self._block = {"type": kind, "id": call_id, "name": first.name, "input": {}}
        else:
            empty = {"signature": ""} if kind == "thinking" else {}
            self._block = {"type": kind, kind: "", **empty}
        block = self._block | {}
        return {"type": "content_block_start", "index": len(self.done), "content_block": block}

    def _delta(self, kind: str, **fields: str) -> Event:
        delta = {"type": kind, **fields}
        return {"type": "content_block_delta", "index": len(self.done), "delta": delta}

    def _signature(self) -> str:
        """Return what clients expect to send back; every engine that continues a stream agrees."""
        name = f"{self._request_id}/{len(self.done)}"
        return hashlib.sha256(name.encode()).hexdigest()


def _has_part(delta: MessageDelta) -> bool:
    return isinstance(delta, ToolCallDelta) or bool(delta.text)
