"""What engines in mode Recommend cost an operator, without an API server.

`python -m bench.operator.recommending [--engines N]`: the operator's own poller, plan and status
run for resources of four engines, each once a minute, against engines that serve metrics over HTTP
from another process. Everything but the requests to the API server is there; at rest these are
some status updates in half an hour.
"""

import argparse
import asyncio
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from bench.operator import busy
from bench.operator.report import Figures, percentile
from bench.operator.world import resource
from specdecode_operator import trial
from specdecode_operator.engines.engine_client import EngineClient, open_engine_client
from specdecode_operator.engines.engine_poller import EnginePoller
from specdecode_operator.objects.kinds import DEPLOYMENT, POD, Manifest, child_id
from specdecode_operator.objects.observed import Key, Observed
from specdecode_operator.plan.plan import plan
from specdecode_operator.process.heap import frozen_heap
from specdecode_operator.process.run import THREAD_SWITCH_S
from specdecode_operator.settings import Settings
from specdecode_operator.status.activity import ActivityLog
from specdecode_operator.status.outcome import Outcome
from specdecode_operator.status.status import status
from specdecode_operator.trial.strategies.looks import REST_LOOK_S

ENGINES = 300
PER_RESOURCE = 4
PERIODS = 3.0
"""Measured time, in intervals between looks."""
LONG_MS = 5.0
"""Callbacks above it are printed."""
SETTINGS = Settings(engine_image="none")


@dataclass(slots=True)
class Callbacks:
    """Processor time of every callback of the event loop, in milliseconds."""

    cpu_ms: list[float] = field(default_factory=list)


async def recommend_share(engines: int, per_resource: int, periods: float) -> Figures:
    """O7: share of a core, and the longest callback of the event loop."""
    resources = engines // per_resource
    fleet = [_observed(number, per_resource) for number in range(resources)]
    hashes = [str(plan(each, SETTINGS).config_hash) for each in fleet]
    port = free_port()
    with serving(resources * per_resource, port, hashes):
        async with open_engine_client(port) as client:
            return await _measure(client, fleet, periods)


async def _measure(client: EngineClient, fleet: Sequence[Observed], periods: float) -> Figures:
    woken: asyncio.Queue[Key] = asyncio.Queue()
    poller = EnginePoller(client, time.monotonic, woken.put_nowait)
    work = _Work(poller, woken, {_key(each): each for each in fleet})
    sys.setswitchinterval(THREAD_SWITCH_S)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work.look_forever(key)) for key in work.observed]
        tasks.append(group.create_task(work.reconcile_forever()))
        with frozen_heap():
            await asyncio.sleep(REST_LOOK_S)  # every resource once, with new connections
            work.looks = 0
            with timed_callbacks() as callbacks:
                cpu_s, started_s = time.process_time(), time.monotonic()
                await asyncio.sleep(periods * REST_LOOK_S)
                share = (time.process_time() - cpu_s) / (time.monotonic() - started_s)
        for task in tasks:
            task.cancel()
    return {
        "recommend_cpu_share": round(share, 4),
        "recommend_looks_per_s": round(work.looks / (periods * REST_LOOK_S), 3),
        "recommend_failures": float(work.failures),
        "recommend_recommendations": float(work.recommendations),
        "recommend_callback_p999_ms": round(percentile(callbacks.cpu_ms, 0.999), 2),
        "recommend_callback_max_ms": round(max(callbacks.cpu_ms), 2),
    }


@dataclass(slots=True)
class _Work:
    """What a reconciler does with looks at rest."""

    poller: EnginePoller
    woken: asyncio.Queue[Key]
    observed: dict[Key, Observed]
    activities: ActivityLog = field(default_factory=ActivityLog)
    looks: int = 0
    failures: int = 0
    recommendations: int = 0

    async def look_forever(self, key: Key) -> None:
        """Look once per interval, at a random moment of it."""
        step = plan(self.observed[key], SETTINGS, time.time()).step
        assert step is not None, "the spec is valid"
        await asyncio.sleep(random.uniform(0, REST_LOOK_S))
        while True:
            observed = self.observed[key]
            look = trial.next_look(observed, step.record, time.time(), REST_LOOK_S)
            assert look is not None, "mode Recommend looks at rest"
            self.poller.look(key, observed.uid, look, time.time)
            await asyncio.sleep(REST_LOOK_S)

    async def reconcile_forever(self) -> None:
        """Plan and compute the status after each look."""
        while True:
            key = await self.woken.get()
            snapshot = self.poller.take(key)
            if snapshot is None:
                continue
            self.looks += 1
            self.failures += len(snapshot.failures)
            observed, now = self.observed[key], datetime.now(UTC)
            self.activities.add(key, observed.uid, snapshot.readings.values(), snapshot.at_s)
            shown = (observed.resource.get("status") or {}).get("activity")
            activity = self.activities.extended(key, shown)
            observed = replace(observed, at=now, activity=activity)
            decided = await asyncio.to_thread(plan, observed, SETTINGS, snapshot.at_s, snapshot)
            written = status(observed, decided, Outcome(), now)
            self.recommendations += "recommendation" in written
            self.observed[key] = replace(observed, resource=observed.resource | {"status": written})


def _observed(number: int, per_resource: int) -> Observed:
    """A resource at rest: its objects are as the operator wants them, its pods are ready."""
    manifest = resource(f"o7-{number}")
    manifest["metadata"] |= {"uid": f"uid-{number}", "generation": 1, "resourceVersion": "1"}
    manifest["spec"] = manifest["spec"] | {
        "replicas": per_resource,
        "rollout": {"mode": "Recommend"},
    }
    bare = Observed(manifest, {})
    children = {child_id(each.manifest): each.manifest for each in plan(bare, SETTINGS).writes}
    (template,) = (
        child["spec"]["template"] for child in children.values() if child["kind"] == DEPLOYMENT.kind
    )
    pods = tuple(_pod(template, number * per_resource + place) for place in range(per_resource))
    return Observed(manifest, children, pods)


def _pod(template: Manifest, number: int) -> Manifest:
    conditions = [{"type": "Ready", "status": "True"}]
    metadata = {"name": f"pod-{number}", "namespace": "bench", "uid": f"pod-uid-{number}"}
    return {
        "kind": POD.kind,
        "metadata": template["metadata"] | metadata,
        "spec": template["spec"],
        "status": {"phase": "Running", "podIP": busy.address(number), "conditions": conditions},
    }


def _key(observed: Observed) -> Key:
    metadata = observed.resource["metadata"]
    return Key(metadata["namespace"], metadata["name"])


@contextmanager
def timed_callbacks() -> Iterator[Callbacks]:
    """Measure the processor time of the thread in each callback, so that others do not count."""
    found, run = Callbacks(), asyncio.Handle._run

    def timed(handle: asyncio.Handle) -> None:
        started_s = time.thread_time()
        run(handle)
        if asyncio.Handle._run is not timed:
            return  # the block ended in this callback, the rest of which is the bench's own
        cpu_ms = 1000 * (time.thread_time() - started_s)
        if cpu_ms > LONG_MS:
            print(f"{cpu_ms:.1f} ms in {handle!r}", file=sys.stderr)
        found.cpu_ms.append(cpu_ms)

    asyncio.Handle._run = timed  # type: ignore[method-assign, assignment]
    try:
        yield found
    finally:
        asyncio.Handle._run = run  # type: ignore[method-assign]


@contextmanager
def serving(count: int, port: int, hashes: Sequence[str], draft: str = "") -> Iterator[None]:
    """Serve metrics of engines on loopback addresses from another process.

    Args:
        draft: folder of the draft that they report.
    """
    arguments = [str(count), str(port), ",".join(hashes), draft]
    words = [sys.executable, "-m", "bench.operator.busy", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != "serving":
            raise RuntimeError(f"the engines did not start; exit code {process.wait()}")
        yield
    finally:
        process.kill()
        process.communicate()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def main() -> int:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(allow_abbrev=False, prog="bench.operator.recommending")
    parser.add_argument("--engines", type=int, default=ENGINES)
    parser.add_argument("--per-resource", type=int, default=PER_RESOURCE)
    parser.add_argument("--periods", type=float, default=PERIODS, help="of a minute, measured")
    options = parser.parse_args()
    figures = asyncio.run(recommend_share(options.engines, options.per_resource, options.periods))
    more = {
        "engines": options.engines,
        "per_resource": options.per_resource,
        "load_average": os.getloadavg()[0],
    }
    print(json.dumps({**figures, **more}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
