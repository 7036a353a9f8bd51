"""Brings the node up and takes it down.

`up` writes what it reached as its last act. Where that mark is missing or something of it no longer
runs, the former run is half-dead: all of it is cleaned away and the start begins from nothing.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path

from localnode import cleanup, containerd, dns, flags, network, node, processes
from localnode.archive import program_image
from localnode.controlplane import ADMINS, ControlPlane
from localnode.errors import NodeError
from localnode.kubeconfig import write_kubeconfig
from localnode.launch import NO_PROXY, Launcher
from localnode.locks import exclusive
from localnode.paths import REPOSITORY, Paths
from localnode.pki import Authority
from localnode.progress import report, step
from localnode.shell import run
from localnode.tools import install_tools, programs

CONTROL_PLANE = ("etcd", "kube-apiserver", "kube-controller-manager")
WHOLE_NODE = (*CONTROL_PLANE, "kube-scheduler", "containerd", "kubelet", "kube-proxy", "coredns")
_API_PORT = 6443
_ETCD_PORT = 2379
_MANIFESTS = REPOSITORY / "cluster" / "manifests"


def up(paths: Paths, wanted: Sequence[str]) -> None:
    """Bring these parts up; do nothing when they are."""
    _require_root()
    install_tools(paths)
    with exclusive(paths.cache / "node.lock"):
        reached = read_reached(paths)
        if set(wanted) <= set(reached) and is_healthy(paths, reached):
            report("  already up")
            return
        if not (reached and is_healthy(paths, reached)):
            with step("clean up after a former run"):
                cleanup.clean(paths)
            reached = ()
        _start_missing(paths, reached, wanted)
        _reached_file(paths).write_text(json.dumps(sorted({*reached, *wanted})))


def down(paths: Paths) -> None:
    """Take everything down and away, save the cache."""
    _require_root()
    with exclusive(paths.cache / "node.lock"), step("take the node down"):
        cleanup.clean(paths)


def read_reached(paths: Paths) -> tuple[str, ...]:
    """Read which parts the last finished `up` started; none after a run that did not finish."""
    file = _reached_file(paths)
    return tuple(json.loads(file.read_text())) if file.exists() else ()


def is_healthy(paths: Paths, parts: Sequence[str]) -> bool:
    """Whether these parts run and do their work."""
    records = processes.read_records(paths.records)
    if not all(part in records and processes.is_running(records[part]) for part in parts):
        return False
    client = control_plane(paths).admin_client()
    return client.is_ready() and (
        "kubelet" not in parts or (client.is_node_ready(node.NODE_NAME) and dns.is_ready())
    )


def control_plane(paths: Paths) -> ControlPlane:
    """Describe the node's control plane."""
    return ControlPlane(
        launcher=Launcher.for_node(paths),
        programs=programs(paths),
        authority=Authority.open(paths.pki),
        folder=paths.state / "config",
        address=network.NODE_ADDRESS,
        port=_API_PORT,
        etcd_port=_ETCD_PORT,
    )


def _start_missing(paths: Paths, reached: Sequence[str], wanted: Sequence[str]) -> None:
    cleanup.create_state(paths)
    plane = control_plane(paths)
    if not reached:
        _start_control_plane(paths, plane)
    if "kubelet" in wanted:
        _start_node(paths, plane)


def _start_control_plane(paths: Paths, plane: ControlPlane) -> None:
    with step("network"):
        network.create_network()
    with step("etcd and API server"):
        client = plane.authority.issue("kubelet-client", "kubelet-client", organizations=(ADMINS,))
        kubelet_flags = flags.apiserver_with_kubelet_flags(plane.authority, client)
        plane.start_api_server(cleanup.etcd_data(paths), kubelet_flags)
    with step("controllers"):
        plane.start_controllers(flags.controller_manager_node_flags())
        admin = plane.authority.issue("admin", "admin", organizations=(ADMINS,))
        write_kubeconfig(paths.kubeconfig, plane.url, plane.authority, admin)
        kubectl(paths, "apply", "--server-side", "--filename", _MANIFESTS)


def _start_node(paths: Paths, plane: ControlPlane) -> None:
    launcher = plane.launcher
    plane.start_scheduler()
    with step("containerd"):
        containerd.start_containerd(paths, launcher, network.outgoing_mtu())
        _forget_former_containers(paths, launcher)
        _import_pause(paths, plane)
    node.start_kube_proxy(plane, launcher)
    with step("name server"):
        dns.start_dns(plane, launcher)
    with step("kubelet"):
        node.start_kubelet(paths, plane, launcher)


def _forget_former_containers(paths: Paths, launcher: Launcher) -> None:
    """Drop containers of a former node from containerd's store, and from its memory."""
    former = containerd.container_ids(paths)
    if former:
        containerd.forget_containers(paths, former)
        processes.stop([processes.read_records(paths.records)["containerd"]], grace_s=5)
        containerd.start_containerd(paths, launcher, network.outgoing_mtu())


def _import_pause(paths: Paths, plane: ControlPlane) -> None:
    if containerd.PAUSE_IMAGE not in containerd.ctr(paths, "images", "list", "--quiet").split():
        program = (plane.programs / "pause").read_bytes()
        archive = program_image(containerd.PAUSE_IMAGE, program, "pause")
        containerd.ctr(paths, "images", "import", "-", stdin=archive)


def kubectl(paths: Paths, *words: str | Path) -> str:
    """Run our kubectl on the node's cluster."""
    command = [programs(paths) / "kubectl", "--kubeconfig", paths.kubeconfig, *words]
    return run(command, environment=NO_PROXY)


def _reached_file(paths: Paths) -> Path:
    return paths.state / "reached.json"


def _require_root() -> None:
    if os.geteuid() != 0:
        raise NodeError("a node needs root: use sudo, or CONTEXT=<name> for a cluster you have")
