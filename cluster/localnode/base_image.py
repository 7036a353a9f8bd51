"""Makes the image that ours build on where no registry can be reached: Debian with its Python.

The root file system comes from the Debian mirrors that this machine itself uses.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from localnode.buildah import buildah, has_local_image
from localnode.errors import NodeError
from localnode.paths import Paths
from localnode.progress import step
from localnode.shell import run
from localnode.versions import DEBIAN_RELEASE

_PACKAGES = ("python3", "python3-venv", "ca-certificates")
_TARGET_FORMAT = "$(ORIGIN)|$(REPO_URI)|$(CODENAME)|$(COMPONENT)"


def make_base_image(paths: Paths, platform: str | None = None) -> str:
    """Return the name of the base image, after making it if this machine has none yet.

    It is for a platform such as linux/arm64, this machine's if None. mmdebstrap runs another
    processor's programs in an emulator.
    """
    sources = debian_sources(
        run(["apt-get", "indextargets", "--format", _TARGET_FORMAT, "Created-By: Packages"])
    )
    if not sources:
        raise NodeError(f"apt knows no mirror of Debian {DEBIAN_RELEASE}: add one to its sources")
    digest = hashlib.sha256(repr((sources, _PACKAGES)).encode()).hexdigest()[:12]
    architecture = (platform or "").removeprefix("linux/")
    own = run(["dpkg", "--print-architecture"]).strip()
    foreign = architecture if architecture and architecture != own else ""
    name = f"localhost/specdecode-base:{digest}{foreign and f'-{foreign}'}"
    if not has_local_image(paths, name):
        with step("make the base image"):
            _make(paths, name, sources, foreign)
    return name


def debian_sources(index_targets: str) -> list[str]:
    """Turn what apt reports about its package lists into the lines of a sources.list."""
    targets = {tuple(line.split("|")) for line in index_targets.splitlines() if line}
    wanted = sorted(t[1:] for t in targets if t[0] == "Debian" and t[2].startswith(DEBIAN_RELEASE))
    return [f"deb {uri} {suite} {component}" for uri, suite, component in wanted]


def _make(paths: Paths, name: str, sources: Sequence[str], foreign: str) -> None:
    with TemporaryDirectory(dir=paths.cache) as folder:
        archive = Path(folder) / "base.tar"
        run(
            [
                *("nice", "-n", "10", "mmdebstrap", "--mode=root", "--variant=minbase"),
                f"--include={','.join(_PACKAGES)}",
                *((f"--architectures={foreign}",) if foreign else ()),
                *(DEBIAN_RELEASE, archive, "-"),
            ],
            timeout_s=1800,
            stdin="\n".join([*sources, ""]).encode(),
        )
        recipe = Path(folder) / "Dockerfile"
        recipe.write_text("FROM scratch\nADD base.tar /\n")
        place = ("--platform", f"linux/{foreign}") if foreign else ()
        words = ("bud", "--layers", *place, "--tag", name, "--file", recipe, folder)
        buildah(paths, *words, timeout_s=600)
