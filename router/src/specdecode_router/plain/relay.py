"""Runs the call of a client on engines of another runtime, through their own API.

Such an engine reports text without its tokens, so no other one can continue its stream. Until the
client has got anything, a call is tried elsewhere.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

import aiohttp
from starlette.types import ASGIApp, Receive, Scope, Send

from specdecode_router.attempt import RETRY_AFTER_SECONDS, write_refusal
from specdecode_router.call import BreakReason, error_event
from specdecode_router.client_request import ClientRequest, ClientResponse
from specdecode_router.engines import EnginePool, RoutedEngine
from specdecode_router.metrics import RouterMetrics
from specdecode_router.plain.attempt import PlainAttempt
from specdecode_router.routing.choice import choose
from specdecode_router.routing.prefix_table import PrefixTable
from specdecode_router.settings import EngineAddress
from specdecode_router.upstream import EngineLost, Refusal
from specdecode_server.errors import HttpError, unavailable

log = logging.getLogger(__name__)

GENERATION: Final = frozenset(
    {"/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"}
    | {"/v1/embeddings", "/v1/rerank", "/v1/score"}
)
"""Paths that an engine may answer for as long as it takes."""
FORWARDED: Final = frozenset({"/tokenize", "/detokenize", "/v1/messages/count_tokens"})
"""Paths with short answers. Others are not served: some of them change the engine."""
MODELS: Final = "/v1/models"

FIRST_BACKOFF_SECONDS: Final = 0.1
MAX_BACKOFF_SECONDS: Final = 1.0
AVOID_SECONDS: Final = 1.0
SILENCE_CHECK_SECONDS: Final = 0.5
_KEY_HEADERS: Final = frozenset({b"authorization", b"x-api-key"})


def is_plain_path(method: str, path: str) -> bool:
    """Whether an engine answers a request with a short answer."""
    return path == MODELS if method in ("GET", "HEAD") else path in FORWARDED


class WithoutKeys:
    """ASGI middleware that removes the keys of clients, which the router has checked."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if "headers" in scope:
            kept = [each for each in scope["headers"] if each[0].lower() not in _KEY_HEADERS]
            scope = {**scope, "headers": kept}
        await self._app(scope, receive, send)


@dataclass(frozen=True, slots=True)
class PlainRelay:
    """What all calls share. `attempts` are those that run."""

    pool: EnginePool
    table: PrefixTable
    session: aiohttp.ClientSession
    metrics: RouterMetrics
    retries: int
    attempts: set[PlainAttempt]

    async def respond(self, request: ClientRequest, response: ClientResponse) -> None:
        """Answer a request; what no engine can answer is answered with an error."""
        await _PlainRun(self, request, response).run()

    async def watch_silence(self) -> None:
        """Give up attempts whose engine does not answer any more, until cancelled."""
        while True:
            await asyncio.sleep(SILENCE_CHECK_SECONDS)
            now_s = self.pool.clock()
            for attempt in tuple(self.attempts):
                if attempt.is_silent(now_s):
                    attempt.give_up()


class _PlainRun:
    """One call until its response is complete."""

    def __init__(self, relay: PlainRelay, request: ClientRequest, response: ClientResponse) -> None:
        self._relay = relay
        self._request = request
        self._response = response
        self._deadline_s = request.arrived_s + request.timeout_s
        self._avoid: dict[EngineAddress, float] = {}
        self._failures = 0
        self._failed: set[RoutedEngine] = set()
        self._refusal: Refusal | None = None

    async def run(self) -> None:
        """Try engines until one has answered or nothing can."""
        while True:
            engine = await self._next_engine()
            if engine is None:
                await self._expire()
                break
            if await self._try(engine):
                break
        await self._response.end()
        self._relay.metrics.count_response(self._response.status or 0)

    async def _next_engine(self) -> RoutedEngine | None:
        """Wait for an engine until the deadline."""
        metrics, backoff_s = self._relay.metrics, FIRST_BACKOFF_SECONDS
        if (engine := self._choose()) is not None:
            return engine
        metrics.held.inc()
        with metrics.held_now.track_inprogress():
            while engine is None:
                left_s = self._deadline_s - self._relay.pool.clock()
                if left_s <= 0:
                    return None
                await self._relay.pool.wait_for_change(min(left_s, backoff_s))
                backoff_s = min(2 * backoff_s, MAX_BACKOFF_SECONDS)
                engine = self._choose()
        return engine

    def _choose(self) -> RoutedEngine | None:
        pool, metrics, prompt = self._relay.pool, self._relay.metrics, self._request.prompt
        now_s = pool.clock()
        avoid = {address for address, until_s in self._avoid.items() if until_s > now_s}
        usable = pool.usable(avoid=avoid)
        match = self._relay.table.match(prompt)
        key = self._request.session or prompt.branch_key(match.shared)
        chosen = choose([each.candidate(now_s) for each in usable], match.depths, match.shared, key)
        if chosen is None:
            return None
        metrics.choices.labels(chosen.reason.value).inc()
        known = match.depths.get(chosen.name, 0)
        metrics.prompt_blocks.labels("matched").inc(known)
        metrics.prompt_blocks.labels("new").inc(len(prompt.hashes) - known)
        return next(each for each in usable if each.name == chosen.name)

    async def _try(self, engine: RoutedEngine) -> bool:
        """Send the call to an engine; return whether the response has ended."""
        relay, result = self._relay, "disconnected"
        attempt = PlainAttempt(
            engine, self._request, self._response, lambda: self._accept(engine), relay.pool.clock
        )
        engine.breaker.begin(relay.pool.clock())
        relay.attempts.add(attempt)
        try:
            with engine.count_request():
                await attempt.run(relay.session)
            result = "complete"
            return True
        except Refusal as refusal:
            result = "busy" if refusal.is_busy else "failed" if refusal.is_failure else "refused"
            return await self._follow_refusal(engine, refusal)
        except EngineLost as error:
            result = error.reason.value
            return await self._follow_loss(attempt, error)
        finally:
            relay.attempts.discard(attempt)
            relay.metrics.attempts.labels(engine.pod, result).inc()

    def _accept(self, engine: RoutedEngine) -> None:
        """Note that an engine answers: the request did not cause the failures of others."""
        now_s = self._relay.pool.clock()
        engine.breaker.succeed()
        for each in self._failed - {engine}:
            each.breaker.fail(now_s)
        self._failed.clear()
        self._relay.table.record(self._request.prompt, engine.name)
        self._relay.metrics.first_event_s.observe(now_s - self._request.arrived_s)

    async def _follow_refusal(self, engine: RoutedEngine, refusal: Refusal) -> bool:
        """Note why an engine did not take the call; return whether the response has ended.

        An engine that shuts down answers 500 to what is new, and its health stays good. A request
        may also be the cause of 500: then every engine answers so, and none has failed.
        """
        pool = self._relay.pool
        self._refusal = refusal
        self._avoid[engine.address] = pool.clock() + AVOID_SECONDS
        if refusal.is_busy:
            return False
        if refusal.is_failure:
            self._failures += 1
            self._failed.add(engine)
            has_other = bool(pool.usable(avoid=self._avoid.keys()))
            if has_other and self._failures <= self._relay.retries:
                return False
        await self._pass_refusal(refusal)
        return True

    async def _follow_loss(self, attempt: PlainAttempt, error: EngineLost) -> bool:
        """Note that an engine was lost; return whether the response has ended."""
        pool, engine = self._relay.pool, attempt.engine
        log.warning("engine %s: %s: %s", engine.pod, error.reason, error)
        self._avoid[engine.address] = pool.clock() + AVOID_SECONDS
        engine.breaker.fail(pool.clock())
        is_unreachable = error.reason is BreakReason.UNREACHABLE
        if is_unreachable:
            pool.lose(engine, f"it does not answer ({error})", has_ended=True)
            return False
        self._failures += 1
        if not attempt.has_sent and self._failures <= self._relay.retries:
            return False
        message = "the engine was lost and no other one can continue its answer; send it again"
        await self._write_error(HttpError(502, message, "server_error", code="engine_lost"))
        return True

    async def _expire(self) -> None:
        """Answer a call for which no engine was found until its deadline."""
        if self._refusal is not None:
            await self._pass_refusal(self._refusal)
            return
        message = f"no engine was ready within {self._request.timeout_s:g} s; try again"
        await self._write_error(unavailable(message, "no_engine", RETRY_AFTER_SECONDS))

    async def _pass_refusal(self, refusal: Refusal) -> None:
        if self._response.status is not None:
            message = f"the engine was lost, and another one answered {refusal.status}; try again"
            error = HttpError(refusal.status, message, "server_error", code="engine_lost")
            await self._write_error(error)
            return
        await write_refusal(self._response, refusal, self._request.path)

    async def _write_error(self, error: HttpError) -> None:
        """Answer with an error, or end the stream with it if that has begun."""
        if self._response.status is None:
            response = error.response(self._request.path)
            await self._response.begin(error.status, response.raw_headers)
            await self._response.write(bytes(response.body))
            return
        self._relay.metrics.unresumable.labels("runtime").inc()
        fields = error.body["error"]
        assert isinstance(fields, dict)
        # The engine may have been lost within an event.
        await self._response.write(b"\n\n" + error_event(self._request.path, 0, fields))
