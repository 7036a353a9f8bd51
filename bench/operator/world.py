"""A private control plane with the chart's definition and rights, and a simulated kubelet."""

import asyncio
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml

from bench.operator.api import Api
from localnode.controlplane import ApiServer
from localnode.kubeconfig import token_kubeconfig
from localnode.paths import REPOSITORY, Paths
from localnode.tools import install_more
from localnode.versions import BENCHES
from specdecode_operator.objects.kinds import RESOURCE, Manifest, ResourceKind

CHART = REPOSITORY / "charts" / "specdecode"
SYSTEM = "specdecode-system"
NAMESPACE = "bench"
NAMESPACES = ResourceKind("", "v1", "Namespace", "namespaces", ())
NODES = ResourceKind("", "v1", "Node", "nodes", ())
_GRANTED = {
    "ServiceAccount",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
}
WORKLOADS = ("garbage-collector-controller", "deployment-controller", "replicaset-controller",
             "node-lifecycle-controller")  # fmt: skip
_EXAMPLE = yaml.safe_load((REPOSITORY / "examples" / "specdecode.yaml").read_text())


@contextmanager
def control_plane(folder: Path, controllers: tuple[str, ...]) -> Iterator[ApiServer]:
    """A control plane in which the chart's definition is established and its rights are granted."""
    folder.mkdir()
    with ApiServer.start(folder, controllers=controllers) as server:
        for name in (SYSTEM, NAMESPACE):
            _kubectl(server, "create", "namespace", name)
        helm: list[str | Path] = [
            server.programs / "helm",
            "template",
            "specdecode",
            CHART,
            "-n",
            SYSTEM,
        ]
        rendered = subprocess.run(helm, check=True, capture_output=True, text=True).stdout
        manifests = [each for each in yaml.safe_load_all(rendered) if each]
        kept = [each for each in manifests if each["kind"] in _GRANTED and not _is_hook(each)]
        _kubectl(server, "apply", "--server-side", "-f", "-", text=yaml.safe_dump_all(kept))
        definition = f"crd/{RESOURCE.plural}.{RESOURCE.group}"
        _kubectl(server, "wait", "--for=condition=Established", definition)
        _wait_until_served(server)
        yield server


def operator_kubeconfig(server: ApiServer, folder: Path) -> Path:
    """Credentials with the rights that the chart grants, and no others."""
    account = "specdecode-operator"
    token = _kubectl(server, "create", "token", account, "-n", SYSTEM).strip()
    path = folder / "operator.kubeconfig"
    config = token_kubeconfig(server.url, server.authority_file, token)
    path.write_text(yaml.safe_dump(config))
    return path


async def start_kubelet(server: ApiServer, api: Api) -> None:
    """Start a scheduler and kwok, and give them a node."""
    program = install_more(Paths.from_environment(), BENCHES) / "kwok"
    plane = server.plane
    plane.start_scheduler()
    words = ["--kubeconfig", str(server.kubeconfig), "--manage-all-nodes", "--server-address", ""]
    plane.launcher.launch("kwok", [program, *words])
    await api.create(NODES, {"metadata": {"name": "simulated"}})
    async with asyncio.timeout(60):
        while _taints(server):
            await asyncio.sleep(0.2)


def resource(name: str) -> Manifest:
    """The example with one replica; its checkpoint lies on the node, so no claim is needed."""
    spec = {
        **_EXAMPLE["spec"],
        "model": {"uri": "file:///models/target"},
        "speculation": {
            **_EXAMPLE["spec"]["speculation"],
            "draft": {"uri": "file:///models/eagle3"},
        },
    }
    metadata = {"name": name, "namespace": NAMESPACE}
    return {
        "apiVersion": RESOURCE.api_version,
        "kind": RESOURCE.kind,
        "metadata": metadata,
        "spec": spec,
    }


def _wait_until_served(server: ApiServer) -> None:
    """Established is what it will be; the API server answers for it a moment later."""
    client, deadline = server.plane.admin_client(), time.monotonic() + 30
    while client.get(RESOURCE.path(NAMESPACE)) is None:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{RESOURCE.plural} are not served after 30 s")
        time.sleep(0.05)


def _taints(server: ApiServer) -> str:
    """The node's taints, or that it is not ready yet, as text; empty when pods may come."""
    node = _kubectl(server, "get", "node", "simulated", "-o", "json")
    found = yaml.safe_load(node)
    conditions = found.get("status", {}).get("conditions") or ()
    is_ready = any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
    return str(found["spec"].get("taints") or "") if is_ready else "not ready"


def _kubectl(server: ApiServer, *words: str, text: str | None = None) -> str:
    command: list[str | Path] = [
        server.programs / "kubectl",
        "--kubeconfig",
        server.kubeconfig,
        *words,
    ]
    ran = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(f"kubectl {' '.join(words)}: {ran.stderr}")
    return str(ran.stdout)


def _is_hook(manifest: Manifest) -> bool:
    return "helm.sh/hook" in (manifest["metadata"].get("annotations") or {})
