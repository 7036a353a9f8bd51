"""The images of a release, and how they are built into OCI layouts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from localnode import buildah, docker
from localnode.base_image import make_base_image
from localnode.errors import NodeError
from localnode.paths import Paths
from localnode.tools import install_packages, missing_packages
from scripts.release_steps.errors import ReleaseError
from scripts.release_steps.layout import Layout, platform_of
from scripts.release_steps.lock import PLATFORMS, Platform

BUILDAH_PACKAGES = ("buildah", "containers-storage", "mmdebstrap")


@dataclass(frozen=True, slots=True)
class ReleasedImage:
    """An image of a release: a stage of a program's Dockerfile."""

    name: str
    program: str
    target: str | None
    extras: tuple[str, ...]
    members: tuple[str, ...]
    platforms: tuple[str, ...]
    suffix: str = ""  # of the tag

    @property
    def repository(self) -> str:
        """Its name in the registry."""
        return f"specdecode-{self.program}"

    @property
    def package(self) -> str:
        """The package of the workspace that it runs."""
        return f"specdecode-{self.program}"

    def tag(self, version: str) -> str:
        """The tag of a version."""
        return version + self.suffix


_BOTH = tuple(PLATFORMS)
_ENGINE = ("api", "kernels", "server", "engine")
RELEASED_IMAGES = (
    ReleasedImage("operator", "operator", None, (), ("api", "operator"), _BOTH),
    ReleasedImage("router", "router", None, (), ("api", "server", "router"), _BOTH),
    ReleasedImage("engine", "engine", "gpu", ("tracing", "gpu"), _ENGINE, ("linux/amd64",)),
    ReleasedImage("engine-cpu", "engine", "cpu", ("tracing",), _ENGINE, _BOTH, suffix="-cpu"),
)
"""FlashInfer's kernels are compiled in the image `engine`, which an emulated processor cannot do
in any useful time: it is built for amd64 alone."""


def chosen_images(names: Sequence[str]) -> list[ReleasedImage]:
    """Find images by name; all if none is named.

    Raises:
        ReleaseError: for an unknown name.
    """
    known = {image.name: image for image in RELEASED_IMAGES}
    for name in names:
        if name not in known:
            raise ReleaseError(f"--images {name}: there is {', '.join(known)}")
    return [image for image in RELEASED_IMAGES if not names or image.name in names]


def build(source: Path, image: ReleasedImage, platform: Platform, folder: Path) -> Layout:
    """Build an image of a checkout for a platform with this machine's builder.

    Raises:
        ReleaseError: when it cannot be built, or is for another platform.
    """
    dockerfile = source / image.program / "Dockerfile"
    try:
        if docker.answers():
            docker.build_layout(dockerfile, source, image.target, platform.name, folder)
        else:
            _build_with_buildah(source, dockerfile, image, platform, folder)
    except NodeError as error:
        raise ReleaseError(f"{image.name} for {platform.name} cannot be built: {error}") from error
    layout = Layout(folder)
    built = platform_of(layout)
    if built != platform.name:
        raise ReleaseError(
            f"{image.name} was built for {built}, not {platform.name}: "
            "give the builder emulation (Debian: qemu-user-static, binfmt-support)"
        )
    return layout


def _build_with_buildah(
    source: Path, dockerfile: Path, image: ReleasedImage, platform: Platform, folder: Path
) -> None:
    paths = Paths.from_environment()
    install_packages([name for name in missing_packages() if name in BUILDAH_PACKAGES])
    name = f"localhost/specdecode-release:{image.name}-{platform.name.replace('/', '-')}"
    base = make_base_image(paths, platform.name)
    buildah.build_image(paths, name, dockerfile, base, image.target, source, platform.name)
    buildah.write_layout(paths, name, folder)
