"""Every example is taken by a real API server as it is, and so is what the operator makes of it."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localnode.controlplane import ApiServer
from specdecode_api import names
from specdecode_operator.commands.render import render

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
RESOURCES = [path for path in EXAMPLES if f"kind: {names.KIND}" in path.read_text()]
ENGINE_IMAGE = "registry.example/specdecode-engine:test"
ROUTER_IMAGE = "registry.example/specdecode-router:test"
POOLS = ROOT / "tests" / "operator" / "apiserver" / "fixtures" / "inferencepools.yaml"

Apply = Callable[[str], str]


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def storage(path: Path) -> dict[str, str]:
    """Sizes of the claims of a file, by name."""
    return {
        each["metadata"]["name"]: each["spec"]["resources"]["requests"]["storage"]
        for each in documents(path)
        if each["kind"] == "PersistentVolumeClaim"
    }


@pytest.fixture(scope="module")
def apply(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apply]:
    """Apply YAML on the server side; returns what kubectl prints."""
    with ApiServer.start(tmp_path_factory.mktemp("examples")) as server:

        def run(*words: str, given: str = "") -> str:
            command = [str(server.programs / "kubectl"), "--kubeconfig", str(server.kubeconfig)]
            done = subprocess.run(
                [*command, *words], input=given, capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        for definition in (*(ROOT / "crds").glob("specdecode.io_*.yaml"), POOLS):
            run("apply", "--server-side", "-f", str(definition))
        for name in run("get", "crd", "--output=name").split():
            # Conditions are absent at first, on which --for=condition ends with an error.
            status = "jsonpath={.status.conditions[?(@.type=='Established')].status}=True"
            run("wait", f"--for={status}", name, "--timeout=60s")
        words = ("apply", "--server-side", "--validate=strict", "--namespace", "default", "-f", "-")
        yield lambda text: run(*words, given=text)


@pytest.mark.apiserver
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_api_server_takes_each_document(path: Path, apply: Apply) -> None:
    applied = apply(path.read_text())
    assert applied.count("serverside-applied") == len(documents(path)) > 0


@pytest.mark.apiserver
@pytest.mark.parametrize("path", RESOURCES, ids=lambda path: path.stem)
def test_the_api_server_takes_what_the_operator_makes_of_it(path: Path, apply: Apply) -> None:
    rendered = render(str(path), path.read_text(), ENGINE_IMAGE, ROUTER_IMAGE)
    kinds = [each["kind"] for each in yaml.safe_load_all(rendered)]
    assert {"Deployment", "Service"} <= set(kinds)
    assert apply(rendered).count("serverside-applied") == len(kinds)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_wait_has_a_timeout_and_no_image_a_version_of_ours(path: Path) -> None:
    text = path.read_text()
    waits = [line for line in text.splitlines() if "kubectl wait" in line]
    assert all("--timeout=" in line for line in waits)
    assert "image: specdecode-" not in text


def test_the_gpu_example_brings_what_it_names() -> None:
    path = ROOT / "examples" / "llama-3.1-8b-eagle3.yaml"
    (resource,) = [each for each in documents(path) if each["kind"] == names.KIND]
    spec = resource["spec"]
    assert list(storage(path)) == [spec["download"]["cacheClaim"]]
    token = spec["download"]["tokenSecret"]
    command = f"create secret generic {token['name']} --from-literal={token['key']}="
    assert command in path.read_text()
    assert command in (ROOT / "README.md").read_text()
    assert spec["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"topk", "draft"} & set(spec["speculation"]) == {"draft"}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("llama-3.1-8b-eagle3", 8.03 + 0.43),
        ("llama-3.3-70b-eagle3-tp4", 70.6 + 1.5),
    ],
)
def test_claims_have_room_for_two_versions_of_a_model_and_its_head(
    name: str, billions: float
) -> None:
    """In bfloat16."""
    (size,) = storage(ROOT / "examples" / f"{name}.yaml").values()
    assert int(size.removesuffix("Gi")) * 2**30 > 2 * 2 * billions * 1e9


def test_the_claim_of_the_example_models_is_small() -> None:
    assert storage(ROOT / "examples" / "models-pvc.yaml") == {"models": "1Gi"}
    models = ROOT / "examples" / "models"
    files = [each for name in ("target", "eagle3") for each in (models / name).rglob("*")]
    assert 0 < 2 * sum(each.stat().st_size for each in files) < 2**30


def test_pod_security_restricted_admits_the_loader_of_models() -> None:
    (pod,) = documents(ROOT / "examples" / "models-loader.yaml")
    (container,) = pod["spec"]["containers"]
    whole, own = pod["spec"]["securityContext"], container["securityContext"]
    assert whole["runAsNonRoot"] is True
    assert whole["runAsUser"] == whole["fsGroup"] == 65532  # as the images of engines
    assert whole["seccompProfile"] == {"type": "RuntimeDefault"}
    assert own == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    assert {each["mountPath"] for each in container["volumeMounts"]} == {"/models", "/tmp"}


def test_the_example_of_several_gpus_asks_for_as_many_as_its_ranks() -> None:
    path = ROOT / "examples" / "llama-3.3-70b-eagle3-tp4.yaml"
    rendered = render(str(path), path.read_text(), ENGINE_IMAGE, ROUTER_IMAGE)
    (deployment,) = [each for each in yaml.safe_load_all(rendered) if each["kind"] == "Deployment"]
    (engine,) = deployment["spec"]["template"]["spec"]["containers"]
    assert engine["resources"]["limits"]["nvidia.com/gpu"] == "4"
