"""The mix of a soak: valid and wrong bodies, streams, aborts, large prompts and grammars."""

import asyncio
import random
from dataclasses import dataclass, field

from checks.fuzz.attack import find_defect
from checks.fuzz.cases import BURST_KINDS, SOAK_KINDS, draw_case
from checks.fuzz.wire import send

WORKERS = 8
REPLY_SECONDS = 60.0
BURST = 48


@dataclass(slots=True)
class SoakLoad:
    """Workers that send the requests of a seed until `is_over`.

    The grammars and prompts repeat after `distinct` requests, so that caches can be warm.
    """

    port: int
    seed: int
    distinct: int
    sent: int = 0
    refused: int = 0
    """Requests that found nobody listening."""
    is_over: bool = False
    statuses: dict[int, int] = field(default_factory=dict)
    defects: list[str] = field(default_factory=list)
    started: int = 0

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        while not self.is_over:
            index = self.started % self.distinct
            self.started += 1
            case = draw_case(self.seed, index, SOAK_KINDS)
            rng = random.Random(f"{self.seed}/{index}/wire")
            reply = await send(case.request, "127.0.0.1", self.port, rng, REPLY_SECONDS)
            if reply.is_refused:
                self.refused += 1
                self.is_over = True
                return
            self.sent += 1
            for status in reply.statuses:
                self.statuses[status] = self.statuses.get(status, 0) + 1
            if defect := find_defect(case, reply):
                self.defects.append(f"request {index} ({case.kind}): {defect}")


async def send_burst(port: int, seed: int) -> None:
    """Send long prompts at the same time, so that every pool of threads has all of its threads."""

    async def send_one(index: int) -> None:
        case = draw_case(seed, index, BURST_KINDS)
        await send(case.request, "127.0.0.1", port, random.Random(index), REPLY_SECONDS)

    async with asyncio.TaskGroup() as group:
        for index in range(BURST):
            group.create_task(send_one(index))
