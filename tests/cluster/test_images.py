"""An image is rebuilt exactly when something that it is made of has changed."""

import re
from pathlib import Path

import pytest

from localnode.images import IMAGES, Image, input_files, inputs_hash
from localnode.paths import REPOSITORY


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in (".dockerignore", "pyproject.toml", "uv.lock", "operator/Dockerfile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    for member in ("crds", "kernels", "server", "engine", "router", "operator"):
        source = tmp_path / member / "src" / f"specdecode_{member}"
        source.mkdir(parents=True)
        (source / "code.py").write_text("1")
        (tmp_path / member / "pyproject.toml").write_text(member)
    return tmp_path


def _hash(root: Path, base: str = "base") -> str:
    image = Image("operator", ("crds", "operator"))
    return inputs_hash(input_files(image, root), root, base)


@pytest.mark.parametrize(
    ("path", "matters"),
    [
        ("operator/src/specdecode_operator/code.py", True),
        ("operator/src/specdecode_operator/new.py", True),
        ("crds/src/specdecode_crds/code.py", True),
        ("operator/Dockerfile", True),
        ("uv.lock", True),
        ("engine/src/specdecode_engine/code.py", False),
        ("operator/src/specdecode_operator/__pycache__/code.pyc", False),
        ("README.md", False),
    ],
)
def test_what_matters(root: Path, path: str, matters: bool) -> None:
    before = _hash(root)
    (root / path).parent.mkdir(exist_ok=True)
    (root / path).write_text("changed")
    assert (_hash(root) != before) is matters


def test_another_base_is_another_image(root: Path) -> None:
    assert _hash(root, "debian") != _hash(root, "slim")


def test_the_name_is_what_kubernetes_makes_of_it() -> None:
    assert {image.name: image.reference for image in IMAGES} == {
        "specdecode-operator:dev": "docker.io/library/specdecode-operator:dev",
        "specdecode-router:dev": "docker.io/library/specdecode-router:dev",
        "specdecode-engine:dev": "docker.io/library/specdecode-engine:dev",
    }


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.program)
def test_the_dockerfile_copies_the_members_that_the_hash_follows(image: Image) -> None:
    text = image.dockerfile.read_text()
    copied = set(re.findall(r"^COPY (\w+)/ ", text, re.MULTILINE))
    assert copied == set(image.members)


@pytest.mark.parametrize("image", IMAGES, ids=lambda image: image.program)
def test_the_dockerfile_knows_no_machine(image: Image) -> None:
    text = image.dockerfile.read_text()
    assert "ARG BASE_IMAGE=python:3.11-slim-bookworm" in text
    assert not re.search(r"https?://(?!specdecode)|/etc/ssl|/root/(?!\.cache/uv)|CERT", text)
    assert f'\nENTRYPOINT ["specdecode-{image.program}"]\n' in f"{text}\n"
    assert "\nUSER 65532:65532\n" in text


def test_the_local_node_builds_the_engine_without_flashinfer() -> None:
    engine = next(image for image in IMAGES if image.program == "engine")
    _, cpu, gpu = re.split(r"^FROM engine AS ", engine.dockerfile.read_text(), flags=re.MULTILINE)
    assert engine.target == "cpu"
    assert re.findall(r"^[A-Z]+ ", cpu, re.MULTILINE) == ["USER "]  # and no layer of its own
    assert re.findall(r"^[A-Z]+ ", gpu, re.MULTILINE) == ["ARG ", "ENV ", "RUN ", "USER "]


def test_both_dockerfiles_install_with_the_same_uv() -> None:
    files = (REPOSITORY / image.program / "Dockerfile" for image in IMAGES)
    versions = [re.findall(r"uv==([\d.]+)", file.read_text()) for file in files]
    assert versions[0] == versions[1]
    assert len(versions[0]) == 1
