"""Reads, now and then, what the API server makes of resources, and says when it is outdated.

From the published schema, which every account may read; the definition itself hardly any may.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass

from specdecode_operator.cluster import ApiError, Cluster
from specdecode_operator.kinds import Manifest
from specdecode_operator.metrics import Metrics
from specdecode_operator.served import Schema, known_part, lacks, own_schema, sentence

log = logging.getLogger(__name__)

OUTDATED_S = 30.0
"""While it is outdated: somebody is about to upgrade it."""


@dataclass(slots=True)
class Definition:
    """The served schema, as last read. Written by the one task that looks; reconciles read it."""

    served: Schema | None = None
    """None while it is not known; then it is taken to be as it should be."""
    lacking: tuple[str, ...] = ()

    async def look(self, cluster: Cluster, metrics: Metrics) -> bool:
        """Read it anew; returns whether what is lacking has changed."""
        try:
            served = await cluster.served_schema()
        except ApiError as error:
            log.warning("cannot read the served schema", extra={"why": str(error)})
            return False
        before, self.served = self.lacking, served
        self.lacking = tuple(lacks(own_schema(), served)) if served else ()
        metrics.lacking_fields.set(len(self.lacking))
        if self.lacking == before:
            return False
        if self.lacking:
            log.error("the definition is outdated", extra={"why": sentence(self.lacking)})
        else:
            log.info("the definition is current again")
        return True

    async def look_on(
        self, cluster: Cluster, metrics: Metrics, interval_s: float, changed: Callable[[], None]
    ) -> None:
        """Look every `interval_s`, more often while it is outdated."""
        while True:
            await asyncio.sleep(min(OUTDATED_S, interval_s) if self.lacking else interval_s)
            if await self.look(cluster, metrics):
                changed()

    def keep(self, status: Manifest) -> Manifest:
        """Leave out of a status what would be dropped: else it would be written for ever."""
        if not self.lacking or self.served is None:
            return status
        return dict(known_part(status, self.served["properties"].get("status", {})))
