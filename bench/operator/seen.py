"""What watches of the bench have seen, and when: first sights, by resource."""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from bench.operator.api import Api
from specdecode_operator.objects.kinds import (
    CHILDREN,
    DEPLOYMENT,
    DISRUPTION_BUDGET,
    POD,
    RESOURCE,
    Manifest,
    ResourceKind,
)
from specdecode_operator.objects.observed import key_of

EXPECTED = len(CHILDREN) - 1
"""Children of a resource with one replica: all kinds but a disruption budget."""
assert DISRUPTION_BUDGET in CHILDREN


@dataclass(slots=True)
class Sights:
    """When each thing about a resource was first seen, in seconds of the monotonic clock."""

    children: dict[str, float] = field(default_factory=dict)
    pod_ready: float | None = None
    resource_ready: float | None = None
    reported: float | None = None
    """When it first had a status."""

    @property
    def complete(self) -> float | None:
        """When the last child was seen, or None while one is missing."""
        return max(self.children.values()) if len(self.children) == EXPECTED else None


@dataclass(slots=True)
class Seen:
    """All sights; written by the watches, waited on by measures."""

    by_name: defaultdict[str, Sights] = field(default_factory=lambda: defaultdict(Sights))
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    events: int = 0

    def take(self, kind: ResourceKind, manifest: Manifest) -> None:
        """Note an event."""
        now = time.monotonic()
        self.events += 1
        self.changed.set()
        key = key_of(manifest | {"kind": kind.kind})
        if key is None:
            return
        sights = self.by_name[key.name]
        if kind is RESOURCE:
            conditions = (manifest.get("status") or {}).get("conditions") or ()
            if conditions and sights.reported is None:
                sights.reported = now
            if _is_true(conditions, "Ready") and sights.resource_ready is None:
                sights.resource_ready = now
        elif kind is POD:
            conditions = (manifest.get("status") or {}).get("conditions") or ()
            if _is_true(conditions, "Ready") and sights.pod_ready is None:
                sights.pod_ready = now
        else:
            sights.children.setdefault(kind.kind, now)

    async def until(self, names: list[str], what: str, timeout_s: float) -> None:
        """Wait until `what`, a field of sights, is known for all these resources."""
        async with asyncio.timeout(timeout_s):
            left = set(names)
            while left := {name for name in left if getattr(self.by_name[name], what) is None}:
                self.changed.clear()
                await self.changed.wait()


@asynccontextmanager
async def watching(api: Api, namespace: str) -> AsyncIterator[Seen]:
    """Watch resources, children and pods of a namespace."""
    seen = Seen()

    async def follow(kind: ResourceKind) -> None:
        # The API server closes watches that fall behind; the next one begins with all there is.
        while True:
            async for event, manifest in api.watch(kind, namespace, whole=kind in (RESOURCE, POD)):
                if event in ("ADDED", "MODIFIED"):
                    seen.take(kind, manifest)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(follow(kind)) for kind in (RESOURCE, POD, *CHILDREN)]
        await asyncio.sleep(0.2)  # until watches are open; no event reports that
        yield seen
        for task in tasks:
            task.cancel()


def deployed(sights: Sights) -> float:
    """When its Deployment was first seen."""
    return sights.children[DEPLOYMENT.kind]


def _is_true(conditions: Sequence[Manifest], kind: str) -> bool:
    return any(each["type"] == kind and each["status"] == "True" for each in conditions)
