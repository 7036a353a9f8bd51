"""Puts the events of a stream together: what a client has at the end, by choice."""

import json
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Choice:
    """One choice; `calls` are name and arguments by index, `scored` its log-probabilities.

    `prompt_ids` are those of the prompt, once for each time that the stream shows them.
    """

    content: str = ""
    reasoning: str = ""
    calls: dict[int, list[str]] = field(default_factory=dict)
    scored: list[Any] = field(default_factory=list)
    prompt_ids: list[list[int]] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None


@dataclass
class Answer:
    """The choices of a stream, its usage without timing, and whether it ended as it should."""

    ids: set[str] = field(default_factory=set)
    choices: dict[int, Choice] = field(default_factory=dict)
    usage: dict[str, Any] | None = None
    is_complete: bool = False
    errors: list[Any] = field(default_factory=list)
    sequence_numbers: list[int] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)

    @property
    def content(self) -> str:
        return self.choices[0].content


def events_of(body: str) -> list[str]:
    """The data of each event."""
    return [
        line.removeprefix("data: ")
        for event in body.split("\n\n")
        for line in event.split("\n")
        if line.startswith("data: ")
    ]


def read_answer(body: str) -> Answer:
    """Read a whole stream of any of the APIs."""
    answer = Answer()
    for data in events_of(body):
        if data == "[DONE]":
            assert not answer.is_complete
            answer.is_complete = True
            continue
        event = json.loads(data)
        if "sequence_number" in event:
            _add_response_event(answer, event)
        elif "type" in event:
            _add_message_event(answer, event)
        else:
            _add_chunk(answer, event)
    return answer


def _add_chunk(answer: Answer, chunk: dict[str, Any]) -> None:
    if "error" in chunk:
        answer.errors.append(chunk["error"])
        return
    answer.ids.add(f"{chunk['id']} {chunk['created']} {chunk['model']}")
    if chunk.get("usage"):
        assert answer.usage is None, "the stream has its usage twice"
        answer.usage = plain_usage(chunk["usage"])
    for each in chunk["choices"]:
        prompts = [at["prompt_token_ids"] for at in (chunk, each) if "prompt_token_ids" in at]
        choice = answer.choices.setdefault(each["index"], Choice())
        assert choice.finish_reason is None, "a choice continues after its end"
        choice.finish_reason = each["finish_reason"]
        delta = each.get("delta", {"content": each.get("text")})
        choice.content += delta.get("content") or ""
        choice.reasoning += delta.get("reasoning_content") or ""
        choice.scored += _scored(each.get("logprobs"))
        choice.token_ids += each.get("token_ids", ())
        choice.prompt_ids += prompts
        for call in delta.get("tool_calls") or ():
            _add_call(choice, call)


def _add_call(choice: Choice, call: dict[str, Any]) -> None:
    function = call["function"]
    if call.get("id"):
        assert call["index"] not in choice.calls, "a call begins twice"
        choice.calls[call["index"]] = [call["id"], function["name"], ""]
    choice.calls[call["index"]][2] += function.get("arguments") or ""


def _scored(logprobs: dict[str, Any] | None) -> list[Any]:
    if not logprobs:
        return []
    if "content" in logprobs:
        return list(logprobs["content"])
    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    return list(zip(*(logprobs[name] for name in names), strict=True))


def _add_response_event(answer: Answer, event: dict[str, Any]) -> None:
    answer.sequence_numbers.append(event["sequence_number"])
    choice = answer.choices.setdefault(0, Choice())
    match event["type"]:
        case "response.output_text.delta":
            choice.content += event["delta"]
        case "response.reasoning_text.delta":
            choice.reasoning += event["delta"]
        case "response.function_call_arguments.delta":
            call = choice.calls.setdefault(event["output_index"], [event["item_id"], "", ""])
            call[2] += event["delta"]
        case "response.output_item.done":
            answer.items.append(event["item"])
        case "response.completed" | "response.incomplete" | "response.failed":
            response = event["response"]
            assert response["output"] == answer.items
            answer.ids.add(f"{response['id']} {response['created_at']} {response['model']}")
            answer.usage = plain_usage(response["usage"])
            choice.finish_reason = response["status"]
            answer.is_complete = True
        case "error":
            answer.errors.append(event)


def _add_message_event(answer: Answer, event: dict[str, Any]) -> None:
    assert not answer.is_complete
    match event["type"]:
        case "message_start":
            message = event["message"]
            assert not answer.ids, "the stream begins twice"
            answer.ids.add(f"{message['id']} {message['model']}")
            answer.choices[0] = Choice()
        case "content_block_start":
            assert event["index"] == len(answer.items)
            answer.items.append(event["content_block"])
            if event["content_block"]["type"] == "tool_use":
                block = event["content_block"]
                answer.choices[0].calls[event["index"]] = [block["id"], block["name"], ""]
        case "content_block_delta":
            assert event["index"] == len(answer.items) - 1
            _add_block_delta(answer, event["delta"])
        case "content_block_stop":
            assert event["index"] == len(answer.items) - 1
        case "message_delta":
            assert answer.usage is None, "the stream has its usage twice"
            answer.usage = plain_usage(event["usage"])
            answer.choices[0].finish_reason = event["delta"]["stop_reason"]
            answer.items.append(event["delta"])
        case "message_stop":
            answer.is_complete = True
        case "error":
            answer.errors.append(event["error"])


def _add_block_delta(answer: Answer, delta: dict[str, Any]) -> None:
    choice = answer.choices[0]
    match delta["type"]:
        case "text_delta":
            choice.content += delta["text"]
        case "thinking_delta":
            choice.reasoning += delta["thinking"]
        case "signature_delta":
            answer.items[-1]["signature"] += delta["signature"]
        case "input_json_delta":
            choice.calls[len(answer.items) - 1][2] += delta["partial_json"]


def plain_usage(usage: dict[str, Any]) -> dict[str, Any]:
    """Counts of tokens alone: figures of speculation and of the cache depend on the engine."""
    counts = {name: count for name, count in usage.items() if isinstance(count, int)}
    if cached_tokens := counts.pop("cache_read_input_tokens", 0):
        counts["input_tokens"] += cached_tokens
    for name, details in usage.items():
        if isinstance(details, dict) and "reasoning_tokens" in details:
            counts[f"{name}.reasoning_tokens"] = details["reasoning_tokens"]
    return counts
