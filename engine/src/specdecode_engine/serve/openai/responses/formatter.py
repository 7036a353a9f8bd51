"""OpenAI's `response` object and the events of its stream."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from specdecode_engine.batch.request import FinishReason
from specdecode_engine.serve.openai.formatting import Event, ResponseHead
from specdecode_engine.serve.openai.json_text import to_json
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.responses.items import ResponseItems
from specdecode_engine.serve.openai.responses.protocol import ResponsesBody
from specdecode_engine.serve.openai.responses.tools import called_tools
from specdecode_engine.serve.openai.tool_choice import ToolChoice
from specdecode_engine.serve.text.tokenizer import Vocabulary

_STATUS = {FinishReason.STOP: "completed", FinishReason.LENGTH: "incomplete"}


Keep = Callable[[bytes], bool]
"""Stores the JSON of a finished response; returns whether there was room."""


class ResponsesFormatter:
    """Formats the only choice of a response.

    Args:
        keep: of a response that is stored; called before the client gets its end.
    """

    has_named_events: bool = True
    opens_at_once: bool = True
    end_marker: str | None = None

    def __init__(
        self,
        body: ResponsesBody,
        head: ResponseHead,
        vocabulary: Vocabulary,
        keep: Keep | None = None,
    ) -> None:
        del vocabulary  # of log-probabilities, which this API does not return
        self._body = body
        self._head = head
        self._keep = keep
        self._choice = body.tool_choice or ToolChoice("auto")
        self._items = ResponseItems(
            head.request_id,
            called_tools(body.tools or ()),
            has_message=self._choice.mode != "required",
        )
        self.num_events = 0
        self._status = "in_progress"
        self._error: dict[str, Any] | None = None

    def resume(self, choices: Sequence[OutputProcessor], num_events: int) -> None:
        for choice in choices:
            self.events(choice)
        self.num_events = num_events

    def whole(self, choices: Sequence[OutputProcessor], usage: dict[str, Any]) -> Event:
        for choice in choices:
            self._items.add(choice.deltas)
            self._finish(choice)
        return self._finished(usage)

    def first_events(self) -> Iterable[Event]:
        kinds = ("response.created", "response.in_progress")
        return self._numbered([{"type": kind, "response": self._response(None)} for kind in kinds])

    def text_event(self, choice: OutputProcessor) -> bytes:
        return b""  # items differ from event to event

    def events(self, choice: OutputProcessor) -> Iterable[Event]:
        return self._numbered([*self._items.add(choice.deltas), *self._finish(choice)])

    def last_events(self, usage: dict[str, Any]) -> Iterable[Event]:
        last = {"type": f"response.{self._status}", "response": self._finished(usage)}
        return self._numbered([last])

    def error_event(self, body: dict[str, Any]) -> Event:
        error = body["error"]
        fields = {name: error[name] for name in ("code", "message", "param")}
        return self._numbered([{"type": "error", **fields}])[0]

    def _finish(self, choice: OutputProcessor) -> list[Event]:
        if choice.finish_reason is None:
            return []
        self._status = _STATUS.get(choice.finish_reason, "failed")
        if self._status == "failed":
            message = choice.error_field.get("error", {}).get("message", "the request failed")
            self._error = {"code": "server_error", "message": message}
        return self._items.finish(is_complete=self._status == "completed")

    def _numbered(self, events: Sequence[Event]) -> list[Event]:
        start, self.num_events = self.num_events, self.num_events + len(events)
        return [event | {"sequence_number": start + i} for i, event in enumerate(events)]

    def _finished(self, usage: dict[str, Any]) -> dict[str, Any]:
        """Return the finished response, which is stored first, so that a client can name it."""
        response = self._response(usage)
        if self._keep is None or self._status == "failed" or self._keep(to_json(response)):
            return response
        return response | {"store": False}

    def _response(self, usage: dict[str, Any] | None) -> dict[str, Any]:
        is_incomplete = self._status == "incomplete"
        return {
            "id": f"resp_{self._head.request_id}",
            "object": "response",
            "created_at": self._head.created,
            "status": self._status,
            "error": self._error,
            "incomplete_details": {"reason": "max_output_tokens"} if is_incomplete else None,
            "model": self._head.model,
            "output": [*self._items.done],
            "usage": None if usage is None else _usage(usage),
            **self._request_fields(),
        }

    def _request_fields(self) -> dict[str, Any]:
        """Return the fields that repeat the request."""
        body = self._body
        effort = body.reasoning.effort if body.reasoning else None
        wanted = body.text.format if body.text else None
        text_format = wanted.model_dump(by_alias=True, exclude_none=True) if wanted else None
        tools = [tool.model_dump() for tool in body.tools or ()]
        return {
            "background": False,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": (
                body.parallel_tool_calls is not False and self._choice.is_parallel
            ),
            "previous_response_id": body.previous_response_id,
            "reasoning": {"effort": effort, "summary": None},
            "store": self._keep is not None,
            "temperature": body.temperature,
            "text": {"format": text_format or {"type": "text"}},
            "tool_choice": self._choice.for_responses(),
            "tools": tools,
            "top_p": body.top_p,
            "truncation": "disabled",
        }


def _usage(usage: dict[str, Any]) -> dict[str, Any]:
    details = usage["completion_tokens_details"]
    cached_tokens = usage.get("prompt_tokens_details", {}).get("cached_tokens", 0)
    return {
        "input_tokens": usage["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage["completion_tokens"],
        "output_tokens_details": details,
        "total_tokens": usage["total_tokens"],
        "specdecode": usage["specdecode"],
    }
