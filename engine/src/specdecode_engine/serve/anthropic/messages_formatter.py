"""Anthropic's `message` object and the events of its stream."""

from collections.abc import Iterable, Sequence
from json.encoder import encode_basestring
from typing import Any

from specdecode_engine.batch.request import FinishReason
from specdecode_engine.serve import errors
from specdecode_engine.serve.anthropic.content_blocks import ContentBlocks
from specdecode_engine.serve.anthropic.messages_protocol import MessagesBody
from specdecode_engine.serve.openai.formatting import Event, ResponseHead
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.text.tokenizer import Vocabulary
from specdecode_server.error_forms import messages_error

_FAILED = (FinishReason.ERROR, FinishReason.ABORT)


class MessagesFormatter:
    """Formats the only choice of a message."""

    has_named_events: bool = True
    opens_at_once: bool = True
    end_marker: str | None = None

    def __init__(self, body: MessagesBody, head: ResponseHead, vocabulary: Vocabulary) -> None:
        del body, vocabulary  # a message repeats no field of its request and has no logprobs
        self._head = head
        self._blocks = ContentBlocks(head.request_id)
        self._stop: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}
        self._has_failed = False
        self.num_events = 0

    def resume(self, choices: Sequence[OutputProcessor], num_events: int) -> None:
        for choice in choices:
            self.events(choice)
        self.num_events = num_events

    def whole(self, choices: Sequence[OutputProcessor], usage: dict[str, Any]) -> Event:
        (choice,) = choices
        if choice.finish_reason in _FAILED:
            raise errors.HttpError(500, _failure(choice), "server_error", code="answer_failed")
        self.events(choice)
        return self._message(self._blocks.done, _usage(usage))

    def first_events(self) -> Iterable[Event]:
        usage = {"prompt_tokens": self._head.prompt_tokens, "completion_tokens": 0}
        message = self._message([], _usage(usage))
        return self._counted([{"type": "message_start", "message": message}])

    def text_event(self, choice: OutputProcessor) -> bytes:
        index = self._blocks.text_index
        if index is None or not (text := choice.only_text):
            return b""
        self.num_events += 1
        self._blocks.add_text(text)
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,'
            b'"delta":{"type":"text_delta","text":%s}}\n\n'
        ) % (index, encode_basestring(text).encode())

    def events(self, choice: OutputProcessor) -> Iterable[Event]:
        return self._counted([*self._blocks.add(choice.deltas), *self._finish(choice)])

    def last_events(self, usage: dict[str, Any]) -> Iterable[Event]:
        if self._has_failed:
            return []
        delta = {"type": "message_delta", "delta": self._stop, "usage": _usage(usage)}
        return self._counted([delta, {"type": "message_stop"}])

    def error_event(self, body: dict[str, Any]) -> Event:
        return messages_error(body["error"])

    def _finish(self, choice: OutputProcessor) -> list[Event]:
        if choice.finish_reason is None:
            return []
        events = self._blocks.finish()
        if choice.finish_reason in _FAILED:
            self._has_failed = True
            return [*events, messages_error({"message": _failure(choice)})]
        self._stop = _stop_fields(choice)
        return events

    def _counted(self, events: list[Event]) -> list[Event]:
        self.num_events += len(events)
        return events

    def _message(self, content: Sequence[dict[str, Any]], usage: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": f"msg_{self._head.request_id}",
            "type": "message",
            "role": "assistant",
            "model": self._head.model,
            "content": [*content],
            **self._stop,
            "usage": usage,
        }


def _stop_fields(choice: OutputProcessor) -> dict[str, str | None]:
    """Return why an answer ended; calls are to be run also where a stop string follows them."""
    if choice.finish_reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if choice.has_tool_calls:
        return {"stop_reason": "tool_use", "stop_sequence": None}
    reason = "end_turn" if choice.stop_string is None else "stop_sequence"
    return {"stop_reason": reason, "stop_sequence": choice.stop_string}


def _failure(choice: OutputProcessor) -> str:
    return choice.error_field.get("error", {}).get("message", "the request failed")


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Return Anthropic's usage, whose `input_tokens` are those that were not in the cache."""
    details = usage.get("completion_tokens_details", {})
    cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    found = {
        "input_tokens": usage["prompt_tokens"] - cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached_tokens,
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": {"thinking_tokens": details.get("reasoning_tokens", 0)},
    }
    return found | {name: usage[name] for name in ("specdecode",) if name in usage}
