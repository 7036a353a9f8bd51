"""Keeps the Secret with the tokens of routers in each namespace that has any."""

import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Final

from specdecode_api import names
from specdecode_operator.cluster import Cluster
from specdecode_operator.kinds import SECRET
from specdecode_operator.token_rotation import next_step

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""Between two looks at a Secret: it is not watched, and may be deleted."""
TOKEN_BYTES: Final = 32


class RouterSecrets:
    """Creates and rotates the Secret of each namespace; reads it at most once a minute."""

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._due: dict[str, datetime] = {}

    async def ensure(self, namespace: str) -> float:
        """Write the Secret of a namespace if a step is due; return when to look again, in seconds.

        Raises:
            KubeApiError: it cannot be read or written.
        """
        now = self._now()
        due = self._due.get(namespace)
        if due is None or due <= now:
            stored = await self._cluster.get(SECRET, namespace, names.ROUTER_SECRET)
            step = next_step(stored, namespace, now, secrets.token_urlsafe(TOKEN_BYTES))
            if step.secret is not None:
                await self._cluster.apply(step.secret, force=True)
                keys = ", ".join(sorted(step.secret["data"]))
                log.info("tokens of routers changed", extra={"namespace": namespace, "keys": keys})
            due = self._due[namespace] = now + timedelta(seconds=min(step.due_s, LOOK_SECONDS))
        return (due - now).total_seconds()
