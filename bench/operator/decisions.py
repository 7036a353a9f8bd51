"""O4: from metrics that suffice for a verdict to the verdict in the status.

Guarded resources with two pods each get a table whose draft does not fit. Their engines first
export too few requests for any verdict; once the operator has recorded these, at a moment that is
random between two looks, enough for the early alarm. Guard and turns are the defaults.
"""

import asyncio
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.operator.api import Api
from bench.operator.engines import Engine, Fleet, open_fleet
from bench.operator.measures import Figures
from bench.operator.world import NAMESPACE, resource
from specdecode_api import names
from specdecode_api.v1alpha1 import RolloutSpec
from specdecode_operator.objects.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    RESOURCE,
    TRIAL,
    Manifest,
    ResourceKind,
)
from specdecode_operator.status.conditions import Type
from specdecode_operator.trial.strategies.guard import timing_of

TIMING = timing_of(RolloutSpec())
LOOK_S, WASHOUT_S = TIMING.look_s, TIMING.washout_s
"""Between looks at the pods of a trial, and before a turn counts."""
TOO_FEW, MORE = 3, 37
"""Requests of each pod; the guardrail needs 14 that fail."""
PODS = 2
BLOCK = "10m"
"""Of turns: those of the first pair, a twelfth as long, then outlast all that is measured."""
VERDICT = ("RolledBack", "FailuresRail")
WAIT_S = 240.0
OLD, NEW = [1, 7], [7]
"""Candidate draft steps that the resource begins with, and those of the edit."""


@dataclass(slots=True)
class Trials:
    """What the bench's watches have seen of resources and of their trials."""

    decided: dict[str, float] = field(default_factory=dict)
    """When a status first had a verdict, by the monotonic clock."""
    ended: dict[str, tuple[float, Manifest]] = field(default_factory=dict)
    """When a trial had ended, and its status."""
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def follow(self, api: Api, kind: ResourceKind) -> None:
        """Watch for ever."""
        while True:
            async for event, manifest in api.watch(kind, NAMESPACE, whole=True):
                if event in ("ADDED", "MODIFIED"):
                    self._take(kind, manifest)
                    async with self.changed:
                        self.changed.notify_all()

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds of what was seen."""
        async with asyncio.timeout(WAIT_S), self.changed:
            await self.changed.wait_for(holds)

    def _take(self, kind: ResourceKind, manifest: Manifest) -> None:
        now, status = time.monotonic(), manifest.get("status") or {}
        if kind is not TRIAL:
            if _is_regressed(status):
                self.decided.setdefault(manifest["metadata"]["name"], now)
            return
        name = manifest["spec"]["deployment"]
        if status.get("phase") == "Ended":
            self.ended.setdefault(name, (now, status))
            self.decided.setdefault(name, now)


def _is_regressed(status: Manifest) -> bool:
    return any(
        each["type"] == Type.CANARY_HEALTHY and each["status"] == "False"
        for each in status.get("conditions") or ()
    )


async def decision_delay(api: Api, trials: int) -> Figures:
    """O4: some trials side by side, so that looks of one do not wait for another's."""
    async with open_fleet() as fleet, _watching(api) as seen:
        taken = await asyncio.gather(*(_try(api, fleet, seen, f"o4-{n}") for n in range(trials)))
    decided, ended = ([times[place] for times in taken] for place in (0, 1))
    return {
        "decision_delay_s": round(max(decided), 3),
        "decision_median_s": round(statistics.median(decided), 3),
        "decision_undone_s": round(max(ended), 3),
    }


async def _try(api: Api, fleet: Fleet, seen: Trials, name: str) -> tuple[float, float]:
    """Seconds from metrics that suffice to the verdict, and to the old table on every pod."""
    await api.apply(_guarded(name, OLD))
    engines = await _start_pods(api, fleet, name)
    await api.apply(_guarded(name, NEW))
    await _until_candidate(engines)
    await asyncio.sleep(WASHOUT_S + 2 * LOOK_S)
    for engine in engines:
        engine.answer(TOO_FEW)
    await asyncio.sleep(random.uniform(LOOK_S, 2 * LOOK_S))
    if name in seen.decided:
        raise RuntimeError(f"{name}: a verdict after {TOO_FEW} requests; the guardrail needs more")
    for engine in engines:
        engine.answer(MORE)
    sufficed = time.monotonic()
    await seen.until(lambda: name in seen.ended)
    ended, entry = seen.ended[name]
    if (entry["verdict"], entry["reason"]) != VERDICT:
        raise RuntimeError(f"{name} ended as {entry['verdict']}, {entry['message']}")
    return seen.decided[name] - sufficed, ended - sufficed


async def _until_candidate(engines: list[Engine]) -> None:
    """Wait until the only pod of the first pair runs the candidate."""
    async with asyncio.timeout(WAIT_S):
        while all(engine.table == engine.first_table for engine in engines):
            await asyncio.sleep(0.1)


async def _start_pods(api: Api, fleet: Fleet, name: str) -> list[Engine]:
    """Make the pods of the Deployment, each ready and with an engine of its own."""
    async with asyncio.timeout(WAIT_S):
        while (deployment := await api.find(DEPLOYMENT, NAMESPACE, name)) is None:
            await asyncio.sleep(0.1)
    template = deployment["spec"]["template"]
    config_hash = template["metadata"]["annotations"][names.ANNOTATION_CONFIG_HASH]
    boot = await api.find(CONFIG_MAP, NAMESPACE, f"{name}-{config_hash}")
    assert boot is not None, "the workload is written after what it mounts"
    engines = []
    for number in range(PODS):
        engine = Engine.started_from(boot["data"][names.BOOT_FILE_NAME], config_hash)
        metadata = {"name": f"{name}-{number}", "namespace": NAMESPACE}
        pod = {"apiVersion": "v1", "kind": POD.kind, "metadata": template["metadata"] | metadata}
        await api.create(POD, pod | {"spec": template["spec"]})
        await api.apply(_ready(pod, await fleet.start(engine)), "/status")
        engines.append(engine)
    return engines


def _guarded(name: str, steps: list[int]) -> Manifest:
    manifest = resource(name)
    spec = manifest["spec"]
    adaptive = {"policy": "Goodput", "batchSizes": [{"from": 1, "candidateSteps": steps}]}
    speculation = spec["speculation"] | {"numSteps": max(OLD), "adaptive": adaptive}
    switchback, guard = {"block": BLOCK}, {"maxDuration": "12h"}
    rollout = {"mode": "Manual", "editPolicy": "Guarded", "switchback": switchback, "guard": guard}
    more = {"replicas": PODS, "speculation": speculation, "rollout": rollout}
    return manifest | {"spec": spec | more}


def _ready(pod: Manifest, address: str) -> Manifest:
    metadata = {name: pod["metadata"][name] for name in ("name", "namespace")}
    conditions = [{"type": "Ready", "status": "True"}]
    reported = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    return pod | {"metadata": metadata, "status": reported | {"conditions": conditions}}


@asynccontextmanager
async def _watching(api: Api) -> AsyncIterator[Trials]:
    seen = Trials()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(seen.follow(api, kind)) for kind in (RESOURCE, TRIAL)]
        yield seen
        for task in tasks:
            task.cancel()
