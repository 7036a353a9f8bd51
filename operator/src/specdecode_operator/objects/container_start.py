"""When the engine of a pod started, as the kubelet reports it."""

from specdecode_api import names
from specdecode_operator.objects.kinds import Manifest
from specdecode_operator.objects.times import time_of


def engine_start_s(pod: Manifest) -> float:
    """Start of the engine's container in seconds since 1970; 0 if it does not run."""
    for container in (pod.get("status") or {}).get("containerStatuses") or ():
        if container["name"] == names.ENGINE_CONTAINER:
            running = (container.get("state") or {}).get("running") or {}
            started = time_of(running, "startedAt")
            return started.timestamp() if started is not None else 0.0
    return 0.0
