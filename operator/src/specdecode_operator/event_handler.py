"""Handles watch events: updates the cache, and queues the resource that an event concerns."""

from collections.abc import Callable
from dataclasses import dataclass

from specdecode_operator.cache import Cache
from specdecode_operator.kinds import Manifest
from specdecode_operator.metrics import Metrics
from specdecode_operator.observed import Key


@dataclass(frozen=True, slots=True)
class EventHandler:
    """The target of all watch events."""

    cache: Cache
    add: Callable[[Key], None]
    metrics: Metrics
    relisted: Callable[[], None]

    def handle(self, event_type: str | None, manifest: Manifest, is_known: bool) -> None:
        """Handle one event.

        The event of the operator's own write is older than the cached version and queues nothing.
        A known object in a list means that a watch was lost, and with it possibly deletions.

        Args:
            event_type: None for an object of a list.
            is_known: whether the object was in an event or list before.
        """
        if event_type is None and is_known:
            self.relisted()
        self.metrics.events.labels(kind=manifest["kind"]).inc()
        is_gone = event_type == "DELETED"
        key = self.cache.remove(manifest) if is_gone else self.cache.put(manifest)
        if key is not None:
            self.add(key)
