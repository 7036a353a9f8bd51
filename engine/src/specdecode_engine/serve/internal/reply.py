"""The response to a router: the client's stream, with the tokens that each part of it has."""

import asyncio
import json
from typing import cast

from starlette.types import Receive, Scope, Send

from specdecode_api.internal_api import (
    HEARTBEAT,
    HEARTBEAT_SECONDS,
    ChoiceEvent,
    FinishText,
    StartEvent,
    StreamEvent,
)
from specdecode_engine.serve.engine.request_stream import RequestStream
from specdecode_engine.serve.openai.formatting import Event
from specdecode_engine.serve.openai.output_processor import OutputProcessor
from specdecode_engine.serve.openai.service import Service
from specdecode_engine.serve.openai.streaming import (
    EVENT_HEADERS,
    AdmittedCall,
    StreamingReply,
    send_part,
)


class InternalReply(StreamingReply):
    """Sends every output with its tokens, also those that add no text.

    A call that waits for its first output sends heartbeats, unless the engine's step is late: the
    router then knows that this process is alive, and needs no limit on the time of a long prompt.

    Args:
        has_begun: another engine has sent events of the call.
    """

    yields_all_outputs = True
    retries = 0  # the router continues the call, on an engine that is ready

    def __init__(
        self, service: Service, call: AdmittedCall, started_s: float, *, has_begun: bool
    ) -> None:
        super().__init__(service, call, started_s)
        self._has_begun = has_begun

    def _first_events(self) -> list[Event]:
        return [] if self._has_begun else [*super()._first_events()]

    async def _write(
        self, outputs: RequestStream, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": EVENT_HEADERS})
        await send_part(send, _encode_event({"start": self._start()}))
        beating = asyncio.create_task(self._beat(send))
        try:
            if self._body.stream:
                last = await self._send_stream(outputs, send, beating)
            else:
                last = await self._send_whole(outputs, send, beating)
        except Exception as error:
            body = self._failed(error).body["error"]
            assert isinstance(body, dict)
            last = _encode_event({"error": body})
        finally:
            beating.cancel()
        # In one write with the end of the body: a router reads up to the last event, and keeps the
        # connection only if it has read all.
        await send({"type": "http.response.body", "body": last})

    def _start(self) -> StartEvent:
        body, count = self._body, self._body.n or 1
        # Of these a response in one piece contains what other engines would not know.
        keeps = (body.num_logprobs, body.num_prompt_logprobs, body.return_routed_experts or None)
        return {
            "resume_id": self._service.resume_id.value,
            "max_tokens": [each.sampling.max_tokens for each in self._requests[::count]],
            "choices": len(self._requests),
            "is_stream": bool(body.stream),
            "is_resumable": bool(body.stream) or all(each is None for each in keeps),
        }

    async def _send_stream(
        self, outputs: RequestStream, send: Send, beating: "asyncio.Task[None]"
    ) -> bytes:
        """Send the stream but for its last part, which is returned."""
        last = b""
        async for part in self._parts(outputs):
            event: StreamEvent = {"public": part.events.decode()}
            if part.choice is not None:
                beating.cancel()
                event["choice"] = _new_tokens(part.choice)
            if self._formatter.num_events:
                event["events"] = self._formatter.num_events
            if part.is_last:
                last = _encode_event({**event, "end": True})
            else:
                await send_part(send, _encode_event(event))
        return last

    async def _send_whole(
        self, outputs: RequestStream, send: Send, beating: "asyncio.Task[None]"
    ) -> bytes:
        """Send the tokens of a response in one piece, and return its end."""
        async for choice in self._changed_choices(outputs):
            beating.cancel()
            await send_part(send, _encode_event({"choice": _new_tokens(choice)}))
        return _encode_event({"end": True}) + await self._encode_whole()

    async def _beat(self, send: Send) -> None:
        limit_s = self._service.boot.server.step_timeout_seconds
        while True:
            await asyncio.sleep(HEARTBEAT_SECONDS)
            if not 0 < limit_s < self._service.engine.step_seconds():
                await send_part(send, HEARTBEAT)


def _new_tokens(choice: OutputProcessor) -> ChoiceEvent:
    return {
        "index": choice.index,
        "ids": choice.take_token_ids(),
        "sent_characters": choice.num_characters,
        "finished": cast("FinishText | None", choice.finish_reason),
    }


def _encode_event(event: StreamEvent) -> bytes:
    text = json.dumps(event, ensure_ascii=False, separators=(",", ":"))
    return b"data: %s\n\n" % text.encode()
