"""The measurements themselves, each on an operator that is up and a namespace that is quiet."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime

from bench.operator.api import Api
from bench.operator.process import OperatorProcess
from bench.operator.report import percentile
from bench.operator.seen import Seen, deployed
from bench.operator.world import NAMESPACE, resource
from specdecode_operator.objects.kinds import CHILDREN, EVENT, RESOURCE, Manifest
from specdecode_operator.objects.observed import Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.settings import Settings
from specdecode_operator.status.events import transitions
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status

Figures = dict[str, float | None]

WAIT_S = 240.0
MANY_WAIT_S = 3600.0
IN_FLIGHT = 32
PAUSE_S = 0.05
"""Between resources that are created one by one: so that none waits for the one before it."""


async def creation(api: Api, seen: Seen, count: int) -> Figures:
    """O1: resources one by one, from sending the request to seeing the last child."""
    taken = []
    for number in range(count):
        name, started = f"one-{number}", time.monotonic()
        await api.create(RESOURCE, resource(name))
        await seen.until([name], "complete", WAIT_S)
        complete = seen.by_name[name].complete
        assert complete is not None
        taken.append(1000 * (complete - started))
        await asyncio.sleep(PAUSE_S)
    return {
        "children_p50_ms": round(statistics.median(taken), 1),
        "children_p99_ms": round(percentile(taken, 0.99), 1),
    }


async def api_limit(api: Api, count: int) -> float:
    """Resources per second that the API server takes with all their writes, from a plain client.

    The very requests of a burst, many in flight, without an operator; what it made is removed.
    """
    names = [f"limit-{number}" for number in range(count)]
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def write(name: str) -> None:
        async with gate:
            await _write_all(api, await api.create(RESOURCE, resource(name)))

    started = time.monotonic()
    await asyncio.gather(*(write(name) for name in names))
    rate = count / (time.monotonic() - started)
    for kind in (RESOURCE, *CHILDREN, EVENT):
        await api.clear(kind, NAMESPACE)
    return rate


async def _write_all(api: Api, manifest: Manifest) -> None:
    """Everything that an operator writes about a new resource: children, a status, an event."""
    observed, now = Observed(manifest, {}), datetime.now(UTC)
    decided = plan(observed, Settings(engine_image="none"))
    written = [await api.apply(write.manifest) for write in decided.writes]
    reported = status(observed, decided, Outcome(tuple(written)), now)
    metadata = {name: manifest["metadata"][name] for name in ("name", "namespace")}
    head = {"apiVersion": RESOURCE.api_version, "kind": RESOURCE.kind, "metadata": metadata}
    await api.apply(head | {"status": reported}, "/status")
    for event in transitions(manifest, reported, now):
        await api.create(EVENT, event)


async def bursts(
    api: Api, seen: Seen, operator: OperatorProcess, turns: int, count: int
) -> Figures:
    """O2: many resources at once, until every owned object and every status is there.

    A plain client and the operator take turns, so that other work on the machine meets both; the
    operator is killed for the client's turns. Medians over the turns.
    """
    taken: dict[str, list[float]] = {}
    for number in range(turns):
        operator.kill()
        limit = await api_limit(api, count)
        await operator.start()
        found = await _burst(api, seen, operator, [f"burst-{number}-{n}" for n in range(count)])
        found["api_resources_per_s"] = limit
        found["burst_share_of_api_limit"] = found["burst_resources_per_s"] / limit
        for name, value in found.items():
            taken.setdefault(name, []).append(value)
    shares = taken["burst_share_of_api_limit"]
    return {
        **{name: round(statistics.median(values), 3) for name, values in taken.items()},
        "burst_share_lowest": round(min(shares), 3),
        "burst_share_highest": round(max(shares), 3),
    }


async def _burst(
    api: Api, seen: Seen, operator: OperatorProcess, names: list[str]
) -> dict[str, float]:
    before, cpu_s = await _writes(api, operator), operator.cpu_s()
    started = time.monotonic()
    await _create_all(api, names)
    await seen.until(names, "complete", WAIT_S)
    await seen.until(names, "reported", WAIT_S)
    rate = len(names) / (time.monotonic() - started)
    await operator.settle()
    return {
        "burst_resources_per_s": rate,
        "burst_writes_per_resource": (await _writes(api, operator) - before) / len(names),
        "burst_cpu_ms_per_resource": 1000 * (operator.cpu_s() - cpu_s) / len(names),
    }


async def _create_all(api: Api, names: Sequence[str]) -> None:
    """Create resources, a few at once."""
    gate = asyncio.Semaphore(IN_FLIGHT)

    async def create(name: str) -> None:
        async with gate:
            await api.create(RESOURCE, resource(name))

    await asyncio.gather(*map(create, names))


async def fill(api: Api, seen: Seen, operator: OperatorProcess, total: int) -> None:
    """Bring the number of resources to `total`."""
    have = len(await api.versions(RESOURCE, NAMESPACE))
    names = [f"more-{number}" for number in range(have, total)]
    for name in names:
        await api.create(RESOURCE, resource(name))
    await seen.until(names, "reported", WAIT_S)
    await operator.settle()


async def survival(
    api: Api, seen: Seen, operator: OperatorProcess, total: int, window_s: float
) -> Figures:
    """Many resources: created as fast as the API server takes them, then rest, a kill and a start.

    Checks that every one gets a status and that nothing is written afterwards; measures memory.
    """
    have = len(await api.versions(RESOURCE, NAMESPACE))
    names = [f"many-{number}" for number in range(have, total)]
    started = time.monotonic()
    await _create_all(api, names)
    await seen.until(names, "complete", MANY_WAIT_S)
    await seen.until(names, "reported", MANY_WAIT_S)
    seconds = time.monotonic() - started
    await operator.settle(timeout_s=MANY_WAIT_S)
    rest = await steady(api, operator, window_s)
    peak_mib = operator.peak_mib()
    again = await restart(api, operator, total)
    return {
        "many_converge_s": round(seconds, 1),
        "many_writes_per_min": rest["steady_writes_per_min"],
        "many_cpu_share": rest["steady_idle_cpu_share"],
        "many_peak_mib": round(max(peak_mib, operator.peak_mib()), 1),
        "many_restart_s": again["restart_converge_s"],
        "many_restart_cpu_s": again["restart_cpu_s"],
        "many_restart_writes": again["restart_spurious_writes"],
    }


async def steady(api: Api, operator: OperatorProcess, window_s: float) -> Figures:
    """O3: nothing changes, and no resync falls due."""
    before = await _versions(api)
    idle = await _cpu_share(operator, window_s)
    writes = _differences(before, await _versions(api))
    return {
        "steady_writes_per_min": round(60 * writes / window_s, 2),
        "steady_idle_cpu_share": round(idle, 4),
    }


async def resyncs(api: Api, operator: OperatorProcess, idle: float) -> Figures:
    """O3: the same with resyncs, which look at every resource; `idle` is the share without.

    The operator resyncs often for this; the share is what comes of it at the default interval.
    """
    await _next_resync(operator)
    before = await _versions(api)
    share = await _cpu_share(operator, operator.resync_s)
    resync_s = max(0.0, share - idle) * operator.resync_s
    return {
        "resync_writes": float(_differences(before, await _versions(api))),
        "resync_cpu_s": round(resync_s, 2),
        "steady_cpu_share": round(idle + resync_s / Settings("none").resync_seconds, 4),
    }


async def _next_resync(operator: OperatorProcess) -> None:
    before = (await operator.metrics())["resync_total"]
    while (await operator.metrics())["resync_total"] == before:
        await asyncio.sleep(0.2)


async def _cpu_share(operator: OperatorProcess, seconds: float) -> float:
    cpu_s, started = operator.cpu_s(), time.monotonic()
    await asyncio.sleep(seconds)
    return (operator.cpu_s() - cpu_s) / (time.monotonic() - started)


async def restart(api: Api, operator: OperatorProcess, resources: int) -> Figures:
    """O5: kill it, start it, until it has looked at every resource again."""
    before = await _versions(api)
    operator.kill()
    started = time.monotonic()
    await operator.start()
    while True:
        found = await operator.metrics()
        if found.get("reconcile_total", 0) >= resources and not found["queue_depth"]:
            break
        await asyncio.sleep(0.02)
    seconds, cpu_s = time.monotonic() - started, operator.cpu_s()
    return {
        "restart_converge_s": round(seconds, 2),
        "restart_cpu_s": cpu_s,
        "restart_spurious_writes": float(_differences(before, await _versions(api))),
    }


async def readiness(api: Api, seen: Seen, count: int) -> Figures:
    """O6: what the operator adds before the pod's controllers begin and after the pod is ready."""
    shares, totals = [], []
    for number in range(count):
        name, started = f"ready-{number}", time.monotonic()
        await api.create(RESOURCE, resource(name))
        await seen.until([name], "resource_ready", WAIT_S)
        sights = seen.by_name[name]
        assert sights.resource_ready is not None
        assert sights.pod_ready is not None
        shares.append(deployed(sights) - started + sights.resource_ready - sights.pod_ready)
        totals.append(sights.resource_ready - started)
    return {
        "ready_share_s": round(statistics.median(shares), 3),
        "ready_total_s": round(statistics.median(totals), 3),
    }


async def _writes(api: Api, operator: OperatorProcess) -> float:
    """Writes of the operator so far: children, removals, statuses, events."""
    found = await operator.metrics()
    counted = sum(found.get(f"{name}_total", 0.0) for name in ("apply", "prune", "status_write"))
    return counted + len(await api.versions(EVENT, NAMESPACE))


async def _versions(api: Api) -> dict[tuple[str, str], str]:
    kinds = (RESOURCE, *CHILDREN, EVENT)
    found = await asyncio.gather(*(api.versions(kind, NAMESPACE) for kind in kinds))
    return {
        (kind.kind, name): version
        for kind, versions in zip(kinds, found, strict=True)
        for name, version in versions.items()
    }


def _differences(before: dict[tuple[str, str], str], after: dict[tuple[str, str], str]) -> int:
    """Objects written or removed; one written twice counts once."""
    return sum(before.get(each) != after.get(each) for each in before.keys() | after.keys())
