"""Kills the main process of a container from outside, as the kernel would."""

from pathlib import Path

from demo.console import DemoFailed
from localnode import processes
from specdecode_operator.objects.kinds import Manifest


def kill_container(pod: Manifest) -> None:
    """End the first process of a pod's first container with SIGKILL."""
    status = pod["status"]["containerStatuses"][0]
    container = status["containerID"].partition("://")[2]
    found = processes.find(lambda folder: _is_first(folder, container))
    if not found:
        name = pod["metadata"]["name"]
        raise DemoFailed(f"no process of container {container} of pod {name} on this machine")
    processes.stop(found)


def _is_first(folder: Path, container: str) -> bool:
    if container not in (folder / "cgroup").read_text():
        return False
    status = (folder / "status").read_text()
    ids = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
    return ids[-1] == "1"
