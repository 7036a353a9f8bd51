"""Checks before the first decision: all permissions, and one list of everything."""

import asyncio
import logging
import time
from http import HTTPStatus

from specdecode_operator.cluster import Cluster, KubeApiError
from specdecode_operator.denials import PERMISSION_GRACE_S
from specdecode_operator.errors import StartError
from specdecode_operator.kinds import LEASE, RESOURCE, TRIAL
from specdecode_operator.permissions import Permission, missing_permissions, sentence
from specdecode_operator.resync import Resync

log = logging.getLogger(__name__)

RETRY_S = 2.0
GRANT = "; grant the operator's service account this verb, as the chart does"
ALONE = ", or run a single operator with --no-leader-election"


async def pass_preflight(
    cluster: Cluster,
    resync: Resync,
    wanted: tuple[Permission, ...],
    timeout_s: float,
    stop: asyncio.Event,
) -> bool:
    """Check all permissions and list everything; returns False if stopped meanwhile.

    Without the lists an owned object whose event is late would look missing. They also find a
    missing CRD, for which Kopf would wait silently. Every failure is retried until the timeout; an
    API server that has just started denies permissions that are granted.

    Raises:
        StartError: a check still fails after `timeout_s`; the message names what is missing.
    """
    started_s = time.monotonic()
    while not stop.is_set():
        age_s = time.monotonic() - started_s
        problem = await _problem(
            cluster, resync, wanted, age_s >= min(timeout_s, PERMISSION_GRACE_S)
        )
        if problem is None:
            return True
        if time.monotonic() - started_s > timeout_s:
            raise StartError(problem)
        log.warning("cannot start yet", extra={"why": problem})
        await asyncio.sleep(RETRY_S)
    return False


async def _problem(
    cluster: Cluster, resync: Resync, wanted: tuple[Permission, ...], may_skip_reviews: bool
) -> str | None:
    try:
        if denied := await _denied(cluster, wanted, may_skip_reviews):
            alone = ALONE if any(each.kind is LEASE for each in denied) else ""
            return f"{sentence(denied)}{GRANT}{alone}"
        await resync.once()
    except KubeApiError as error:
        return f"{error}{_remedy(error)}"
    return None


async def _denied(
    cluster: Cluster, wanted: tuple[Permission, ...], may_skip_reviews: bool
) -> tuple[Permission, ...]:
    """Permissions that are missing; none where the account may not review its own permissions."""
    try:
        return await missing_permissions(cluster, wanted)
    except KubeApiError as error:
        if error.code != HTTPStatus.FORBIDDEN or not may_skip_reviews:
            raise
        log.warning("starting without a check of permissions", extra={"why": str(error)})
        return ()


def _remedy(error: KubeApiError) -> str:
    if error.code == HTTPStatus.NOT_FOUND:
        crds = f"{RESOURCE.plural}.{RESOURCE.group} and {TRIAL.plural}.{TRIAL.group}"
        return f"; install the CRDs {crds}: helm install … --set crds.install=true"
    return GRANT if error.code == HTTPStatus.FORBIDDEN else ""
