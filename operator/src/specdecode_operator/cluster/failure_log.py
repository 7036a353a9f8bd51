"""Counts and logs failed parts of reconciles; a traceback is logged while its failure is new."""

import logging

from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.observed import Key
from specdecode_operator.objects.parts import Failures

log = logging.getLogger(__name__)


class FailureLog:
    """The failures of the latest reconcile of each resource."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._known: dict[Key, frozenset[str]] = {}

    def note(self, key: Key, failures: Failures) -> None:
        """Count the failures of a reconcile, and log those that the one before did not have."""
        known = self._known.pop(key, frozenset())
        for each in failures.found:
            self._metrics.part_failures.labels(part=each.part.value).inc()
            if each.message not in known:
                where = {"namespace": key.namespace, "resource": key.name}
                what = {"part": each.part.value, "why": each.message}
                log.error("part failed", exc_info=each.error, extra=where | what)
        if failures.found:
            self._known[key] = frozenset(each.message for each in failures.found)

    def forget(self, key: Key) -> None:
        """Drop a resource that is gone."""
        self._known.pop(key, None)
