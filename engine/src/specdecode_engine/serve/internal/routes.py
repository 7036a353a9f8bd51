"""`POST /internal/generate` and `GET /internal/engine`, for routers with a valid token."""

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response

from specdecode_api.internal_api import (
    PATH_ENGINE,
    PATH_GENERATE,
    QUERY_RESPONSE_KEY,
    EngineState,
    Envelope,
)
from specdecode_engine.serve import errors
from specdecode_engine.serve.anthropic import messages
from specdecode_engine.serve.internal.reply import InternalReply
from specdecode_engine.serve.internal.resume import origin_of, replay
from specdecode_engine.serve.json_body import REMEDY, check_media_type, parse_body, parse_json
from specdecode_engine.serve.openai import chat, completions
from specdecode_engine.serve.openai.admission import GenerationApi, admit
from specdecode_engine.serve.openai.responses import api as responses
from specdecode_engine.serve.openai.service import Service, service_of
from specdecode_server.body import read_limited

router = APIRouter()

APIS: Mapping[str, GenerationApi[Any]] = {
    api.path: api for api in (completions.API, chat.API, responses.API, messages.API)
}
MAX_ENVELOPE_BYTES = 32 * 2**20
"""Room for the tokens of all choices of a call."""


@router.post(PATH_GENERATE)
async def generate(request: Request) -> Response:
    """Generate or continue an answer; bodies and refusals are those of the API port."""
    service = service_of(request)
    _check_token(service, request)
    service.lifecycle.check_admission()
    started_s = service.clock()
    envelope, data = await _read(request, service.max_body_bytes)
    api = APIS[envelope.path]
    origin = origin_of(envelope, service.resume_id.value)
    check_media_type(request)
    body = await parse_body(api.body_type, data)
    call = await admit(request, api, body, origin)
    if origin.choices:
        size, sent = service.text.vocab_size, envelope.sent_events
        await asyncio.to_thread(replay, call, origin.choices, size, sent)
    has_begun = bool(envelope.sent_events) or any(each.has_begun for each in origin.choices)
    return InternalReply(service, call, started_s, has_begun=has_begun)


async def _read(request: Request, max_bytes: int) -> tuple[Envelope, bytes]:
    """Return the envelope and the client's body, which has the limit of the API port."""
    data = await read_limited(request, MAX_ENVELOPE_BYTES + max_bytes, REMEDY)
    head, _, body = data.partition(b"\n")
    if len(body) > max_bytes:
        message = f"the body has {len(body)} bytes; at most {max_bytes} bytes are accepted; "
        raise errors.HttpError(413, message + REMEDY, code="body_too_large")
    return parse_json(Envelope, head), body


@router.get(PATH_ENGINE, response_model_exclude_unset=True)
async def get_engine(request: Request) -> EngineState:
    """Return what a router chooses engines by; cheap, for a request every second."""
    service = service_of(request)
    _check_token(service, request)
    is_loaded, store = service.lifecycle.is_loaded, service.responses
    wants_key = QUERY_RESPONSE_KEY in request.query_params
    key = {} if store is None or not wants_key else {"response_key": store.key.hex()}
    return EngineState(
        reason=service.lifecycle.not_ready_reason(),
        resume_id=service.resume_id.value,
        model=service.served_name,
        config_hash=service.drafts.config_hash,
        api_port=service.api_port,
        requests=service.lifecycle.running_requests,
        capacity=service.boot.scheduling.max_running_requests,
        max_body_bytes=service.max_body_bytes if is_loaded else 0,
        **key,
    )


def _check_token(service: Service, request: Request) -> None:
    if service.router_tokens is None:
        raise errors.HttpError(
            404, "this engine has no tokens of routers; set server.router_token_path "
            "(--router-token-file)", code="not_found"
        )  # fmt: skip
    service.router_tokens.check(request)
    service.resume_id.want()
