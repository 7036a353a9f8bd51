"""POST /tokenize and /detokenize, GET /tokenizer_info: the tokenizer, in the shapes of vLLM."""

import asyncio
import json
from collections.abc import Sequence
from typing import Annotated, Any, Self

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, model_validator

from specdecode_engine.serve import errors
from specdecode_engine.serve.json_body import MEDIA_TYPE, read_json
from specdecode_engine.serve.openai.chat_prompt import MIN_TOKENS_LIMIT, read_chat_prompt
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.protocol import TokenId
from specdecode_engine.serve.openai.refused_fields import DETOKENIZE, TOKENIZE, check_refused
from specdecode_engine.serve.openai.service import service_of
from specdecode_engine.serve.text.tokenizer import TextProcessor

router = APIRouter()

PIECE_TOKENS = 2048
"""Tokens that are written as JSON without releasing the interpreter."""


class TokenizeTextBody(BaseModel):
    """A text for POST /tokenize."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    model: str | None = None
    prompt: str
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, TOKENIZE)
        return self


class TokenizeChatBody(ChatBody):
    """A conversation for POST /tokenize: the body of a chat completion, whose prompt it returns."""

    return_token_strs: bool | None = None


def _kind(body: object) -> str:
    return "chat" if isinstance(body, dict) and "messages" in body else "text"


class TokenizeBody(
    RootModel[
        Annotated[
            Annotated[TokenizeTextBody, Tag("text")] | Annotated[TokenizeChatBody, Tag("chat")],
            Discriminator(_kind),
        ]
    ]
):
    """Body of POST /tokenize."""


class DetokenizeBody(BaseModel):
    """Body of POST /detokenize."""

    model_config = ConfigDict(strict=True, frozen=True, extra="allow")

    model: str | None = None
    tokens: Annotated[list[TokenId], Field(fail_fast=True)]

    @model_validator(mode="after")
    def _check_refused(self) -> Self:
        check_refused(self.model_extra, DETOKENIZE)
        return self


class TokenizeResponse(BaseModel):
    """The ids of a text, and their spellings if requested."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeResponse(BaseModel):
    """The text of ids, special tokens included."""

    prompt: str


class TokenizerInfo(BaseModel):
    """The checkpoint's tokenizer_config.json and its chat template."""

    model_config = ConfigDict(extra="allow")

    tokenizer_class: str
    chat_template: Annotated[str | dict[str, str] | None, Field(description="Jinja")]


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    service = service_of(request)
    service.lifecycle.check_admission()
    body = (await read_json(request, TokenizeBody, service.max_body_bytes)).root
    service.ignored_fields.note(body)
    service.adapter_of(body.model)
    context_length = service.engine.context_length
    content = await asyncio.to_thread(_tokenized, body, service.text, context_length)
    return Response(content, media_type=MEDIA_TYPE)


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    service = service_of(request)
    service.lifecycle.check_admission()
    body = await read_json(request, DetokenizeBody, service.max_body_bytes)
    service.ignored_fields.note(body)
    service.adapter_of(body.model)
    most = max(service.engine.context_length, MIN_TOKENS_LIMIT)
    if len(body.tokens) > most:
        message = f"tokens has {len(body.tokens)} items; at most {most} are accepted; split it"
        raise errors.invalid("tokens", message)
    content = await asyncio.to_thread(_detokenized, body, service.text)
    return Response(content, media_type=MEDIA_TYPE)


@router.get("/tokenizer_info")
async def get_tokenizer_info(request: Request) -> dict[str, Any]:
    service = service_of(request)
    service.lifecycle.check_admission()
    return dict(service.text.description)


def _tokenized(
    body: TokenizeTextBody | TokenizeChatBody, text: TextProcessor, context_length: int
) -> bytes:
    """Return the whole response as JSON; runs in a thread."""
    ids = _ids(body, text, max(context_length, MIN_TOKENS_LIMIT))
    spellings = [text.vocabulary.shown(each) for each in ids] if body.return_token_strs else None
    shown = "null" if spellings is None else _list(spellings)
    head = f'{{"count":{len(ids)},"max_model_len":{context_length},"tokens":'
    return f'{head}{_list(ids)},"token_strs":{shown}}}'.encode()


def _ids(
    body: TokenizeTextBody | TokenizeChatBody, text: TextProcessor, most: int
) -> tuple[int, ...]:
    try:
        if isinstance(body, TokenizeTextBody):
            adds = body.add_special_tokens is not False
            return text.encode_prompt(body.prompt, "prompt", most, adds)
        return read_chat_prompt(body, text, most).token_ids
    except errors.HttpError as error:
        if error.code != errors.TOO_LONG:
            raise
        field = "prompt" if isinstance(body, TokenizeTextBody) else body.prompt_field
        message = f"{field} is longer than the {most} tokens that are accepted here; split it"
        raise errors.too_long(message, field) from None


def _detokenized(body: DetokenizeBody, text: TextProcessor) -> bytes:
    wrong = next((each for each in body.tokens if each >= text.vocab_size), None)
    if wrong is not None:
        message = f"tokens has token id {wrong}; valid ids are 0 to {text.vocab_size - 1}"
        raise errors.invalid("tokens", message)
    prompt = text.decode(body.tokens, skip_special_tokens=False)
    return json.dumps({"prompt": prompt}, ensure_ascii=False).encode()


def _list(items: Sequence[object]) -> str:
    """Return items as a JSON list, written in pieces between which other threads may run."""
    starts = range(0, len(items), PIECE_TOKENS)
    pieces = (json.dumps(items[start : start + PIECE_TOKENS])[1:-1] for start in starts)
    return f"[{','.join(pieces)}]"
