"""Lists everything now and then: the first time before work begins, later to find missed deletes.

Kopf relists after a lost watch, but says nothing about what vanished in between; so a relist has
everything listed here at once.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from specdecode_operator.cache import Cache, Identity, identity_of
from specdecode_operator.cluster import ApiError, Cluster
from specdecode_operator.kinds import OWNED_SELECTOR, RESOURCE, WATCHED, Kind
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key

log = logging.getLogger(__name__)

SPREAD_S = 30.0
"""Over how much time a resync spreads its reconciles."""
SETTLE_S = 2.0
"""How long a relist is waited on, so that those of other kinds that come with it share a resync."""
RETRY_S = 15.0
"""After what time a failed resync is tried again."""


@dataclass(slots=True)
class Resync:
    """Compares lists with the cache. Owned by the one task that runs it."""

    cluster: Cluster
    cache: Cache
    namespaces: tuple[str, ...]
    add: Callable[[Key], None]
    add_after: Callable[[Key, float], None]
    metrics: Metrics
    clock: Callable[[], float]
    last_success: float | None = None
    _is_wanted: asyncio.Event = field(default_factory=asyncio.Event)

    def want(self) -> None:
        """Have the next resync begin soon: a watch was lost for good."""
        self._is_wanted.set()

    async def once(self) -> None:
        """List every watched kind once, and have the owners of what is news looked at."""
        for kind in WATCHED:
            for namespace in self.namespaces or (None,):
                for key in await self._compare(kind, namespace):
                    self.add(key)
        self.last_success = self.clock()
        self.metrics.resyncs.labels(result="success").inc()
        self.metrics.resync_time.set_to_current_time()

    async def forever(self, interval_s: float) -> None:
        """Resync every `interval_s` or when wanted; have every resource looked at after each."""
        wait_s = interval_s
        while True:
            await self._wait(wait_s)
            try:
                await self.once()
            except ApiError as error:
                self.metrics.resyncs.labels(result="error").inc()
                log.warning("resync failed", extra={"why": str(error)})
                wait_s = min(interval_s, RETRY_S)
                continue
            wait_s = interval_s
            for key in self.cache.known_keys():
                self.add_after(key, _share(key) * min(SPREAD_S, interval_s))

    async def _wait(self, at_most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._is_wanted.wait()
                await asyncio.sleep(SETTLE_S)
        self._is_wanted.clear()

    async def _compare(self, kind: Kind, namespace: str | None) -> set[Key]:
        selector = None if kind is RESOURCE else OWNED_SELECTOR
        listed: set[Identity] = set()
        version = 0
        async for page in self.cluster.pages(kind, namespace, selector):
            version = int(page.resource_version)
            for manifest in page.items:
                listed.add(identity_of(manifest))
                if key := self.cache.put(manifest):
                    self.add(key)  # the watch's event of it comes later and is no news any more
        gone = self.cache.retain(kind.kind, namespace, listed, version)
        self.metrics.missed.labels(kind=kind.kind).inc(len(gone))
        return gone


def _share(key: Key) -> float:
    """A number from 0 to 1 that differs from resource to resource."""
    return (hash(key) % 1024) / 1024
