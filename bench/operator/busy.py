"""`python -m bench.operator.busy COUNT PORT HASHES DRAFT`: metrics of busy engines.

They are those after a day of mixed traffic. Each engine listens on a loopback address of its own.
HASHES are the config hashes of the resources, separated by commas, which share the engines equally
and in order; DRAFT is the folder of the draft that all of them report. The text is written by the
engine's own code from counters that grow with the time, once a second for all, so that this process
takes little of the machine; no model runs. The process prints one line when it serves, and ends
with its standard input.
"""

import asyncio
import sys
import time
from collections.abc import Sequence
from itertools import product

from aiohttp import web
from prometheus_client.exposition import choose_encoder

from specdecode_api import metrics, names
from specdecode_api.report import DraftInUse
from specdecode_engine.stats.prometheus import EngineMetrics, RequestLatency
from specdecode_engine.stats.snapshot import CoreSnapshot

TABLES = ("0011223344", "5566778899")
STRATA = tuple(
    product(
        map(str, metrics.BATCH_BUCKETS),
        ("greedy", "sampled"),
        ("free",),
        ("short", "medium", "long"),
        ("", "code"),
    )
)
DRAFT_STEPS = (0, 1, 3, 5)
ACCEPTANCE = 0.75
"""Of a draft token whose predecessors were accepted."""
STEP_S = 0.02
DAY_S = 86_400.0
RENEWED_S = 1.0

Values = dict[metrics.MetricSpec, dict[tuple[str, ...], float]]


def address(number: int) -> str:
    """Address of an engine."""
    return f"127.45.{number // 250}.{number % 250 + 1}"


def engine_metrics(config_hash: str) -> EngineMetrics:
    """The metrics of one engine that started a day ago."""
    started_s = time.time() - DAY_S
    about = {"config_hash": config_hash, "table_hash": TABLES[0], "device": "CUDA"}
    found = EngineMetrics(lambda: CoreSnapshot(counters(time.time() - started_s)), lambda: about)
    for table in TABLES:
        watch = RequestLatency(found, 0.0)
        watch.observe_tokens(1, 0.2, table)
        watch.observe_tokens(1, 0.21, table)
        watch.observe_end("stop", 0.5, table)
    return found


def counters(age_s: float) -> Values:
    """Counters after `age_s` seconds, spread over batch buckets and draft steps."""
    cells = len(metrics.BATCH_BUCKETS) * len(DRAFT_STEPS)
    steps = age_s / STEP_S / cells
    found: Values = {each: {} for each in (*metrics.BUCKETS, *metrics.REQUEST_SUMS)}
    for bucket, num_steps in product(metrics.BATCH_BUCKETS, DRAFT_STEPS):
        at = (str(bucket), str(num_steps))
        batch = 1.4 * bucket
        cost_s = STEP_S * (1 + 0.1 * num_steps) * (1 + batch * (num_steps + 1) / 200)
        found[metrics.BUCKET_STEPS][at] = steps
        found[metrics.BUCKET_REQUEST_STEPS][at] = steps * batch
        found[metrics.BUCKET_BUSY_SECONDS][at] = steps * cost_s
        reached = steps * batch
        for position in range(1, num_steps + 1):
            where = (str(bucket), str(position))
            for each, grown in (
                (metrics.POSITION_REACHED, reached),
                (metrics.POSITION_ACCEPTED, reached * ACCEPTANCE),
            ):
                found[each][where] = found[each].get(where, 0.0) + grown
            reached *= ACCEPTANCE
    for stratum in STRATA:
        for place, each in enumerate(metrics.REQUEST_SUMS, start=1):
            found[each][(TABLES[0], *stratum)] = age_s * place / 7
    return found | {metrics.core.EMITTED_TOKENS: {(): 2.5 * steps * cells * 40}}


async def _serve(count: int, port: int, hashes: Sequence[str], draft: str) -> None:
    engine, written_s, body = engine_metrics(hashes[0]), 0.0, b""
    own = {address(place): hashes[place * len(hashes) // count].encode() for place in range(count)}

    def hash_of(request: web.Request) -> bytes:
        assert request.transport is not None, "a request that is being answered has a connection"
        return own[request.transport.get_extra_info("sockname")[0]]

    async def describe_draft(request: web.Request) -> web.Response:
        found = DraftInUse(path=draft, config_hash=hash_of(request).decode())
        return web.json_response(text=found.model_dump_json())

    async def respond(request: web.Request) -> web.Response:
        nonlocal written_s, body
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        if time.monotonic() - written_s > RENEWED_S:
            written_s, body = time.monotonic(), encode(engine.registry)
        changed = body.replace(hashes[0].encode(), hash_of(request))
        return web.Response(body=changed, headers={"content-type": content_type})

    application = web.Application()
    application.router.add_get(names.PATH_METRICS, respond)
    application.router.add_get(names.PATH_DRAFT, describe_draft)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    for number in range(count):
        await web.TCPSite(runner, address(number), port).start()
    print("serving", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(_serve(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3].split(","), sys.argv[4]))
