"""Runs the call of a client on engines, one after another if one is lost."""

import asyncio
import logging
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from specdecode_api.internal_api import RESUME_ID_DIFFERS
from specdecode_api.response_names import RANDOM_DIGITS
from specdecode_router.attempt import RETRY_AFTER_SECONDS, EngineAttempt, write_refusal
from specdecode_router.call import (
    BreakReason,
    Call,
    UnresumableReason,
    error_event,
    unresumable_reason,
)
from specdecode_router.client_request import ClientRequest, ClientResponse
from specdecode_router.engines import EnginePool, RoutedEngine
from specdecode_router.metrics import RouterMetrics
from specdecode_router.routing.choice import choose
from specdecode_router.routing.prefix_table import PrefixMatch, PrefixTable
from specdecode_router.settings import EngineAddress
from specdecode_router.upstream import EngineLost, Refusal, UpstreamClient
from specdecode_server.errors import HttpError, unavailable

log = logging.getLogger(__name__)

FIRST_BACKOFF_SECONDS: Final = 0.1
MAX_BACKOFF_SECONDS: Final = 1.0
AVOID_SECONDS: Final = 1.0
"""After an engine was lost, for the same call; polls show when it is back."""
STALL_CHECK_SECONDS: Final = 0.5
SEED_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class Relay:
    """What all calls share. `attempts` are those that run."""

    pool: EnginePool
    table: PrefixTable
    client: UpstreamClient
    metrics: RouterMetrics
    retries: int
    attempts: set[EngineAttempt]

    @property
    def session(self) -> aiohttp.ClientSession:
        """The session of all requests to engines."""
        return self.client.session

    async def respond(self, request: ClientRequest, response: ClientResponse) -> None:
        """Answer a request; what no engine can answer is answered with an error."""
        seed = secrets.randbits(SEED_BITS)
        random = secrets.token_hex(RANDOM_DIGITS // 2)
        call = Call(request.path, random, int(time.time()), seed, request.named)
        await _CallRun(self, request, response, call).run()

    async def watch_stalls(self) -> None:
        """Give up stalled attempts whose call another engine can continue, until cancelled."""
        while True:
            await asyncio.sleep(STALL_CHECK_SECONDS)
            now_s = self.pool.clock()
            for attempt in tuple(self.attempts):
                if attempt.is_stalled(now_s) and self._has_other(attempt):
                    attempt.give_up()

    def _has_other(self, attempt: EngineAttempt) -> bool:
        call = attempt.call
        if call.breaks >= self.retries or self.pool.storing(call.named) is not None:
            return False
        wanted = call.resume_id if call.has_sent else None
        return bool(self.pool.usable(wanted, (attempt.engine.address,)))


class _CallRun:
    """One call until its response is complete."""

    def __init__(
        self, relay: Relay, request: ClientRequest, response: ClientResponse, call: Call
    ) -> None:
        self._relay = relay
        self._pool = relay.pool
        self._metrics = relay.metrics
        self._request = request
        self._response = response
        self._call = call
        self._deadline_s = request.arrived_s + request.timeout_s
        self._avoid: dict[EngineAddress, float] = {}
        self._backoff_s = FIRST_BACKOFF_SECONDS
        self._arm: str | None = None
        self._broken: BreakReason | None = None
        self._busy: Refusal | None = None
        self._is_held = False

    async def run(self) -> None:
        """Try engines until the call has ended or nothing can end it."""
        while not self._call.is_ended:
            engine = await self._next_engine()
            if engine is None:
                await self._expire()
                break
            if not await self._try(engine):
                break
        await self._response.end()
        self._metrics.count_response(self._response.status or 0)

    async def _try(self, engine: RoutedEngine) -> bool:
        """Run the call on an engine; return whether another may be tried if it has not ended."""
        self._name_response(engine)
        attempt = EngineAttempt(
            engine, self._call, self._response, lambda: self._accept(engine), self._pool.clock
        )
        generation, result = engine.generation, "disconnected"
        engine.breaker.begin(self._pool.clock())
        self._relay.attempts.add(attempt)
        try:
            with engine.count_request():
                await attempt.run(self._relay.client, self._request)
            result = "complete"
            engine.breaker.succeed()
            return True
        except Refusal as refusal:
            result = "busy" if refusal.is_busy else "failed" if refusal.is_failure else "refused"
            return await self._follow_refusal(engine, refusal)
        except EngineLost as error:
            result = error.reason.value
            if self._call.resume_id is None and engine.generation == generation:
                self._call.resume_id = engine.last_id
            return await self._follow_loss(engine, error)
        finally:
            self._relay.attempts.discard(attempt)
            self._metrics.attempts.labels(engine.pod, result).inc()

    def _name_response(self, engine: RoutedEngine) -> None:
        """Let the id of a response lead to the engine that stores it, until the id is sent."""
        call = self._call
        if call.path == "/v1/responses" and not call.has_sent:
            call.request_id = engine.named_for(call.request_id[:RANDOM_DIGITS])

    async def _next_engine(self) -> RoutedEngine | None:
        """Wait for an engine until the deadline."""
        engine = self._choose()
        if engine is not None:
            return engine
        with self._held():
            while engine is None:
                left_s = self._deadline_s - self._pool.clock()
                if left_s <= 0:
                    return None
                await self._pool.wait_for_change(min(left_s, self._backoff_s))
                self._backoff_s = min(2 * self._backoff_s, MAX_BACKOFF_SECONDS)
                engine = self._choose()
        return engine

    def _choose(self) -> RoutedEngine | None:
        now_s, call = self._pool.clock(), self._call
        avoid = {address for address, until_s in self._avoid.items() if until_s > now_s}
        if (storing := self._pool.storing(call.named)) is not None:
            is_free = storing.address not in avoid and storing.answers_stored(now_s)
            if not is_free:
                return None
            self._metrics.choices.labels("stored").inc()
            return storing
        usable = self._pool.usable(call.resume_id if call.has_started else None, avoid)
        if not usable and call.has_started and call.can_start_over:
            usable = self._pool.usable(None, avoid)
            if usable:
                self._start_over()
        usable = [each for each in usable if each.arm == self._arm] or usable
        prompt = self._request.prompt
        match = self._relay.table.match(prompt)
        key = self._request.session or prompt.branch_key(match.shared)
        candidates = [each.candidate(now_s) for each in usable]
        chosen = choose(candidates, match.depths, match.shared, key)
        if chosen is None:
            return None
        engine = next(each for each in usable if each.name == chosen.name)
        self._metrics.choices.labels(chosen.reason.value).inc()
        self._count_blocks(match, engine)
        return engine

    def _count_blocks(self, match: PrefixMatch, engine: RoutedEngine) -> None:
        known = match.depths.get(engine.name, 0)
        self._metrics.prompt_blocks.labels("matched").inc(known)
        self._metrics.prompt_blocks.labels("new").inc(len(self._request.prompt.hashes) - known)

    def _accept(self, engine: RoutedEngine) -> None:
        """Note that an engine has accepted the call."""
        engine.breaker.succeed()
        self._arm = engine.arm
        self._backoff_s = FIRST_BACKOFF_SECONDS
        self._relay.table.record(self._request.prompt, engine.name)
        if self._broken is None:
            elapsed_s = self._pool.clock() - self._request.arrived_s
            self._metrics.first_event_s.observe(elapsed_s)
        elif self._call.num_tokens or self._call.has_sent:
            self._metrics.resumed.labels(self._broken.value).inc()
        self._broken = None

    async def _follow_refusal(self, engine: RoutedEngine, refusal: Refusal) -> bool:
        call, now_s = self._call, self._pool.clock()
        if refusal.is_busy:
            self._busy = refusal
            self._avoid[engine.address] = now_s + self._backoff_s
            return True
        if refusal.is_failure:
            detail = f"it answered {refusal.status}"
            return await self._follow_loss(engine, EngineLost(BreakReason.FAILED, detail))
        self._avoid[engine.address] = now_s + AVOID_SECONDS
        if refusal.code == RESUME_ID_DIFFERS:
            return await self._go_on(BreakReason.REFUSED)
        if call.has_sent:
            log.error("engine %s refuses to continue: %s", engine.pod, refusal.body[:300])
            await self._fail(UnresumableReason.REFUSED, None)
            return False
        if call.has_started:
            self._start_over()
            return await self._go_on(BreakReason.REFUSED)
        await write_refusal(self._response, refusal, self._call.path)
        return False

    async def _follow_loss(self, engine: RoutedEngine, error: EngineLost) -> bool:
        now_s = self._pool.clock()
        log.warning("engine %s: %s: %s", engine.pod, error.reason, error)
        self._avoid[engine.address] = now_s + AVOID_SECONDS
        self._deadline_s = max(self._deadline_s, now_s + self._request.timeout_s)
        if error.reason is BreakReason.DRAINING:
            return await self._go_on(error.reason)
        engine.breaker.fail(now_s)
        if error.reason is BreakReason.UNREACHABLE:
            self._pool.lose(engine, f"it does not answer ({error})", has_ended=True)
            return await self._go_on(error.reason)
        self._call.breaks += 1
        return await self._go_on(error.reason, error.error)

    async def _go_on(self, reason: BreakReason, error: dict[str, Any] | None = None) -> bool:
        """Prepare for the next engine; false if there can be none, and the response has ended."""
        self._broken = reason
        if self._call.must_start_over:
            self._start_over()
        why = unresumable_reason(self._call, self._relay.retries, self._pool.known_ids())
        if why is None:
            return True
        await self._fail(why, error)
        return False

    def _start_over(self) -> None:
        self._call.start_over()
        reason = self._broken or BreakReason.REFUSED
        self._metrics.restarted.labels(reason.value).inc()

    async def _fail(self, why: UnresumableReason, error: dict[str, Any] | None) -> None:
        """End the response with an error."""
        message = f"the answer broke off and cannot be continued: {_EXPLANATIONS[why]}"
        given = error or HttpError(502, message, "server_error", code=f"unresumable_{why}").body
        fields: Any = given.get("error", given)
        if not self._call.has_sent:
            await self._write_error(
                HttpError(502, fields["message"], "server_error", None, fields["code"])
            )
            return
        self._metrics.unresumable.labels(why.value).inc()
        log.error("stream %s: %s", self._call.request_id, fields["message"])
        number = self._call.sent_events
        await self._response.write(error_event(self._call.path, number, fields))

    async def _expire(self) -> None:
        """Answer a call for which no engine was found until its deadline."""
        if self._call.has_sent:
            # Engines that are ready would write other text; those that would not are away.
            has_others = bool(self._pool.usable())
            why = UnresumableReason.RESUME_ID if has_others else UnresumableReason.DEADLINE
            await self._fail(why, None)
        elif self._busy is not None:
            await write_refusal(self._response, self._busy, self._call.path)
        else:
            seconds = f"{self._request.timeout_s:g} s"
            message = f"no engine was ready within {seconds}; try again"
            await self._write_error(unavailable(message, "no_engine", RETRY_AFTER_SECONDS))

    async def _write_error(self, error: HttpError) -> None:
        response = error.response(self._call.path)
        await self._response.begin(error.status, response.raw_headers)
        await self._response.write(bytes(response.body))

    @contextmanager
    def _held(self) -> Iterator[None]:
        if not self._is_held:
            self._is_held = True
            self._metrics.held.inc()
        with self._metrics.held_now.track_inprogress():
            yield


_EXPLANATIONS: Final = {
    UnresumableReason.RETRIES: "it lost its engines more often than --retries allows",
    UnresumableReason.RESUME_ID: "every other engine has another resume_id, as in a rollout of "
    "another model or release; send the request again",
    UnresumableReason.UNKNOWN_ID: "it began before its engine had computed its resume_id; send "
    "the request again",
    UnresumableReason.REFUSED: "another engine refused to continue it; send the request again",
    UnresumableReason.DEADLINE: "no engine was ready in time; send the request again",
}
