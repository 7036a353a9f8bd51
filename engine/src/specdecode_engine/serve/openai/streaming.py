"""Runs an admitted request and writes its response, in one piece or as server-sent events."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Coroutine, Iterable
from typing import Any, Protocol

from fastapi import Response
from fastapi.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from specdecode_engine.batch.request import Output, RequestStats
from specdecode_engine.serve import errors
from specdecode_engine.serve.engine.async_engine import RequestStream
from specdecode_engine.serve.openai.admission import GenerationRequest
from specdecode_engine.serve.openai.output_processor import Delta, OutputProcessor
from specdecode_engine.serve.service import Service
from specdecode_engine.stats.latency import RequestLatency

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

    def choice(self, whole: Delta) -> dict[str, object]:
        """Return a choice of the response in one piece."""

    def chunk_choice(self, delta: Delta) -> dict[str, object]:
        """Return a choice of a chunk."""


class ResponseStream:
    """The deltas of a request that the engine has accepted, all its choices interleaved."""

    def __init__(
        self, service: Service, generation: GenerationRequest, outputs: RequestStream
    ) -> None:
        self._service = service
        self._generation = generation
        self._outputs = outputs
        vocabulary, stop = service.text.vocabulary, generation.stop
        requests = enumerate(zip(generation.requests, generation.echoes, strict=True))
        self._processors = {
            request.request_id: OutputProcessor(index, vocabulary, stop, echo, request.prompt_ids)
            for index, (request, echo) in requests
        }
        self._latencies = {
            request_id: RequestLatency(service.metrics, generation.started_s)
            for request_id in self._processors
        }

    async def deltas(self) -> AsyncIterator[Delta]:
        """Yield the non-empty deltas until every sequence has ended.

        The echo of a prompt comes first: at once, or with log-probabilities, at the sequence's
        first output.
        """
        for request in self._generation.requests:
            processor = self._processors[request.request_id]
            if processor.echo and request.sampling.prompt_logprobs is None:
                yield processor.echo_delta()
        async for output in self._outputs:
            delta = self._process(output)
            if output.prompt_logprobs is not None:
                yield self._processors[output.request_id].echo_delta(output.prompt_logprobs)
            if delta.text or delta.scored or delta.finish_reason:
                yield delta

    def _process(self, output: Output) -> Delta:
        if output.error is not None:
            raise errors.generation_failed(output.error)
        request_id, now_s = output.request_id, self._service.clock()
        processor, latency = self._processors[request_id], self._latencies[request_id]
        before = processor.completion_tokens
        delta = processor.push(output)
        latency.observe_tokens(processor.completion_tokens - before, now_s, output.table)
        if delta.finish_reason is not None:
            latency.observe_end(delta.finish_reason, now_s, output.table)
            if output.finish_reason is None:  # a stop string, which the engine knows nothing of
                self._outputs.abort(request_id)
        return delta

    async def choices(self) -> list[Delta]:
        """Wait for the end of every sequence; return each choice as one delta."""
        parts: list[list[Delta]] = [[] for _ in self._processors]
        async for delta in self.deltas():
            parts[delta.index].append(delta)
        return [_join(index, deltas) for index, deltas in enumerate(parts)]

    @property
    def completion_tokens(self) -> int:
        """Tokens of all sequences so far, stop tokens included."""
        return sum(processor.completion_tokens for processor in self._processors.values())

    def count(self) -> None:
        """Count the request's tokens and its unfinished sequences in the metrics, at its end."""
        metrics, processors = self._service.metrics, self._processors.values()
        metrics.count_call(self._generation.prompt_tokens, self.completion_tokens)
        unfinished = sum(processor.finish_reason is None for processor in processors)
        if unfinished:
            metrics.count_cut_short(unfinished)

    def usage(self) -> dict[str, object]:
        """Return OpenAI's usage, extended by the figures of speculation in `specdecode`."""
        speculation = speculation_usage(processor.stats for processor in self._processors.values())
        prompt_tokens, completion_tokens = self._generation.prompt_tokens, self.completion_tokens
        return {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": completion_tokens,
            "total_tokens": prompt_tokens + completion_tokens,
            "completion_tokens_details": {
                "accepted_prediction_tokens": speculation["accepted_tokens"],
                "rejected_prediction_tokens": speculation["wasted_tokens"],
            },
            "specdecode": speculation,
        }


class StreamingReply(Response):
    """Runs a request and writes its response; aborts the request if the client disconnects.

    The headers of a stream are sent once the engine has accepted the request, so that a refusal
    has its own status.
    """

    def __init__(
        self, service: Service, generation: GenerationRequest, formatter: ResponseFormatter
    ) -> None:
        super().__init__()
        self._service = service
        self._generation = generation
        self._formatter = formatter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not await _run_until_disconnect(receive, self._respond(scope, receive, send)):
            log.debug("client disconnected; request %s aborted", self._generation.request_id)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        service, generation = self._service, self._generation
        with service.lifecycle.count_request():
            async with service.engine.stream(generation.requests) as outputs:
                stream = ResponseStream(service, generation, outputs)
                try:
                    if generation.is_stream:
                        await self._send_events(stream, send)
                    else:
                        await JSONResponse(await self._whole(stream))(scope, receive, send)
                finally:
                    stream.count()

    async def _whole(self, stream: ResponseStream) -> dict[str, object]:
        choices = [self._formatter.choice(choice) for choice in await stream.choices()]
        head = self._head(self._formatter.object_type)
        return head | {"choices": choices, "usage": stream.usage()}

    async def _send_events(self, stream: ResponseStream, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        try:
            await self._send_chunks(stream, send)
            await _send_event(send, b"[DONE]")
        except Exception as error:
            self._service.metrics.count_error(errors.from_exception(error).status)
            await _send_event(send, _json(_error_body(error)))
        await send({"type": "http.response.body", "body": b""})

    async def _send_chunks(self, stream: ResponseStream, send: Send) -> None:
        formatter, include_usage = self._formatter, self._generation.include_usage
        head = self._head(formatter.chunk_type)
        if include_usage:
            head["usage"] = None
        for index in range(len(self._generation.requests)):
            if (first := formatter.first_choice(index)) is not None:
                await _send_event(send, _json(head | {"choices": [first]}))
        async for delta in stream.deltas():
            chunk = head | {"choices": [formatter.chunk_choice(delta)]}
            await _send_event(send, _json(chunk))
        if include_usage:
            await _send_event(send, _json(head | {"choices": [], "usage": stream.usage()}))

    def _head(self, object_type: str) -> dict[str, object]:
        """Return the fields that every object of the response begins with."""
        generation = self._generation
        return {
            "id": f"{self._formatter.id_prefix}-{generation.request_id}",
            "object": object_type,
            "created": generation.created,
            "model": generation.model,
        }


def speculation_usage(stats: Iterable[RequestStats]) -> dict[str, int | float | None]:
    """Sum the figures of a request's sequences.

    `accept_length` is generated tokens per sequence and decode step, the target's own included;
    None without a decode step. The first token comes from prefill and belongs to no decode step.
    """
    known = list(stats)
    steps = sum(one.rounds for one in known)
    drafted = sum(one.drafted for one in known)
    accepted = sum(one.accepted for one in known)
    return {
        "rounds": steps,
        "drafted_tokens": drafted,
        "accepted_tokens": accepted,
        "accept_length": sum(one.emitted for one in known) / steps if steps else None,
        "wasted_tokens": drafted - accepted,
    }


def _join(index: int, deltas: list[Delta]) -> Delta:
    return Delta(
        index,
        text="".join(delta.text for delta in deltas),
        scored=tuple(token for delta in deltas for token in delta.scored),
        finish_reason=deltas[-1].finish_reason if deltas else None,
    )


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


async def _send_event(send: Send, data: bytes) -> None:
    body = b"data: " + data + b"\n\n"
    await send({"type": "http.response.body", "body": body, "more_body": True})


def _json(content: dict[str, object]) -> bytes:
    return _encode(content).encode()


def _error_body(error: Exception) -> dict[str, object]:
    response = errors.from_exception(error)
    if response.code == "internal_error":
        log.error("a streamed response failed", exc_info=error)
    return response.body()
