"""Periodically checks the CRD that the API server serves, and reports when it is outdated.

It reads the published schema, which every account may read, unlike the CRD itself.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.metrics import Metrics
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.status.served import Schema, known_part, lacks, own_schema, sentence

log = logging.getLogger(__name__)

OUTDATED_S = 30.0
"""Interval while the CRD is outdated, and probably about to be upgraded, or unreadable."""


@dataclass(slots=True)
class ServedCrd:
    """The latest served schema. Written by the task that checks it, read by reconciles."""

    served: Schema | None = None
    """None while unknown; the CRD counts as current then."""
    lacking: tuple[str, ...] = ()

    async def check(self, cluster: Cluster, metrics: Metrics) -> bool:
        """Read the schema; returns whether the missing fields have changed."""
        try:
            served = await cluster.served_schema()
        except KubeApiError as error:
            log.warning("cannot read the served schema", extra={"why": str(error)})
            return False
        before, self.served = self.lacking, served
        self.lacking = await asyncio.to_thread(_lacking, served) if served else ()
        metrics.lacking_fields.set(len(self.lacking))
        if self.lacking == before:
            return False
        if self.lacking:
            log.error("the CRD is outdated", extra={"why": sentence(self.lacking)})
        else:
            log.info("the CRD is current again")
        return True

    async def watch(
        self, cluster: Cluster, metrics: Metrics, interval_s: float, changed: Callable[[], None]
    ) -> None:
        """Check every `interval_s`, more often while the CRD is outdated or unknown."""
        while True:
            is_soon = bool(self.lacking) or self.served is None
            await asyncio.sleep(min(OUTDATED_S, interval_s) if is_soon else interval_s)
            if await self.check(cluster, metrics):
                changed()

    def keep(self, status: Manifest) -> Manifest:
        """Remove fields that would be dropped; otherwise the status would differ for ever."""
        if not self.lacking or self.served is None:
            return status
        return dict(known_part(status, self.served["properties"].get("status", {})))


def _lacking(served: Schema) -> tuple[str, ...]:
    return tuple(lacks(own_schema(), served))
