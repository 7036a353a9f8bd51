"""The node's own containerd: its settings, and what is asked of it through `ctr`.

Its store (images, unpacked layers) lies in the cache and outlives the node; its state (sockets,
mounts, running tasks) dies with the node. The system's containerd, if there is one, is left alone.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from localnode.errors import NodeError
from localnode.launch import Launcher
from localnode.network import POD_RANGE
from localnode.paths import Paths
from localnode.shell import run, succeeds

NAMESPACE = "k8s.io"  # where the kubelet looks for images
PAUSE_IMAGE = "localhost/specdecode-pause:v1"
_IMPORT_TIMEOUT_S = 1800
_CRI = 'plugins."io.containerd.grpc.v1.cri"'


def settings(paths: Paths) -> str:
    """Write containerd's configuration."""
    return f"""\
version = 2
root = "{paths.containerd_root}"
state = "{paths.containerd_state}"
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{paths.containerd_socket}"
[{_CRI}]
  sandbox_image = "{PAUSE_IMAGE}"
  # without CAP_SYS_RESOURCE a sandbox may not ask for less than the machine's own score
  restrict_oom_score_adj = true
  # pods' network namespaces vanish with the mounts below the state folder
  netns_mounts_under_state_dir = true
  [{_CRI}.containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"
  [{_CRI}.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [{_CRI}.containerd.runtimes.runc.options]
    BinaryName = "/usr/sbin/runc"
    Root = "{paths.containerd_state}/runc"
    SystemdCgroup = false
  [{_CRI}.cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{paths.cni}/net.d"
"""


def pod_network(paths: Paths, mtu: int) -> str:
    """Write the CNI configuration: one routed link for each pod, no bridge between pods.

    On a bridge two pods would answer each other directly, past the rules that undo a Service's
    address, unless the kernel has br_netfilter.
    """
    addresses = {
        "type": "host-local",
        "ranges": [[{"subnet": POD_RANGE}]],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dataDir": str(paths.cni / "addresses"),
    }
    plugin = {"type": "ptp", "ipMasq": False, "mtu": mtu, "ipam": addresses}
    return json.dumps({"cniVersion": "1.0.0", "name": "specdecode", "plugins": [plugin]}, indent=1)


def ctr(paths: Paths, *words: str | Path, timeout_s: float = 60, stdin: bytes = b"") -> str:
    """Ask containerd something, in the namespace of the kubelet."""
    command = ["ctr", "--address", paths.containerd_socket, "--namespace", NAMESPACE, *words]
    return run(command, timeout_s=timeout_s, stdin=stdin)


def start_containerd(paths: Paths, launcher: Launcher, mtu: int) -> None:
    """Start containerd and wait until it answers."""
    network = paths.cni / "net.d" / "10-specdecode.conflist"
    network.parent.mkdir(parents=True, exist_ok=True)
    network.write_text(pod_network(paths, mtu))
    config = paths.state / "containerd.toml"
    config.write_text(settings(paths))
    paths.containerd_root.mkdir(parents=True, exist_ok=True)
    process = launcher.launch("containerd", ["containerd", "--config", config])
    launcher.wait(process, lambda: answers(paths), "answer from containerd", 60)


def answers(paths: Paths) -> bool:
    """Whether containerd is there."""
    version = ["ctr", "--address", str(paths.containerd_socket), "version"]
    return paths.containerd_socket.exists() and succeeds(version)


def container_ids(paths: Paths) -> list[str]:
    """List every container that containerd remembers, alive or not."""
    return ctr(paths, "containers", "list", "--quiet").split()


def forget_containers(paths: Paths, ids: Sequence[str]) -> None:
    """Remove containers of which no process is left, with their writable layers."""
    for container in ids:
        try:
            ctr(paths, "containers", "delete", container)
        except NodeError as refused:
            if "not found" not in str(refused):
                raise


def has_image(paths: Paths, reference: str, label: str, value: str) -> bool:
    """Whether containerd has this image and it carries this label."""
    wanted = f'name=={reference},labels."{label}"=={value}'
    return reference in ctr(paths, "images", "list", "--quiet", wanted).split()


def import_archive(paths: Paths, archive: Path) -> None:
    """Take the images of an archive file (OCI or docker form) into the store, and unpack them."""
    ctr(paths, "images", "import", archive, timeout_s=_IMPORT_TIMEOUT_S)


def label_image(paths: Paths, reference: str, label: str, value: str) -> None:
    """Write a label on an image."""
    ctr(paths, "images", "label", reference, f"{label}={value}")


def unlabel_image(paths: Paths, reference: str, label: str) -> None:
    """Take a label away from an image, if there is such an image."""
    if reference in ctr(paths, "images", "list", "--quiet").split():
        ctr(paths, "images", "label", reference, f"{label}=")


def drop_former_images(paths: Paths) -> None:
    """Give up images that have lost their name to a newer one, and the space that they take."""
    former = nameless_images(ctr(paths, "images", "list"))
    if former:
        ctr(paths, "images", "remove", *former)


def nameless_images(listing: str) -> list[str]:
    """Find in `ctr images list` what the kubelet keeps by digest only, under no other name."""
    rows = [line.split() for line in listing.splitlines()[1:]]
    named = {row[2] for row in rows if not row[0].startswith("sha256:")}
    return [row[0] for row in rows if row[0].startswith("sha256:") and row[2] not in named]
