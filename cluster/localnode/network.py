"""The node's own corner of the network: an address, a way out for pods, and nothing else.

    10.243.0.1       the node, on a bridge without ports (a kernel may have no dummy device)
    10.244.0.0/24    pods, each on a point-to-point link, so that every packet is routed
    10.96.0.0/16     Services, which kube-proxy rewrites

All rules live in three nftables tables (one here, two of kube-proxy) that are removed by name.
"""

import json
from pathlib import Path

from localnode.shell import run, succeeds

BRIDGE = "specdecode0"
NODE_ADDRESS = "10.243.0.1"
POD_RANGE = "10.244.0.0/24"
SERVICE_RANGE = "10.96.0.0/16"
SERVICE_ADDRESS = "10.96.0.1"  # of the API server itself
_TABLES = (("ip", "specdecode"), ("ip", "kube-proxy"), ("ip6", "kube-proxy"))

_RULES = f"""
add table ip specdecode
flush table ip specdecode
table ip specdecode {{
  chain way-out {{
    type nat hook postrouting priority srcnat
    ip saddr {POD_RANGE} ip daddr != {POD_RANGE} masquerade
  }}
}}
"""


def create_network() -> None:
    """Give the node its address and the pods their way out; harmless when already there."""
    if not Path("/sys/class/net", BRIDGE).exists():
        run(["ip", "link", "add", BRIDGE, "type", "bridge"])
    run(["ip", "address", "replace", f"{NODE_ADDRESS}/32", "dev", BRIDGE])
    run(["ip", "link", "set", BRIDGE, "up"])
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
    run(["nft", "-f", "-"], stdin=_RULES.encode())


def remove_network() -> None:
    """Take away the address and every table of ours."""
    if Path("/sys/class/net", BRIDGE).exists():
        run(["ip", "link", "delete", BRIDGE])
    for family, table in _TABLES:
        if succeeds(["nft", "list", "table", family, table]):
            run(["nft", "delete", "table", family, table])


def outgoing_mtu() -> int:
    """Return the packet size that the machine's way out can carry, so that pods use no larger."""
    routes = json.loads(run(["ip", "-json", "route", "show", "default"]) or "[]")
    if not routes:
        return 1500
    return int(Path("/sys/class/net", routes[0]["dev"], "mtu").read_text())
