"""The command lines of the control plane's programs, as pure functions of their settings."""

from dataclasses import dataclass
from pathlib import Path

from localnode.network import POD_RANGE, SERVICE_RANGE
from localnode.pki import Authority, Identity, TokenKeys

CLUSTER_DOMAIN = "cluster.local"
_ISSUER = f"https://kubernetes.default.svc.{CLUSTER_DOMAIN}"


@dataclass(frozen=True, slots=True)
class EtcdSettings:
    """What etcd needs to know to start; only holders of our certificates may speak to it."""

    program: Path
    data: Path
    address: str
    port: int
    authority: Authority
    identity: Identity

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"


@dataclass(frozen=True, slots=True)
class ApiServerSettings:
    """What an API server needs to know to start."""

    program: Path
    etcd: EtcdSettings
    address: str
    port: int
    authority: Authority
    serving: Identity
    token_keys: TokenKeys


def etcd_command(settings: EtcdSettings) -> list[str]:
    """A throw-away etcd: it may lose the last writes in a power cut."""
    peer = "http://127.0.0.1:0"  # there are no peers: any port will do
    return [
        str(settings.program),
        "--name=default",
        f"--data-dir={settings.data}",
        f"--listen-client-urls={settings.url}",
        f"--advertise-client-urls={settings.url}",
        f"--cert-file={settings.identity.certificate}",
        f"--key-file={settings.identity.key}",
        f"--trusted-ca-file={settings.authority.bundle}",
        "--client-cert-auth",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        "--unsafe-no-fsync",
        "--log-level=warn",
    ]


def apiserver_command(settings: ApiServerSettings) -> list[str]:
    """What every API server of ours has in common."""
    return [
        str(settings.program),
        f"--etcd-servers={settings.etcd.url}",
        f"--etcd-cafile={settings.authority.bundle}",
        f"--etcd-certfile={settings.etcd.identity.certificate}",
        f"--etcd-keyfile={settings.etcd.identity.key}",
        f"--bind-address={settings.address}",
        f"--advertise-address={settings.address}",
        f"--secure-port={settings.port}",
        f"--tls-cert-file={settings.serving.certificate}",
        f"--tls-private-key-file={settings.serving.key}",
        f"--client-ca-file={settings.authority.bundle}",
        f"--service-account-key-file={settings.token_keys.public}",
        f"--service-account-signing-key-file={settings.token_keys.private}",
        f"--service-account-issuer={_ISSUER}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--allow-privileged=true",
        "--profiling=false",
    ]


def apiserver_with_kubelet_flags(authority: Authority, client: Identity) -> list[str]:
    """What an API server needs for a real node: to reach it, and trust it just so far."""
    return [
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        f"--kubelet-certificate-authority={authority.bundle}",
        f"--kubelet-client-certificate={client.certificate}",
        f"--kubelet-client-key={client.key}",
        "--kubelet-preferred-address-types=InternalIP",  # the node's name is in no DNS
    ]


def apiserver_alone_flags(token_file: Path) -> list[str]:
    """What an API server needs without controllers: no ServiceAccount is created automatically."""
    return [
        "--authorization-mode=RBAC",
        "--disable-admission-plugins=ServiceAccount",
        "--endpoint-reconciler-type=none",
        f"--token-auth-file={token_file}",
    ]


def controller_manager_command(
    program: Path, kubeconfig: Path, authority: Authority, token_keys: TokenKeys, address: str
) -> list[str]:
    """The controllers; `*` is all that are on by default."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-skip-lookup",  # of a CA for aggregated servers, which we have none of
        f"--bind-address={address}",
        f"--root-ca-file={authority.bundle}",
        f"--service-account-private-key-file={token_keys.private}",
        "--use-service-account-credentials",
        "--leader-elect=false",
        "--profiling=false",
    ]


def controller_manager_node_flags() -> list[str]:
    """What the controllers of a whole node do in addition: give the node its pod CIDR."""
    return [
        "--allocate-node-cidrs",
        f"--cluster-cidr={POD_RANGE}",
        f"--node-cidr-mask-size={POD_RANGE.split('/')[1]}",
    ]


def scheduler_command(program: Path, kubeconfig: Path, address: str) -> list[str]:
    """The scheduler."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        "--authentication-skip-lookup",  # of a CA for aggregated servers, which we have none of
        f"--bind-address={address}",
        "--leader-elect=false",
        "--profiling=false",
    ]
