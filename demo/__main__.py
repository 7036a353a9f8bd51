"""`make demo`: cluster, images, chart, resource, answer; the last line is JSON."""

import json
import os
import sys
import time

import httpx

from demo.chat import MODEL, QUESTION, accept_length, ask_inside, ask_streaming
from demo.checkpoints import load_checkpoints
from demo.console import Console, DemoFailed
from demo.kubernetes import ROOT, Cluster, wait_until
from specdecode_api import names

NAMESPACE = "specdecode-system"
OPERATOR_IMAGE = "specdecode-operator:dev"
ENGINE_IMAGE = "specdecode-engine:dev"
ROUTER_IMAGE = "specdecode-router:dev"
RESOURCE = ROOT / "examples" / "specdecode.yaml"


def main() -> int:
    """Run the steps; 1 with a reason where one fails."""
    cluster = Cluster(os.environ.get("CONTEXT") or None)
    console = Console()
    started = time.monotonic()
    try:
        result = _run(cluster, console)
    except DemoFailed as failure:
        print(f"\nThe demo stopped: {failure}", file=sys.stderr)
        print(json.dumps({"ready": False, "cold_seconds": console.seconds}))
        return 1
    print(f"\nThe whole demo took {time.monotonic() - started:.0f} s. What to try next:\n{_NEXT}")
    print(json.dumps({"ready": True, **result, "cold_seconds": console.seconds}))
    return 0


def _run(cluster: Cluster, console: Console) -> dict[str, object]:
    where = "a local Kubernetes node" if cluster.is_local else f"the cluster {cluster.context}"
    print(expected_time(is_local=cluster.is_local, has_programs=_has_programs()), flush=True)
    with console.step("cluster", f"Look for {where}, or start it"):
        cluster.localnode("up")
        cluster.use_programs()
        cluster.show("get", "nodes")
    with console.step("images", "Build the images of operator, engine and router, and load them"):
        cluster.localnode("images")
    with console.step("chart", "Install the operator with its Helm chart"):
        install_chart(cluster)
    with console.step("checkpoints", "Put the example checkpoints into a volume"):
        load_checkpoints(cluster, console, OPERATOR_IMAGE)
    with console.step("ready", "Apply examples/specdecode.yaml and wait until it is Ready"):
        console.note(cluster.kubectl("apply", "-f", str(RESOURCE)).strip())
        wait_until(lambda: resource_state(cluster), console.note, seconds=900)
    with console.step("inside", f"Ask from inside the cluster: {QUESTION}"):
        inside = ask_inside(cluster, OPERATOR_IMAGE, console.note)
        console.note(inside.text.replace("\n", "\n    "))
    with (
        console.step("streamed", "Ask again through a port-forward, streamed"),
        cluster.port_forward(f"service/{MODEL}", 80) as url,
    ):
        streamed = ask_streaming(url, console)
    with cluster.port_forward(f"deployment/{MODEL}", names.MANAGEMENT_PORT) as url:
        accepted = accept_length(httpx.get(f"{url}/metrics", timeout=10).text)
    if streamed.text != inside.text:
        raise DemoFailed("the two answers differ, and greedy decoding must not")
    print(f"\nEach verify step gave {accepted:.2f} tokens on average (accept length).")
    cluster.show("get", "sdd")
    return {"answer_tokens": streamed.tokens, "accept_length": round(accepted, 3)}


def expected_time(*, is_local: bool, has_programs: bool) -> str:
    """Return how long the demo takes, as far as its parts were measured.

    Args:
        has_programs: whether the programs of the local node were built before.
    """
    images = (
        "The images are built where their sources have changed: the engine's, with torch, takes 2 "
        "to 5 minutes for the first time, and 2 to load."
    )
    if not is_local:
        return f"{images} How long your cluster takes to pull them is not known."
    later = "Where nothing has changed the demo takes about half a minute."
    if has_programs:
        return f"{images}\n{later}"
    return (
        "First the programs of the node are built from source: Kubernetes, etcd, Helm and CoreDNS, "
        "10 to 15 minutes on\nan idle machine, and longer on a busy one.\n"
        f"{images}\n{later}"
    )


def _has_programs() -> bool:
    from localnode.paths import Paths
    from localnode.tools import missing_programs

    return not missing_programs(Paths.from_environment())


def install_chart(cluster: Cluster, *more: str) -> None:
    """Install or upgrade the operator, with more words for helm, and wait until it runs."""
    cluster.helm(
        "upgrade", "--install", "specdecode", "charts/specdecode",
        "--namespace", NAMESPACE, "--create-namespace", "--wait", "--timeout", "5m",
        *_image("image", OPERATOR_IMAGE), *_image("engine.image", ENGINE_IMAGE),
        *_image("router.image", ROUTER_IMAGE),
        # An image of the same name may be newer than the pod that runs it.
        "--set-string", f"podAnnotations.built-from={_operator_sources()}", *more,
    )  # fmt: skip
    cluster.kubectl("-n", NAMESPACE, "rollout", "status", "deployment", "--timeout=5m")


def _image(value: str, image: str) -> tuple[str, str]:
    """Flags that set a value of the chart to an image with a tag."""
    name, _, tag = image.partition(":")
    return "--set", f"{value}.repository={name},{value}.tag={tag}"


def _operator_sources() -> str:
    """Name the sources that the operator's image was just built from."""
    from localnode.images import IMAGES, input_files, inputs_hash

    image = next(image for image in IMAGES if image.name == OPERATOR_IMAGE)
    return inputs_hash(input_files(image, ROOT), ROOT, image.name)


def resource_state(cluster: Cluster, name: str = MODEL) -> str | None:
    """Return why a resource is not Ready for its generation; None when it is."""
    resource = cluster.get("sdd", name)
    conditions = {c["type"]: c for c in resource.get("status", {}).get("conditions", [])}
    ready = conditions.get("Ready")
    if ready is None:
        return "the operator has not answered yet"
    if ready["status"] == "True" and (
        ready.get("observedGeneration") == resource["metadata"]["generation"]
    ):
        return None
    return f"{ready['reason']}: {ready['message']}"


_NEXT = """\
  kubectl explain sdd.spec.speculation           what can be written in a resource
  kubectl edit sdd chat                          change numSteps, and watch the pods roll
  kubectl apply -f examples/standalone.yaml      draft with a small model instead of a head
  kubectl apply -f examples/dflash.yaml          draft a block of tokens in one forward
  make traffic QUICK=1                           scale, kill and drain engines while they are asked
  make serve                                     the same resource without Kubernetes
  make lossless N=50 SEED=7                      compare random speculative runs with plain ones
  make cluster-down                              stop the local node
  (kubectl here: eval "$(PYTHONPATH=cluster uv run python -m localnode env)")"""


if __name__ == "__main__":
    sys.exit(main())
