"""Answers the pods' questions for names: CoreDNS as a plain process on the node's address.

It reads Services from the API server and sends every other question to the machine's own servers.
"""

import socket
from pathlib import Path

from localnode.controlplane import ControlPlane
from localnode.flags import CLUSTER_DOMAIN
from localnode.launch import Launcher
from localnode.network import NODE_ADDRESS

USER = "system:coredns"  # its rights are in cluster/manifests
_HEALTH_PORT = 8180
# systemd-resolved shows programs a stub on the loopback, of no use to pods
_SYSTEMD_SERVERS = Path("/run/systemd/resolve/resolv.conf")


def machine_resolv_conf() -> Path:
    """Name the file with the machine's real name servers."""
    return _SYSTEMD_SERVERS if _SYSTEMD_SERVERS.exists() else Path("/etc/resolv.conf")


def corefile(kubeconfig: Path) -> str:
    """Write CoreDNS's configuration."""
    return f"""\
.:53 {{
  bind {NODE_ADDRESS}
  errors
  ready {NODE_ADDRESS}:{_HEALTH_PORT}
  kubernetes {CLUSTER_DOMAIN} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    fallthrough in-addr.arpa ip6.arpa
    ttl 5
  }}
  forward . {machine_resolv_conf()}
  cache 5
  loop
}}
"""


def start_dns(plane: ControlPlane, launcher: Launcher) -> None:
    """Start CoreDNS and wait until it has read the Services."""
    config = plane.folder / "Corefile"
    config.write_text(corefile(plane.kubeconfig_for("coredns", USER)))
    process = launcher.launch("coredns", [plane.programs / "coredns", "-conf", config])
    launcher.wait(process, is_ready, "answer from CoreDNS", 30)


def is_ready() -> bool:
    """Whether CoreDNS reports that it is ready."""
    try:
        with socket.create_connection((NODE_ADDRESS, _HEALTH_PORT), timeout=1) as connection:
            connection.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False
