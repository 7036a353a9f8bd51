"""Builds the images when their inputs have changed, and loads them where pods can use them.

A label on the image holds the hash of what it was built from: containerd reports whether it has
the image of today's inputs, so nothing is recorded that could be wrong.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from localnode import buildah, containerd, docker
from localnode.base_image import make_base_image
from localnode.errors import NodeError
from localnode.locks import exclusive
from localnode.paths import REPOSITORY, Paths
from localnode.progress import report, step
from localnode.transfer import transfer_image

_LABEL = "specdecode.io/inputs"
_SHARED_INPUTS = (".dockerignore", "pyproject.toml", "uv.lock")
_MEMBERS = ("crds", "kernels", "server", "engine", "router", "operator")


@dataclass(frozen=True, slots=True)
class Image:
    """One of our images and the workspace members it is made of."""

    program: str
    members: tuple[str, ...]
    target: str | None = None  # stage of the Dockerfile; the last one if None

    @property
    def name(self) -> str:
        return f"specdecode-{self.program}:dev"

    @property
    def reference(self) -> str:
        """The name as Kubernetes completes it."""
        return f"docker.io/library/{self.name}"

    @property
    def dockerfile(self) -> Path:
        return REPOSITORY / self.program / "Dockerfile"


IMAGES = (
    Image("operator", ("crds", "operator")),
    Image("router", ("crds", "server", "router")),
    Image("engine", ("crds", "kernels", "server", "engine"), target="cpu"),
)


def update_images(paths: Paths) -> None:
    """Bring the images up to date in the node's containerd."""
    with exclusive(paths.cache / "images.lock"):
        for image in IMAGES:
            _update(paths, image)


def load(paths: Paths, image: str) -> None:
    """Load an archive file, or an image that docker knows by this name, into the node."""
    if not containerd.answers(paths):
        raise NodeError("no node is up to load an image into: `localnode up` first")
    with step(f"load {image}"):
        if Path(image).is_file():
            containerd.import_archive(paths, Path(image))
        else:
            _load_from_docker(paths, image)


def input_files(image: Image, root: Path) -> list[Path]:
    """List every file that can change the image."""
    shared = [root / name for name in _SHARED_INPUTS]
    shared += [root / member / "pyproject.toml" for member in _MEMBERS]
    sources = (path for member in image.members for path in (root / member / "src").rglob("*"))
    kept = (path for path in sources if path.is_file() and "__pycache__" not in path.parts)
    return sorted([*shared, root / image.program / "Dockerfile", *kept])


def inputs_hash(files: Iterable[Path], root: Path, base: str) -> str:
    """Name the content of these files on this base."""
    digest = hashlib.sha256(base.encode())
    for path in files:
        content = hashlib.sha256(path.read_bytes()).hexdigest()
        digest.update(f"{path.relative_to(root)} {content}\n".encode())
    return digest.hexdigest()[:16]


def _update(paths: Paths, image: Image) -> None:
    has_docker = docker.answers()
    builder = "docker" if has_docker else "buildah"
    inputs = inputs_hash(input_files(image, REPOSITORY), REPOSITORY, builder)
    has_node = containerd.answers(paths)
    if has_node and containerd.has_image(paths, image.reference, _LABEL, inputs):
        report(f"  {image.name} is up to date")
        return
    local_name = image.name if has_docker else f"localhost/{image.name}"
    base = None if has_docker else make_base_image(paths)
    with step(f"build {image.name} with {builder}"):
        if base is None:
            docker.build_image(local_name, image.dockerfile, image.target)
        else:
            buildah.build_image(paths, local_name, image.dockerfile, base, image.target)
    if not has_node:
        report(f"  {image.name} is built but not loaded: no node is up (`localnode up`)")
        return
    with step(f"load {image.name}"):
        containerd.unlabel_image(paths, image.reference, _LABEL)
        if has_docker:
            _load_from_docker(paths, local_name)
        else:
            transfer_image(paths, local_name, image.reference)
        containerd.label_image(paths, image.reference, _LABEL, inputs)
        containerd.drop_former_images(paths)


def _load_from_docker(paths: Paths, name: str) -> None:
    with TemporaryDirectory(dir=paths.cache) as folder:
        archive = Path(folder) / "image.tar"
        docker.save_image(name, archive)
        containerd.import_archive(paths, archive)
