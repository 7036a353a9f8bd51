"""The prompt of a conversation: what the chat template of the checkpoint gets, and makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from specdecode_engine.serve.errors import HttpError
from specdecode_engine.serve.openai.chat_protocol import ChatBody, ChatMessage
from specdecode_engine.serve.text.tokenizer import TextProcessor

MIN_TOKENS_LIMIT = 131_072
"""Longer texts than the context may be tokenized, to measure or to cut them, but not any: the
interpreter is held while ids are copied."""
# Mistral's templates refuse longer ids, and other clients' ids are longer.
SHORT_IDS, SHORT_ID_CHARS = "alphanumeric strings with length 9", 9
# Kimi K2 was trained with ids that have the name of the function and count the calls, from which
# it continues, and its templates render the ids that they get.
NUMBERED_IDS = "<|tool_call_argument_begin|>"
# Where templates of Cohere expect the reasoning before a call.
TOOL_PLAN = "tool_plan"
# gpt-oss was trained with either of the two before a call, and its template refuses both.
CONTENT_OR_REASONING = "Cannot pass both content and thinking"
# The name of arguments that are not JSON, where a template takes only objects.
TEXT_ARGUMENTS = "arguments"
REASONING_FIELDS = ("reasoning_content", "reasoning", "thinking")  # to transformers the same


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """The text and the token ids of a rendered conversation."""

    text: str
    token_ids: tuple[int, ...]


def read_chat_prompt(body: ChatBody, text: TextProcessor, context_length: int) -> ChatPrompt:
    """Render and encode a conversation, or raise `HttpError`; safe in any thread."""
    rendered, field = render_conversation(body, text), body.prompt_field
    ids = text.encode_prompt(rendered, field, context_length, add_special_tokens=False)
    return ChatPrompt(rendered, ids)


def render_conversation(body: ChatBody, text: TextProcessor) -> str:
    """Return what the chat template makes of a conversation, or raise `HttpError`."""
    tools = [tool.for_template() for tool in body.offered_tools]
    messages = _messages(body.messages, text)
    if SHORT_IDS in text.chat_template:
        _shorten_ids(messages)
    if NUMBERED_IDS in text.chat_template:
        _number_ids(messages)
    if CONTENT_OR_REASONING in text.chat_template:
        _drop_reasoning_of_content(messages)
    variables = template_variables(body) | {
        "add_generation_prompt": body.add_generation_prompt is not False,
        "continue_final_message": bool(body.continue_final_message),
    }
    try:
        return text.render_chat(messages, tools, variables, body.prompt_field)
    except HttpError:
        if text.concatenates_arguments or not _wrap_arguments(messages):
            raise
        return text.render_chat(messages, tools, variables, body.prompt_field)


def template_variables(body: ChatBody) -> dict[str, Any]:
    """Return the variables of the template that the body sets.

    Templates of different families turn reasoning on and off by `enable_thinking` (Qwen3, GLM-4.5)
    or `thinking` (DeepSeek-V3.1), which is what the field `thinking` sets, and without it
    `reasoning_effort: "none"`.
    """
    mode, effort = body.thinking, body.reasoning_effort
    if effort is None and mode is not None and mode.type == "disabled":
        effort = "none"
    variables: dict[str, Any] = {} if effort is None else {"reasoning_effort": effort}
    if mode is not None or effort == "none":
        is_on = mode is not None and mode.type != "disabled"
        variables |= {"enable_thinking": is_on, "thinking": is_on}
    return variables | (body.chat_template_kwargs or {})


def _messages(messages: Sequence[ChatMessage], text: TextProcessor) -> list[dict[str, Any]]:
    has_tool_plan = TOOL_PLAN in text.chat_template
    return [
        _for_template(message, text.concatenates_arguments, has_tool_plan) for message in messages
    ]


def _for_template(
    message: ChatMessage, has_argument_text: bool, has_tool_plan: bool
) -> dict[str, Any]:
    """Return a message with what the template expects, content in any case."""
    role = "system" if message.role == "developer" else message.role
    fields = message.model_dump(exclude={"tool_calls"}, exclude_none=True)
    if message.tool_calls:
        fields["tool_calls"] = [
            call.for_template(as_text=has_argument_text) for call in message.tool_calls
        ]
    if has_tool_plan and "reasoning_content" in fields:
        fields.setdefault(TOOL_PLAN, fields["reasoning_content"])
    return {"content": ""} | fields | {"role": role}


def _wrap_arguments(messages: Sequence[dict[str, Any]]) -> bool:
    """Make an object of arguments that are text, for templates that take no other.

    Returns whether there were any.
    """
    functions = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    texts = [each for each in functions if isinstance(each["arguments"], str)]
    for each in texts:
        each["arguments"] = {TEXT_ARGUMENTS: each["arguments"]}
    return bool(texts)


def _shorten_ids(messages: Sequence[dict[str, Any]]) -> None:
    """Keep the end of the ids of calls, in calls and results alike."""
    for message in messages:
        for call in message.get("tool_calls", ()):
            call["id"] = _shortened(call["id"])
        if message["role"] == "tool" and "tool_call_id" in message:
            message["tool_call_id"] = _shortened(message["tool_call_id"])


def _shortened(call_id: str) -> str:
    letters = "".join(filter(str.isalnum, call_id))
    return letters[-SHORT_ID_CHARS:].rjust(SHORT_ID_CHARS, "0")


def _number_ids(messages: Sequence[dict[str, Any]]) -> None:
    """Replace the ids of calls by `functions.NAME:INDEX`, in calls and results alike."""
    numbered: dict[str, str] = {}
    count = 0
    for message in messages:
        for call in message.get("tool_calls", ()):
            name = f"functions.{call['function']['name']}:{count}"
            numbered[call["id"]] = call["id"] = name
            count += 1
        if message["role"] == "tool" and "tool_call_id" in message:
            call_id = message["tool_call_id"]
            message["tool_call_id"] = numbered.get(call_id, call_id)


def _drop_reasoning_of_content(messages: Sequence[dict[str, Any]]) -> None:
    """Drop the reasoning before calls that have content."""
    for message in messages:
        if message["content"] and "tool_calls" in message:
            for name in REASONING_FIELDS:
                message.pop(name, None)
