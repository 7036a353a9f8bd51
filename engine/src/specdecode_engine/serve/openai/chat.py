"""POST /v1/chat/completions: a conversation in, the assistant's next message out."""

from fastapi import APIRouter, Request, Response

from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.admission import GenerationApi, PreparedCall, generate
from specdecode_engine.serve.openai.chat_formatter import ChatFormatter
from specdecode_engine.serve.openai.chat_prompt import read_chat_prompt
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.message_constraint import read_message_constraint
from specdecode_engine.serve.openai.service import Service
from specdecode_engine.serve.parsers.formats import MessageFormats
from specdecode_engine.serve.parsers.message import (
    ContentDelta,
    ParserContext,
    ReasoningDelta,
    ReasoningParser,
)
from specdecode_engine.serve.parsers.reasoning import HiddenParts

router = APIRouter()


def prepare_chat(body: ChatBody, service: Service) -> PreparedCall:
    """Render and encode the conversation, and choose the parsers of its answer."""
    formats = service.formats
    _check_tools(body, formats)
    prompt = read_chat_prompt(body, service.text, service.engine.context_length)
    continued = (body.messages[-1].content or "") if body.continue_final_message else ""
    tags = formats.reasoning
    in_reasoning = tags is not None and tags.are_open(prompt.text, continued)
    constraint = read_message_constraint(body, formats, in_reasoning, service.text.vocabulary)
    context = ParserContext(
        in_reasoning=in_reasoning,
        parameters={
            tool.function.name: tool.function.parameters or {} for tool in body.offered_tools
        },
        calls_in_reasoning=constraint is None,  # a grammar closes reasoning before any call
    )

    def make_parser() -> ReasoningParser:
        parser = formats.make_parser(context)
        if body.requires_calls:
            parser = HiddenParts(parser, ContentDelta)
        return HiddenParts(parser, ReasoningDelta) if body.include_reasoning is False else parser

    special_tokens = formats.special_tokens(has_tools=bool(context.parameters))
    return PreparedCall(
        prompts=((prompt.token_ids, ""),),
        constraint=constraint,
        make_parser=make_parser,
        visible_ids=service.text.vocabulary.special_tokens(special_tokens),
        eos_token_ids=service.stop_tokens.ids(in_chat=True),
    )


def _check_tools(body: ChatBody, formats: MessageFormats) -> None:
    if body.offered_tools and formats.tools is None:
        raise errors.invalid(
            "tools",
            "the chat template of this model has no known format of tool calls; remove tools, or "
            "set serving.toolParser (--tool-call-parser) to the model's format",
            "tools_not_supported",
        )


API = GenerationApi("/v1/chat/completions", ChatBody, prepare_chat, ChatFormatter)


@router.post(API.path)
async def create_chat_completion(request: Request) -> Response:
    return await generate(request, API)
