"""Processor time of the router for each event and request, and the time that it adds."""

import asyncio
import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from router_bench.programs import EngineProgram, RouterProgram

TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
STREAMS = 64
TOKENS = 160
ROUNDS = 3
SINGLE_TOKENS = 700
SINGLE_ROUNDS = 3
REQUESTS = 300
PAIRS = 300


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of processor time, and milliseconds until the first byte beyond the engine's."""

    cpu_ms_per_event: float
    cpu_ms_per_event_single: float
    cpu_ms_per_request: float
    first_byte_ms_added_p50: float
    first_byte_ms_added_p99: float
    events: int


def processor_s(pid: int) -> float:
    """Processor time that a process has used, of all its threads."""
    with open(f"/proc/{pid}/stat", encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_SECOND


async def measure_costs(router: RouterProgram, engine: EngineProgram) -> Costs:
    """Measure a router in front of one engine."""
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        await _stream(session, router.url, 20)  # connections and caches
        many_ms, events = await _cost_of_streams(session, router, STREAMS, TOKENS, ROUNDS)
        one_ms, single_events = await _cost_of_streams(
            session, router, 1, SINGLE_TOKENS, SINGLE_ROUNDS
        )
        request_ms = await _cost_of_requests(session, router)
        p50_ms, p99_ms = await _added(session, router.url, engine.url)
    return Costs(many_ms, one_ms, request_ms, p50_ms, p99_ms, events + single_events)


async def _cost_of_streams(
    session: aiohttp.ClientSession, router: RouterProgram, streams: int, tokens: int, rounds: int
) -> tuple[float, int]:
    """Return milliseconds per event, and how many events there were."""
    costs, events = [], 0
    for _ in range(rounds):
        before_s = processor_s(router.process.pid)
        work = (_stream(session, router.url, tokens) for _ in range(streams))
        counted = sum(await asyncio.gather(*work))
        costs.append(1000 * (processor_s(router.process.pid) - before_s) / counted)
        events += counted
    return statistics.median(costs), events


async def _stream(session: aiohttp.ClientSession, url: str, tokens: int) -> int:
    """Stream an answer, and return the number of its events."""
    body = {
        "prompt": "the quick brown fox jumps over",
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 1,
        "stream": True,
    }
    events = 0
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            events += line.startswith(b"data:")
    return events


async def _cost_of_requests(session: aiohttp.ClientSession, router: RouterProgram) -> float:
    """Return milliseconds per request of one token, beyond its events."""
    before_s = processor_s(router.process.pid)
    for _ in range(REQUESTS):
        await _first_byte_s(session, router.url)
    return 1000 * (processor_s(router.process.pid) - before_s) / REQUESTS


async def _first_byte_s(session: aiohttp.ClientSession, url: str) -> float:
    body = {"prompt": "the quick brown fox", "max_tokens": 1, "stream": True}
    started_s = time.perf_counter()
    async with session.post(f"{url}/v1/completions", json=body) as response:
        await response.content.readany()
        first_s = time.perf_counter() - started_s
        await response.read()
    return first_s


async def _added(session: aiohttp.ClientSession, routed: str, direct: str) -> tuple[float, float]:
    """Return how much later the first byte comes through the router: p50 and p99."""
    times: dict[str, list[float]] = {routed: [], direct: []}
    for number in range(2 * PAIRS):
        url = (routed, direct)[number % 2]
        times[url].append(1000 * await _first_byte_s(session, url))
    p50, p99 = (
        _percentile(times[routed], share) - _percentile(times[direct], share)
        for share in (0.5, 0.99)
    )
    return p50, p99


def _percentile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
