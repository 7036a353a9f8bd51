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

    def take(self, kind: str | None, manifest: Manifest) -> None:
        """Take in an event: its type (None for an object of the first list) and its object.

        The echo of an own write is no news to the cache and wakes nobody.
        """
        self.metrics.events.labels(kind=manifest["kind"]).inc()
        is_gone = kind == "DELETED"
        key = self.cache.remove(manifest) if is_gone else self.cache.put(manifest)
        if key is not None:
            self.add(key)
