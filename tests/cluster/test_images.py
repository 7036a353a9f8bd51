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
    for member in ("crds", "kernels", "engine", "operator"):
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
    assert text.rstrip().endswith(f'ENTRYPOINT ["specdecode-{image.program}"]')
    assert "\nUSER 65532:65532\n" in text


def test_both_dockerfiles_install_with_the_same_uv() -> None:
    files = (REPOSITORY / image.program / "Dockerfile" for image in IMAGES)
    versions = [re.findall(r"uv==([\d.]+)", file.read_text()) for file in files]
    assert versions[0] == versions[1]
    assert len(versions[0]) == 1
