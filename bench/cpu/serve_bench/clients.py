"""Clients that cost next to nothing, to measure HTTP itself: one process, one event loop.

A load generator that keeps statistics of every token works as hard as the server that it measures,
on the same cores and the same memory; the engine in process is compared without such a neighbour.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import httpx

from checks.harness.servers import Server

TIMEOUT_S = 300.0


class AnswerIncomplete(Exception):
    """A server answered with an error or with too few tokens; see the message."""


@dataclass(frozen=True, slots=True)
class Served:
    """What answers took by HTTP."""

    tokens: int
    cpu_s: float  # of the server's process
    wall_s: float


def ask_for_all(
    server: Server, prompts: Sequence[Sequence[int]], tokens_each: int, at_a_time: int
) -> Served:
    """Have every prompt answered as a stream, `at_a_time` of them running.

    Raises:
        AnswerIncomplete: an answer is not whole.
    """
    before_s, began_s = server.cpu_s(), time.perf_counter()
    asyncio.run(_ask_for_all(server, prompts, tokens_each, at_a_time))
    took_s = time.perf_counter() - began_s
    return Served(len(prompts) * tokens_each, server.cpu_s() - before_s, took_s)


async def _ask_for_all(
    server: Server, prompts: Sequence[Sequence[int]], tokens_each: int, at_a_time: int
) -> None:
    room = asyncio.Semaphore(at_a_time)
    limits = httpx.Limits(max_connections=at_a_time)
    async with httpx.AsyncClient(timeout=TIMEOUT_S, limits=limits) as client:

        async def ask(prompt: Sequence[int]) -> None:
            async with room:
                await _ask(client, server, prompt, tokens_each)

        await asyncio.gather(*(ask(prompt) for prompt in prompts))


async def _ask(
    client: httpx.AsyncClient, server: Server, prompt: Sequence[int], tokens: int
) -> None:
    body = {
        "model": server.model,
        "prompt": list(prompt),
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    whole = b""
    async with client.stream("POST", f"{server.url}/v1/completions", json=body) as response:
        async for part in response.aiter_raw():
            whole = (whole + part)[-2000:]
    if response.status_code != 200 or f'"completion_tokens":{tokens},'.encode() not in whole:
        raise AnswerIncomplete(f"{server.name} answered {response.status_code}: {whole[-200:]!r}")
