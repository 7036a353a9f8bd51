"""What must hold before the first decision: rights, and a list of everything."""

import asyncio
import logging
import time
from http import HTTPStatus

from specdecode_operator.cluster import ApiError, Cluster
from specdecode_operator.errors import StartError
from specdecode_operator.kinds import LEASE, RESOURCE
from specdecode_operator.resync import Resync
from specdecode_operator.rights import Right, missing_rights, sentence

log = logging.getLogger(__name__)

RETRY_S = 2.0
GRANT = "; grant the operator's service account this verb, as the chart does"
ALONE = ", or run it alone with --no-leader-election"


async def pass_gate(
    cluster: Cluster,
    resync: Resync,
    wanted: tuple[Right, ...],
    timeout_s: float,
    stop: asyncio.Event,
) -> bool:
    """List everything with all rights at hand; False when told to stop meanwhile.

    Without the lists a child whose event comes late looks missing. They also find a missing
    definition, which Kopf would wait for in silence.

    Raises:
        StartError: when it does not come through in time, with what is missing.
    """
    deadline = time.monotonic() + timeout_s
    while not stop.is_set():
        obstacle = await _obstacle(cluster, resync, wanted)
        if obstacle is None:
            return True
        if time.monotonic() > deadline:
            raise StartError(obstacle)
        log.warning("cannot start yet", extra={"why": obstacle})
        await asyncio.sleep(RETRY_S)
    return False


async def _obstacle(cluster: Cluster, resync: Resync, wanted: tuple[Right, ...]) -> str | None:
    try:
        if denied := await missing_rights(cluster, wanted):
            alone = ALONE if any(right.kind is LEASE for right in denied) else ""
            return f"{sentence(denied)}{GRANT}{alone}"
        await resync.once()
    except ApiError as error:
        return f"{error}{_remedy(error)}"
    return None


def _remedy(error: ApiError) -> str:
    if error.code == HTTPStatus.NOT_FOUND:
        definition = f"{RESOURCE.plural}.{RESOURCE.group}"
        return f"; install the definition {definition}: helm install … --set crds.install=true"
    return GRANT if error.code == HTTPStatus.FORBIDDEN else ""
