"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients expect them.

A body becomes one of chat and takes the same way; the formatter makes blocks of its message.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

from fastapi import APIRouter, Request, Response

from specdecode_engine.serve import errors
from specdecode_engine.serve.anthropic.messages_blocks import (
    InputMessage,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from specdecode_engine.serve.anthropic.messages_formatter import MessagesFormatter
from specdecode_engine.serve.anthropic.messages_protocol import CountTokensBody, MessagesBody
from specdecode_engine.serve.json_body import read_json
from specdecode_engine.serve.openai.admission import GenerationApi, PreparedCall, generate
from specdecode_engine.serve.openai.chat import prepare_chat
from specdecode_engine.serve.openai.chat_prompt import MIN_TOKENS_LIMIT, read_chat_prompt
from specdecode_engine.serve.openai.chat_protocol import ChatBody, ChatMessage
from specdecode_engine.serve.openai.service import Service, service_of
from specdecode_engine.serve.text.tokenizer import TextProcessor
from specdecode_server.error_forms import MESSAGES_PATH

router = APIRouter()

OMITTED = "omitted"


class MessagesChatBody(ChatBody):
    """A body of chat whose errors name the fields of this API."""

    parameters_field = "input_schema"
    format_field = "output_config.format"


def prepare_messages(body: CountTokensBody, service: Service) -> PreparedCall:
    """Prepare the conversation that the body contains."""
    return prepare_chat(as_chat(body), service)


def as_chat(body: CountTokensBody) -> ChatBody:
    """Return the body of chat with the same meaning, or raise `HttpError`."""
    fields = {
        "messages": [*chat_messages(body)],
        "tools": body.chat_tools,
        "tool_choice": body.tool_choice,
        **_continuation(body.messages[-1]),
        **_output_fields(body),
    }
    return MessagesChatBody.of(body, fields)


def _output_fields(body: CountTokensBody) -> dict[str, Any]:
    """Return the fields of chat for `thinking` and `output_config`."""
    thinking, config = body.thinking, body.output_config
    is_hidden = thinking is not None and thinking.display == OMITTED
    return {
        "thinking": thinking and {"type": thinking.type},
        "reasoning_effort": config and config.effort,
        "chat_template_kwargs": body.chat_template_kwargs,
        "include_reasoning": False if is_hidden else body.include_reasoning,
        "response_format": config and config.format and config.format.as_response_format(),
    }


def _continuation(last: InputMessage) -> dict[str, bool]:
    """Return the fields by which an answer continues a last message of the assistant."""
    is_text = all(isinstance(block, TextBlock) for block in last.content)
    if last.role != "assistant" or not is_text or not _joined(last):
        return {}
    return {"continue_final_message": True, "add_generation_prompt": False}


def chat_messages(body: CountTokensBody) -> Iterator[ChatMessage]:
    """Yield the messages of chat: results of calls are messages of their own."""
    if body.system:
        yield _message(role="system", content=_lines(body.system))
    for message in body.messages:
        if message.role == "assistant":
            yield _of_assistant(message)
        else:
            yield from _of_others(message)


def _of_others(message: InputMessage) -> Iterator[ChatMessage]:
    """Yield results, and texts between them as messages of the role, in their order."""
    texts: list[TextBlock] = []
    for block in message.content:
        if isinstance(block, ToolResultBlock):
            if texts:
                yield _message(role=message.role, content=_lines(texts))
            texts = []
            yield _of_result(block)
        elif isinstance(block, TextBlock):
            texts.append(block)
    if texts or not message.content:
        yield _message(role=message.role, content=_lines(texts))


def _of_result(block: ToolResultBlock) -> ChatMessage:
    is_error = {"is_error": True} if block.is_error else {}
    content = _lines(block.content)
    return _message(role="tool", tool_call_id=block.tool_use_id, content=content, **is_error)


def _of_assistant(message: InputMessage) -> ChatMessage:
    """Return what the model wrote: an answer's blocks are joined as they were divided."""
    blocks = message.content
    calls = [_call(block) for block in blocks if isinstance(block, ToolUseBlock)]
    thoughts = [block.thinking for block in blocks if isinstance(block, ThinkingBlock)]
    fields: dict[str, Any] = {"role": "assistant", "content": _joined(message)}
    if thoughts:
        fields["reasoning_content"] = "".join(thoughts)
    return _message(**fields, tool_calls=calls or None)


def _call(block: ToolUseBlock) -> dict[str, Any]:
    function = {"name": block.name, "arguments": block.input}
    return {"id": block.id, "type": "function", "function": function}


def _joined(message: InputMessage) -> str:
    return "".join(block.text for block in message.content if isinstance(block, TextBlock))


def _lines(blocks: list[TextBlock]) -> str:
    """Return blocks as one text, joined as the parts of a message in chat."""
    return "\n".join(block.text for block in blocks)


def _message(**fields: Any) -> ChatMessage:
    return ChatMessage.model_validate(fields)


API = GenerationApi(MESSAGES_PATH, MessagesBody, prepare_messages, MessagesFormatter)


@router.post(API.path)
async def create_message(request: Request) -> Response:
    return await generate(request, API)


@router.post(f"{API.path}/count_tokens")
async def count_tokens(request: Request) -> dict[str, int]:
    """Return how many input tokens a message would have; it may be longer than the context."""
    service = service_of(request)
    service.lifecycle.check_admission()
    body = await read_json(request, CountTokensBody, service.max_body_bytes)
    service.ignored_fields.note(body)
    service.adapter_of(body.model)
    most = max(service.engine.context_length, MIN_TOKENS_LIMIT)
    return {"input_tokens": await asyncio.to_thread(_count_tokens, body, service.text, most)}


def _count_tokens(body: CountTokensBody, text: TextProcessor, most: int) -> int:
    try:
        return len(read_chat_prompt(as_chat(body), text, most).token_ids)
    except errors.HttpError as error:
        if error.code != errors.TOO_LONG:
            raise
        message = f"messages has more than the {most} tokens that are counted here; shorten it"
        raise errors.too_long(message, "messages") from None
