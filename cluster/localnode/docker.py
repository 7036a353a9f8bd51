"""Builds images with a docker daemon, where one answers."""

import shutil
from pathlib import Path

from localnode.paths import REPOSITORY
from localnode.shell import run, succeeds

_BUILD_TIMEOUT_S = 3600
_RELEASE_BUILD_TIMEOUT_S = 4 * 3600  # FlashInfer's kernels take two hours at most


def answers() -> bool:
    """Whether there is a docker daemon, not only its client."""
    return shutil.which("docker") is not None and succeeds(["docker", "info"])


def build_image(name: str, dockerfile: Path, target: str | None) -> None:
    """Build a stage of one of the repository's Dockerfiles, the last stage if None."""
    stage = [] if target is None else ["--target", target]
    command: list[str | Path] = ["docker", "build", "--tag", name, "--file", dockerfile, *stage]
    run([*command, REPOSITORY], timeout_s=_BUILD_TIMEOUT_S, environment={"DOCKER_BUILDKIT": "1"})


def build_layout(
    dockerfile: Path, context: Path, target: str | None, platform: str, folder: Path
) -> None:
    """Build a stage of a Dockerfile for a platform into a folder, as an OCI layout.

    Without attestations: the layout has one image. Docker's own builder cannot write layouts; one
    that `docker buildx create --use` makes can.
    """
    folder.mkdir(parents=True)
    stage = [] if target is None else ["--target", target]
    output = f"type=oci,tar=false,dest={folder}"
    command: list[str | Path] = ["docker", "buildx", "build", "--file", dockerfile, *stage]
    command += ["--platform", platform, "--provenance=false", "--output", output, context]
    run(command, timeout_s=_RELEASE_BUILD_TIMEOUT_S)


def save_image(name: str, archive: Path) -> None:
    """Write an image that docker knows into a file."""
    run(["docker", "save", "--output", archive, name], timeout_s=_BUILD_TIMEOUT_S)
