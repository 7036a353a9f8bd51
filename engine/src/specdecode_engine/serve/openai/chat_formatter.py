"""OpenAI's `chat.completion` and `chat.completion.chunk` objects."""

import hashlib
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from specdecode_engine.batch.request import FinishReason
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.formatting import ChoiceFormatter, Event, ResponseHead
from specdecode_engine.serve.openai.output_processor import OutputProcessor, ScoredToken
from specdecode_engine.serve.openai.prompt_logprobs import prompt_logprob_objects
from specdecode_engine.serve.openai.protocol import LOWEST_LOGPROB
from specdecode_engine.serve.parsers.message import (
    MessageDelta,
    ReasoningDelta,
    ToolCallDelta,
    part_key,
)
from specdecode_engine.serve.text.tokenizer import Vocabulary

TOOL_CALLS = "tool_calls"


def tool_call_id(request_id: str, choice: int, index: int) -> str:
    """Return the id of a call: the same one for the same request, choice and call."""
    digest = hashlib.sha256(f"{request_id}/{choice}/{index}".encode()).hexdigest()
    return f"call_{digest[:24]}"


def reasoning_text(deltas: Sequence[MessageDelta]) -> str:
    """Return the reasoning in parts of a message."""
    return "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta))


def tool_call_parts(deltas: Sequence[MessageDelta]) -> list[ToolCallDelta]:
    """Return one delta for each call: all that the parts contain of it."""
    calls = [delta for delta in deltas if isinstance(delta, ToolCallDelta)]
    return [_join(list(parts)) for _, parts in groupby(calls, key=lambda call: call.index)]


def _join(parts: list[ToolCallDelta]) -> ToolCallDelta:
    return ToolCallDelta(parts[0].index, parts[0].name, "".join(part.arguments for part in parts))


class ChatFormatter(ChoiceFormatter):
    """Formats the message of each choice: content, reasoning and tool calls."""

    id_prefix = "chatcmpl"
    object_type = "chat.completion"
    chunk_type = "chat.completion.chunk"

    def __init__(self, body: ChatBody, head: ResponseHead, vocabulary: Vocabulary) -> None:
        super().__init__(head, body.n or 1, body.include_usage, bool(body.logprobs))
        self._vocabulary = vocabulary
        self._no_content = None if body.requires_calls else ""

    def first_choice(self, index: int) -> dict[str, Any]:
        return _unfinished(index, {"role": "assistant", "content": self._no_content})

    def text_choice(self, index: int, text: str) -> dict[str, Any]:
        return _unfinished(index, {"content": text})

    def whole(self, choices: Sequence[OutputProcessor], usage: dict[str, Any]) -> Event:
        first, whole = choices[0], super().whole(choices, usage)  # the same prompt for all
        if first.returned_ids is not None:
            whole["prompt_token_ids"] = [*first.prompt_ids]
        if first.prompt_logprobs is not None:
            whole["prompt_logprobs"] = prompt_logprob_objects(
                first.prompt_logprobs, self._vocabulary
            )
        return whole

    def events(self, choice: OutputProcessor) -> Iterable[Event]:
        events = [*super().events(choice)]
        if self._shows_prompt(choice, is_once=True):
            events[0]["prompt_token_ids"] = [*choice.prompt_ids]
        return events

    def choice(self, whole: OutputProcessor) -> dict[str, Any]:
        return {
            "index": whole.index,
            "message": self._message(whole),
            "logprobs": self._logprobs(whole.scored),
            "finish_reason": _finish_reason(whole),
            **whole.token_ids_field,
            **whole.error_field,
            **whole.routed_experts_field,
        }

    def chunk_choices(self, new: OutputProcessor) -> list[dict[str, Any]]:
        """Return a choice for each part of the message, and the end of calls in one of its own.

        Clients take a finish reason for the end of a call whose text came before that chunk, and
        some drop a call next to text. Log-probabilities are in the first choice.
        """
        deltas = [self._delta(new.index, [*parts]) for _, parts in groupby(new.deltas, part_key)]
        ends_calls = new.finish_reason is not None and TOOL_CALLS in (deltas or [{}])[-1]
        deltas += [{}] if ends_calls or not deltas else []
        choices = [_unfinished(new.index, delta) for delta in deltas]
        for position, choice in enumerate(choices):
            choice["logprobs"] = self._logprobs(() if position else new.scored)
        ending = {"finish_reason": _finish_reason(new), **new.error_field}
        choices[-1] |= {**ending, **new.routed_experts_field}
        choices[0] |= new.token_ids_field
        return choices

    def _message(self, whole: OutputProcessor) -> dict[str, Any]:
        reasoning, calls = reasoning_text(whole.deltas), tool_call_parts(whole.deltas)
        content = whole.text or (None if reasoning or calls else self._no_content)
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning:
            message |= _reasoning(reasoning)
        if calls:
            message["tool_calls"] = [self._call(whole.index, call) for call in calls]
        return message

    def _delta(self, choice: int, parts: Sequence[MessageDelta]) -> dict[str, Any]:
        """Return the delta of parts of one kind; of calls, those of one."""
        if calls := tool_call_parts(parts):
            return {
                TOOL_CALLS: [{"index": call.index} | self._call(choice, call) for call in calls]
            }
        text = "".join(part.text for part in parts if not isinstance(part, ToolCallDelta))
        return _reasoning(text) if isinstance(parts[0], ReasoningDelta) else {"content": text}

    def _call(self, choice: int, call: ToolCallDelta) -> dict[str, Any]:
        """Return a call, or what follows of one: that has no id, type and name."""
        if call.name is None:
            return {"function": {"arguments": call.arguments}}
        return {
            "id": tool_call_id(self._head.request_id, choice, call.index),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }

    def _logprobs(self, scored: Sequence[ScoredToken]) -> dict[str, Any] | None:
        if not self._has_logprobs:
            return None
        content = [
            self._token(record.token_id, record.logprob)
            | {"top_logprobs": [self._token(*likely) for likely in record.top]}
            for record in (token.logprobs for token in scored)
            if record is not None
        ]
        return {"content": content, "refusal": None}

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": self._vocabulary.shown(token_id),
            "logprob": max(logprob, LOWEST_LOGPROB),
            "bytes": list(self._vocabulary.text_bytes(token_id)) or None,
        }


def _reasoning(text: str) -> dict[str, str]:
    """Return reasoning under the names that vLLM has now, and that it had before."""
    return {"reasoning": text, "reasoning_content": text}


def _unfinished(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _finish_reason(choice: OutputProcessor) -> str | None:
    if choice.finish_reason is FinishReason.STOP and choice.has_tool_calls:
        return TOOL_CALLS
    return choice.finish_reason
