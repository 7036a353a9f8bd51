"""`python -m checks.fuzz.attack PORT SEED SECONDS [INDEX ...]`: send drawn requests, print counts.

It is a process of its own with the lowest priority, so that it takes no processor time from the
engine and from the clients whose streams are compared.
"""

import asyncio
import itertools
import json
import os
import random
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields

from checks.fuzz.cases import Case, draw_case
from checks.fuzz.stalls import SentRequest
from checks.fuzz.stored import KnownNames
from checks.fuzz.wire import MUST_BE_ANSWERED, WireReply, send

HOST = "127.0.0.1"
WORKERS = 8
LOWEST_PRIORITY = 19
REPLY_SECONDS = 20.0
SHOWN_BYTES = 600
SERVER_ERROR = re.compile(rb'"type":"(server|api)_error"')


@dataclass(slots=True)
class AttackTally:
    """Counts of the requests sent, and a line about each that shows a defect."""

    requests: int = 0
    status_5xx: int = 0
    status_503: int = 0
    unanswered: int = 0
    given_up: int = 0
    """Requests whose response had not ended in time; the client has disconnected."""
    statuses: Counter[int] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    in_flight: list[int] = field(default_factory=list)
    """Indices of the requests that were running when the engine ended, and of the last before."""
    sent: list[SentRequest] = field(default_factory=list)

    def document(self) -> dict[str, object]:
        """Describe the tally as JSON."""
        counts = {each.name: getattr(self, each.name) for each in fields(self)}
        return counts | {"sent": [asdict(each) for each in self.sent]}

    def count(self, index: int, case: Case, reply: WireReply) -> None:
        """Count one request with its responses."""
        self.requests += 1
        self.kinds[case.kind] += 1
        self.statuses.update(reply.statuses)
        self.given_up += reply.is_timeout
        defect = find_defect(case, reply)
        is_unavailable = 503 in reply.statuses
        self.status_503 += is_unavailable
        self.status_5xx += defect.startswith("5xx")
        self.unanswered += defect.startswith("unanswered")
        if defect:
            excerpt = _excerpt(reply.data)
            self.failures.append(f"request {index} ({case.kind}): {defect}: {excerpt}")
            print(self.failures[-1], file=sys.stderr, flush=True)


def find_defect(case: Case, reply: WireReply) -> str:
    """Return which promise of the server a reply breaks, "" if none."""
    errors = [status for status in reply.statuses if status >= 500]
    if any(status != 503 for status in errors):
        return f"5xx: {errors}"
    if errors and not reply.is_retryable():
        return "5xx: a 503 without Retry-After"
    if SERVER_ERROR.search(reply.data) and not errors:
        return "5xx: an event with a server error"
    must_answer = case.request.delivery in MUST_BE_ANSWERED and not case.request.is_malformed
    if must_answer and not reply.statuses and not reply.is_timeout and not reply.is_refused:
        return "unanswered: the connection was closed without a response"
    return ""


def _excerpt(data: bytes) -> str:
    found = SERVER_ERROR.search(data)
    at = max((found.start() if found else 0) - SHOWN_BYTES // 2, 0)
    return repr(data[at : at + SHOWN_BYTES])


class Attack:
    """Workers that send requests until time is up, or the engine has ended."""

    def __init__(self, port: int, seed: int, seconds: float, indices: Iterator[int]) -> None:
        self._port = port
        self._seed = seed
        self._ends_s = time.monotonic() + seconds
        self._indices = indices
        self._running: dict[int, None] = {}
        self._is_over = False
        self._names = KnownNames()
        self.tally = AttackTally()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._work())

    async def _work(self) -> None:
        for index in self._indices:
            if self._is_over or time.monotonic() > self._ends_s:
                return
            case = draw_case(self._seed, index)
            self._running[index] = None
            rng = random.Random(f"{self._seed}/{index}/wire")
            start_s = time.monotonic()
            request = self._names.fill(case.request, rng)
            reply = await send(request, HOST, self._port, rng, REPLY_SECONDS)
            self._names.note(reply.data)
            self.tally.sent.append(SentRequest.of(index, case, start_s, time.monotonic()))
            if reply.is_refused:
                self._end()
                return
            del self._running[index]
            self.tally.count(index, case, reply)

    def _end(self) -> None:
        """The engine listens no more: keep what it worked on."""
        if not self._is_over:
            self._is_over = True
            self.tally.in_flight = list(self._running)


def main(arguments: list[str]) -> int:
    """Attack, and print the tally as JSON on the last line."""
    port, seed, seconds, *only = arguments
    os.nice(LOWEST_PRIORITY)
    indices = iter([int(index) for index in only]) if only else itertools.count()
    attack = Attack(int(port), int(seed), float(seconds), indices)
    asyncio.run(attack.run())
    print(json.dumps(attack.tally.document()))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
