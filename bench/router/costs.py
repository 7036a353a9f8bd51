"""Processor time of the router for each event and request, and the time that it adds."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from bench.operator.report import percentile
from bench.router.programs import EngineProgram, RouterProgram

PROMPT = "the quick brown fox jumps over"
STREAMS = 64


@dataclass(frozen=True, slots=True)
class CostSizes:
    """How much is measured: tokens of each of 64 streams, and of one; requests of one token."""

    tokens: int = 500
    single_tokens: int = 4000
    requests: int = 500


@dataclass(frozen=True, slots=True)
class Costs:
    """Milliseconds of the router's processor time, and until the first byte beyond the engine's.

    `cpu_ms_per_request` is that of a streamed request of one token, its events included.
    """

    cpu_ms_per_event: float
    cpu_ms_per_event_single: float
    cpu_ms_per_request: float
    first_byte_ms: float
    first_byte_ms_added_p50: float
    first_byte_ms_added_p99: float
    events: int


def processor_ms(pid: int) -> float:
    """Milliseconds of processor time that a process has used, in all threads that it has."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[0]) for file in threads) / 1e6


async def measure_costs(router: RouterProgram, engine: EngineProgram, sizes: CostSizes) -> Costs:
    """Measure a router in front of one engine."""
    pid = router.process.pid
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        warm = [_stream(session, router.url, 1) for _ in range(STREAMS)]  # opens connections
        await asyncio.gather(*warm)
        started_ms = processor_ms(pid)
        streams = [_stream(session, router.url, sizes.tokens) for _ in range(STREAMS)]
        many = sum(await asyncio.gather(*streams))
        after_many_ms = processor_ms(pid)
        single = await _single_stream(session, router.url, sizes.single_tokens)
        after_single_ms = processor_ms(pid)
        for _ in range(sizes.requests):
            await _first_byte_ms(session, router.url)
        request_ms = (processor_ms(pid) - after_single_ms) / sizes.requests
        routed_ms, direct_ms = await _first_bytes(session, (router.url, engine.url), sizes.requests)
    p50_ms, p99_ms = (
        percentile(routed_ms, share) - percentile(direct_ms, share) for share in (0.5, 0.99)
    )
    return Costs(
        cpu_ms_per_event=(after_many_ms - started_ms) / many,
        cpu_ms_per_event_single=(after_single_ms - after_many_ms) / single,
        cpu_ms_per_request=request_ms,
        first_byte_ms=percentile(direct_ms, 0.5),
        first_byte_ms_added_p50=p50_ms,
        first_byte_ms_added_p99=p99_ms,
        events=many + single,
    )


async def _single_stream(session: aiohttp.ClientSession, url: str, tokens: int) -> int:
    """Stream so many tokens, one stream after the other; return the number of events."""
    events, each = 0, min(tokens, 800)  # what fits into the context
    for _ in range(tokens // each):
        events += await _stream(session, url, each)
    return events


async def _stream(session: aiohttp.ClientSession, url: str, tokens: int) -> int:
    """Stream an answer, and return the number of its events."""
    body = {
        "prompt": PROMPT, "max_tokens": tokens, "ignore_eos": True, "temperature": 1, "stream": True
    }  # fmt: skip
    events = 0
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            events += line.startswith(b"data:")
    return events


async def _first_bytes(
    session: aiohttp.ClientSession, urls: Sequence[str], requests: int
) -> list[list[float]]:
    """Return the times until the first byte from each URL, which take turns."""
    times: list[list[float]] = [[] for _ in urls]
    for _ in range(requests):
        for url, found in zip(urls, times, strict=True):
            found.append(await _first_byte_ms(session, url))
    return times


async def _first_byte_ms(session: aiohttp.ClientSession, url: str) -> float:
    """Return milliseconds until the first byte of a streamed answer of one token."""
    clock = asyncio.get_running_loop().time
    body = {"prompt": PROMPT, "max_tokens": 1, "stream": True}
    started_s = clock()
    async with session.post(f"{url}/v1/completions", json=body) as response:
        assert response.status == 200
        await response.content.readany()
        first_s = clock() - started_s
        await response.read()
    return 1000 * first_s
