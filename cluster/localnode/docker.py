"""Builds images with a docker daemon, where one answers."""

import shutil
from pathlib import Path

from localnode.errors import NodeError
from localnode.paths import REPOSITORY
from localnode.shell import run, succeeds

_BUILD_TIMEOUT_S = 3600


def answers() -> bool:
    """Tell whether there is a docker daemon, not only its client."""
    return shutil.which("docker") is not None and succeeds(["docker", "info"])


def build_image(name: str, dockerfile: Path) -> None:
    """Build one of the repository's Dockerfiles."""
    command: list[str | Path] = ["docker", "build", "--tag", name, "--file", dockerfile, REPOSITORY]
    run(command, timeout_s=_BUILD_TIMEOUT_S, environment={"DOCKER_BUILDKIT": "1"})


def export_image(name: str, layout: Path) -> None:
    """Write the image into an OCI layout folder, as docker 25 and newer save it."""
    shutil.rmtree(layout, ignore_errors=True)
    layout.mkdir(parents=True)
    archive = layout / "image.tar"
    save_image(name, archive)
    run(["tar", "--extract", "--file", archive, "--directory", layout], timeout_s=_BUILD_TIMEOUT_S)
    archive.unlink()
    if not (layout / "oci-layout").exists():
        raise NodeError(f"docker saved {name} in a form of before docker 25: update docker")


def save_image(name: str, archive: Path) -> None:
    """Write an image that docker knows into a file."""
    run(["docker", "save", "--output", archive, name], timeout_s=_BUILD_TIMEOUT_S)
