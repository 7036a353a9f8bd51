"""Full resync: before work begins, and then periodically to find missed deletions.

Kopf relists after a lost watch but does not report deletions in between, so a relist triggers a
resync at once.
"""

import asyncio
import contextlib
import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from http import HTTPStatus

from specdecode_operator.cluster.cache import Cache, Identity, identity_of
from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import (
    INFERENCE_POOL,
    OPTIONAL,
    WATCHED,
    Manifest,
    ResourceKind,
    selector_of,
)
from specdecode_operator.objects.observed import Key, key_of

log = logging.getLogger(__name__)

SPREAD_S = 30.0
"""Time over which the reconciles after a resync are spread."""
SETTLE_S = 2.0
"""Wait after a relist, so that simultaneous relists of other kinds share a resync."""
RETRY_S = 15.0
"""Pause after a failed periodic resync."""
CATCH_UP_RETRY_S = 2.0
"""Pause after a failed resync for which the workers wait."""
POOLS_S = 30.0
"""Between two lists of InferencePools, which are not watched."""
AT_ONCE = 50
"""Objects that are compared before other tasks have their turn."""


@dataclass(slots=True)
class Resync:
    """Compares lists with the cache."""

    cluster: Cluster
    cache: Cache
    namespaces: tuple[str, ...]
    add: Callable[[Key], None]
    add_after: Callable[[Key, float], None]
    metrics: Metrics
    clock: Callable[[], float]
    kinds: tuple[ResourceKind, ...] = WATCHED
    operator_class: str = ""
    last_success: float | None = None
    _is_wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def want(self) -> None:
        """Request a resync soon, because a watch was lost."""
        self._is_wanted.set()

    async def once(self) -> None:
        """List every watched kind once, and queue the resources of changed objects."""
        for kind in self.kinds:
            for namespace in self.namespaces or (None,):
                for key in await self._compare(kind, namespace):
                    self.add(key)
        self.last_success = self.clock()
        self.metrics.resyncs.labels(result="success").inc()
        self.metrics.resync_time.set_to_current_time()

    async def until_success(self) -> None:
        """Resync before work starts, and retry until it succeeds."""
        while not await self._succeeds():
            await asyncio.sleep(CATCH_UP_RETRY_S)

    async def forever(self, interval_s: float) -> None:
        """Resync every `interval_s` or on request; queue every resource after each resync."""
        wait_s = interval_s
        while True:
            await self._wait(wait_s)
            if not await self._succeeds():
                wait_s = min(interval_s, RETRY_S)
                continue
            wait_s = interval_s
            for key in self.cache.known_keys():
                self.add_after(key, _share(key) * min(SPREAD_S, interval_s))

    async def list_pools_forever(self, interval_s: float) -> None:
        """List InferencePools while resources want any; queue the resources of changed ones.

        Those whose InferencePool is absent are queued too: its CRD may be there now.
        """
        while INFERENCE_POOL in self.kinds:
            await asyncio.sleep(interval_s)
            resources = filter(_wants_pool, self.cache.resources())
            wanting = [key for each in resources if (key := key_of(each)) is not None]
            if not wanting:
                continue
            try:
                for namespace in self.namespaces or (None,):
                    for changed in await self._compare(INFERENCE_POOL, namespace):
                        self.add(changed)
            except KubeApiError as error:
                log.warning("InferencePools not listed", extra={"why": str(error)})
            for key in wanting:
                if self._lacks_pool(key):
                    self.add(key)

    def _lacks_pool(self, key: Key) -> bool:
        known = self.cache.observe(key)
        return known is not None and known.owned(INFERENCE_POOL) is None

    async def _succeeds(self) -> bool:
        try:
            await self.once()
        except KubeApiError as error:
            self.metrics.resyncs.labels(result="error").inc()
            log.warning("resync failed", extra={"why": str(error)})
            return False
        return True

    async def _wait(self, at_most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._is_wanted.wait()
                await asyncio.sleep(SETTLE_S)
        self._is_wanted.clear()

    async def _compare(self, kind: ResourceKind, namespace: str | None) -> set[Key]:
        """Bring the cache up to a list; returns the keys of objects that are gone.

        A kind that resources can do without does not make a resync fail.
        """
        try:
            return await self._list(kind, namespace)
        except KubeApiError as error:
            if kind not in OPTIONAL or error.is_transient:
                raise
            if error.code == HTTPStatus.NOT_FOUND:
                return self.cache.retain(kind.kind, namespace, set(), sys.maxsize)
            log.warning("not listed", extra={"kind": kind.kind, "why": str(error)})
            return set()

    async def _list(self, kind: ResourceKind, namespace: str | None) -> set[Key]:
        listed: set[Identity] = set()
        version = 0
        selector = selector_of(kind, self.operator_class)
        async for page in self.cluster.pages(kind, namespace, selector):
            version = int(page.resource_version)
            for place, manifest in enumerate(page.items):
                if place % AT_ONCE == 0:
                    await asyncio.sleep(0)  # 500 new objects take more than 5 ms
                listed.add(identity_of(manifest))
                if key := self.cache.put(manifest):
                    self.add(key)  # its watch event arrives later with the same version
        gone = self.cache.retain(kind.kind, namespace, listed, version)
        if kind not in OPTIONAL:  # no event reports their deletion
            self.metrics.missed.labels(kind=kind.kind).inc(len(gone))
        return gone


def _wants_pool(resource: Manifest) -> bool:
    return (resource.get("spec") or {}).get("inferencePool") is not None


def _share(key: Key) -> float:
    """A number from 0 to 1, derived from the hash of the key."""
    return (hash(key) % 1024) / 1024
