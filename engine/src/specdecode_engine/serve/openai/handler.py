"""The handler that chat and text completions share: HTTP body to streaming reply."""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from fastapi import Request, Response
from pydantic import ValidationError

from specdecode_api import names
from specdecode_engine.serve import errors
from specdecode_engine.serve.openai.admission import EncodedPrompt, admit, check_model
from specdecode_engine.serve.openai.constraints import read_constraint
from specdecode_engine.serve.openai.protocol import GenerationBody
from specdecode_engine.serve.openai.streaming import ResponseFormatter, StreamingReply
from specdecode_engine.serve.service import Service, service_of
from specdecode_engine.serve.text.tokenizer import TextProcessor
from specdecode_engine.serve.text.vocabulary import Vocabulary

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
# Most clients read an error only after they have sent the whole body: up to here it is read.
MAX_DISCARDED_BYTES = 4 * MAX_BODY_BYTES

Body = TypeVar("Body", bound=GenerationBody)


@dataclass(frozen=True, slots=True)
class GenerationApi(Generic[Body]):
    """What distinguishes the two generation APIs.

    Args:
        body_type: the request body.
        read_prompts: encodes the body's prompts and checks them against a context length; called
            in a thread.
        make_formatter: returns the formatter of a body's response.
    """

    body_type: type[Body]
    read_prompts: Callable[[Body, TextProcessor, int], tuple[EncodedPrompt, ...]]
    make_formatter: Callable[[Body, Vocabulary], ResponseFormatter]


async def generate(http_request: Request, api: GenerationApi[Body]) -> Response:
    """Read and admit a request; the reply runs it.

    Raises:
        HttpError: the request cannot be served.
    """
    service = service_of(http_request)
    service.lifecycle.check_admission()
    started_s = service.clock()
    body = await read_body(http_request, api.body_type)
    limits, text = service.limits, service.text
    check_model(body, limits)
    prompts = await asyncio.to_thread(api.read_prompts, body, text, limits.context_length)
    constraint = read_constraint(body)
    grammar = await service.grammars.compile(*constraint) if constraint else None
    label = read_label(http_request, service)
    generation = admit(body, prompts, limits, started_s, grammar, label)
    return StreamingReply(service, generation, api.make_formatter(body, text.vocabulary))


async def read_body(
    http_request: Request, body_type: type[Body], max_bytes: int = MAX_BODY_BYTES
) -> Body:
    """Return the validated body.

    Raises:
        HttpError: the body is too large, is not valid JSON, or a field is invalid.
    """
    data = await _read(http_request, max_bytes)
    try:
        body = body_type.model_validate_json(data)
    except ValidationError as error:
        raise errors.from_validation(error) from None
    if body.model_extra:
        log.debug("ignored unknown fields: %s", sorted(body.model_extra))
    return body


async def _read(http_request: Request, max_bytes: int) -> bytes:
    received = 0
    parts: list[bytes] = []
    async for part in http_request.stream():
        received += len(part)
        if received > max_bytes:
            parts.clear()
        else:
            parts.append(part)
        if received > MAX_DISCARDED_BYTES:
            break
    if received > max_bytes:
        message = f"the body is larger than {max_bytes} bytes; split it into several requests"
        raise errors.HttpError(413, message, code="body_too_large")
    return b"".join(parts)


def read_label(http_request: Request, service: Service) -> str:
    """Return the request's label where the boot file lists it, else an empty string.

    Clients may invent any number of labels; the number of metric series has to stay bounded.
    """
    label = http_request.headers.get(names.HEADER_LABEL, "").strip()
    return label if label in service.boot.server.request_labels else ""
