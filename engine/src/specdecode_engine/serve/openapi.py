"""GET /openapi.json: the paths of the API with the schemas of their bodies and responses."""

import asyncio
import json
import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from fastapi import APIRouter, Response
from pydantic import BaseModel
from pydantic.json_schema import JsonSchemaMode, models_json_schema

from specdecode_api import names
from specdecode_engine.serve import VERSION, speculation, tokenization
from specdecode_engine.serve.anthropic import messages_models as messages
from specdecode_engine.serve.anthropic.messages_protocol import CountTokensBody, MessagesBody
from specdecode_engine.serve.json_body import MEDIA_TYPE
from specdecode_engine.serve.openai import response_models as models
from specdecode_engine.serve.openai.chat_protocol import ChatBody
from specdecode_engine.serve.openai.formatting import END_OF_STREAM
from specdecode_engine.serve.openai.protocol import CompletionBody
from specdecode_engine.serve.openai.responses import models as responses
from specdecode_engine.serve.openai.responses import stored_routes
from specdecode_engine.serve.openai.responses.protocol import ResponsesBody
from specdecode_server.request_id import HEADER as REQUEST_ID

router = APIRouter()

PATH = "/openapi.json"
EVENT_STREAM = "text/event-stream"
_REF = "#/components/schemas/{model}"

_ALWAYS = {400: "not valid", 401: "no valid API key", 408: "not sent in time", 431: "headers"}
_LOADED = {503: "loading or stopping; retry after the seconds in Retry-After"}
_WITH_BODY = {413: "the body is too large", 415: "the body is not JSON"}
_NAMED = {404: "the model is not served here"}
_GENERATING = {429: "the queue is full; retry later", 500: "the engine failed"}


@dataclass(frozen=True, slots=True)
class Operation:
    """A method of a path: its models, and the errors it has apart from those of every path."""

    method: str
    path: str
    summary: str
    response: type[BaseModel]
    errors: dict[int, str]
    body: type[BaseModel] | None = None
    event: type[BaseModel] | None = None
    needs_key: bool = True
    error: type[BaseModel] = models.ErrorResponse
    query: tuple[dict[str, Any], ...] = ()


_GENERATION = _LOADED | _WITH_BODY | _NAMED | _GENERATING
_TOKENIZER = _LOADED | _WITH_BODY | _NAMED
_STORED = {404: "no response with this id is stored for the API key"}
_PAGE: tuple[dict[str, Any], ...] = (
    {
        "name": "limit",
        "in": "query",
        "schema": {
            "type": "integer",
            "minimum": 1,
            "maximum": stored_routes.MAX_LIMIT,
            "default": stored_routes.DEFAULT_LIMIT,
        },
    },
    {
        "name": "order",
        "in": "query",
        "schema": {"type": "string", "enum": ["asc", "desc"], "default": "desc"},
    },
    {
        "name": "after",
        "in": "query",
        "description": "id of the last item of the page before",
        "schema": {"type": "string"},
    },
)

OPERATIONS = (
    Operation(
        "post", "/v1/completions", "Complete texts", models.CompletionResponse, _GENERATION,
        CompletionBody, models.CompletionResponse,
    ),
    Operation(
        "post", "/v1/chat/completions", "Generate the next message", models.ChatResponse,
        _GENERATION, ChatBody, models.ChatChunk,
    ),
    Operation(
        "post", "/v1/responses", "Generate output items", responses.ResponseObject,
        _GENERATION | {404: "the model is not served here, or no stored response has this id"},
        ResponsesBody, responses.ResponseEvent,
    ),
    Operation(
        "get", stored_routes.PATH, "A stored response", responses.ResponseObject, _STORED
    ),
    Operation(
        "delete", stored_routes.PATH, "Forget a stored response", responses.DeletedResponse,
        _STORED,
    ),
    Operation(
        "get", stored_routes.PATH_ITEMS, "Items of the conversation before a stored response",
        responses.InputItemList, _STORED, query=_PAGE,
    ),
    Operation(
        "post", stored_routes.PATH_CANCEL, "Refused: no response runs in the background",
        responses.ResponseObject, _STORED,
    ),
    Operation(
        "post", "/v1/messages", "Generate the next message, for Anthropic's clients",
        messages.MessagesResponse, _GENERATION, MessagesBody, messages.MessageEvent,
        error=messages.MessagesErrorResponse,
    ),
    Operation(
        "post", "/v1/messages/count_tokens", "Input tokens of a message", messages.TokenCount,
        _TOKENIZER, CountTokensBody, error=messages.MessagesErrorResponse,
    ),
    Operation("get", "/v1/models", "The model that is served", models.ModelList, _LOADED),
    Operation(
        "get", "/v1/models/{name}", "A model by its name", models.ModelCard, _LOADED | _NAMED
    ),
    Operation(
        "get", speculation.PATH, "What the engine drafts with, and recent rates",
        speculation.SpeculationReport, _LOADED,
    ),
    Operation(
        "post", "/tokenize", "Ids of a text or a conversation", tokenization.TokenizeResponse,
        _TOKENIZER, tokenization.TokenizeBody,
    ),
    Operation(
        "post", "/detokenize", "Text of ids", tokenization.DetokenizeResponse, _TOKENIZER,
        tokenization.DetokenizeBody,
    ),
    Operation(
        "get", "/tokenizer_info", "The tokenizer's configuration", tokenization.TokenizerInfo,
        _LOADED,
    ),
    Operation("get", "/model_info", "The model, for SGLang's clients", models.ModelInfo, _LOADED),
    Operation(
        "get", "/get_model_info", "The same, by its older path", models.ModelInfo, _LOADED
    ),
    Operation(
        "get", names.PATH_HEALTH, "Whether to send requests", models.HealthResponse, {},
        needs_key=False,
    ),
    Operation(
        "get", names.PATH_PING, "Whether to send requests", models.HealthResponse, {},
        needs_key=False,
    ),
    Operation(
        "get", names.PATH_VERSION, "Version of the engine", models.VersionResponse, {},
        needs_key=False,
    ),
    Operation("get", PATH, "This document", models.OpenApiDocument, {}, needs_key=False),
)  # fmt: skip


@router.get(PATH)
async def get_openapi() -> Response:
    return Response(await asyncio.to_thread(_document_json), media_type=MEDIA_TYPE)


@cache
def _document_json() -> bytes:
    return json.dumps(build_document(), ensure_ascii=False).encode()


def build_document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the API port."""
    wanted: list[tuple[type[BaseModel], JsonSchemaMode]] = []
    for each in OPERATIONS:
        used = (each.response, each.event, each.error)
        wanted += [(model, "serialization") for model in used if model]
        wanted += [(each.body, "validation")] if each.body else []
    references, definitions = models_json_schema(list(dict.fromkeys(wanted)), ref_template=_REF)
    paths: dict[str, dict[str, Any]] = {}
    for each in OPERATIONS:
        paths.setdefault(each.path, {})[each.method] = _operation(each, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "specdecode", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(each: Operation, references: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    content = {MEDIA_TYPE: {"schema": references[each.response, "serialization"]}}
    if each.event is not None:
        content[EVENT_STREAM] = {"schema": _event_schema(each, references)}
    responses: dict[str, Any] = {"200": {"description": "OK", "content": content}}
    if each.response is models.HealthResponse:
        responses["503"] = {"description": "not ready", "content": content}
    refusal = {MEDIA_TYPE: {"schema": references[each.error, "serialization"]}}
    for status, description in sorted((_ALWAYS | each.errors).items()):
        responses[str(status)] = {"description": description, "content": refusal}
    operation: dict[str, Any] = {
        "summary": each.summary,
        "operationId": f"{each.method}_{each.path.strip('/').replace('/', '_')}",
        "parameters": [*_path_parameters(each.path), *each.query, *_HEADERS],
        "responses": responses,
    }
    if each.needs_key:
        operation["security"] = [{}, {"key": []}]
    if each.body is not None:
        schema = references[each.body, "validation"]
        operation["requestBody"] = {"required": True, "content": {MEDIA_TYPE: {"schema": schema}}}
    return operation


def _event_schema(each: Operation, references: dict[Any, dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of one server-sent event, as the media type registry of OpenAPI models it.

    Its data are JSON, and at the end of a stream of chunks a marker. OpenAPI 3.1 has no keyword for
    the items of a stream; tools read `schema` as that of an item.
    """
    assert each.event is not None
    is_named = each.event in (responses.ResponseEvent, messages.MessageEvent)
    models_of_data = [each.event] if is_named else [each.event, models.ErrorResponse]
    content = {"anyOf": [references[model, "serialization"] for model in models_of_data]}
    data = {"type": "string", "contentMediaType": MEDIA_TYPE, "contentSchema": content}
    end = [] if is_named else [{"const": END_OF_STREAM}]
    properties: dict[str, Any] = {"data": {"anyOf": [data, *end]}}
    if is_named:
        properties["event"] = {"type": "string", "description": "the field type of the data"}
    return {"type": "object", "properties": properties, "required": sorted(properties)}


_HEADERS = [
    {
        "name": REQUEST_ID,
        "in": "header",
        "description": "returned with the response and written to the log",
        "schema": {"type": "string", "pattern": "^[!-~]{1,128}$"},
    }
]


def _path_parameters(path: str) -> list[dict[str, Any]]:
    schema = {"type": "string", "minLength": 1}
    return [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name in re.findall(r"{(\w+)}", path)
    ]
