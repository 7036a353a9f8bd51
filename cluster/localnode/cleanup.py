"""Takes away everything a node made, from whatever a former run left: alive, killed or half-way.

Nothing is believed from memory alone. Processes are found by their record, by the mark in their
environment and by the cgroup of our pods; mounts by the kernel's own list; rules by table name.
The state folder is deleted only when no mount is left below it, so no volume is ever emptied.
"""

import contextlib
import os
import shutil
from pathlib import Path

from localnode import processes
from localnode.cgroups import find_pod_processes, remove_cgroups
from localnode.errors import NodeError
from localnode.launch import MARK
from localnode.mounts import unmount_below
from localnode.network import remove_network
from localnode.paths import Paths, fast_directory
from localnode.processes import Process

_CONTAINERD_GRACE_S = 5
_NETWORK_RESULTS = Path("/var/lib/cni/results")
_LOG_LINKS = Path("/var/log/containers")
_TASKS = "io.containerd.runtime.v2.task"


def etcd_data(paths: Paths) -> Path:
    """Name the folder of the node's etcd, in memory where there is such a place."""
    return fast_directory(paths.state) / f"specdecode-node-etcd{str(paths.state).replace('/', '-')}"


def create_state(paths: Paths) -> None:
    """Make the state folder, signed so that `clean` may delete it."""
    if paths.state.exists() and any(paths.state.iterdir()) and not _signature(paths).exists():
        raise NodeError(f"{paths.state} is not empty: set SPECDECODE_STATE to a folder of its own")
    paths.state.mkdir(parents=True, exist_ok=True)
    _signature(paths).touch()


def clean(paths: Paths) -> None:
    """Bring the machine back to where no node ever ran, save for the cache."""
    if paths.state.exists() and not _signature(paths).exists():
        raise NodeError(f"{paths.state} was not made by localnode: set SPECDECODE_STATE elsewhere")
    sockets = _shim_sockets(paths)
    _stop_everything(paths)
    remove_network()
    remove_cgroups()
    stuck = unmount_below(paths.state)
    if stuck:
        raise NodeError(f"cannot unmount {stuck}: see who uses them with `fuser -vm`, then retry")
    for path in [*sockets, *_network_results(paths), *_log_links(paths)]:
        path.unlink(missing_ok=True)
    shutil.rmtree(etcd_data(paths), ignore_errors=True)
    if paths.state.exists():
        shutil.rmtree(paths.state)


def find_processes(paths: Paths) -> list[Process]:
    """Find every process of the node that runs: recorded, marked, or in one of its pods."""
    recorded = [
        p for p in processes.read_records(paths.records).values() if processes.is_running(p)
    ]
    marked = processes.find(lambda folder: is_marked((folder / "environ").read_bytes(), paths))
    unique = {process.pid: process for process in [*find_pod_processes(), *marked, *recorded]}
    return list(unique.values())


def is_marked(environment: bytes, paths: Paths) -> bool:
    """Find out from /proc/PID/environ whether a process was started for this node."""
    return f"{MARK}={paths.state}".encode() in environment.split(b"\0")


def _stop_everything(paths: Paths) -> None:
    first = find_processes(paths)
    # the kubelet would start again what we end, so it goes before its pods
    kubelet = [process for process in first if process.name == "kubelet"]
    containerd = [process for process in first if process.name == "containerd"]
    processes.stop(kubelet)
    processes.stop([p for p in first if p not in kubelet and p not in containerd])
    processes.stop(containerd, grace_s=_CONTAINERD_GRACE_S)
    while born_meanwhile := find_processes(paths):
        processes.stop(born_meanwhile)


def _shim_sockets(paths: Paths) -> list[Path]:
    """Read where the shims listen: outside the state folder, by containerd's own choice."""
    files = (paths.containerd_state / _TASKS).glob("*/*/address")
    return [Path(file.read_text().strip().removeprefix("unix://")) for file in files]


def _network_results(paths: Paths) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        files = list(_NETWORK_RESULTS.iterdir())
        return [file for file in files if str(paths.containerd_state) in file.read_text()]
    return []


def _log_links(paths: Paths) -> list[Path]:
    with contextlib.suppress(FileNotFoundError):
        return [link for link in _LOG_LINKS.iterdir() if _points_below(link, paths.state)]
    return []


def _points_below(link: Path, folder: Path) -> bool:
    return link.is_symlink() and Path(os.readlink(link)).is_relative_to(folder)


def _signature(paths: Paths) -> Path:
    return paths.state / ".specdecode-node"
