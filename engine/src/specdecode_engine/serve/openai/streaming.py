"""Runs an admitted request and writes its response, in one piece or as server-sent events."""

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from itertools import zip_longest
from typing import Any, Protocol

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from specdecode_engine.batch.request import Output, Request
from specdecode_engine.serve import errors
from specdecode_engine.serve.engine.async_engine import RequestStream
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.protocol import GenerationBody
from specdecode_engine.serve.service import Service
from specdecode_engine.stats.prometheus import RequestLatency

log = logging.getLogger(__name__)

_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class ResponseFormatter(Protocol):
    """The objects that one API answers with."""

    id_prefix: str
    object_type: str
    chunk_type: str

    def first_choice(self, index: int) -> dict[str, object] | None:
        """Return the choice that opens a stream before any text; None where there is none."""

    def choice(self, whole: OutputProcessor) -> dict[str, object]:
        """Return a choice of a response in one piece."""

    def chunk_choice(self, new: OutputProcessor) -> dict[str, object]:
        """Return a choice of a chunk: what was added since the last one."""


class StreamingReply(Response):
    """Runs a request and writes its response; aborts the request if the client disconnects.

    The headers of a stream are sent once the engine has accepted the request, so that a refusal
    has its own status.

    Args:
        requests: the engine's requests; choice i of the response is that of `requests[i]`.
        prompt_texts: the text that each choice begins with: its prompt, or nothing.
        started_s: when the HTTP request arrived, on the service's clock.
    """

    def __init__(
        self,
        service: Service,
        body: GenerationBody,
        requests: tuple[Request, ...],
        prompt_texts: Sequence[str],
        formatter: ResponseFormatter,
        started_s: float,
    ) -> None:
        super().__init__()
        self._service = service
        self._body = body
        self._requests = requests
        self._formatter = formatter
        self._created = int(time.time())
        vocabulary, stop = service.text.vocabulary, tuple(body.stop or ())
        choices = enumerate(zip(requests, prompt_texts, strict=True))
        self._choices = {
            request.request_id: OutputProcessor(index, vocabulary, stop, echo, request.prompt_ids)
            for index, (request, echo) in choices
        }
        self._latencies = {
            request.request_id: RequestLatency(service.metrics, started_s) for request in requests
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await _run_until_disconnect(receive, self._respond(scope, receive, send)):
            log.debug("client disconnected; request %s aborted", self._requests[0].request_id)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine = self._service.engine
        with self._service.lifecycle.count_request():
            async with engine.stream(self._requests) as outputs:
                try:
                    if self._body.stream:
                        await self._send_events(outputs, send)
                    else:
                        await JSONResponse(await self._whole(outputs))(scope, receive, send)
                finally:
                    unfinished = sum(not each.finish_reason for each in self._choices.values())
                    self._service.metrics.count_call(*self._count_tokens(), unfinished)

    async def _whole(self, outputs: RequestStream) -> dict[str, object]:
        async for _ in self._changed_choices(outputs):
            pass
        choices = [self._formatter.choice(choice) for choice in self._choices.values()]
        head = self._head(self._formatter.object_type)
        return head | {"choices": choices, "usage": self._usage()}

    async def _send_events(self, outputs: RequestStream, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        try:
            await self._send_chunks(outputs, send)
            await _send_event(send, "[DONE]")
        except Exception as error:
            response = errors.from_exception(error)
            if response.code == "internal_error":
                log.error("a streamed response failed", exc_info=error)
            self._service.metrics.count_error(response.status)
            await _send_event(send, _encode(response.body))
        await send({"type": "http.response.body", "body": b""})

    async def _send_chunks(self, outputs: RequestStream, send: Send) -> None:
        formatter, include_usage = self._formatter, self._body.include_usage
        head = self._head(formatter.chunk_type)
        if include_usage:
            head["usage"] = None
        for index in range(len(self._requests)):
            if (first := formatter.first_choice(index)) is not None:
                await _send_event(send, _encode(head | {"choices": [first]}))
        async for choice in self._changed_choices(outputs):
            chunk = head | {"choices": [formatter.chunk_choice(choice)]}
            choice.clear()
            await _send_event(send, _encode(chunk))
        if include_usage:
            await _send_event(send, _encode(head | {"choices": [], "usage": self._usage()}))

    def _head(self, object_type: str) -> dict[str, object]:
        """Return the fields that every object of the response begins with."""
        return {
            "id": f"{self._formatter.id_prefix}-{self._requests[0].request_id}",
            "object": object_type,
            "created": self._created,
            "model": self._service.served_name,
        }

    async def _changed_choices(self, outputs: RequestStream) -> AsyncIterator[OutputProcessor]:
        """Yield each choice that was added to, until all have ended.

        The echo of a prompt comes first: at once, or with log-probabilities, at the sequence's
        first output.
        """
        for request in self._requests:
            choice = self._choices[request.request_id]
            if choice.echo and request.sampling.prompt_logprobs is None:
                choice.add_echo()
                yield choice
        async for output in outputs:
            choice = self._choices[output.request_id]
            if output.prompt_logprobs is not None:
                choice.add_echo(output.prompt_logprobs)
                yield choice
            self._process(output, choice, outputs)
            if choice.text or choice.scored or choice.finish_reason:
                yield choice

    def _process(self, output: Output, choice: OutputProcessor, outputs: RequestStream) -> None:
        if output.error is not None:
            raise errors.HttpError(500, output.error, "server_error", code="answer_failed")
        now_s, latency = self._service.clock(), self._latencies[output.request_id]
        before = choice.completion_tokens
        choice.push(output)
        latency.observe_tokens(choice.completion_tokens - before, now_s, output.table)
        if choice.finish_reason is not None:
            latency.observe_end(choice.finish_reason, now_s, output.table)
            if output.finish_reason is None:  # a stop string, which the engine knows nothing of
                self._service.engine.abort(outputs, [output.request_id])

    def _count_tokens(self) -> tuple[int, int]:
        """Return prompt tokens and generated tokens so far, stop tokens included.

        Each prompt counts once for any number of choices.
        """
        prompts = self._requests[:: self._body.n or 1]
        completion_tokens = sum(choice.completion_tokens for choice in self._choices.values())
        return sum(len(request.prompt_ids) for request in prompts), completion_tokens

    def _usage(self) -> dict[str, object]:
        """Return OpenAI's usage, extended by the figures of speculation in `specdecode`.

        The names are those of vLLM's metrics. `accept_length` is generated tokens per sequence and
        decode step, the target's own included; None without a decode step. The first token comes
        from prefill.
        """
        choices = self._choices.values()
        steps = sum(choice.decode_steps for choice in choices)
        drafted = sum(choice.drafted for choice in choices)
        by_position = zip_longest(*(choice.accepted_at for choice in choices), fillvalue=0)
        accepted_at = [sum(position) for position in by_position]
        accepted = sum(accepted_at)
        emitted = sum(choice.emitted for choice in choices)
        prompt_tokens, completion_tokens = self._count_tokens()
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            },
            "specdecode": {
                "decode_steps": steps,
                "num_drafts": sum(choice.drafts for choice in choices),
                "num_draft_tokens": drafted,
                "num_accepted_tokens": accepted,
                "num_accepted_tokens_per_pos": accepted_at,
                "accept_length": emitted / steps if steps else None,
            },
        }


async def _run_until_disconnect(receive: Receive, work: Coroutine[Any, Any, None]) -> bool:
    """Run `work` to its end, or cancel it when the client disconnects and return false."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
        return working.done()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _send_event(send: Send, data: str) -> None:
    body = f"data: {data}\n\n".encode()
    await send({"type": "http.response.body", "body": body, "more_body": True})
