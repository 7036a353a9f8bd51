"""POST /v1/responses: input items in, output items out.

A body becomes one of chat and takes the same way; the formatter makes items of its message.
"""

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from specdecode_engine.serve.openai.admission import (
    CallOrigin,
    GenerationApi,
    PreparedCall,
    generate,
)
from specdecode_engine.serve.openai.chat import prepare_chat
from specdecode_engine.serve.openai.chat_protocol import ChatBody, ChatMessage
from specdecode_engine.serve.openai.responses.formatter import ResponsesFormatter
from specdecode_engine.serve.openai.responses.protocol import (
    CallOutputItem,
    CustomCallItem,
    FunctionCallItem,
    InputItem,
    ItemReference,
    MessageItem,
    ReasoningItem,
    ResponsesBody,
)
from specdecode_engine.serve.openai.responses.stored import resolve
from specdecode_engine.serve.openai.responses.tools import (
    CalledTool,
    chat_tools,
    custom_arguments,
)
from specdecode_engine.serve.openai.service import Service, service_of

router = APIRouter()


class ResponsesChatBody(ChatBody):
    """A body of chat whose errors name the field of this API."""

    prompt_field = "input"
    parameters_field = "parameters"
    format_field = "text.format"


def prepare_response(body: ResponsesBody, service: Service) -> PreparedCall:
    """Prepare the conversation that the body contains."""
    return prepare_chat(as_chat(body), service)


def as_chat(body: ResponsesBody) -> ChatBody:
    """Return the body of chat with the same meaning, or raise `HttpError`."""
    wanted_format = body.text.format if body.text else None
    fields = {
        "messages": chat_messages(body),
        "tools": body.tools and chat_tools(body.tools),
        "tool_choice": body.tool_choice,
        "parallel_tool_calls": body.parallel_tool_calls,
        "max_completion_tokens": body.max_output_tokens,
        "response_format": wanted_format and wanted_format.as_response_format(),
        "reasoning_effort": body.reasoning and body.reasoning.effort,
        "chat_template_kwargs": body.chat_template_kwargs,
        "include_reasoning": body.include_reasoning,
    }
    return ResponsesChatBody.of(body, fields)


def chat_messages(body: ResponsesBody) -> list[ChatMessage]:
    """Return the messages of the items.

    Reasoning, text and calls that the model wrote one after another are one message of the
    assistant, as chat templates expect.
    """
    messages: list[dict[str, Any]] = []
    if body.instructions:
        messages.append({"role": "system", "content": body.instructions})
    for item in body.input:
        part = _part(item)
        if part["role"] == "assistant" and messages and _continues(messages[-1], part):
            if calls := part.pop("tool_calls", None):
                messages[-1].setdefault("tool_calls", []).extend(calls)
            messages[-1] |= part
        else:
            messages.append(part)
    return [ChatMessage.model_validate(message) for message in messages]


def _continues(message: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    """Whether a part belongs to the assistant's message before it."""
    if message["role"] != "assistant":
        return False
    if "tool_calls" in part:
        return True
    taken = {"content", "tool_calls"} if "content" in part else message.keys() - {"role"}
    return not taken & message.keys()


def _part(item: InputItem) -> dict[str, Any]:
    match item:
        case MessageItem():
            return {"role": item.role, "content": item.content}
        case FunctionCallItem():
            return _call(item, item.arguments)
        case CustomCallItem():
            return _call(item, custom_arguments(item.input))
        case CallOutputItem():
            return {"role": "tool", "tool_call_id": item.call_id, "content": item.output}
        case ReasoningItem():
            return {"role": "assistant", "reasoning_content": item.content or item.summary}
        case ItemReference():
            raise AssertionError("a reference is replaced by the item that it names")


def _call(item: FunctionCallItem | CustomCallItem, arguments: str) -> dict[str, Any]:
    name = CalledTool(item.name, item.namespace).function_name
    function = {"name": name, "arguments": arguments}
    call = {"id": item.call_id, "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


API = GenerationApi("/v1/responses", ResponsesBody, prepare_response, ResponsesFormatter, resolve)


@router.post(API.path)
async def create_response(request: Request) -> Response:
    store = service_of(request).responses
    origin = None if store is None else CallOrigin(store.new_name(), int(time.time()))
    return await generate(request, API, origin)
