"""Takes watch events in: into the cache, and the concerned resource into the queue."""

from collections.abc import Callable
from dataclasses import dataclass

from specdecode_operator.cache import Cache
from specdecode_operator.kinds import Manifest
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key


@dataclass(frozen=True, slots=True)
class Inbox:
    """Where handlers put what they are told."""

    cache: Cache
    add: Callable[[Key], None]
    metrics: Metrics
    relisted: Callable[[], None]

    def take(self, kind: str | None, manifest: Manifest, is_known: bool) -> None:
        """Take in an event: its type (None for an object of a list), its object, if it is known.

        The echo of an own write is no news to the cache and wakes nobody. A known object in a list
        means that a watch was lost for good: what vanished meanwhile, no event will tell.
        """
        if kind is None and is_known:
            self.relisted()
        self.metrics.events.labels(kind=manifest["kind"]).inc()
        is_gone = kind == "DELETED"
        key = self.cache.remove(manifest) if is_gone else self.cache.put(manifest)
        if key is not None:
            self.add(key)
