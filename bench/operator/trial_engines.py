"""`python -m bench.operator.trial_engines PORT`: the engines of a long trial, in simulated time.

Standard input starts with one line of JSON: the boot file's text, the config hash, and how many
engines there are. Each engine listens on a loopback address of its own, exports metrics by the
engine's own code, and takes tables. `PUT /clock` on any address passes time: meanwhile every engine
answers requests of all strata under its table. No model runs.
"""

import asyncio
import json
import random
import sys
from dataclasses import dataclass, field
from itertools import product

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from bench.operator.busy import DAY_S, Values, counters
from specdecode_api import metrics, names
from specdecode_api.boot import EngineBoot
from specdecode_api.metrics import table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_engine.stats.prometheus import EngineMetrics, RequestLatency
from specdecode_engine.stats.snapshot import CoreSnapshot

PATH_CLOCK = "/clock"
STRATA = tuple(
    product(
        ("1", "2", "4", "8", "16"), ("greedy", "sampled"), ("free", "constrained"),
        ("short", "long"), ("",),
    )
)  # fmt: skip
REQUESTS_PER_S = 4.0
"""Of each engine."""
TOKENS = (90.0, 100.0, 110.0)
ACCEPT_LENGTH = 3.0
STEP_S = 0.02
SPREAD = 0.1
"""Of the duration of a step, from request to request."""


def address(number: int) -> str:
    """Address of an engine."""
    return f"127.46.0.{number + 1}"


@dataclass(slots=True)
class TrialEngine:
    """One pod's engine, equally fast under every table."""

    config_hash: str
    policy: Policy
    table: str
    rng: random.Random
    now_s: float = 0.0
    sums: dict[tuple[str, ...], tuple[float, ...]] = field(default_factory=dict)
    """Sums over requests by table and stratum."""
    answered: int = 0
    metrics: EngineMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = EngineMetrics(self._snapshot, self._describe)

    def pass_time(self, seconds: float) -> None:
        """Answer requests under the table in force."""
        self.now_s += seconds
        until = round(REQUESTS_PER_S * self.now_s)
        for number in range(self.answered, until):
            self._answer(number)
        self.answered = until

    def put_table(self, document: dict[str, object]) -> None:
        """Choose draft steps by another table."""
        entries = {bound: TableEntry.model_validate(each) for bound, each in document.items()}
        self.table = table_hash(self.policy, entries)

    def _answer(self, number: int) -> None:
        tokens = TOKENS[number % len(TOKENS)]
        steps = tokens / ACCEPT_LENGTH
        seconds = steps * STEP_S * self.rng.uniform(1 - SPREAD, 1 + SPREAD)
        row = (1.0, tokens, steps, seconds)
        at = (self.table, *STRATA[number % len(STRATA)])
        known = self.sums.get(at, len(row) * (0.0,))
        self.sums[at] = tuple(old + new for old, new in zip(known, row, strict=True))
        latency = RequestLatency(self.metrics, 0.0)
        latency.observe_tokens(1, 0.2, self.table)
        latency.observe_tokens(1, 0.2 + seconds / tokens, self.table)
        latency.observe_end("stop", seconds, self.table)

    def _describe(self) -> dict[str, str]:
        about = {"config_hash": self.config_hash, "table_hash": self.table}
        return about | {"policy": self.policy.value, "device": "CUDA"}

    def _snapshot(self) -> CoreSnapshot:
        found: Values = counters(DAY_S + self.now_s)
        for place, each in enumerate(metrics.REQUEST_SUMS):
            found[each] = {labels: row[place] for labels, row in self.sums.items()}
        return CoreSnapshot(found)


def start_engines(description: dict[str, object]) -> dict[str, TrialEngine]:
    """Engines that have read a boot file, by their addresses."""
    speculation = EngineBoot.model_validate_json(str(description["boot"])).speculation
    table = table_hash(speculation.policy, speculation.tuned or speculation.entries)
    config_hash, count = str(description["config_hash"]), int(str(description["count"]))
    return {
        address(number): TrialEngine(
            config_hash, speculation.policy, table, random.Random(f"engine {number}")
        )
        for number in range(count)
    }


async def _serve(port: int) -> None:
    engines = start_engines(json.loads(sys.stdin.readline()))

    def queried(request: web.Request) -> TrialEngine:
        assert request.transport is not None, "a request that is being answered has a connection"
        return engines[request.transport.get_extra_info("sockname")[0]]

    async def export(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = encode(queried(request).metrics.registry)
        return web.Response(body=body, headers={"content-type": content_type})

    async def put_table(request: web.Request) -> web.Response:
        engine = queried(request)
        engine.put_table((await request.json())["table"])
        return web.json_response({"table_hash": engine.table})

    async def pass_time(request: web.Request) -> web.Response:
        seconds = float((await request.json())["seconds"])
        for engine in engines.values():
            engine.pass_time(seconds)
        return web.json_response({})

    application = web.Application()
    application.router.add_get(names.PATH_METRICS, export)
    application.router.add_put(names.PATH_TABLE, put_table)
    application.router.add_put(PATH_CLOCK, pass_time)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    for each in engines:
        await web.TCPSite(runner, each, port).start()
    print("serving", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1])))
