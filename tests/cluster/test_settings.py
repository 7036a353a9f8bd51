"""What is written for other programs: mirrors, registry access, node conditions, DNS, archives."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pytest

from localnode import buildah, containerd, dns, external
from localnode.apiclient import accepts_pods
from localnode.archive import program_image
from localnode.base_image import debian_sources
from localnode.paths import Paths


def test_only_debian_mirrors_of_the_release_are_taken() -> None:
    targets = """
Debian|http://deb.debian.org/debian/|bookworm|main
Debian|http://deb.debian.org/debian/|bookworm|main
Debian|http://deb.debian.org/debian-security/|bookworm-security|main
Debian|http://deb.debian.org/debian/|trixie|main
. nodistro|https://deb.example.org/node_20.x/|nodistro|main
"""
    assert debian_sources(targets) == [
        "deb http://deb.debian.org/debian-security/ bookworm-security main",
        "deb http://deb.debian.org/debian/ bookworm main",
    ]


def test_pip_gets_the_settings_of_the_environment() -> None:
    environment = {"PIP_INDEX_URL": "https://mirror/simple", "PIP_CERT": "/ca.pem", "PIP_X": "y"}
    assert buildah.pip_settings(environment).splitlines() == [
        "[global]",
        "cert = /ca.pem",
        "index-url = https://mirror/simple",
    ]


def test_uv_gets_a_mirror_only_where_there_is_one() -> None:
    assert "[[index]]" not in buildah.uv_settings({})
    assert 'url = "https://m/simple"' in buildah.uv_settings({"UV_INDEX_URL": "https://m/simple"})


@pytest.mark.parametrize(
    ("status", "taints", "accepted"),
    [
        ("True", [], True),
        ("True", [{"key": "node.kubernetes.io/not-ready"}], False),
        ("False", [], False),
        ("Unknown", [], False),
    ],
)
def test_a_node_accepts_pods(status: str, taints: list[dict[str, str]], accepted: bool) -> None:
    conditions = [
        {"type": "MemoryPressure", "status": "False"},
        {"type": "Ready", "status": status},
    ]
    node = {"status": {"conditions": conditions}, "spec": {"taints": taints}}
    assert accepts_pods(node) is accepted


def test_a_node_that_has_just_registered_accepts_none() -> None:
    assert not accepts_pods({"metadata": {"name": "node"}})


@pytest.mark.parametrize(
    ("context", "program"), [("kind-dev", "kind"), ("minikube", "minikube"), ("gke_prod", None)]
)
def test_how_a_cluster_takes_an_image(context: str, program: str | None) -> None:
    command = external.load_command(context, "specdecode-engine:dev")
    assert (command[0] if command else None) == program


def test_each_context_has_a_kubeconfig_of_its_own(tmp_path: Path) -> None:
    paths = Paths(cache=tmp_path, state=tmp_path / "state")
    assert external.kubeconfig(paths, "arn:aws:eks/prod").parent == tmp_path
    assert external.kubeconfig(paths, "a") != external.kubeconfig(paths, "b")


def test_the_pause_archive_matches_its_digests() -> None:
    archive = program_image("localhost/x:v1", b"program", "pause")
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        files = {name: tar.extractfile(name) for name in tar.getnames()}
        content = {name: file.read() for name, file in files.items() if file}
    (manifest,) = json.loads(content["manifest.json"])
    config = json.loads(content[manifest["Config"]])
    layer = content[manifest["Layers"][0]]
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    assert config["config"]["Entrypoint"] == ["/pause"]


def test_pods_are_routed_not_bridged(tmp_path: Path) -> None:
    network = json.loads(containerd.pod_network(Paths(tmp_path, tmp_path / "state"), 1400))
    (plugin,) = network["plugins"]
    assert (plugin["type"], plugin["ipMasq"], plugin["mtu"]) == ("ptp", False, 1400)


def test_the_name_server_reads_its_own_kubeconfig(tmp_path: Path) -> None:
    text = dns.corefile(tmp_path / "coredns.kubeconfig")
    assert f"kubeconfig {tmp_path}/coredns.kubeconfig" in text
    assert text.count("{") == text.count("}")


def test_images_without_a_name_are_former_ones() -> None:
    listing = """REF TYPE DIGEST SIZE PLATFORMS LABELS
docker.io/library/specdecode-engine:dev application/x sha256:m2 5.1 GiB linux/amd64 a=b
sha256:config1 application/x sha256:m1 5.1 GiB linux/amd64 a=b
sha256:config2 application/x sha256:m2 5.1 GiB linux/amd64 a=b
"""
    assert containerd.nameless_images(listing) == ["sha256:config1"]
