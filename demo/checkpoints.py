"""Copies the example checkpoints into a volume of the cluster, once."""

import hashlib
import json
from pathlib import Path
from typing import Any

import yaml

from demo.console import Console
from demo.kubernetes import ROOT, Cluster, wait_until

EXAMPLES = ROOT / "examples"
MODELS = EXAMPLES / "models"
NAMES = ("target", "draft", "eagle", "eagle3", "dflash")
HOST_FOLDER = Path("/var/lib/specdecode-models")
MARK = "/models/.checkpoints"

_LOCAL_VOLUME = """
apiVersion: v1
kind: PersistentVolume
metadata: {{name: specdecode-models}}
spec:
  accessModes: [ReadWriteOnce]
  capacity: {{storage: 60Gi}}
  claimRef: {{name: models, namespace: default}}
  hostPath: {{path: {path}, type: DirectoryOrCreate}}
  persistentVolumeReclaimPolicy: Retain
"""


def load_checkpoints(cluster: Cluster, console: Console, image: str) -> None:
    """Make the claim and fill it through a pod that mounts it, unless it holds them already."""
    if cluster.is_local:
        # A bare node has no storage provisioner: give the claim a folder of the node.
        cluster.kubectl("apply", "-f", "-", given=_LOCAL_VOLUME.format(path=HOST_FOLDER))
    if not cluster.kubectl("get", "pvc", "models", "--ignore-not-found", "-o", "name").strip():
        # An existing claim is kept: a claim cannot shrink.
        cluster.kubectl("apply", "-f", str(EXAMPLES / "models-pvc.yaml"))
    loader = loader_pod(image, is_on_node=cluster.is_local)
    cluster.kubectl("delete", "pod", "models-loader", "--ignore-not-found", "--wait")
    cluster.kubectl("apply", "-f", "-", given=json.dumps(loader))
    wait_until(lambda: _pod_state(cluster), console.note, seconds=180)
    digest = _digest()
    in_pod = ("exec", "models-loader", "--")
    held = cluster.kubectl(*in_pod, "sh", "-c", f"cat {MARK} 2>/dev/null || true").strip()
    if held == digest:
        console.note("the volume holds them already")
    else:
        for name in NAMES:
            cluster.kubectl(*in_pod, "rm", "-rf", f"/models/{name}")
            cluster.kubectl("cp", str(MODELS / name), f"models-loader:/models/{name}")
        cluster.kubectl(*in_pod, "sh", "-c", f"chmod -R a+rX /models && echo {digest} > {MARK}")
        console.note(f"copied {', '.join(NAMES)}")
    cluster.kubectl(*in_pod, "touch", "/tmp/done")


def loader_pod(image: str, *, is_on_node: bool) -> dict[str, Any]:
    """Return the loader of the examples with an image of ours: the local node has no registry.

    Args:
        is_on_node: whether the volume is a folder of the node. It belongs to root, for which
            Kubernetes does not apply fsGroup, so the loader runs as root there.
    """
    loader: dict[str, Any] = yaml.safe_load((EXAMPLES / "models-loader.yaml").read_text())
    (container,) = loader["spec"]["containers"]
    container["image"] = image
    if is_on_node:
        loader["spec"]["securityContext"] = {"runAsUser": 0}
        del container["securityContext"]["capabilities"]  # tar restores the owner of files
    return loader


def _pod_state(cluster: Cluster) -> str | None:
    status = cluster.get("pod", "models-loader")["status"]
    conditions = {entry["type"]: entry for entry in status.get("conditions", [])}
    if conditions.get("Ready", {}).get("status") == "True":
        return None
    reason = conditions.get("PodScheduled", {}).get("message", "")
    return f"the loader pod is {status.get('phase')} {reason}".strip()


def _digest() -> str:
    sums = hashlib.sha256()
    for name in NAMES:
        for file in sorted((MODELS / name).iterdir()):
            sums.update(f"{name}/{file.name}".encode())
            sums.update(file.read_bytes())
    return sums.hexdigest()[:16]
