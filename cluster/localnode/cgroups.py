"""The corner of the cgroup tree that holds every pod of the node, and nothing else.

Works with both layouts: one unified tree, or one tree for each controller.
"""

import contextlib
import os
import time
from pathlib import Path

from localnode.processes import Process, find

NAME = "specdecode"  # the kubelet's cgroupRoot
_ROOT = Path("/sys/fs/cgroup")
_GONE_S = 5
# what stands for one processor, and the most that the kernel takes; by layout
_WEIGHTS = (("cpu.shares", 1024, 262_144), ("cpu.weight", 100, 10_000))


def trees(root: Path = _ROOT) -> list[Path]:
    """List the roots of the cgroup trees of this machine."""
    if (root / "cgroup.controllers").exists():
        return [root]
    return [folder for folder in sorted(root.iterdir()) if folder.is_dir()]


def create_cgroups(root: Path = _ROOT) -> None:
    """Create the node's cgroups, which the kubelet requires.

    It weighs as much as the processors that the node promises to its pods, as the kubelet's own
    group does where it lies at the root. With the usual weight all pods together would get the
    time of a single process, and on a busy machine an engine would take minutes to start.
    """
    for tree in trees(root):
        folder = tree / NAME
        folder.mkdir(exist_ok=True)
        for file, one_processor, most in _WEIGHTS:
            if (folder / file).exists():
                (folder / file).write_text(str(min(most, one_processor * (os.cpu_count() or 1))))


def is_ours(membership: str) -> bool:
    """Find out from /proc/PID/cgroup whether a process runs in a pod of this node."""
    paths = (line.split(":", 2)[2] for line in membership.splitlines() if line.count(":") >= 2)
    return any(path == f"/{NAME}" or path.startswith(f"/{NAME}/") for path in paths)


def find_pod_processes() -> list[Process]:
    """Find every process that runs in a pod of this node."""
    return find(lambda folder: is_ours((folder / "cgroup").read_text()))


def remove_cgroups() -> None:
    """Remove our corner once its processes are gone; the kernel needs a moment to notice."""
    deadline = time.monotonic() + _GONE_S
    while any((tree / NAME).exists() for tree in trees()) and time.monotonic() < deadline:
        for tree in trees():
            _remove_tree(tree / NAME)
        time.sleep(0.02)


def _remove_tree(folder: Path) -> None:
    for inner, _, _ in os.walk(folder, topdown=False):
        with contextlib.suppress(OSError):
            os.rmdir(inner)
