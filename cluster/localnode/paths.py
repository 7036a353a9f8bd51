"""Where everything lies: a cache that outlives the node, and a state that dies with it.

cache   programs, images, containerd's store: safe to keep, costly to make again
state   certificates, sockets, logs, kubelet's mounts: thrown away by `down`
"""

import os
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
GO_MODULES = REPOSITORY / "cluster" / "go"


@dataclass(frozen=True, slots=True)
class Paths:
    """The two folders, and the names of what is in them."""

    cache: Path
    state: Path

    @staticmethod
    def from_environment() -> "Paths":
        """Take SPECDECODE_CACHE and SPECDECODE_STATE, or the defaults."""
        default_cache = Path.home() / ".cache" / "specdecode"
        cache = Path(os.environ.get("SPECDECODE_CACHE") or default_cache)
        state = Path(os.environ.get("SPECDECODE_STATE") or "/var/lib/specdecode")
        return Paths(cache=cache.resolve(), state=state.resolve())

    @property
    def containerd_root(self) -> Path:
        return self.cache / "containerd"

    @property
    def image_builds(self) -> Path:
        return self.cache / "images"

    @property
    def pki(self) -> Path:
        return self.state / "pki"

    @property
    def logs(self) -> Path:
        return self.state / "logs"

    @property
    def records(self) -> Path:
        return self.state / "processes"

    @property
    def kubeconfig(self) -> Path:
        return self.state / "kubeconfig"

    @property
    def kubelet(self) -> Path:
        return self.state / "kubelet"

    @property
    def containerd_state(self) -> Path:
        return self.state / "containerd"

    @property
    def containerd_socket(self) -> Path:
        return self.containerd_state / "containerd.sock"

    @property
    def cni(self) -> Path:
        return self.state / "cni"


def fast_directory(fallback: Path) -> Path:
    """Name a folder in memory where the machine has one: etcd waits for its disk otherwise."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else fallback
