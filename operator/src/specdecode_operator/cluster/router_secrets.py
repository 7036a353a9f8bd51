"""Keeps the Secret with the tokens of engines and routers in each namespace that has any."""

import logging
import secrets
from collections.abc import Callable
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Final

from specdecode_api import names
from specdecode_operator.cluster.cluster import Cluster
from specdecode_operator.cluster.kube_api import KubeApiError
from specdecode_operator.cluster.token_rotation import RotationStep, current_token, next_step
from specdecode_operator.objects.kinds import SECRET, Manifest

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""Between two looks at a Secret: it is not watched, and may be deleted."""
AFTER_CONFLICT_SECONDS: Final = 1.0
"""Until a Secret that another worker has written is read."""
TOKEN_BYTES: Final = 32


class RouterSecrets:
    """Creates and rotates the Secret of each namespace; reads it at most once a minute.

    Of several workers and operators that write the same Secret at once, the first one wins.
    """

    def __init__(self, cluster: Cluster, now: Callable[[], datetime]) -> None:
        self._cluster = cluster
        self._now = now
        self._due: dict[str, datetime] = {}
        self._current: dict[str, str] = {}

    def current(self, namespace: str) -> str | None:
        """The token of a namespace that routers and the operator send, as last read or written."""
        return self._current.get(namespace)

    async def ensure(self, namespace: str) -> float:
        """Write the Secret of a namespace if a step is due; return when to look again, in seconds.

        Raises:
            KubeApiError: it cannot be read or written.
        """
        now = self._now()
        due = self._due.get(namespace)
        if due is None or due <= now:
            step = await self._take_step(namespace, now)
            due = self._due[namespace] = now + timedelta(seconds=min(step.due_s, LOOK_SECONDS))
        return (due - now).total_seconds()

    async def _take_step(self, namespace: str, now: datetime) -> RotationStep:
        """Write the Secret if a step is due; look again soon if it has changed meanwhile."""
        stored = await self._cluster.get(SECRET, namespace, names.ROUTER_SECRET)
        step = next_step(stored, namespace, now, secrets.token_urlsafe(TOKEN_BYTES))
        if step.secret is None:
            self._note(namespace, stored)
            return step
        try:
            await self._write(step.secret, stored)
        except KubeApiError as error:
            if error.code != HTTPStatus.CONFLICT:
                raise
            return RotationStep(None, AFTER_CONFLICT_SECONDS)
        self._note(namespace, step.secret)
        keys = ", ".join(sorted(step.secret["data"]))
        log.info("tokens of routers changed", extra={"namespace": namespace, "keys": keys})
        return step

    def _note(self, namespace: str, secret: Manifest | None) -> None:
        if secret is not None and (token := current_token(secret)):
            self._current[namespace] = token

    async def _write(self, secret: Manifest, stored: Manifest | None) -> None:
        """Replace the version that was read, or write the first one; a conflict if it has changed.

        A first Secret has a field manager of its own, so that another first one is a conflict. POST
        would be one too, but needs a permission to create every Secret of the namespace.
        """
        if stored is None:
            manager = f"{names.FIELD_MANAGER}-{secrets.token_hex(8)}"
            await self._cluster.apply(secret, force=False, manager=manager)
            return
        version = {"resourceVersion": stored["metadata"]["resourceVersion"]}
        secret = secret | {"metadata": secret["metadata"] | version}
        await self._cluster.apply(secret, force=True)
