"""Uses a cluster that is there already, named by CONTEXT: kind, minikube or a real one."""

from collections.abc import Sequence
from pathlib import Path

from localnode import docker
from localnode.errors import NodeError
from localnode.images import IMAGES
from localnode.paths import Paths
from localnode.progress import report, step
from localnode.shell import run

_LOAD_TIMEOUT_S = 1800


def kubeconfig(paths: Paths, context: str) -> Path:
    """Name the file that leads to this cluster and no other; `adopt_cluster` writes it."""
    return paths.cache / f"context-{context.replace('/', '-')}.kubeconfig"


def adopt_cluster(paths: Paths, context: str) -> None:
    """Verify that the cluster answers, and write the kubeconfig that names it; start nothing."""
    try:
        nodes = run(["kubectl", "--context", context, "get", "nodes", "--output", "name"])
    except NodeError as failure:
        raise NodeError(
            f"the cluster of CONTEXT={context} does not answer:\n{failure}"
        ) from failure
    view = ["kubectl", "--context", context, "config", "view", "--minify", "--flatten"]
    file = kubeconfig(paths, context)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch(mode=0o600)
    file.write_text(run(view))
    report(f"  {context}: {len(nodes.split())} nodes, nothing to start")


def update_images(context: str) -> None:
    """Build with docker, and load if the kind of cluster is known; else print what is left."""
    if not docker.answers():
        raise NodeError("images for a cluster of yours are built by docker: no daemon answers")
    for image in IMAGES:
        with step(f"build {image.name} with docker"):
            docker.build_image(image.name, image.dockerfile, image.target)
        load_image(context, image.name)


def load_image(context: str, name: str) -> None:
    """Bring one image to the nodes of the cluster."""
    command = load_command(context, name)
    if command is None:
        report(f"  {context} has no way to load {name}: push it to a registry that its nodes reach")
        report("  and give its name there to the chart (values `image.repository`, `image.tag`)")
        return
    with step(f"load {name}"):
        run(command, timeout_s=_LOAD_TIMEOUT_S)


def load_command(context: str, name: str) -> Sequence[str] | None:
    """Return how this kind of cluster takes an image; None when the name does not reveal it."""
    if context.startswith("kind-"):
        return ["kind", "load", "docker-image", name, "--name", context.removeprefix("kind-")]
    if context == "minikube" or context.startswith("minikube-"):
        return ["minikube", "image", "load", name, "--profile", context]
    return None
