"""Starts requests through an asynchronous API as those before them end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from bench.gpu.peers.loads import ScheduledRequest

Answer = Callable[[ScheduledRequest], Awaitable[list[int]]]


async def serve_as_they_come(
    requests: Sequence[ScheduledRequest], answer: Answer
) -> list[list[int]]:
    """Answer all in their order; each starts once at most its `running` run with it."""
    tasks, running = list[asyncio.Task[list[int]]](), set[asyncio.Task[list[int]]]()
    for request in requests:
        while len(running) >= request.running:
            _, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        task = asyncio.ensure_future(answer(request))
        tasks.append(task)
        running.add(task)
    return list(await asyncio.gather(*tasks))
