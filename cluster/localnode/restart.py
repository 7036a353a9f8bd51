"""Kills one part of the node and starts it again with the words it was started with."""

import math
import os
import time
from collections.abc import Sequence

from localnode import processes
from localnode.errors import NodeError
from localnode.launch import Launcher
from localnode.lifecycle import control_plane
from localnode.paths import Paths
from localnode.processes import PROC

API_SERVER = "kube-apiserver"
KUBE_PROXY = "kube-proxy"


def running_s(paths: Paths, name: str) -> float:
    """Seconds since a part of the node was started; infinite if it does not run."""
    record = processes.read_records(paths.records).get(name)
    if record is None or not processes.is_running(record):
        return math.inf
    started_s = record.start_ticks / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - started_s


def kill_part(paths: Paths, name: str) -> list[str]:
    """Kill a part of the node with SIGKILL; returns the words that start it again."""
    record = processes.read_records(paths.records).get(name)
    if record is None or not processes.is_running(record):
        raise NodeError(f"{name} does not run: `localnode status` lists what does")
    words = (PROC / str(record.pid) / "cmdline").read_bytes()
    processes.stop([record])
    return os.fsdecode(words).rstrip("\0").split("\0")


def start_part(paths: Paths, name: str, words: Sequence[str]) -> None:
    """Start a killed part again; returns at once for all but the API server, which must answer."""
    launcher = Launcher.for_node(paths)
    process = launcher.launch(name, words)
    if name == API_SERVER:
        is_ready = control_plane(paths).admin_client().is_ready
        launcher.wait(process, is_ready, "answer from the API server")
