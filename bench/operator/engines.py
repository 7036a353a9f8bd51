"""Engines of which only the metrics and the table are there, on loopback addresses of their own.

What they export is written by the engine's own code from sums and errors that the bench puts in, so
that the moment when these suffice for a verdict is known; no model runs.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from specdecode_api import metrics, names
from specdecode_api.boot import EngineBoot
from specdecode_api.metrics import MetricSpec, table_hash
from specdecode_api.speculation import Policy
from specdecode_api.table import TableEntry
from specdecode_engine.stats.prometheus import EngineMetrics
from specdecode_engine.stats.snapshot import CoreSnapshot

STRATUM = ("8", "greedy", "free", "short", "")
TOKENS = (90.0, 100.0, 110.0)
"""Of the answers, in turn."""
ACCEPT_LENGTH = 3.0
ROUND_S = 0.02


def sums_of(requests: int) -> tuple[float, ...]:
    """Sums over requests as the series have them; all steps take the same time."""
    totals = [0.0] * len(metrics.REQUEST_SUMS)
    for number in range(requests):
        tokens = TOKENS[number % len(TOKENS)]
        rounds = tokens / ACCEPT_LENGTH * (0.95 if number % 2 else 1.05)
        seconds = rounds * ROUND_S
        row = (1.0, tokens, rounds, seconds)
        totals = [total + value for total, value in zip(totals, row, strict=True)]
    return tuple(totals)


@dataclass(slots=True)
class Engine:
    """One pod's engine. It answers requests under its first table; under any other they fail."""

    config_hash: str
    policy: Policy
    first_table: str
    table: str = ""
    answered: int = 0
    metrics: EngineMetrics = field(init=False)

    def __post_init__(self) -> None:
        self.table = self.first_table
        self.metrics = EngineMetrics(self._snapshot, self._describe)

    @staticmethod
    def started_from(boot_file: str, config_hash: str) -> "Engine":
        """An engine that has read this boot file."""
        speculation = EngineBoot.model_validate_json(boot_file).speculation
        table = table_hash(speculation.policy, speculation.tuned or speculation.entries)
        return Engine(config_hash, speculation.policy, table)

    def answer(self, requests: int) -> None:
        """Export so many more requests under the table in force."""
        if self.table == self.first_table:
            self.answered += requests
            return
        for _ in range(requests):
            self.metrics.count_error(500)

    def take(self, document: Mapping[str, object]) -> None:
        """Choose draft steps by another table."""
        entries = {bound: TableEntry.model_validate(each) for bound, each in document.items()}
        self.table = table_hash(self.policy, entries)

    def _describe(self) -> Mapping[str, str]:
        reported = {"config_hash": self.config_hash, "table_hash": self.table}
        return reported | {"policy": self.policy.value, "device": "CPU"}

    def _snapshot(self) -> CoreSnapshot:
        values = sums_of(self.answered)
        labels = (self.first_table, *STRATUM)
        totals: dict[MetricSpec, Mapping[tuple[str, ...], float]] = {
            metrics.core.EMITTED_TOKENS: {(): values[1]}
        }
        for each, value in zip(metrics.REQUEST_SUMS, values, strict=True):
            totals[each] = {labels: value}
        return CoreSnapshot(totals)


class Fleet:
    """Engines by the address that they are asked at."""

    def __init__(self, runner: web.AppRunner, engines: dict[str, Engine]) -> None:
        self._runner, self._engines = runner, engines

    async def start(self, engine: Engine) -> str:
        """Listen; returns the address.

        Raises:
            RuntimeError: somebody else listens there.
        """
        number = len(self._engines) + 1
        address = f"127.44.{number // 250}.{number % 250 + 1}"
        self._engines[address] = engine
        try:
            await web.TCPSite(self._runner, address, names.MANAGEMENT_PORT).start()
        except OSError as error:
            raise RuntimeError(
                f"{address}:{names.MANAGEMENT_PORT}: {error}; the operator queries engines at this "
                "port, so end what listens on it"
            ) from error
        return address


@asynccontextmanager
async def open_fleet() -> AsyncIterator[Fleet]:
    """Serve engines that are started later, in this process."""
    engines: dict[str, Engine] = {}

    async def respond(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        body = encode(_asked(request, engines).metrics.registry)
        return web.Response(body=body, headers={"content-type": content_type})

    async def take(request: web.Request) -> web.Response:
        engine = _asked(request, engines)
        engine.take((await request.json())["table"])
        return web.json_response({"table_hash": engine.table})

    application = web.Application()
    application.router.add_get(names.PATH_METRICS, respond)
    application.router.add_put(names.PATH_TABLE, take)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        yield Fleet(runner, engines)
    finally:
        await runner.cleanup()


def _asked(request: web.Request, engines: Mapping[str, Engine]) -> Engine:
    assert request.transport is not None, "a request that is being answered has a connection"
    return engines[request.transport.get_extra_info("sockname")[0]]
