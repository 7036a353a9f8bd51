"""Runs an admitted request and writes its response, in one piece or as server-sent events."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from fastapi import Response
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send

from specdecode_engine.batch.request import Output, Request
from specdecode_engine.serve import errors
from specdecode_engine.serve.engine.async_engine import RequestStream
from specdecode_engine.serve.openai.formatting import Event, ResponseFormatter
from specdecode_engine.serve.openai.json_text import to_json
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.protocol import GenerationBody
from specdecode_engine.serve.openai.usage import usage_of
from specdecode_engine.serve.service import Service
from specdecode_engine.serve.tracing import ChoiceTimes, TracedCall
from specdecode_engine.stats.prometheus import RequestLatency

log = logging.getLogger(__name__)

# Formatting the log-probabilities of more tokens takes over a millisecond.
MAX_SCORED_ON_LOOP = 16

T = TypeVar("T")

EVENT_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]


class StreamingReply(Response):
    """Runs a request and writes its response; aborts the request if the client disconnects.

    The headers of a stream are sent once the engine has accepted the request, so that a refusal
    has its own status.

    Args:
        requests: the engine's requests; `choices[i]` processes the outputs of `requests[i]`.
        started_s: when the HTTP request arrived, on the service's clock.
    """

    def __init__(
        self,
        service: Service,
        body: GenerationBody,
        requests: tuple[Request, ...],
        choices: Sequence[OutputProcessor],
        formatter: ResponseFormatter,
        started_s: float,
    ) -> None:
        super().__init__()
        self._service = service
        self._body = body
        self._requests = requests
        self._formatter = formatter
        ids = [request.request_id for request in requests]
        self._choices = dict(zip(ids, choices, strict=True))
        self._times = {each: ChoiceTimes() for each in ids}
        self._started_s = started_s
        self._latencies = {each: RequestLatency(service.metrics, started_s) for each in ids}

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
                        content = await self._whole(outputs)
                        whole = Response(content, media_type="application/json")
                        await whole(scope, receive, send)
                finally:
                    unfinished = sum(not each.finish_reason for each in self._choices.values())
                    self._service.metrics.count_call(*self._count_tokens(), unfinished)
                    self._trace(scope)

    def _trace(self, scope: Scope) -> None:
        """Make the spans of the call in a thread, if spans are made."""
        tracing = self._service.tracing
        if tracing is None:
            return
        call = TracedCall(
            f"{scope['method']} {scope['path']}",
            dict(Headers(scope=scope)),
            self._requests[0].request_id,
            self._service.served_name,
            self._count_tokens()[0],
            self._started_s,
            self._service.clock(),
            tuple((self._choices[each], times) for each, times in self._times.items()),
        )
        asyncio.get_running_loop().run_in_executor(None, tracing.record, call)

    async def _whole(self, outputs: RequestStream) -> bytes:
        async for _ in self._changed_choices(outputs):
            pass
        choices = [*self._choices.values()]

        def encode() -> bytes:
            return to_json(self._formatter.whole(choices, self._usage()))

        return await _format(encode, in_thread=_takes_long(*choices))

    async def _send_events(self, outputs: RequestStream, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        try:
            await self._send_chunks(outputs, send)
        except Exception as error:
            response = errors.from_exception(error)
            if response.code == "internal_error":
                log.error("a streamed response failed", exc_info=error)
            self._service.metrics.count_error(response.status)
            await _send_part(send, self._encode([self._formatter.error_event(response.body)]))
        await send({"type": "http.response.body", "body": b""})

    async def _send_chunks(self, outputs: RequestStream, send: Send) -> None:
        formatter = self._formatter
        first = self._encode(formatter.first_events())
        if formatter.opens_at_once:
            await _send_part(send, first)
            first = b""
        async for choice in self._changed_choices(outputs):

            def encode(choice: OutputProcessor = choice) -> bytes:
                return self._encode(formatter.events(choice))

            part = await _format(encode, in_thread=_takes_long(choice))
            choice.clear()
            await _send_part(send, first + part)
            first = b""
        end = formatter.end_marker
        last = b"" if end is None else f"data: {end}\n\n".encode()
        await _send_part(send, self._encode(formatter.last_events(self._usage())) + last)

    def _encode(self, events: Iterable[Event]) -> bytes:
        return b"".join(encode_event(event, self._formatter.has_named_events) for event in events)

    async def _changed_choices(self, outputs: RequestStream) -> AsyncIterator[OutputProcessor]:
        """Yield each choice that was added to, until all have ended.

        The echo of a prompt comes first: at once, or with log-probabilities, at the sequence's
        first output.
        """
        for request in self._requests:
            choice = self._choices[request.request_id]
            if choice.echo and not self._scores_echo(request):
                choice.add_echo()
                yield choice
        async for output in outputs:
            choice = self._choices[output.request_id]
            if output.prompt_logprobs is not None and self._body.prompt_logprobs is not None:
                choice.prompt_logprobs = output.prompt_logprobs
            elif output.prompt_logprobs is not None:
                add_echo = partial(choice.add_echo, output.prompt_logprobs)
                is_long = len(output.prompt_logprobs) > MAX_SCORED_ON_LOOP
                await _format(add_echo, in_thread=is_long)
                yield choice
            self._process(output, choice, outputs)
            if choice.deltas or choice.scored or choice.finish_reason:
                yield choice

    def _scores_echo(self, request: Request) -> bool:
        """Whether the echo has logprobs; `prompt_logprobs` has a field of its own."""
        return request.sampling.prompt_logprobs is not None and self._body.prompt_logprobs is None

    def _process(self, output: Output, choice: OutputProcessor, outputs: RequestStream) -> None:
        if output.error is not None:
            raise errors.HttpError(500, output.error, "server_error", code="answer_failed")
        now_s, latency = self._service.clock(), self._latencies[output.request_id]
        self._times[output.request_id].note(output, now_s)
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
        return usage_of(
            self._count_tokens()[0], [*self._choices.values()], self._cached_prompt_tokens()
        )

    def _cached_prompt_tokens(self) -> int | None:
        """Return how many prompt tokens the prefix cache had; None if that is not reported.

        Each prompt counts once, as its first choice found it.
        """
        if not self._service.boot.server.prompt_tokens_details:
            return None
        first_choices = [*self._choices.values()][:: self._body.n or 1]
        return sum(choice.cached_tokens for choice in first_choices)


def _takes_long(*choices: OutputProcessor) -> bool:
    """Whether formatting choices takes over a millisecond."""
    scored = sum(choice.num_scored for choice in choices)
    return scored > MAX_SCORED_ON_LOOP or any(choice.has_routed_experts for choice in choices)


async def _format(work: Callable[[], T], *, in_thread: bool) -> T:
    """Format what may take long; a thread delays no other response."""
    return await asyncio.to_thread(work) if in_thread else work()


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


def encode_event(event: Event, is_named: bool) -> bytes:
    """Return a server-sent event; `is_named` names it by its field `type`."""
    name = f"event: {event['type']}\n" if is_named else ""
    return b"%sdata: %s\n\n" % (name.encode(), to_json(event))


async def _send_part(send: Send, body: bytes) -> None:
    if body:
        await send({"type": "http.response.body", "body": body, "more_body": True})
