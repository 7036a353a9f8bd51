"""Starts what makes this machine a node: containerd, kubelet and kube-proxy."""

import json
from pathlib import Path

from localnode.cgroups import NAME as CGROUP
from localnode.cgroups import create_cgroups
from localnode.controlplane import ControlPlane
from localnode.dns import machine_resolv_conf
from localnode.flags import CLUSTER_DOMAIN
from localnode.launch import Launcher
from localnode.network import NODE_ADDRESS, POD_RANGE
from localnode.paths import Paths
from localnode.pki import Authority, Identity

NODE_NAME = "specdecode-node"
_NODE_USER = f"system:node:{NODE_NAME}"


def kubelet_settings(paths: Paths, authority: Authority, serving: Identity) -> dict[str, object]:
    """Write the kubelet's configuration."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "healthzBindAddress": NODE_ADDRESS,
        "containerRuntimeEndpoint": f"unix://{paths.containerd_socket}",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority.bundle)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving.certificate),
        "tlsPrivateKeyFile": str(serving.key),
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": CLUSTER_DOMAIN,
        "resolvConf": str(machine_resolv_conf()),
        "podLogsDir": str(paths.state / "pod-logs"),
        "volumePluginDir": str(paths.state / "volume-plugins"),
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,  # kube-proxy keeps its rules in nftables
        "oomScoreAdj": 0,  # a lower one needs CAP_SYS_RESOURCE
        "imageGCHighThresholdPercent": 100,  # images come from no registry: never drop one
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1Gi"},
        "serializeImagePulls": False,
        # Tests kill engines every few seconds, and are not about the kubelet's back-off.
        "featureGates": {"KubeletCrashLoopBackOffMax": True},
        "crashLoopBackOff": {"maxContainerRestartPeriod": "1s"},
    }


def kube_proxy_settings(kubeconfig: Path) -> dict[str, object]:
    """Write kube-proxy's configuration."""
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "nftables": {"minSyncPeriod": "100ms"},  # a Service of one node changes at no cost
        "clientConnection": {"kubeconfig": str(kubeconfig)},
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": NODE_NAME,
        "healthzBindAddress": f"{NODE_ADDRESS}:10256",
        "metricsBindAddress": f"{NODE_ADDRESS}:10249",
        "oomScoreAdj": 0,
        "conntrack": {"maxPerCore": 0},  # leave the machine's own limits alone
    }


def start_kubelet(paths: Paths, plane: ControlPlane, launcher: Launcher) -> None:
    """Start the kubelet and wait until its node accepts pods."""
    create_cgroups()
    serving = plane.authority.issue("kubelet-server", NODE_NAME, addresses=(NODE_ADDRESS,))
    config = plane.folder / "kubelet.json"
    config.write_text(json.dumps(kubelet_settings(paths, plane.authority, serving), indent=1))
    kubeconfig = plane.kubeconfig_for("kubelet", _NODE_USER, ("system:nodes",))
    command = [
        str(plane.programs / "kubelet"),
        f"--config={config}",
        f"--kubeconfig={kubeconfig}",
        f"--root-dir={paths.kubelet}",
        f"--hostname-override={NODE_NAME}",
        f"--node-ip={NODE_ADDRESS}",
    ]
    process = launcher.launch("kubelet", command)
    client = plane.admin_client()
    launcher.wait(process, lambda: client.is_node_ready(NODE_NAME), "Ready node")


def start_kube_proxy(plane: ControlPlane, launcher: Launcher) -> None:
    """Start kube-proxy."""
    kubeconfig = plane.kubeconfig_for("kube-proxy", "system:kube-proxy")
    config = plane.folder / "kube-proxy.json"
    config.write_text(json.dumps(kube_proxy_settings(kubeconfig), indent=1))
    launcher.launch("kube-proxy", [plane.programs / "kube-proxy", f"--config={config}"])
